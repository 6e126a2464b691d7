"""What changes of documents open: cases in escalations/*.yaml, one file a system, reported and not reported."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from policy.analysis.escalation import Escalation, open_to_everyone
from policy.core.document import Key
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from tests.policy.changes import Change

FILES = sorted((Path(__file__).parent / "escalations").glob("*.yaml"))


def _cases() -> list[Any]:
    loaded = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES]
    cases = [(one["system"], case) for one in loaded for case in one["cases"]]
    return [pytest.param(system, case, id=f"{system}: {case['name']}") for system, case in cases]


def _shown(one: Escalation, system: str) -> dict[str, Any]:
    """An escalation in the form of the cases."""
    shown = {name: getattr(one, name) for name in one.__struct_fields__}
    where = [one.document.removeprefix(f"{system}/"), one.statement]
    causes = [cause.removeprefix(f"{system}/") for cause in one.causes]
    return {**shown, "where": where, "by": causes, "for": list(one.principals)}


@pytest.mark.parametrize(("system", "case"), _cases())
def test_what_a_change_opens(system: str, case: dict[str, Any]) -> None:
    """Each case tells all, and of each escalation the fields that it is about."""
    before, change = ([{"system": system, **d} for d in case.get(part, ())] for part in ("before", "change"))
    gone = [Key(system, *text.split("/", 1)) for text in case.get("delete", ())]
    opened = [_shown(one, system) for one in Change(system, before, change, gone, case.get("at", 0)).opened]
    key = lambda one: (one["where"], one["kind"], one["severity"], one["by"])  # noqa: E731
    expected = sorted(case["opens"], key=key)
    found = [
        {name: list(one[name]) if isinstance(one[name], tuple) else one[name] for name in wanted}
        for one, wanted in zip(sorted(opened, key=key), expected, strict=False)
    ]
    assert found == expected
    assert len(opened) == len(expected), opened


def test_every_system_has_cases_and_powers() -> None:
    """A new system says what its administration is."""
    assert [path.stem for path in FILES] == sorted(all_systems())
    assert all(engine_of(system) or system.privileged_permissions() for system in all_systems().values())


def test_the_baseline_tells_the_organizations_that_enforce_nothing() -> None:
    """Also where that is old: by their grants."""
    documents = [
        {"system": "streamsets", "kind": "Organization", "name": name, "spec": {"enforcement": name == "shop"}}
        for name in ("shop", "lab")
    ]
    change = Change("streamsets", documents, ())
    [grant] = open_to_everyone(change.system, change.after.policy_sets["streamsets"])
    assert grant.statement_id.document == "streamsets/Organization/lab"
