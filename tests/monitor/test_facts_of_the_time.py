"""Accesses that are reported late are judged by the policies and the facts of their moment, or the verdict is unknown."""

from typing import Any

import pytest
from hypothesis import event, example, given, settings
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
    """The oracle: what was so at each moment, as far as it was reported and has become facts. No facts are kept."""

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
    st.tuples(st.just("access"), st.sampled_from(USERS), st.sampled_from([READ, MONITOR]), st.integers(0, 9)),
    st.tuples(st.just("access"), st.sampled_from(USERS), st.sampled_from([READ, MONITOR]), st.integers(0, 9)),
)


def _compare(steps: list[Any]) -> list[str]:
    """The verdicts on the accesses of these steps, of which each comes a second after the one before it."""
    job, moments, reported, outcomes = AuditedJob(START), Moments(), list[Any](), list[str]()
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
            reported.append((moments.logins, (at, step[1], step[3])))
        elif kind.startswith("job."):
            at = max(now - step[1] * STEP, START)
            job.report(now, run(kind, at), CLAIMS)
            reported.append((moments.starts if kind == "job.started" else moments.stops, at))
        elif kind == "derive":
            job.derive(now)
            for facts, fact in reported:
                facts.append(fact)
            reported.clear()
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


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_a_verdict_is_that_of_the_policies_and_facts_of_the_moment_or_unknown(steps: list[Any]) -> None:
    """Logins and runs are reported late, and in any order; accesses later still."""
    for outcome in _compare(steps):
        event(outcome)
