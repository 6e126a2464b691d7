"""What the page of access shows of a resource: who may do what with it, each with the path, within a bound of time."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from policy import MalformedRequest, Snapshot
from policy.analysis import ResourceAccess, ResourceQuestion, known_names
from policy.testing import CaseFileError, DraftRequest, actions_of, full_request, refuse_ignored, short_form_of
from streaming.console.playground import TITLES

SECONDS = 0.3  # to evaluate names, of all systems together; each name is finished
MOST_ROWS = 500  # of a system

ANY = {"type": "user", "id": "any"}
"""A subject whose name does not count; what stands beside it, such as an organization, does."""

MALFORMED = (CaseFileError, MalformedRequest)


class ResourceAnswer(msgspec.Struct, frozen=True):
    """Who may do what in one system. ``why``: why that is not known.

    ``asked``: of so many ``names`` it is shown, first those that a matching statement reaches (``reached``).
    """

    title: str
    rows: tuple[ResourceAccess, ...] = ()
    actions: int = 0
    asked: int = 0
    reached: int = 0
    names: int = 0
    why: str = ""


def resource_answers(snapshot: Snapshot, systems: list[str], fields: Mapping[str, str]) -> list[ResourceAnswer]:
    """Who may do what with the resource of a form. Of several systems those are left out that know nothing of it."""
    answers, left = list[ResourceAnswer](), SECONDS
    for system in systems:
        answer, seconds = _answer_of(snapshot, system, fields, left)
        answers.append(answer)
        left -= seconds
    return [answer for answer in answers if answer.rows or answer.asked < answer.names or len(systems) == 1]


def _answer_of(
    snapshot: Snapshot, system: str, fields: Mapping[str, str], seconds: float
) -> tuple[ResourceAnswer, float]:
    """The answer, and how long names were evaluated (s)."""
    title = TITLES.get(system, system)
    try:
        question = ResourceQuestion(snapshot, system, _requests(snapshot, system, fields))
    except MALFORMED as error:
        return ResourceAnswer(title, why=str(error)), 0.0
    if not question.actions:
        why = question.why or "no action of this language is on such a resource"
        return ResourceAnswer(title, why=why), 0.0
    rows: list[ResourceAccess] = []
    began = time.monotonic()
    asked = -1  # the first answer is that of any principal
    for of_name in question.answers():
        rows += of_name
        asked += 1
        if time.monotonic() > began + seconds or len(rows) >= MOST_ROWS:
            break
    answer = ResourceAnswer(title, tuple(rows), len(question.actions), asked, question.reached, question.principals)
    return answer, time.monotonic() - began


def _requests(snapshot: Snapshot, system: str, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every action on the resource, now. Raises CaseFileError."""
    now = time.time_ns() // 1_000_000
    for action in _actions(snapshot, system):
        asked = short_form_of(DraftRequest("", "", action, fields["resource"], fields["more"]))
        request = full_request({"subject": ANY, **asked}, system)
        refuse_ignored(request)
        yield {**request, "id": "console", "time": now, "system": system}


def _actions(snapshot: Snapshot, system: str) -> list[str]:
    named = known_names(snapshot.policy_sets[system], system) if system in snapshot.policy_sets else None
    return actions_of(system) if named is None else sorted(named.actions)
