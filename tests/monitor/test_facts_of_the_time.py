"""Accesses that are reported late are judged by the policies and facts of their moment, or the verdict is unknown."""

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from policy import compile_documents
from policy.core.request import CLAIMS, parse_request
from policy.evaluation import reference
from streaming.records.audit import Verdict
from tests.examples import examples
from tests.monitor.audited import ACME, MONITOR, READ, AuditedJob, document, job_of, login, pipeline, run, user

START, STEP = 1_795_000_000_000, 1000
USERS = ("dana", "miguel")
READERS = ("user:dana", "user:miguel", "group:north")
PROPERTIES = {"organization": "acme"}

Login = tuple[int, str, tuple[str, ...]]


class Moments:
    """The oracle: what was so at each moment, as far as it was reported. No facts are kept."""

    def __init__(self) -> None:
        self.versions: list[tuple[int, dict[str, Any]]] = []
        self.logins: list[Login] = []
        self.starts: list[int] = []
        self.stops: list[int] = []

    def outcome(self, moment: int, asked: dict[str, Any]) -> str:
        """By the reference evaluator, on the documents of the moment."""
        documents = [{**one, "effective_at": at} for at, one in self.versions if at <= moment]
        logged_in = [one for one in self.logins if one[0] <= moment and one[1] == asked["subject"]["id"]]
        if logged_in:
            at, name, groups = max(logged_in)
            documents.append(document("Session", name, login_at=at, groups=list(groups)))
        started = max((at for at in self.starts if at <= moment), default=None)
        if started is not None and all(at <= started for at in self.stops if at <= moment):
            documents.append(document("ActiveJob", "job:j", started_at=started))
        request = parse_request({"id": "r", **asked, "time": moment})
        return str(reference.answer(compile_documents(documents), request, CLAIMS))


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.sampled_from(READERS), max_size=2, unique=True)),
    st.tuples(st.just("login"), st.sampled_from(USERS), st.integers(0, 6), st.sampled_from([(), ("north",)])),
    st.tuples(st.sampled_from(["job.started", "job.stopped"]), st.integers(0, 6)),
    st.tuples(st.just("derive")),
    st.tuples(st.just("derive")),
    st.tuples(st.just("restart"), st.integers(0, 6)),
    st.tuples(st.just("access"), st.sampled_from(USERS), st.sampled_from([READ, MONITOR]), st.integers(0, 9)),
    st.tuples(st.just("access"), st.sampled_from(USERS), st.sampled_from([READ, MONITOR]), st.integers(0, 9)),
    st.tuples(st.just("together"), st.sampled_from(USERS), st.integers(0, 3), st.sampled_from([(), ("north",)])),
)


def _compare(steps: list[Any]) -> list[str]:
    """The verdicts on the accesses of these steps, of which each comes a second after the one before it."""
    job, moments, outcomes = AuditedJob(START), Moments(), list[str]()
    now = START
    for one in (ACME, pipeline(), *job_of(*USERS)):
        job.publish(now, one)
        moments.versions.append((now, one))
        now += 1
    for step in steps:
        now += STEP
        kind = step[0]
        if kind == "publish":
            job.publish(now, pipeline(*step[1]))
            moments.versions.append((now, pipeline(*step[1])))
        elif kind == "login":
            at = max(now - step[2] * STEP, START)
            job.report(now, login(step[1], at, groups=list(step[3]), **PROPERTIES), CLAIMS)
            moments.logins.append((at, step[1], step[3]))
        elif kind.startswith("job."):
            at = max(now - step[1] * STEP, START)
            job.report(now, run(kind, at), CLAIMS)
            (moments.starts if kind == "job.started" else moments.stops).append(at)
        elif kind == "derive":
            job.derive(now)
        elif kind == "restart":
            job.restart(now - step[1] * STEP)
        elif kind == "together":  # an access and a login, of different partitions in one batch
            at, asked = max(now - step[2] * STEP, START), {**READ, "subject": user(step[1], **PROPERTIES)}
            moments.logins.append((at, step[1], step[3]))
            events = [{**asked, "outcome": "success"}, login(step[1], at, groups=list(step[3]), **PROPERTIES)]
            verdict = job.report_batch(now, events, CLAIMS)[0]
            assert isinstance(verdict, Verdict)
            assert verdict.outcome in (moments.outcome(now, asked), "unknown"), (step, verdict)
        else:
            at = max(now - step[3] * STEP, START + 4)
            asked = {**step[2], "subject": user(step[1], **PROPERTIES)}
            verdict = job.report(now, {**asked, "outcome": "success", "time": at}, CLAIMS)
            assert isinstance(verdict, Verdict)
            wanted = moments.outcome(at, asked)
            outcomes.append(verdict.outcome)
            assert verdict.outcome in (wanted, "unknown"), (step, verdict, wanted)
            outcomes[-1] += "" if verdict.outcome == wanted else f" for {wanted}"
    return outcomes


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, min_size=6, max_size=25))
def test_a_verdict_is_that_of_the_policies_and_facts_of_the_moment_or_unknown(steps: list[Any]) -> None:
    """Logins and runs are reported late, and in any order; accesses later still."""
    for outcome in _compare(steps):
        event(outcome)


