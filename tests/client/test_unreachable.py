"""Without Kafka, and with wrong usage: never an allow, never a function that runs unasked, never a secret shown."""

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import multiprocessing
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from streaming.client import (
    AccessDenied,
    AsyncClient,
    Client,
    ClientError,
    Connection,
    DecisionConsumer,
    LocalClient,
    NotDecided,
    NotReported,
    Place,
    PolicyPublisher,
    PublishFailed,
    acting_as,
    connection,
)
from streaming.client.connection import IdempotentProducer
from streaming.client.consumers import FORKED
from streaming.client.local import LocalExchange
from streaming.client.records import ProducerRecord
from streaming.pdp import follower
from streaming.pdp.recording import Recorder
from streaming.settings import DEFAULT_TRUST, Limits, Settings
from streaming.topics import TopicNames
from tests.waiting import wait_until

SECRET = "hunter2-do-not-tell"
NOBODY = Connection("localhost:1", kafka={"sasl.password": SECRET, "message.timeout.ms": "300"})
SHORT: Any = {"system": "lenses6", "action": "kafka:ListTopic", "resource": "kafka:topic:a/b/c"}
EVENT = {
    "system": "lenses6",
    "subject": {"type": "user", "id": "u"},
    "action": {"name": "a"},
    "resource": {"type": "t", "id": "x"},
    "outcome": "success",
}


@pytest.fixture(scope="module", autouse=True)
def _impatient() -> Iterator[None]:
    """A client that is closed waits for its question to the cluster, which has 3 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "SECONDS", 0.2)
        patch.setattr(follower, "RETRIED_SECONDS", 0.2)
        yield


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of nobody."""
    with Client(NOBODY, timeout=0.05) as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[AsyncClient]:
    """An asynchronous client of nobody."""
    made = AsyncClient(NOBODY, timeout=0.05)
    yield made
    asyncio.run(made.close())


def test_no_answer_is_an_error_that_says_where_it_got_stuck(client: Client) -> None:
    decision = client.authorize(**SHORT, subject="user:dana")
    assert (decision.outcome, decision.code, bool(decision)) == ("error", "timeout", False)
    assert "not sent within 0.05 s" in str(decision)
    assert 0.05 <= decision.seconds < 5
    assert len(client._exchange) == 0, "nothing is left of a question that nobody waits for"


def test_an_error_is_raised_where_that_is_wanted(client: Client) -> None:
    with pytest.raises(NotDecided) as raised:
        client.authorize(**SHORT, subject="user:dana", raise_on_error=True)
    assert raised.value.decision.code == "timeout"
    with pytest.raises(NotDecided):
        client.authorize_many([{"subject": "a"}, {"subject": "b"}], **SHORT, raise_on_error=True)
    assert len(client._exchange) == 0


def test_many_and_batches_have_an_error_for_each_question(client: Client, other: AsyncClient) -> None:
    many = [{"subject": "a"}, {"subject": "b"}, {}]
    for decisions in (client.authorize_many(many, **SHORT), asyncio.run(_many(other, many))):
        assert [decision.code for decision in decisions] == ["timeout", "timeout", "no-subject"]
    batch = client.authorize(**SHORT, subject="u", evaluations=[{}, {}])
    assert [item.code for item in batch.evaluations] == ["timeout", "timeout"]


async def _many(client: AsyncClient, questions: list[Any]) -> list[Any]:
    return await client.authorize_many(questions, **SHORT)


def test_a_wrong_timeout_is_refused(client: Client) -> None:
    for timeout in (0, -1, 1e12, float("inf"), float("nan"), "5"):
        with pytest.raises(ValueError, match="seconds, more than 0"):
            client.authorize(**SHORT, subject="u", timeout=timeout)


def test_a_guarded_function_does_not_run_without_an_allow(client: Client, other: AsyncClient) -> None:
    ran: list[str] = []

    @client.requires(**SHORT)
    def plain() -> None:
        ran.append("plain")

    @client.requires(**SHORT)
    def generator() -> Iterator[int]:
        ran.append("generator")
        yield 1

    @other.requires(**SHORT)
    async def later() -> None:
        ran.append("later")

    class Service:
        @classmethod
        @client.requires(**SHORT)
        def of_class(cls) -> None:
            ran.append("of_class")

        @client.requires(**SHORT)
        def method(self) -> None:
            ran.append("method")

    for subject in ("user:dana", None):
        for call in (plain, generator, Service.of_class, Service().method):
            with pytest.raises(NotDecided):
                _acting(subject, call)
        with pytest.raises(NotDecided):
            _acting(subject, lambda: asyncio.run(later()))
    assert ran == []


def _acting(subject: str | None, call: Any) -> None:
    if subject is None:
        call()
    else:
        with acting_as(subject):
            call()


