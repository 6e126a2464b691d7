"""Names in case files that nothing knows: a case that expects a deny holds for any name that is misspelt."""

from collections.abc import Iterator

import msgspec

from policy.analysis.named_in_documents import UnknownName
from policy.analysis.unknown_names import unknown_names
from policy.core.request import MalformedRequest
from policy.testing.casefile import CaseFile, Expectation
from policy.testing.run import Documents, Scene, describe, scenes


class UnknownInCase(msgspec.Struct, frozen=True):
    """A name of one expectation. ``stage``: counted from 0."""

    case: str
    stage: int
    request: str
    unknown: UnknownName

    def __str__(self) -> str:
        return f"{self.case}, stage {self.stage + 1}: {self.request}: {self.unknown}"


class CaseNames(msgspec.Struct, frozen=True):
    """``mistakes``: what looks like a typing error. ``matches_nothing``: no request of the file has a subject and a
    resource that its documents know, so that it tests none of their statements.
    """

    mistakes: tuple[UnknownInCase, ...]
    matches_nothing: bool


def names_in(file: CaseFile, given: Documents = ()) -> CaseNames:
    """The names that are not known in ``file``; ``given``: as for `run_cases`.

    Not looked at: what is expected to be an error, since that may be the case's very point, and malformed requests.
    """
    mistakes, all_known = list[UnknownInCase](), list[bool]()
    for scene in scenes(file, given):
        for expectation, names in _unknown(scene):
            request = describe(scene.request(expectation))
            in_case = [UnknownInCase(scene.case.case, scene.number, request, name) for name in names if name.is_mistake]
            mistakes += in_case
            all_known.append(not names)
    return CaseNames(tuple(dict.fromkeys(mistakes)), bool(all_known) and not any(all_known))


def _unknown(scene: Scene) -> Iterator[tuple[Expectation, list[UnknownName]]]:
    for expectation in scene.stage.expect:
        if "error" in ([expectation.answer] if isinstance(expectation.answer, str) else expectation.answer):
            continue
        try:
            yield expectation, unknown_names(scene.snapshot, scene.request(expectation), scene.trust)
        except MalformedRequest:
            continue