def _publish(*readers: str) -> Any:
    return "publish", list(readers)


def _login(back: int, *groups: str) -> Any:
    return "login", "dana", back, groups


def _view(back: int) -> Any:
    return "access", "dana", READ, back


def _monitor(back: int) -> Any:
    return "access", "dana", MONITOR, back


DERIVE = ("derive",)
START_JOB, STOP_JOB = ("job.started", 0), ("job.stopped", 0)


@pytest.mark.parametrize("between", [[], [DERIVE]], ids=["in one batch of the monitor", "in two"])
def test_an_access_before_the_second_login_is_judged_by_the_first(between: list[Any]) -> None:
    """Its group lost the pipeline before the second login, and the user the group with it."""
    steps = [_publish("group:north"), _login(0, "north"), *between, _publish(), _login(0), DERIVE]
    assert _compare([*steps, _view(3)]) == ["allow"]
    assert _compare([*steps, _view(1)]) == ["deny"]


def test_an_access_before_a_login_that_gave_more_is_denied() -> None:
    steps = [_publish("group:north"), _login(0), _login(0, "north"), DERIVE]
    assert _compare([*steps, _view(2)]) == ["allow"]
    assert _compare([*steps, _view(3)]) == ["deny"]


def test_a_login_that_is_reported_after_a_later_one_counts_for_its_time_alone() -> None:
    steps = [_publish("group:north"), _login(0), DERIVE, _publish(), _login(0), DERIVE, _login(4, "north"), DERIVE]
    assert _compare([*steps, _view(5)]) == ["allow"]
    assert _compare([*steps, _view(7)]) == ["deny"]
    assert _compare([*steps, _view(3)]) == ["deny"]
    assert _compare([*steps, _view(0)]) == ["deny"]


@pytest.mark.parametrize("between", [[], [DERIVE]], ids=["in one batch of the monitor", "in two"])
def test_an_access_during_a_run_is_judged_by_the_run_and_one_after_its_stop_by_none(between: list[Any]) -> None:
    """The pipeline is as it was at the start until the run stops, not until that is known."""
    steps = [_publish("user:dana"), START_JOB, *between, _publish(), STOP_JOB, _publish(), DERIVE]
    assert _compare([*steps, _monitor(4)]) == ["allow"]
    assert _compare([*steps, _monitor(3)]) == ["deny"]
    assert _compare([*steps, START_JOB, DERIVE, _monitor(6)]) == ["allow"]


def test_a_version_that_no_login_known_then_needed_is_unknown_to_one_that_is_reported_late() -> None:
    """The job has dropped it."""
    steps = [_publish("user:dana"), _publish("user:dana", "user:miguel"), _publish("user:miguel"), _login(3), DERIVE]
    assert _compare([*steps, _view(2)]) == ["unknown for allow"]


def test_an_access_is_unknown_while_a_login_before_it_is_no_fact_yet() -> None:
    """The monitor writes it a few seconds later: the login before says nothing of the access."""
    steps = [_publish("group:north"), _login(0, "north"), DERIVE, _login(0)]
    assert _compare([*steps, _view(0)]) == ["unknown for deny"]
    assert _compare([*steps, _view(2)]) == ["allow"]
    assert _compare([*steps, DERIVE, _view(0)]) == ["deny"]


@pytest.mark.parametrize("event", ["job.started", "job.stopped"])
def test_an_access_is_unknown_while_a_run_before_it_is_no_fact_yet(event: str) -> None:
    steps = [_publish("user:dana"), START_JOB, DERIVE, _publish(), (event, 0)]
    [outcome] = _compare([*steps, _monitor(0)])
    assert outcome.startswith("unknown for ")
    assert not _compare([*steps, DERIVE, _monitor(0)])[0].startswith("unknown")