def test_a_guarded_block_does_not_run_without_an_allow(client: Client, other: AsyncClient) -> None:
    entered: list[str] = []

    async def later() -> None:
        async with other.allowed(**SHORT, subject="u"):
            entered.append("later")

    with pytest.raises(AccessDenied), client.allowed(**SHORT, subject="u"):
        entered.append("now")
    with pytest.raises(AccessDenied):
        asyncio.run(later())
    assert entered == []


def test_what_is_no_answer_yet_is_not_taken_for_a_yes(client: Client, other: AsyncClient) -> None:
    """`if client.authorize(…)` without await, and `if client.allowed(…)` instead of `with`."""
    waiting, many = other.authorize(**SHORT, subject="u"), other.authorize_many([])
    for unread in (waiting, many, other.allowed(**SHORT), client.allowed(**SHORT)):
        with pytest.raises(TypeError, match="no answer yet"):
            bool(unread)
    waiting.close()
    many.close()


def test_a_task_can_be_made_of_what_the_asynchronous_client_returns(other: AsyncClient) -> None:
    async def ask() -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(other.authorize(**SHORT, subject="u")) for _ in range(3)]
        gathered = await asyncio.gather(*(other.authorize(**SHORT, subject="u") for _ in range(3)))
        return [decision.code for decision in (*gathered, *(task.result() for task in tasks))]

    assert asyncio.run(ask()) == ["timeout"] * 6


def test_a_cancelled_question_leaves_nothing_behind(other: AsyncClient) -> None:
    async def ask() -> None:
        task = asyncio.create_task(other.authorize(**SHORT, subject="u", timeout=60))
        while len(other._exchange) == 0:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(ask())
    assert len(other._exchange) == 0


async def _later() -> None: ...


async def _series() -> AsyncIterator[int]:
    yield 1


class _Callable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("wrong", [_later, _series, functools.partial(_later), _Callable(), _Callable, 3])
def test_the_clients_guard_their_own_kind_of_function_alone(client: Client, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"requires: .* is (asynchronous|not a function)"):
        client.requires(**SHORT)(wrong)


@pytest.mark.parametrize("wrong", [print, lambda: None, _series, _Callable, 3])
def test_the_asynchronous_client_guards_async_functions_alone(other: AsyncClient, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"requires: .* is (not|an async generator)"):
        other.requires(**SHORT)(wrong)


def test_a_guard_that_asks_nothing_is_refused_where_it_is_written(client: Client, other: AsyncClient) -> None:
    for guard, message in (
        ({}, "system, action, resource: required"),
        ({**SHORT, "resource": ""}, "resource: required"),
        ({**SHORT, "ressource": "x"}, "unknown ressource"),
    ):
        for one in (client, other):
            with pytest.raises(TypeError, match=message):
                one.requires(**guard)
    with pytest.raises(TypeError):
        client.requires(print)  # type: ignore[call-arg]
    for wrap in (staticmethod, classmethod):
        with pytest.raises(TypeError, match=f"put it below @{wrap.__name__}"):
            client.requires(**SHORT)(wrap(print))  # type: ignore[arg-type]


def test_a_guarded_function_looks_as_before_and_refuses_wrong_arguments_before_asking(client: Client) -> None:
    asked: list[Any] = []

    @client.requires(**{**SHORT, "resource": lambda call: asked.append(dict(call)) or f"kafka:topic:{call['name']}"})
    def delete(name: str, force: bool = False) -> None:
        """Delete."""

    assert (delete.__name__, delete.__doc__) == ("delete", "Delete.")
    assert list(inspect.signature(delete).parameters) == ["name", "force"]
    with pytest.raises(TypeError, match="missing a required argument: 'name'"):
        delete()  # type: ignore[call-arg]
    assert asked == []
    with acting_as("u"), pytest.raises(NotDecided):
        delete("x")
    assert asked == [{"name": "x", "force": False}]


def test_a_thread_begins_without_a_subject(client: Client) -> None:
    """A pool's thread must not act for its previous user."""
    with ThreadPoolExecutor(1) as pool, acting_as("user:dana"):
        assert pool.submit(lambda: client.authorize(**SHORT).code).result() == "no-subject"


def test_a_closed_client_answers_at_once_and_reports_nothing() -> None:
    client = Client(NOBODY, timeout=60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: client.authorize(**SHORT, subject="u"))
        while len(client._exchange) == 0:
            time.sleep(0.001)
        client.close()
        assert waiting.result(10).code == "client-closed"
    client.close()
    assert client.authorize(**SHORT, subject="u").code == "client-closed"
    with pytest.raises(NotReported, match="the client is closed"):
        client.report(EVENT)


def test_a_closed_client_leaves_no_threads_for_the_garbage_collector() -> None:
    """It may come late: a service that makes clients now and then would run out of files."""
    before = _consumers()
    gc.disable()
    try:
        client = Client(NOBODY, timeout=0.05)
        assert len(_consumers()) == len(before) + 1
        client.close()
        del client
        assert len(_consumers()) == len(before)
    finally:
        gc.enable()


