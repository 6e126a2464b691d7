"""Events that become facts are bound by the trust of their topic: what nobody trusts becomes no fact."""

import itertools

import pytest

from policy.core.request import CLAIMS
from streaming.records.audit import Lifecycle
from tests.monitor.audited import ACME, MONITOR, READ, AuditedJob, job_of, login, pipeline, run, user

NOW = 1_795_000_000_000
HOUR = 3_600_000
EVERY_TRUST = [frozenset(some) for count in range(6) for some in itertools.combinations(sorted(CLAIMS), count)]


def _names(trust: frozenset[str]) -> str:
    return "+".join(sorted(trust)) or "nothing"


def _job(*readers: str) -> AuditedJob:
    job = AuditedJob(NOW - HOUR)
    job.publish(NOW - HOUR, ACME, pipeline(*readers))
    return job


@pytest.mark.parametrize("trust", EVERY_TRUST, ids=_names)
def test_a_login_and_the_start_of_a_job_become_what_their_topic_is_trusted_with(trust: frozenset[str]) -> None:
    job = _job()
    claims = {"groups": ["admins"], "roles": ["Organization Administrator"], "token": {"sub": "eve"}}
    written = job.report(NOW, login("mallory", NOW - 5, **claims), trust)
    assert isinstance(written, Lifecycle)
    assert written.untrusted == tuple(sorted({"facts", "groups", "roles", "time"} - trust))
    job.report(NOW + 1, run("job.started", NOW - 5), trust)
    job.derive(NOW + 2)
    begun = (NOW - 5, NOW - 5) if "time" in trust else (NOW, NOW + 1)
    groups_and_roles = {claim: claims[claim] for claim in ("groups", "roles") if claim in trust}
    session = ("Session/mallory", {"login_at": begun[0], **groups_and_roles})
    assert job.facts == ([session, ("ActiveJob/job:j", {"started_at": begun[1]})] if "facts" in trust else [])


@pytest.mark.parametrize("trust", [trust for trust in EVERY_TRUST if not trust & {"groups"}], ids=_names)
def test_groups_that_no_topic_is_trusted_with_open_nothing(trust: frozenset[str]) -> None:
    """A pipeline is shared with a group. A login claims it."""
    job, asked = _job("group:admins"), {**READ, "subject": user("mallory")}
    assert job.decide(NOW, asked) == "deny"
    job.report(NOW, login("mallory", groups=["admins"]), trust)
    job.derive(NOW)
    assert job.decide(NOW + 1, asked) == "deny"
    job.report(NOW + 1, login("mallory", groups=["admins"]), trust | {"groups", "facts"})
    job.derive(NOW + 1)
    assert job.decide(NOW + 2, asked) == "allow", "the same login on a topic that is trusted"


@pytest.mark.parametrize("trust", [trust for trust in EVERY_TRUST if "time" not in trust], ids=_names)
def test_a_backdated_login_brings_no_revoked_share_back(trust: frozenset[str]) -> None:
    job, asked = _job("user:dana"), {**READ, "subject": user("dana")}
    job.report(NOW - HOUR + 1, login("olga"), frozenset({"facts"}))  # keeps the versions since then
    job.derive(NOW - HOUR + 1)
    job.publish(NOW, pipeline())
    assert job.decide(NOW + 1, asked) == "deny"
    job.report(NOW + 2, login("dana", NOW - HOUR + 2), trust)
    job.derive(NOW + 3)
    assert job.decide(NOW + 4, asked) == "deny"


@pytest.mark.parametrize("trust", [trust for trust in EVERY_TRUST if "time" not in trust], ids=_names)
def test_a_backdated_start_of_a_job_brings_no_revoked_share_back(trust: frozenset[str]) -> None:
    """Who monitors a job reads its pipeline as it was at the start of the run."""
    job, asked = _job("user:dana"), {**MONITOR, "subject": user("dana")}
    job.publish(NOW - HOUR + 1, *job_of("dana"))
    job.report(NOW - HOUR + 2, login("olga"), frozenset({"facts"}))  # keeps the versions since then
    job.derive(NOW - HOUR + 2)
    assert job.decide(NOW - 1, asked) == "allow"
    job.publish(NOW, pipeline())
    assert job.decide(NOW + 1, asked) == "deny"
    job.report(NOW + 2, run("job.started", NOW - HOUR + 3), trust)
    job.derive(NOW + 3)
    assert job.decide(NOW + 4, asked) == "deny"


def test_a_stop_that_is_not_trusted_ends_no_run() -> None:
    job = _job()
    job.report(NOW, run("job.started"))
    job.report(NOW + 1, run("job.stopped"), frozenset())
    job.derive(NOW + 2)
    assert job.facts == [("ActiveJob/job:j", {"started_at": NOW})]
    job.report(NOW + 3, run("job.stopped"), frozenset({"facts"}))
    job.derive(NOW + 4)
    assert job.facts[-1] == ("ActiveJob/job:j", None)


def test_a_topic_that_is_trusted_with_less_takes_no_groups_away() -> None:
    """Two topics report one login, in any order: what the trusted one says of it stays."""
    for trusts in itertools.permutations([frozenset({"facts"}), frozenset({"facts", "groups"}), frozenset({"groups"})]):
        for apart in (False, True):
            job = _job()
            for trust in trusts:
                job.report(NOW, login("dana", groups=[]), trust)
                if apart:
                    job.derive(NOW)
            job.derive(NOW)
            assert job.facts[-1] == ("Session/dana", {"login_at": NOW, "groups": []})


@pytest.mark.parametrize("kind", ["login", "job.started", "job.stopped"])
def test_what_failed_did_not_happen(kind: str) -> None:
    """A service may report each attempt, as it does of accesses. A share counts from the next login, which anybody can
    attempt; a run that could not be stopped goes on.
    """
    job = _job()
    job.report(NOW, login("dana"))
    job.report(NOW, run("job.started"))
    job.derive(NOW + 1)
    before = list(job.facts)
    attempt = login("dana", groups=["admins"]) if kind == "login" else run(kind)
    job.report(NOW + 2, {**attempt, "outcome": "failure"})
    job.derive(NOW + 3)
    assert job.facts == before
    job.report(NOW + 4, {**attempt, "outcome": "success"})
    job.derive(NOW + 5)
    assert job.facts != before