def test_what_a_facts_topic_holds_after_compaction_gives_the_same_verdict_or_unknown() -> None:
    steps = [_publish("group:north"), _login(0, "north"), DERIVE, _publish(), _login(0), DERIVE]
    assert _compare([*steps, ("restart", 9), _view(5)]) == ["allow"]
    assert _compare([*steps, ("restart", 1), _view(5)]) == ["unknown for allow"]
    assert _compare([*steps, ("restart", 1), _view(0)]) == ["deny"]


def test_a_start_that_is_reported_long_after_its_stop_begins_no_run() -> None:
    """By another partition, after an outage: the stop is remembered by when it became known."""
    job, hour = AuditedJob(START), 3_600_000
    job.publish(START, ACME, pipeline(), *job_of("dana"))
    job.report(START + hour, run("job.stopped", START + 2), CLAIMS)
    job.derive(START + hour)
    job.monitor.pass_time(START + hour + 1000)
    job.report(START + hour + 2000, run("job.started", START + 1), CLAIMS)
    job.derive(START + hour + 2000)
    assert job.facts[-1] == ("ActiveJob/job:j", None)


BROKEN = {"wrong": 1}
INVENTORY = st.one_of(
    st.tuples(st.just("billing"), st.sampled_from([["orders"], ["orders", "payments"], ["payments"], []])),
    st.tuples(st.just("billing"), st.sampled_from([None, "refused"])),  # deleted; a document that is refused
    st.tuples(st.just("readers"), st.lists(st.sampled_from(USERS), max_size=2, unique=True)),
    st.tuples(st.just("access"), st.integers(0, 9)),
    st.tuples(st.just("access"), st.integers(0, 9)),
    st.tuples(st.just("restart"), st.integers(0, 6)),
)


def _of_lenses(kind: str, name: str, spec: dict[str, Any] | None) -> dict[str, Any]:
    return {"system": "lenses5", "kind": kind, "name": name, "spec": spec}


def _readers(members: list[str]) -> dict[str, Any]:
    shown = {"connection": "kafka", "type": "Kafka", "datasets": ["orders"], "permissions": ["Show Topic"]}
    spec = {"namespaces": [shown], "application": ["Kafka Consumers / View"], "members": members}
    return _of_lenses("Group", "readers", spec)


def _inventory_at(records: list[tuple[int, dict[str, Any]]], moment: int) -> list[dict[str, Any]]:
    """What a log of one fact says at a moment: its last good version, else that it is refused."""
    said = [one for at, one in records if at <= moment]
    good = next((number for number, one in reversed(list(enumerate(said))) if one["spec"] != BROKEN), None)
    refused = bool(said) and said[-1]["spec"] == BROKEN and (good is None or said[good]["spec"] is None)
    if refused:
        return said[-1:]
    return [] if good is None or said[good]["spec"] is None else [said[good]]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(INVENTORY, min_size=4, max_size=20))
def test_an_inventory_is_that_of_the_moment_by_its_log_or_the_verdict_is_unknown(steps: list[Any]) -> None:
    """A consumer group of Lenses 5, whose members may see it while all of its topics are shown to them."""
    job, now = AuditedJob(START), START
    policies, facts = [(now, _readers(["dana"]))], list[tuple[int, dict[str, Any]]]()
    job.publish(now, policies[0][1])
    asked = {
        "system": "lenses5",
        "subject": user("dana"),
        "action": {"name": "kafka-consumers.view"},
        "resource": {"type": "consumer-group", "id": "billing"},
    }
    for what, detail in steps:
        now += STEP
        if what == "readers":
            policies.append((now, _readers(detail)))
            job.publish(now, _readers(detail))
        elif what == "billing":
            spec = (
                BROKEN if detail == "refused" else None if detail is None else {"connection": "kafka", "topics": detail}
            )
            facts.append((now, _of_lenses("ConsumerGroup", "billing", spec)))
            job.know(*facts[-1])
        elif what == "restart":
            job.restart(now - detail * STEP)
        else:
            at = max(now - detail * STEP, START)
            verdict = job.report(now, {**asked, "outcome": "success", "time": at}, CLAIMS)
            assert isinstance(verdict, Verdict)
            documents = [[one for since, one in policies if since <= at][-1], *_inventory_at(facts, at)]
            request = parse_request({"id": "r", **asked, "time": at})
            wanted = reference.answer(compile_documents(documents), request, CLAIMS)
            # Compaction removes the good version below a refused one, for requests too: they are answered `error`.
            lost = "restart" in dict(steps) and any(one["spec"] == BROKEN for _, one in facts)
            assert verdict.outcome in (wanted, "unknown", *(["error"] if lost else []))
            event(f"{verdict.outcome} where it is {wanted}")
