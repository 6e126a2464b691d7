"""Answers find their questions under any order of delivery reports and answers: `streaming.client.exchange`."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.client.exchange import Correlation
from streaming.records.decision import Place

IDS = st.sampled_from(["a", "b", "c"])  # few: our requests and those of other clients share them


@dataclass
class Log:
    """The topics: each record's place, and what was handed out."""

    correlation: Correlation[str] = field(default_factory=Correlation)
    offset: int = 0
    got: dict[int, str] = field(default_factory=dict)

    def place(self) -> Place:
        """The next free place."""
        self.offset += 1
        return Place("requests", self.offset % 2, self.offset)

    def read(self, place: Place, id_: str | None, answer: str) -> None:
        """An answer is read."""
        ticket = self.correlation.answer(place, id_, answer)
        if ticket is not None:
            self._hand_out(ticket, answer)

    def report(self, ticket: int, place: Place) -> None:
        """A delivery report comes."""
        answer = self.correlation.report(ticket, place)
        if answer is not None:
            self._hand_out(ticket, answer)

    def _hand_out(self, ticket: int, answer: str) -> None:
        assert ticket not in self.got, "two answers for one question"
        self.got[ticket] = answer


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_question_gets_its_own_answer_as_soon_as_report_and_answer_are_there(data: st.DataObject) -> None:
    """Ours and other clients' mixed, some given up at any moment, dead letters without an id among the answers."""
    log = Log()
    to_do: list[tuple[str, int | None, Place, str | None, str]] = []
    places: dict[int, Place] = {}
    done: dict[int, set[str]] = {}
    forgotten: set[int] = set()
    for number in range(data.draw(st.integers(1, 8))):
        id_, place = data.draw(IDS), log.place()
        named = id_ if data.draw(st.booleans()) else None
        if data.draw(st.booleans()):
            ticket = log.correlation.open(id_)
            places[ticket], done[ticket] = place, set()
            to_do += [("report", ticket, place, named, ""), ("answer", ticket, place, named, f"ours {number}")]
            if data.draw(st.booleans()):
                to_do.append(("forget", ticket, place, None, ""))
        else:
            to_do.append(("answer", None, place, named, f"a stranger's {number}"))
        while to_do and data.draw(st.booleans()):
            _do(log, to_do.pop(data.draw(st.integers(0, len(to_do) - 1))), done, forgotten)
    for step in data.draw(st.permutations(to_do)):
        _do(log, step, done, forgotten)
    assert set(log.got) >= set(done) - forgotten
    assert len(log.correlation) == 0
    assert log.correlation.held == 0, "nothing is held for nobody"


def _do(
    log: Log, step: tuple[str, int | None, Place, str | None, str], done: dict[int, set[str]], forgotten: set[int]
) -> None:
    what, ticket, place, named, answer = step
    if what == "answer":
        log.read(place, named, answer)
    elif what == "report" and ticket is not None:
        log.report(ticket, place)
    elif ticket is not None:
        log.correlation.forget(ticket)
        if ticket not in log.got:
            forgotten.add(ticket)
    if ticket is not None:
        done[ticket].add(what)
        both = {"report", "answer"} <= done[ticket] and ticket not in forgotten
        assert both == (ticket in log.got) or ticket in forgotten
    assert all(answer.startswith("ours") for answer in log.got.values())


def test_an_answer_to_another_clients_record_is_not_ours_though_it_names_our_id() -> None:
    """A client that writes a request with our id gets a decision of its own, which must not become ours."""
    correlation: Correlation[str] = Correlation()
    ticket = correlation.open("same")
    assert correlation.answer(Place("requests", 0, 7), "same", "theirs") is None
    assert correlation.report(ticket, Place("requests", 0, 8)) is None
    assert correlation.answer(Place("requests", 0, 8), "same", "ours") == ticket


def test_answers_to_others_are_not_held_where_they_name_another_id() -> None:
    correlation: Correlation[str] = Correlation()
    correlation.open("mine")
    for offset in range(1000):
        correlation.answer(Place("requests", 0, offset), f"other-{offset}", "theirs")
    assert correlation.held == 0


def test_what_is_held_is_dropped_with_the_last_question_that_it_could_answer() -> None:
    """Under a steady stream there is always a question without a report: held answers must not add up."""
    correlation: Correlation[str] = Correlation()
    most = 0
    ticket = correlation.open("x")
    for offset in range(1000):
        correlation.answer(Place("elsewhere", 0, offset), None, "a dead letter of somebody's")
        following = correlation.open("x")
        correlation.report(ticket, Place("requests", 0, offset))
        ticket, most = following, max(most, correlation.held)
    assert most <= 2
