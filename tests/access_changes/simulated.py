"""A log of documents and decisions of five systems, and what the reference evaluator says of both."""

import functools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from hypothesis import Phase, given, settings

from policy import CLAIMS, DocumentStore, Key, Snapshot, all_systems, decide, identify
from policy.analysis import Affected, Answer, Edit, FactDocuments, Turned, affected_by, question_of, refused, said
from policy.core.request import Request, parse_request
from policy.evaluation import reference
from policy.store.overlay import FactOverlay, change_of
from streaming.access_changes.following import Change, Decided, InForce
from streaming.records.access_change import AccessChange, Cause, Moment, access_change
from streaming.topics import TopicNames
from tests.policy.test_changes_reported import LATEST, MOMENT, edited, pool_of, thinned, without_dates
from tests.policy.test_properties import documents_of

SYSTEMS = ("cdap", "lenses5", "lenses6", "streamsets", "ververica")
END = LATEST + 4
TOPICS = TopicNames(systems=SYSTEMS)
BY_SYSTEM = TOPICS.policy_topics()


@functools.cache
def requests_of_system(system: str) -> list[dict[str, Any]]:
    """Requests without a time of their own."""
    return [{**request, "time": None} for request in pool_of(system)]


@functools.cache
def folders_of(system: str) -> list[list[dict[str, Any]]]:
    """Documents of a system, drawn once."""
    found: list[list[dict[str, Any]]] = []

    @settings(max_examples=60, deadline=None, database=None, phases=[Phase.generate], derandomize=True)
    @given(documents_of(system))
    def draw(documents: list[dict[str, Any]]) -> None:
        if documents:
            found.append(documents)

    draw()
    return found


class Step(NamedTuple):
    """A change as the topics have it."""

    change: Change
    affected: list[Affected]
    in_force: InForce


class Asked(NamedTuple):
    """A decision: its request, and how many changes of each topic it has seen."""

    request: dict[str, Any]
    decided: Decided


