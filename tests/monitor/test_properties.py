"""What holds for any traffic: order, batches and duplicates change nothing, and the state ends when time goes on."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.monitor import AccessEvent, DecisionEvent
from streaming.settings.monitor import MonitorSettings, Rules
from tests.examples import examples
from tests.monitor.pure import T0, PureMonitor, Record, decision, lifecycle, verdict

# Grace and lateness are longer than the traffic, so that no order makes a record come too late.
PATIENT = MonitorSettings(rules=Rules(window_seconds=20, grace_seconds=3000, lateness_seconds=3000))
END = T0 + 24 * 3600 * 1000
MOMENTS = st.integers(0, 600).map(lambda second: T0 + second * 1000)
USERS, THINGS = st.sampled_from(["dana", "eve"]), st.sampled_from(["orders", "carts"])


@st.composite
def traffic(draw: st.DrawFn, names_decisions: bool = False) -> list[Record]:
    """Decisions, accesses and logins within ten minutes; known when they happen or up to half an hour later.

    An access that finds an allow does not wait for the decision that it names: with names, the order may matter.
    """
    records: list[Record] = []
    decisions: dict[tuple[str, str], list[str]] = {}
    for number in range(draw(st.integers(0, 40))):
        at = draw(MOMENTS)
        known = at + draw(st.sampled_from([0, 0, 5_000, 1_800_000]))
        sort, who, what = draw(st.sampled_from("ddvvl")), draw(USERS), draw(THINGS)
        if sort == "d":
            outcome = draw(st.sampled_from(["allow", "deny", "deny", "error"]))
            records.append(decision(str(number), who, what, outcome, at, known))
            decisions.setdefault((who, what), []).append(str(number))
        elif sort == "v":
            outcome = draw(st.sampled_from(["allow", "deny"]))
            named = draw(st.sampled_from([None, *decisions.get((who, what), ())])) if names_decisions else None
            records.append(verdict(str(number), who, what, at, outcome, known, decision_id=named))
        else:
            records.append(lifecycle("login", at, known, subject=who))
    return records


def _outcome(batches: list[list[Record]]) -> tuple[Counter[tuple[str, str]], dict[str, bytes | None]]:
    """Occurrences by kind and subject, and the facts, after everything was read and time went on."""
    monitor = PureMonitor(PATIENT)
    for batch in batches:
        monitor.batch(batch)
    monitor.pass_time(END)
    counts: Counter[tuple[str, str]] = Counter()
    for alert in monitor.alerts.values():
        if alert["kind"] != "denial-burst":  # where one burst ends and another begins may depend on the order
            counts[alert["kind"], alert["subject"]] += alert["evidence"][0]["count"]
    return counts, monitor.facts


@settings(max_examples=examples(150), deadline=None)
@given(traffic(), st.randoms(use_true_random=False), st.integers(1, 10))
def test_order_batches_and_duplicates_change_nothing(records: list[Record], rng: random.Random, size: int) -> None:
    """Duplicates of audit events: those of decisions there are none."""
    again = [*records, *(record for record in records if record[0] == "verdicts" and rng.random() < 0.5)]
    rng.shuffle(again)
    batches = [again[start : start + size] for start in range(0, len(again), size)]
    assert _outcome(batches) == _outcome([records])


@settings(max_examples=examples(100), deadline=None)
@given(traffic(names_decisions=True))
def test_every_success_without_an_allow_in_its_window_raises_an_alert_and_no_other(records: list[Record]) -> None:
    """Held against nested loops over the records."""
    monitor = PureMonitor(PATIENT)
    inputs = [next(iter(monitor._intake.read(*record)))[1] for record in records]
    window, grace = 20_000, 3_000_000
    expected = 0
    for happened in inputs:
        if not isinstance(happened, AccessEvent):
            continue
        key = {id(h): r for h, r in zip(inputs, records, strict=True)}[id(happened)]
        mine = [
            decided
            for decided, record in zip(inputs, records, strict=True)
            if isinstance(decided, DecisionEvent) and decided.access == happened.access and _who(record) == _who(key)
        ]
        names_denial = any(happened.decision in decided.ids for decided in mine)
        expected += names_denial or not any(
            decided.allowed and decided.first - grace <= happened.time <= decided.last + window for decided in mine
        )
    counts, _ = _outcome([records])
    found = sum(count for (kind, _), count in counts.items() if kind in ("unrequested-access", "denied-but-done"))
    assert found == expected


def _who(record: Record) -> bytes:
    return b"dana" if b'"dana"' in record[4] else b"eve"


@settings(max_examples=examples(50), deadline=None)
@given(traffic())
def test_nothing_but_logins_is_remembered_for_ever(records: list[Record]) -> None:
    monitor = PureMonitor(PATIENT)
    monitor.batch(records)
    monitor.pass_time(END)
    assert all(state.login is not None for state in monitor.states.values())
    assert all(not state.watches and not state.accesses.decided for state in monitor.states.values())
