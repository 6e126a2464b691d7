"""Which questions turn: states of policies and facts, one after the other, and the decisions that were made by them.

A state begins with a change of documents, or at a moment at which something begins or ends by itself. Whatever the
order in which decisions and changes are read, what is reported is the same: a decision belongs to the newest state that
it has seen, and what turned after that is reported if it was not yet. So nothing is reported for a question that is
asked for the first time after a change, and nothing is missed of one that was decided just before it.
"""

from collections.abc import Iterable

import msgspec

from policy import Snapshot
from policy.analysis import Affected, Answer, Question, Questions, Turned
from streaming.records.access_change import AccessChange, Cause, Moment, access_change
from streaming.topics import Offsets, TopicNames, newest_offset


class Change(msgspec.Struct, frozen=True):
    """Records of one topic that came into force together: `offset` is that of the last one, `at` its time (ms).

    `systems`: of its documents. `cause`: of policies alone.
    """

    topic: str
    offset: int
    at: int
    systems: frozenset[str]
    cause: Cause | None = None


class InForce(msgspec.Struct, frozen=True):
    """Policies and facts at the offsets of the newest records."""

    snapshot: Snapshot
    policy_offsets: Offsets
    facts_offset: int


class Decided(msgspec.Struct, frozen=True):
    """A question that was decided at a moment (ms) and at these offsets.

    `answer`: None where policies did not determine it, such as after a deadline.
    """

    question: Question
    at: int
    policy_offsets: Offsets
    facts_offset: int
    answer: Answer | None


class _State(msgspec.Struct, frozen=True):
    """`change` None: a moment passed. Without the snapshot, which `Questions` hold."""

    number: int
    change: Change | None
    since: Moment


class Following:
    """Follows states and remembers questions. `questions`: what is remembered, and up to when time was followed.

    Beginning with `in_force` at a moment (ms). `most`: questions; `kept_ms`: for how long after they were asked.
    """

    def __init__(self, topics: TopicNames, in_force: InForce, at: int, most: int, kept_ms: int) -> None:
        self._topics, self._facts = topics.policy_topics(), topics.facts
        self.questions = Questions(in_force.snapshot, at, most, kept_ms)
        self._in_force = in_force
        self._states = {0: _state(0, at, None, in_force)}

    def change(self, change: Change, affected: Iterable[Affected], in_force: InForce) -> list[AccessChange]:
        """Go on to what is in force after a change; see `Affected`. What ends by itself before it comes first."""
        return [*self.pass_time(change.at), *self._follow(change, affected, in_force, change.at)]

    def pass_time(self, upto: int) -> list[AccessChange]:
        """Go on to a moment (ms): each at which something begins or ends by itself is a state of its own."""
        changes: list[AccessChange] = []
        while (edge := self.questions.next_edge()) is not None and edge <= upto:
            changes += self._follow(None, (), self._in_force, edge)
        return changes

    def resume_at(self, moment: int) -> None:
        """Go on to a moment (ms) up to which all was reported before, as a state of its own.

        Of what had ended by then, no question is known yet: with it, the end is not reported again.
        """
        self.pass_time(moment)
        if self.questions.at < moment:
            self._follow(None, (), self._in_force, moment)

    def _follow(
        self, change: Change | None, affected: Iterable[Affected], in_force: InForce, at: int
    ) -> list[AccessChange]:
        turned = self.questions.follow(in_force.snapshot, affected, at)
        number, oldest = self.questions.state, self.questions.oldest_state
        self._in_force, self._states[number] = in_force, _state(number, self.questions.at, change, in_force)
        while (first := next(iter(self._states))) < oldest:
            del self._states[first]
        return self._records(turned)

    def remember(self, decided: Decided) -> list[AccessChange]:
        """Note a decision: policies and facts are followed at least up to its offsets."""
        if decided.question.request.system not in self._topics:
            return []
        changes = self.pass_time(decided.at)
        state, has_seen_all = self._newest_seen(decided)
        answer = None if has_seen_all else decided.answer
        return changes + self._records(self.questions.remember(decided.question, decided.at, state, answer))

    def _newest_seen(self, decided: Decided) -> tuple[int, bool]:
        """The newest state of which a decision has seen what is new, and whether it has seen all before that, too.

        Usually it has. But it is dated by its request, and the job may have read one topic further than another.
        """
        system, later, newest = decided.question.request.system, self.questions.state, None
        for state in reversed(self._states.values()):
            is_first = state.number == self.questions.oldest_state
            if state.change is not None and system not in state.change.systems and not is_first:
                continue
            if self._has_seen(decided, state):
                newest = state.number if newest is None else newest
                if newest == state.number and decided.at < state.since.at:
                    return newest, False  # what has ended by then, it may have taken for granted
                if self._has_seen_offsets(decided, state) and decided.at >= state.since.at:
                    return (later if newest == state.number else newest), True
            elif newest is None:
                later = state.number - 1
            else:
                return newest, False
        return (later, False) if newest is None else (newest, True)

    def _has_seen(self, decided: Decided, state: _State) -> bool:
        """Whether it has seen what is new in a state; of the oldest one that is held: all of it."""
        if state.number == self.questions.oldest_state:
            return self._has_seen_offsets(decided, state) and decided.at >= state.since.at
        if state.change is None:
            return decided.at >= state.since.at
        if state.change.topic == self._facts:
            return decided.facts_offset >= state.change.offset
        return newest_offset(decided.policy_offsets, state.change.topic) >= state.change.offset

    def _has_seen_offsets(self, decided: Decided, state: _State) -> bool:
        topic = self._topics[decided.question.request.system]
        policies = newest_offset(decided.policy_offsets, topic) >= newest_offset(state.since.policy_offsets, topic)
        return policies and decided.facts_offset >= state.since.facts_offset

    def _records(self, turned: Iterable[Turned]) -> list[AccessChange]:
        return [access_change(question, self._moment(question)) for question in turned]

    def _moment(self, turned: Turned) -> Moment:
        since = self._states[turned.state].since
        return since if since.at == turned.at else msgspec.structs.replace(since, at=turned.at, change=None)


def _state(number: int, at: int, change: Change | None, in_force: InForce) -> _State:
    cause, version = change.cause if change is not None else None, in_force.snapshot.version
    return _State(number, change, Moment(at, version, in_force.policy_offsets, in_force.facts_offset, cause))