class Documents:
    """The topics of policies and facts; each change is compiled from the beginning."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._folders = chance, {system: folders_of(system) for system in SYSTEMS}
        self._policies, self._facts = DocumentStore(systems=SYSTEMS), DocumentStore(facts_only=True, systems=SYSTEMS)
        self._overlay, self._fact_documents = FactOverlay(), FactDocuments()
        self._overlay.sees_all_from_now(0)
        self._ends = dict.fromkeys((*BY_SYSTEM.values(), TOPICS.facts), 0)
        self._there: dict[str, dict[Key, dict[str, Any]]] = {system: {} for system in SYSTEMS}
        for system in SYSTEMS:
            for published in without_dates(thinned(chance, chance.choice(self._folders[system]))):
                self._put(dict(published.document), 0)
        self.first = self._in_force()

    def parts(self) -> tuple[Snapshot, FactOverlay]:
        """The policies, and the facts of the facts topic, as they are now."""
        return Snapshot(self._policies), self._overlay.copy()

    def _in_force(self) -> InForce:
        newest = {topic: {"0": end - 2} for topic, end in self._ends.items()}
        facts = newest.pop(TOPICS.facts)["0"]
        return InForce(Snapshot(self._policies).with_facts(self._overlay), newest, facts)

    def _put(self, document: Mapping[str, Any] | Key, at: int) -> tuple[str, list[Affected]]:
        """Publish or, of a key, delete a document: the topic, and what it concerns."""
        key = document if isinstance(document, Key) else identify(document)
        is_fact = self._is_fact(key)
        store, topic = (self._facts, TOPICS.facts) if is_fact else (self._policies, BY_SYSTEM[key.system])
        before = store.histories.get(key)
        was, was_refused = said(before), refused(before)
        order = self._ends[topic]
        self._ends[topic] += 2  # the marker of the transaction takes an offset
        if isinstance(document, Key):
            store.delete(key, at, order)
            self._there[key.system].pop(key, None)
        else:
            store.put(document, at, order)
            self._there[key.system][key] = dict(document)
        after = store.histories.get(key)
        if is_fact:
            change = change_of(key, after)
            self._overlay.apply(change)
            return topic, self._fact_documents.affected_by([change])
        edit = Edit(str(key), was, said(after), was_refused, refused(after))
        return topic, [affected_by(key.system, [edit]), self._fact_documents.below(key)]

    @staticmethod
    def _is_fact(key: Key) -> bool:
        kind = all_systems()[key.system].kinds.get(key.kind)
        return kind is not None and kind.fact

    def step(self, at: int) -> Step:
        """The next change: of one document of one of the systems."""
        chance, system = self._chance, self._chance.choice(SYSTEMS)
        there, other = self._there[system], chance.choice(chance.choice(self._folders[system]))
        if there and chance.random() < 0.8:
            key = chance.choice(sorted(there))
            document: Any = key if chance.random() < 0.25 else edited(chance, there[key], other)
        else:
            document = other
        if not isinstance(document, Key):
            document = {name: value for name, value in document.items() if name != "effective_at"}
        topic, affected = self._put(document, at)
        cause = None if topic == TOPICS.facts else Cause(f"{topic}-{self._ends[topic] - 2}")
        return Step(Change(topic, self._ends[topic] - 2, at, frozenset({system}), cause), affected, self._in_force())


class Event(NamedTuple):
    """What may turn an answer: a change, the number of which is `steps` - 1, or that a moment passes."""

    steps: int
    at: int
    change: Change | None


class Log:
    """Changes, and decisions in the order of their topic."""

    def __init__(self, seed: int, changes: int, decisions: int, questions: int) -> None:
        self.chance = chance = random.Random(seed)
        documents = Documents(chance)
        self.first, at = documents.first, MOMENT
        self.steps: list[Step] = []
        self._parts = [documents.parts()]
        for _ in range(changes):
            at = min(at + chance.choice((0, 0, 1, 1, 2)), END - 1)
            self.steps.append(documents.step(at))
            self._parts.append(documents.parts())
        self._pool = self._questions(questions)
        self._outcomes: dict[tuple[bytes, int, int], str] = {}
        self.asked = sorted((self._ask() for _ in range(decisions)), key=lambda one: one.decided.at)
        for _ in range(decisions // 3):  # partitions are read one further than the other
            here = chance.randrange(len(self.asked) - 1)
            self.asked[here], self.asked[here + 1] = self.asked[here + 1], self.asked[here]

    def _questions(self, count: int) -> list[dict[str, Any]]:
        """Mostly such as the changes turn: of others there are very many."""
        chance, states = self.chance, {system: self._states_of(system) for system in SYSTEMS}
        asked = [request for system in SYSTEMS for request in chance.sample(requests_of_system(system), 80)]
        turning = [
            one
            for one in asked
            if len({decide(snapshot, {**one, "time": at}).outcome for snapshot, at in states[one["system"]]}) > 1
        ]
        chance.shuffle(turning)
        return [*turning[: count - count // 4], *chance.sample(asked, max(count - len(turning), count // 4))]

    def _states_of(self, system: str) -> list[tuple[Snapshot, int]]:
        """What was in force of a system, each at some moments: changes of others turn none of its answers."""
        steps = [step for step in self.steps if system in step.change.systems]
        snapshots = [in_force.snapshot for in_force in (self.first, *(step.in_force for step in steps))]
        return [(snapshot, at) for snapshot in snapshots for at in (MOMENT, (MOMENT + END) // 2, END)]

    def in_force(self, steps: int) -> InForce:
        """After so many changes."""
        return self.steps[steps - 1].in_force if steps else self.first

    def _ask(self) -> Asked:
        """A decision at a moment: it has seen all that came before its request, and perhaps some that came later."""
        chance, at = self.chance, self.chance.randrange(MOMENT, END)
        least = sum(step.change.at <= at for step in self.steps)
        policies, facts = (min(len(self.steps), least + chance.choice((0, 0, 1, 2, 4))) for _ in range(2))
        if chance.random() < 0.5:
            facts = policies
        request = chance.choice(self._pool)
        parsed = parse_request({**request, "time": None})
        assert isinstance(parsed, Request)
        question = question_of(parsed, CLAIMS)
        in_force, facts_offset = self.in_force(policies), self.in_force(facts).facts_offset
        snapshot = self._parts[policies][0].with_facts(self._parts[facts][1])
        outcome = str(reference.decide(snapshot, {**request, "time": at}))
        answer = Answer(outcome)  # type: ignore[arg-type]
        return Asked(request, Decided(question, at, in_force.policy_offsets, facts_offset, answer))

    def outcome(self, asked: Asked, steps: int, at: int) -> str:
        """By the reference evaluator."""
        key = (asked.decided.question.key, steps, at)
        if key not in self._outcomes:
            snapshot = self.in_force(steps).snapshot
            self._outcomes[key] = str(reference.decide(snapshot, {**asked.request, "time": at}))
        return self._outcomes[key]

    @functools.cached_property
    def shown(self) -> dict[bytes, bytes]:
        """The questions as records show them, by key: without the claims of the subject."""
        answer = Answer("deny")
        since = Moment(0, "", {}, 0)
        questions = {asked.decided.question.key: asked.decided.question for asked in self.asked}
        return {key: shown(access_change(Turned(one, answer, answer), since)) for key, one in questions.items()}

    @functools.cached_property
    def events(self) -> list[Event]:
        """All moments and changes in their order: what ends by itself comes before a change at the same time."""
        found, steps = [Event(0, MOMENT, None)], 0
        for at in range(MOMENT, END + 1):
            if at > MOMENT:
                found.append(Event(steps, at, None))
            for step in self.steps[steps:]:
                if step.change.at != at:
                    break
                steps += 1
                found.append(Event(steps, at, step.change))
        return found

    def expected(self) -> tuple[Counter[tuple[bytes, str, str]], Counter[tuple[bytes, str, str, int]]]:
        """What turns, each with what it turns to: first what decisions lacked, then with the moment all else."""
        lacked, turned = Counter[tuple[bytes, str, str]](), Counter[tuple[bytes, str, str, int]]()
        since: dict[bytes, int] = {}
        for asked in self.asked:
            key = asked.decided.question.key
            first, has_seen_all = self._newest_seen(asked.decided)
            if key in since and first >= since[key]:
                continue
            last = since.get(key, len(self.events) - 1)
            was = self._at(asked, first)
            assert asked.decided.answer is not None
            if not has_seen_all and asked.decided.answer.outcome != was:
                lacked[key, asked.decided.answer.outcome, was] += 1
            for number in range(first + 1, last + 1):
                now = self._at(asked, number)
                if now != was:
                    turned[key, was, now, self.events[number].at] += 1
                was = now
            since[key] = first
        return lacked, turned

    def _at(self, asked: Asked, number: int) -> str:
        event = self.events[number]
        return self.outcome(asked, event.steps, event.at)

    def _newest_seen(self, decided: Decided) -> tuple[int, bool]:
        seen = [self._has_seen(decided, event) for event in self.events]
        last = max(number for number, one in enumerate(seen) if one)
        return last, all(seen[:last])

    def _has_seen(self, decided: Decided, event: Event) -> bool:
        if event.change is None:
            return decided.at >= event.at
        if decided.question.request.system not in event.change.systems:
            return decided.at >= event.at  # concerns others
        if event.change.topic == TOPICS.facts:
            return decided.facts_offset >= event.change.offset
        return decided.policy_offsets[event.change.topic]["0"] >= event.change.offset


def shown(one: AccessChange) -> bytes:
    """A question as its record shows it; names of its context may come in any order."""
    return msgspec.json.encode((one.system, one.subject, one.action, one.resource, one.context), order="deterministic")


def seen_steps(log: Log, decided: Decided) -> Iterator[int]:
    """How many changes must be followed before a decision is remembered."""
    for number, step in enumerate(log.steps, 1):
        offsets = decided.policy_offsets[step.change.topic]["0"] if step.change.topic != TOPICS.facts else None
        if (decided.facts_offset if offsets is None else offsets) >= step.change.offset:
            yield number