def _consumers() -> list[object]:
    return [object_ for object_ in gc.get_objects() if isinstance(object_, Consumer)]


def _in_a_fork(client: Client, codes: Any) -> None:
    codes.put(client.authorize(**SHORT, subject="u").code)
    client.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_client_from_before_a_fork_says_so(client: Client) -> None:
    """Threads do not survive a fork: each worker process of a server needs its own."""
    fork = multiprocessing.get_context("fork")
    codes = fork.SimpleQueue()
    child = fork.Process(target=_in_a_fork, args=(client, codes))
    child.start()
    assert codes.get() == "client-forked"
    child.join(10)
    assert child.exitcode == 0


IN_A_FORK = """
import os, sys
from streaming.client import ClientError, DecisionConsumer

with DecisionConsumer("127.0.0.1:1", "group") as consumer:
    forked = os.fork()
    try:
        if not forked:
            next(consumer)
    except ClientError as error:
        print(error, flush=True)
        consumer.handled()
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
"""


def test_a_consumer_from_before_a_fork_says_so() -> None:
    """The forked process closes it and ends, as it would without it: librdkafka aborts one that frees its handles."""
    ended = subprocess.run([sys.executable, "-c", IN_A_FORK], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines() == [FORKED, "3"]


def test_an_event_that_is_not_confirmed_is_not_reported(client: Client, other: AsyncClient) -> None:
    with pytest.raises(NotReported, match="did not confirm"):
        client.report(EVENT)
    with pytest.raises(NotReported, match="did not confirm"):
        asyncio.run(other.report(EVENT))


@pytest.mark.parametrize("flag", [True, False], ids=["raised", "by its code alone, as of `produce`"])
def test_an_idempotent_producer_that_lost_count_is_made_anew(flag: bool) -> None:
    """After a fatal error librdkafka refuses everything on that producer: a service would be locked out for good."""
    producer = IdempotentProducer(NOBODY)
    first = producer._producer.current
    assert "lost" in producer._why(KafkaException(KafkaError(KafkaError._FATAL, "lost", fatal=flag)), first, "topic")
    second = producer._producer.current
    assert second is not first
    producer._why(KafkaException(KafkaError(KafkaError._FATAL, "reported late", fatal=flag)), first, "topic")
    producer._why(KafkaException(KafkaError(KafkaError._TRANSPORT, "for a while")), second, "topic")
    assert producer._producer.current is second


@pytest.mark.parametrize("flag", [True, False])
def test_so_is_that_of_recorded_answers(flag: bool) -> None:
    settings = Settings(bootstrap_servers="localhost:1", topics=TopicNames(answered=("answered",)))
    with contextlib.closing(Recorder(settings)) as recorder:
        first = recorder._producer.current
        recorder._producer.renew_after(KafkaError(KafkaError._TRANSPORT), first)
        assert recorder._producer.current is first
        recorder._producer.renew_after(KafkaError(KafkaError._FATAL, "lost", fatal=flag), first)
        assert recorder._producer.current is not first


def test_records_of_a_producer_that_failed_for_good_are_counted_as_lost() -> None:
    """Nobody asked it for its reports any more: who waited for a durable record did so in vain."""
    settings = Settings(bootstrap_servers="localhost:1", topics=TopicNames(answered=("answered",)))
    reported: list[bool] = []
    with contextlib.closing(Recorder(settings)) as recorder:
        for _ in range(3):
            recorder.send({}, b"{}", reported.append)
        recorder._producer.renew_after(KafkaError(KafkaError._FATAL, "lost"), recorder._producer.current)
        wait_until(lambda: reported == [False] * 3, "the reports")
        assert (recorder.lost, recorder.queued) == (3, 0)
        assert recorder.awaits_delivery("lenses6"), "the next answers are given once they are recorded"


def test_requests_and_events_on_a_producer_that_failed_for_good_are_not_sent_and_say_so() -> None:
    producer, reported = IdempotentProducer(NOBODY), list[tuple[Place | None, str]]()
    for _ in range(3):
        producer.send(ProducerRecord("topic", None, b"{}", [], "id"), lambda *report: reported.append(report))
    producer._why(
        KafkaException(KafkaError(KafkaError._FATAL, "lost", fatal=True)), producer._producer.current, "topic"
    )

    def are_reported() -> bool:
        producer.poll(0)
        return len(reported) == 3

    wait_until(are_reported, "the reports")
    assert all(place is None and why.startswith("not sent: ") for place, why in reported)


def test_secrets_are_shown_nowhere(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert SECRET not in repr(client) + repr(NOBODY) + repr(PolicyPublisher(NOBODY)) + str(NOBODY)
        assert "sasl.password" in repr(NOBODY)
        assert SECRET not in repr(client.authorize(**SHORT, subject="u"))
    assert SECRET not in caplog.text
    assert NOBODY.scrub(f"bad value {SECRET}") == "bad value ***"


@pytest.mark.parametrize("kind", [Client, AsyncClient, lambda connection: DecisionConsumer(connection, "g")])
def test_settings_that_librdkafka_refuses_are_refused_at_once_without_their_secrets(kind: Any) -> None:
    for kafka in ({"no.such.setting": SECRET, "sasl.password": SECRET}, {"sasl.password": SECRET, "acks": SECRET}):
        with pytest.raises(ClientError, match="kafka settings: ") as raised:
            kind(Connection("localhost:1", kafka=kafka))
        assert SECRET not in str(raised.value)


def test_policies_that_break_the_rules_are_not_published_and_each_error_is_reported() -> None:
    publisher = PolicyPublisher(NOBODY)
    role = {"system": "lenses6", "kind": "Role", "name": "r", "spec": {"statements": [{"effect": "perhaps"}]}}
    with pytest.raises(PublishFailed, match=r"documents \(document 1\): lenses6/Role/r: .*effect"):
        publisher.publish([role])
    with pytest.raises(PublishFailed, match="write SYSTEM/KIND/NAME"):
        publisher.publish([], ["Role/r"])


def test_a_service_that_only_compares_is_kept_out_by_no_missing_answer() -> None:
    """Its guards pass without a decision that is enforced; what it is answered is an error all the same."""
    ran: list[str] = []
    with Client(NOBODY, timeout=0.05, shadow="pass") as client, acting_as("user:dana"):

        @client.requires(**SHORT)
        def plain() -> None:
            ran.append("plain")

        plain()
        with client.allowed(**SHORT) as decision:
            ran.append("block")
    assert ran == ["plain", "block"]
    assert not decision.allowed


def test_a_request_larger_than_a_record_may_be_is_an_error_in_the_application_too() -> None:
    """Also where nothing is recorded: the job would make it a dead letter."""
    with LocalClient(NOBODY, record="none") as client:
        decision = client.authorize(**SHORT, subject="u", context={"pad": "x" * (1 << 20)})
        assert (decision.outcome, decision.code) == ("error", "malformed-request")
        assert "at most 1048576" in decision.reasons[0].message
        assert client.authorize(**SHORT, subject="u").code == "policies-stale"


def test_a_local_client_has_the_limits_and_the_trust_of_the_job() -> None:
    """With others it took documents that the job refuses, and allowed by claims that do not count."""
    topics, limits = TopicNames(answered=("answered",)), Limits(record_in=2048, document=4096)
    settings = Settings(topics=topics, limits=limits, trust={"answered": frozenset({"groups"})})
    with LocalClient(Connection.of(settings)) as client:
        assert isinstance(client._exchange, LocalExchange)
        assert client._exchange._settings.limits == limits
        assert client._exchange._options.trust == {"groups"}
    with LocalClient(Connection.of(settings), record="none") as client:
        decision = client.authorize(**SHORT, subject="u", context={"pad": "x" * 2048})
        assert (decision.outcome, decision.code) == ("error", "malformed-request")
        assert isinstance(client._exchange, LocalExchange)
        assert client._exchange._options.trust == DEFAULT_TRUST, "no topic has its answers"
    with LocalClient(Connection.of(settings), answered="other", trust={"roles"}) as client:
        assert isinstance(client._exchange, LocalExchange)
        assert client._exchange._options.trust == {"roles"}


@pytest.mark.parametrize(
    ("job", "own", "enforced"), [("shadow", None, False), ("shadow", "enforce", True), ("enforce", None, True)]
)
def test_a_local_client_enforces_where_the_job_does(job: Any, own: Any, enforced: bool) -> None:
    """By the settings of a job in shadow mode its allows were taken for such."""
    with LocalClient(Connection.of(Settings(mode=job)), record="none", mode=own) as client:
        assert isinstance(client._exchange, LocalExchange)
        assert client._exchange._options.enforced is enforced


def test_a_local_client_has_a_name_that_its_records_may_have() -> None:
    with pytest.raises(ClientError, match="name: has 257 characters; at most 256"):
        LocalClient(NOBODY, record="none", name="n" * 257)


@pytest.mark.parametrize("record", ["all", "none"])
def test_a_local_client_refuses_the_same_settings(record: Any) -> None:
    """Also where it would record its answers, with a producer of the server's."""
    for kafka in ({"nonsense": "x"}, {"security.protocol": "x"}, {"linger.ms": object()}):
        with pytest.raises(ClientError, match="kafka settings: "):
            LocalClient(Connection("localhost:1", kafka=kafka), record=record, answered="answered")
