"""Running importers in tests, and asking what they made of their input."""

import json
from pathlib import Path
from typing import Any

from policy import Snapshot, compile_documents, decide
from policy.importers import Finding, ImportInput, Translation, sources, translate

DATA = Path(__file__).parent / "data"


def fixture(name: str) -> ImportInput:
    """A file of the folder `data`."""
    return ImportInput(name, (DATA / name).read_bytes())


def text(content: str, name: str = "input.yaml") -> ImportInput:
    """A file of this content."""
    return ImportInput(name, content.encode())


def as_json(value: Any, name: str = "input.json") -> ImportInput:
    """A JSON file of this value."""
    return text(json.dumps(value), name)


def imported(source: str, *given: ImportInput) -> Translation:
    """What an importer makes of the files; its documents are always such as lockkeeper takes."""
    found = translate(sources()[source], given)
    assert compile_documents(found.documents).rejected == ()
    return found


def documents(found: Translation) -> dict[str, Any]:
    """The specs by ``Kind/name``."""
    return {f"{one['kind']}/{one['name']}": one["spec"] for one in found.documents}


def findings_of_level(found: Translation, level: str) -> list[Finding]:
    """The findings of a level."""
    return [finding for finding in found.findings if finding.level == level]


def places(found: Translation, level: str) -> list[str]:
    """Where they are."""
    return [finding.place for finding in findings_of_level(found, level)]


def snapshot(found: Translation, *others: dict[str, Any]) -> Snapshot:
    """The imported documents in force, beside others."""
    return compile_documents([*found.documents, *others])


def allows(at: Snapshot, system: str, subject: str, action: str, resource: str, **more: Any) -> bool:
    """Whether a request is allowed. ``groups``, ``roles``: what the subject claims; ``time``; ``properties``."""
    claims = {claim: more[claim] for claim in ("groups", "roles") if claim in more}
    return decide(
        at,
        {
            "id": "r",
            "system": system,
            "subject": {"type": "user", "id": subject, "properties": claims},
            "action": {"name": action},
            "resource": {"type": more.get("type", "any"), "id": resource, "properties": more.get("properties", {})},
            **({"time": more["time"]} if "time" in more else {}),
        },
    ).allowed
