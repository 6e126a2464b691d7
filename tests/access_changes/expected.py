"""What must be reported of some traffic, computed from its logs by the reference evaluator.

It looks at every membership for each answer: with all documents that would take hours. So a question is evaluated with
those documents alone that speak of its subject and its resource, and with what they say of these; and again after each
change of that. That nothing else matters is checked for a random sample of questions and changes, with all documents.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from policy import CLAIMS, compile_documents
from policy.evaluation import reference
from tests.access_changes.traffic import SYSTEMS, Event, Traffic, shown

Record = tuple[str, str, str, str]  # question, outcomes, and change: "" for an end or a fact
Document = dict[str, Any]
SNAPSHOTS = 12  # states in which answers are computed with all documents, too …
SAMPLE, SHARE = 200, 0.2  # … for so many questions, or for this share of few
LIST_OF = {"Group": "members", "InitialAccess": "initialAccess", "Object": "acl"}  # those of whom a document speaks


def of_subject(document: Document, user: str) -> Document:
    """A document with what it says of one user alone."""
    field = LIST_OF.get(document["kind"], "")
    said = document["spec"].get(field)
    if isinstance(said, dict):
        said = {name: rights for name, rights in said.items() if name == f"user:{user}"}
    elif said is not None:
        said = [one for one in said if user in (one, *_users(one))]
    return document if said is None else {**document, "spec": {**document["spec"], field: said}}


def _users(member: Any) -> tuple[str, ...]:
    return (member["userId"],) if isinstance(member, dict) else (member.removeprefix("user:"),)


def about(request: Document) -> tuple[str, int]:
    """The user and the number of the resource."""
    resource = request["resource"]
    name = resource.get("properties", {}).get("namespaceId", resource["id"])
    number = re.search(r"[rc](\d+)$", name)
    assert number is not None
    return request["subject"]["id"].removeprefix("user:"), int(number[1])


class _Versions:
    """Of each document all versions, by its name: each with the number of the change from which on it is in force."""

    def __init__(self, published: Iterable[tuple[int, Document]]) -> None:
        self._of: dict[str, list[tuple[int, Document]]] = defaultdict(list)
        self._named: dict[str, set[str]] = defaultdict(set)  # by user, the groups of Lenses 5 that ever name it
        for index, document in published:
            name = f"{document['system']}/{document['kind']}/{document['name']}"
            self._of[name].append((index, document))
            if name.startswith("lenses5/Group"):
                for member in document["spec"]["members"]:
                    self._named[member].add(name)

    def names(self, request: Document) -> list[str]:
        """The documents that speak of the subject and the resource of a request."""
        system, (user, number) = request["system"], about(request)
        if request["resource"]["type"] == "consumer-group":  # which consumers a user may see rests on all its groups
            return [f"lenses5/ConsumerGroup/c{number}", *sorted(self._named[user])]
        return {
            "lenses6": [f"lenses6/Role/r{number}", f"lenses6/Group/r{number}"],
            "lenses5": [f"lenses5/Group/r{number}"],
            "ververica": [f"ververica/InitialAccess/r{number}"],
            "streamsets": ["streamsets/Organization/acme", f"streamsets/Object/pipeline:r{number}"],
            "cdap": [f"cdap/Grant/r{number}"],
        }[system]

    def at(self, name: str, index: int, user: str) -> Document:
        """What a document said of a user after so many changes."""
        return of_subject(self._newest(name, index), user)

    def all_at(self, index: int) -> list[Document]:
        """All documents after so many changes."""
        return [self._newest(name, index) for name in self._of]

    def _newest(self, name: str, index: int) -> Document:
        return [document for since, document in self._of[name] if since <= index][-1]


class Expected:
    """`records`: what must be reported, and how often. `compared`: of how many answers, with all documents."""

    def __init__(self, traffic: Traffic) -> None:
        self._chance, self._versions = random.Random(7), _Versions(traffic.published)
        numbers = self._chance.sample(range(traffic.changes + 1), min(SNAPSHOTS, traffic.changes + 1))
        self._snapshots = {number: compile_documents(self._versions.all_at(number)) for number in numbers}
        self._events = {
            system: sorted((event for event in traffic.events if event.system == system), key=lambda event: event.at)
            for system in SYSTEMS
        }
        self.questions: dict[str, tuple[Document, int]] = {}  # with the number of the first event after the first one
        for asked in traffic.asked:
            question, first = shown(asked.request), self._seen(asked.request["system"], asked.at, asked.changes)
            _, before = self.questions.get(question, (None, first))
            self.questions[question] = asked.request, min(first, before)
        self.compared, self._share = 0, min(SHARE, SAMPLE / max(len(self.questions), 1))
        self.records = Counter[Record]()
        for question, (one, first) in self.questions.items():
            self.records.update((question, *turn) for turn in self._turns(one, first))

    def _seen(self, system: str, at: int, changes: int) -> int:
        """How many events of a system a decision has seen."""
        seen = [event.index <= changes if event.change else event.at <= at for event in self._events[system]]
        first = max((number for number, one in enumerate(seen, 1) if one), default=0)
        assert all(seen[:first]), "an end between a request and its decision: none is near them"
        return first

    def _turns(self, one: Document, first: int) -> Iterator[tuple[str, str, str]]:
        """How a question turns after the events that it has seen."""
        (user, _), names, events = about(one), self._versions.names(one), self._events[one["system"]]
        index = max((event.index for event in events[:first]), default=0)
        was = ""
        for event in events[first:]:
            if event.document in names and (not event.change or self._is_changed(event, user)):
                was = was or self._outcome(one, names, index, event.at - 1)
                now = self._outcome(one, names, max(index, event.index), event.at)
                if now != was:
                    yield was, now, "" if event.is_fact else event.change
                was = now
            index = max(index, event.index)
            if index in self._snapshots and self._chance.random() < self._share:
                self._compare(one, was or self._outcome(one, names, index, event.at), index, event.at)

    def _is_changed(self, event: Event, user: str) -> bool:
        before, after = (self._versions.at(event.document, index, user) for index in (event.index - 1, event.index))
        return before != after

    def _outcome(self, one: Document, names: list[str], index: int, at: int) -> str:
        user, _ = about(one)
        snapshot = compile_documents([self._versions.at(name, index, user) for name in names])
        assert not snapshot.rejected
        return str(reference.decide(snapshot, {**one, "time": at}, trust=CLAIMS))

    def _compare(self, one: Document, outcome: str, index: int, at: int) -> None:
        self.compared += 1
        assert str(reference.decide(self._snapshots[index], {**one, "time": at}, trust=CLAIMS)) == outcome, one
