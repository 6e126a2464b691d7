"""What turns in random logs is what the reference evaluator computes from them, in whatever order they are read."""

import random
from collections import Counter

import pytest

from policy import CLAIMS, Request, compile_documents, parse_request, to_ms
from policy.analysis import Answer, affected_by, question_of
from streaming.access_changes.following import Change, Decided, Following, InForce
from streaming.records.access_change import AccessChange
from tests.access_changes.simulated import END, MOMENT, TOPICS, Log, seen_steps, shown
from tests.access_changes.traffic import document
from tests.access_changes.traffic import request as asked_of
from tests.examples import examples
from tests.policy.test_questions import ASKED, MEMBER, ROLE, changed

LOGS, LONG = 6, 100
DAY_MS = 24 * 3600 * 1000


class Reader:
    """Reads a log in a random order, and begins again at times with what it has committed: the positions alone."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        self._log, self._chance = log, chance
        self._steps = self._asked = self.restarts = 0
        self.at = MOMENT
        self.found: list[AccessChange] = []
        self.following = Following(TOPICS, log.first, MOMENT, 1_000_000, DAY_MS)

    def run(self, restarts: bool) -> None:
        log = self._log
        while self._steps < len(log.steps) or self._asked < len(log.asked) or self.following.questions.at < END:
            if restarts and self._chance.random() < 0.05:
                self._restart()
            kind = self._chance.choice(("change", "decision", "decision", "time"))
            if kind == "change":
                self._change()
            elif kind == "decision":
                self._decision()
            elif self._time() and self._steps == len(log.steps) and self._asked == len(log.asked):
                return

    def _change(self) -> None:
        for step in self._log.steps[self._steps : self._steps + self._chance.choice((1, 1, 2, 5))]:
            self.found += self.following.change(*step)
            self._steps += 1

    def _decision(self) -> None:
        for asked in self._log.asked[self._asked : self._asked + 1]:
            while self._steps < max(seen_steps(self._log, asked.decided), default=0):
                self._change()
            self.found += self.following.remember(asked.decided)
            self._asked += 1

    def _time(self) -> bool:
        """Time passes, but not beyond a change that is not read. Whether it is at its end."""
        following = self._log.steps[self._steps : self._steps + 1]
        upto = min([END, *(step.change.at for step in following)])
        self.found += self.following.pass_time(upto)
        return upto == END

    def _restart(self) -> None:
        """With the changes from the beginning, one by one, and the decisions that were read: nothing is reported."""
        self.restarts += 1
        before, at = self.following, self.following.questions.at
        self.following = Following(TOPICS, self._log.first, MOMENT, 1_000_000, DAY_MS)
        for step in self._log.steps[: self._steps]:
            self.following.change(*step)
        self.following.resume_at(at)
        for asked in self._log.asked[: self._asked]:
            self.following.remember(asked.decided)
        assert self.following.questions.at == at
        assert len(self.following.questions) == len(before.questions)


def check(seed: int, restarts: bool) -> tuple[int, int]:
    """One log, read in one order: how many were reported, and how often the reader began again."""
    log = Log(seed, changes=25, decisions=120, questions=40)
    reader = Reader(log, random.Random(seed))
    reader.run(restarts)
    lacked, turned = log.expected()
    found = Counter(one.id for one in reader.found)
    assert max(found.values(), default=1) == 1 or lacked
    reported = Counter((shown(one), one.before.outcome, one.after.outcome) for one in reader.found)
    expected = Counter((log.shown[key], was, now) for key, was, now in lacked.elements())
    expected += Counter((log.shown[key], was, now) for key, was, now, _ in turned.elements())
    assert reported == expected
    if not lacked:
        at = Counter((shown(one), one.before.outcome, one.after.outcome, to_ms(one.time)) for one in reader.found)
        assert at == Counter((log.shown[key], was, now, at) for key, was, now, at in turned.elements())
    return len(reader.found), reader.restarts


@pytest.mark.long
@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_reported_is_what_the_reference_evaluator_computes(restarts: bool) -> None:
    found = [check(seed, restarts) for seed in range(examples(LOGS))]
    assert sum(reported for reported, _ in found) > 0
    assert (sum(count for _, count in found) > 0) == restarts


def test_what_had_ended_when_it_was_published_is_compared_with_the_answer_of_an_earlier_request() -> None:
    topic = TOPICS.policy_topics()["lenses6"]
    old = InForce(compile_documents([ROLE]), {topic: {"0": 0}}, -1)
    change = changed([ROLE], [{**MEMBER, "valid_until": 8}])
    new = InForce(change.after, {topic: {"0": 1}}, -1)
    following = Following(TOPICS, old, 0, 10, DAY_MS)
    following.change(Change(topic, 1, 11, frozenset({"lenses6"})), [affected_by("lenses6", change.edits)], new)
    [found] = following.remember(Decided(ASKED, 6, new.policy_offsets, -1, Answer("allow")))
    assert (found.before.outcome, found.after.outcome, to_ms(found.time)) == ("allow", "deny", 11)


def test_what_had_ended_before_a_restart_is_not_reported_again() -> None:
    """Only the question says that a fact ends, and at first it is not known."""
    topic, consumers = TOPICS.policy_topics()["lenses5"], {"system": "lenses5", "kind": "ConsumerGroup", "name": "c1"}
    of_topics = [{**consumers, "spec": {"connection": "kafka", "topics": [name]}} for name in ("r1", "r2")]
    dated = [{**one, "effective_at": at} for one, at in zip(of_topics, (0, 100), strict=True)]
    in_force = InForce(compile_documents([document("lenses5", 1, ["u1"]), *dated]), {topic: {"0": 0}}, 0)
    parsed = parse_request({**asked_of("lenses5", "u1", 1, of_consumers=True), "time": None})
    assert isinstance(parsed, Request)
    decided = Decided(question_of(parsed, CLAIMS), 50, in_force.policy_offsets, 0, Answer("allow"))
    before, after = (Following(TOPICS, in_force, at, 10, DAY_MS) for at in (0, 90))
    before.remember(decided)
    assert [one.after.outcome for one in before.pass_time(120)] == ["deny"]
    after.resume_at(before.questions.at)
    after.remember(decided)
    assert (after.questions.at, after.pass_time(130)) == (100, [])


@pytest.mark.long
def test_what_is_reported_of_a_hundred_logs() -> None:
    found = [check(seed, restarts=True) for seed in range(1000, 1000 + LONG)]
    print(f"{sum(reported for reported, _ in found)} records, {sum(count for _, count in found)} restarts")
    assert sum(reported for reported, _ in found) > LONG
