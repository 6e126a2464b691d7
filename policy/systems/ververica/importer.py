"""Ververica Platform: the role assignments and the authentication settings in the values of its Helm chart.

From ``global.initialAccessFileContent.initialAccess`` comes the InitialAccess ``main``, from ``global.authentication``
the Authentication ``main``. Secrets are left out, and no value of what is left out is shown. Other values of the chart
are not about access. An assignment only ever allows, so one that cannot be taken over is left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policy.importers.frame import Document, Findings, ImportInput, Source, Spot, document, refusal, refusal_of_item
from policy.importers.inputs import read_spots

NAME = "main"
ROOT = "global"
ACCESS = "initialAccessFileContent"
ENTRIES = "initialAccess"
AUTHENTICATION = "authentication"
SETTINGS = {"oidc": ("enabled", "clientId", "discoveryUri", "groupsClaim"), "saml": ("enabled", "groupsAttribute")}
SAML_PLACE, SAML_GROUPS = "identity-provider", "groups-attribute"
SECRETIVE = ("secret", "password", "token", "key", "credential")
MERGED = "give one file: what `helm get values RELEASE --all --output yaml` prints is what Helm made of all of them"


def translate(files: Sequence[ImportInput], findings: Findings) -> Iterable[Document]:
    """See the module; raises FilesRefused."""
    access, settings = list[tuple[Spot, Any]](), list[tuple[Spot, Any]]()
    for file_spot, value in read_spots(files, findings):
        spot, values = _global(value, file_spot)
        for field, into in ((ACCESS, access), (AUTHENTICATION, settings)):
            if values.get(field) is not None:
                into.append((spot.inside(field), values[field]))
    if not access and not settings:
        findings.at(files[0].file).warning(
            f"has neither {ROOT}.{ACCESS} nor {ROOT}.{AUTHENTICATION}, so there is nothing to import",
            "give the values of the Helm release",
        )
    for occurrences, read in ((access, _initial_access), (settings, _authentication)):
        if (single := _single(occurrences)) is not None:
            yield from read(*single)


def _global(value: Any, spot: Spot) -> tuple[Spot, Mapping[str, Any]]:
    """The part of the values that access is in; the names of all others are shown."""
    inner = value.get(ROOT) if isinstance(value, Mapping) else None
    if not isinstance(inner, Mapping):
        spot.warning(f"has no mapping {ROOT!r}, so there is nothing to import", "give the values of the Helm release")
        return spot, {}
    others = [name for name in value if name != ROOT]
    others += [f"{ROOT}.{name}" for name in inner if name not in (ACCESS, AUTHENTICATION)]
    if others:
        spot.note(f"other values are not about access: {', '.join(others)}", "nothing")
    return spot.inside(ROOT), inner


def _single(occurrences: Sequence[tuple[Spot, Any]]) -> tuple[Spot, Mapping[str, Any]] | None:
    """The one place that a value is given at, as a mapping. Helm lets a later file replace an earlier one's."""
    if len(occurrences) > 1:
        for spot, _ in occurrences:
            spot.error("is given in more than one file or document; which of them is in force is not known", MERGED)
        return None
    for spot, value in occurrences:
        if isinstance(value, Mapping):
            return spot, value
        spot.warning(f"is not a mapping but {type(value).__name__}", "correct the values")
    return None


def _initial_access(spot: Spot, content: Mapping[str, Any]) -> Iterable[Document]:
    if unknown := [name for name in content if name != ENTRIES and content[name] is not None]:
        why = f"unknown fields may restrict the assignments, which are left out: {', '.join(unknown)}"
        spot.warning(why, "see what they are for, and leave them out if they restrict nothing")
        return
    entries = content.get(ENTRIES)
    if not isinstance(entries, list):
        spot.inside(ENTRIES).warning(f"is not a list but {type(entries).__name__}", "correct the values")
        return
    kept = [entry for number, entry in enumerate(entries) if _fits(entry, spot.inside(ENTRIES).inside(number))]
    if kept:
        # Each only once, in an order of its own: the list is a set (VV-RESOLVE-UNION).
        unique = {tuple(sorted(entry.items())): entry for entry in map(_plain, kept)}
        yield document("ververica", "InitialAccess", NAME, {ENTRIES: [unique[key] for key in sorted(unique)]})


def _fits(entry: Any, spot: Spot) -> bool:
    """Whether lockkeeper takes the entry: one that is ill-formed would refuse all of them (VV-Q3, VV-Q4, VV-Q8)."""
    value = _plain(entry) if isinstance(entry, Mapping) else entry
    errors = refusal_of_item("ververica", "InitialAccess", ENTRIES, value)
    if errors:
        why = "; ".join(errors)
        spot.warning(f"the assignment is left out: {why}", "correct the entry, if somebody is to have this role")
    return not errors


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that are there and say nothing."""
    return {field: value for field, value in entry.items() if value is not None}


def _authentication(spot: Spot, content: Mapping[str, Any]) -> Iterable[Document]:
    _tell_others(spot, content, SETTINGS)
    spec: dict[str, Any] = {}
    for protocol in SETTINGS:
        if content.get(protocol) is not None:
            settings = _protocol(protocol, content[protocol], spot.inside(protocol))
            spec |= {protocol: settings} if settings else {}
    if spec:
        yield document("ververica", "Authentication", NAME, spec)


def _protocol(protocol: str, settings: Any, spot: Spot) -> dict[str, Any] | None:
    """The settings that say where a token names its groups; None where they are not known."""
    if not isinstance(settings, Mapping):
        spot.warning(f"is not a mapping but {type(settings).__name__}", "correct the values")
        return None
    kept = _kept(settings, (*SETTINGS[protocol], *(SAML_GROUPS, SAML_PLACE) * (protocol == "saml")), spot)
    if protocol == "saml" and isinstance(kept.get(SAML_PLACE), Mapping):
        names = (SAML_GROUPS, *SETTINGS["saml"][1:])
        kept[SAML_PLACE] = _kept(kept[SAML_PLACE], names, spot.inside(SAML_PLACE))
    if not refusal(document("ververica", "Authentication", NAME, {protocol: kept})):
        return kept
    spot.warning(
        "a setting is of the wrong type, empty, or given twice with different values (VV-Q5): no groups are recognised",
        "write `enabled` as true or false and names as text",
    )
    return None


def _kept(settings: Mapping[str, Any], names: Sequence[str], spot: Spot) -> dict[str, Any]:
    _tell_others(spot, settings, names)
    return {name: settings[name] for name in names if settings.get(name) is not None}


def _tell_others(spot: Spot, content: Mapping[str, Any], names: Iterable[str]) -> None:
    """Name what is left out, never its value."""
    for name in content:
        if name in names:
            continue
        if any(word in name.lower() for word in SECRETIVE):
            spot.inside(name).note("a secret is left out: policy documents are no place for it", "nothing")
        else:
            spot.inside(name).note("is left out: it does not say who may do what", "nothing")


SOURCES = {
    "ververica": Source(
        "ververica",
        "the values of the Helm release (YAML): role assignments, authentication",
        translate,
        (
            "helm get values ververica --all --output yaml > values.yaml",
            "lockkeeper import ververica values.yaml --out policies/",
        ),
    )
}
