"""`lockkeeper demo`: everything on this machine, from the first document to the final check."""

import contextlib
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import yaml
from confluent_kafka import TopicPartition
from rich.console import Console

from policy import read_documents
from streaming.broker import EmbeddedBroker
from streaming.demo import traffic
from streaming.demo.tracker import Change, RequestTracker, View, show_summary
from streaming.demo.traffic import Endless, Performer, Sender, book_records, run_repeatedly
from streaming.kafka.clients import admin_client, group_consumer
from streaming.kafka.committed import committed_records
from streaming.kafka.publish import publish
from streaming.kafka.topics import create_topics
from streaming.runtime.supervisor import Supervised
from streaming.settings import Settings, monitor_settings
from streaming.terminal import raw
from streaming.verify.cluster import verify

START_SECONDS = 240.0
SETTLE_SECONDS = 60.0
PARTITIONS = 2
REFRESH_SECONDS = 0.25
FEW = 5.0  # requests a second while the demo is shown
WARM_UP_SECONDS = 8.0
"""Of requests before latency is measured: Java compiles what runs often, and the first decisions take a second."""


class DemoFailed(Exception):
    """The demo could not be played; the message says what did not happen, and the end of the job's log."""


def play(seconds: float, rate: float, machine: bool, show: Callable[[Settings], None] | None = None) -> bool:
    """Play the demo and print its summary, as JSON for a ``machine``; whether every check held.

    ``seconds``: how long requests are sent after the warm-up, which takes as long, but 8 s at most. ``rate``: how many
    a second. ``show``: shows the demo after that, while some requests are sent, until it returns. Raises DemoFailed.
    """
    console = Console(file=raw(sys.stderr if machine else sys.stdout), quiet=machine)
    tracker = RequestTracker(traffic.planted())
    temporary = tempfile.TemporaryDirectory(prefix="lockkeeper-demo-", ignore_cleanup_errors=True)
    with View(tracker, console) as view, temporary as folder:
        view.print_participants(traffic.PARTICIPANTS)
        view.say("starting a Kafka broker …")
        with EmbeddedBroker() as broker:
            address, monitor = broker.bootstrap_servers, traffic.monitor(rate)
            settings = Settings(bootstrap_servers=address, systems=traffic.SYSTEMS, monitor=monitor)
            _Play(settings, Path(folder), tracker, view, show).run(seconds, rate)
            view.say("checking every decision …")
            found = verify(settings, demanded=tracker.demanded)
    summary = tracker.summary(found)
    if machine:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        show_summary(console, summary)
    return bool(summary["ok"])


class _Play:
    """One play, on a broker that runs."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        tracker: RequestTracker,
        view: View,
        show: Callable[[Settings], None] | None = None,
    ) -> None:
        self._show = show
        self._settings = msgspec.structs.replace(settings, checkpoint=(folder / "checkpoint").as_uri())
        self._kafka = {"bootstrap.servers": settings.bootstrap_servers, "log_level": "2"}
        self._log = folder / "job.log"
        self._config = folder / "lockkeeper.yaml"
        self._tracker = tracker
        self._view = view

    def run(self, seconds: float, rate: float) -> None:
        """Prepare, start the job, warm up, send, change the policies half-way, plant incidents, settle, stop."""
        self._prepare()
        self._rate = rate
        topics, requests = self._settings.topics, traffic.requests()
        sender = Sender(self._kafka, topics.requests[0], requests, rate, self._tracker)
        performer = Performer(self._kafka, topics.audit[0], self._tracker)
        decisions = book_records(self._settings, topics.decisions, performer.answered)
        alerts = book_records(self._settings, topics.alerts, self._tracker.alert)
        with self._job() as job:
            with decisions, alerts:
                self._view.say("starting the job: Spark Structured Streaming, 15 to 60 s …")
                sender.send(next(requests))
                self._until(job, lambda: self._tracker.complete, START_SECONDS, "no first decision")
                self._view.say("the first decision is there; waiting for the monitor, which raises the alerts …")
                self._until_watched(job)
                self._send(job, sender, performer, seconds)
                sender.flush()
                self._until(job, lambda: self._tracker.complete, SETTLE_SECONDS, "decisions are missing")
                performer.flush()
                self._until(job, lambda: self._tracker.alarmed, SETTLE_SECONDS, "alerts are missing")
                self._present(job, requests)
            self._stop(job)
        for message in committed_records(self._settings, [topics.alerts]):  # those of the end, too
            self._tracker.alert(msgspec.json.decode(message.value() or b""))

    def _present(self, job: Supervised, requests: Endless) -> None:
        """Show it, while a few requests go on."""
        if self._show is None:
            return
        self._view.say("the demo goes on in the console, until Ctrl-C")
        few = Sender(self._kafka, self._settings.topics.requests[0], requests, FEW, self._tracker)
        with run_repeatedly(few.step):
            self._show(self._settings)
        few.flush()
        self._until(job, lambda: self._tracker.complete, SETTLE_SECONDS, "decisions are missing")

    def _prepare(self) -> None:
        self._view.say("creating topics and publishing policies …")
        create_topics(admin_client(self._settings), self._settings.topics, partitions=PARTITIONS, replication=1)
        publish(self._settings, [document for _, document in read_documents(traffic.POLICIES)])
        names = ("bootstrap_servers", "systems", "checkpoint", "monitor")
        settings = {name: getattr(self._settings, name) for name in names}
        self._config.write_text(yaml.safe_dump(msgspec.to_builtins(settings)), encoding="utf-8")

    def _until_watched(self, job: Supervised) -> None:
        """Until the monitor has seen the first decision: it starts later, and slows what is measured meanwhile."""
        decisions = [TopicPartition(self._settings.topics.decisions, number) for number in range(PARTITIONS)]
        with contextlib.closing(group_consumer(monitor_settings(self._settings))) as group:

            def seen() -> bool:
                return any(position.offset > 0 for position in group.committed(decisions, timeout=START_SECONDS))

            self._until(job, seen, START_SECONDS, "the monitor has not seen the first decision")

    def _send(self, job: Supervised, sender: Sender, performer: Performer, seconds: float) -> None:
        burst = traffic.burst_size(self._rate)
        with run_repeatedly(sender.step):
            warm_up = min(WARM_UP_SECONDS, seconds)
            self._view.say(f"warm-up for {warm_up:g} s: requests and decisions, latency is not measured yet")
            self._watch(job, warm_up)
            self._tracker.measure()
            self._view.say(f"measuring: {self._rate:g} requests a second for {seconds:g} s")
            self._watch(job, seconds / 4)
            performer.produce(traffic.intrusion())
            self._view.say("user:eve reads prod's payments without a request: two alerts must follow")
            self._watch(job, seconds / 4)
            self._change()
            self._watch(job, seconds / 4)
            self._view.say(f"user:mallory requests {burst} audit topics at once: an alert must follow")
        for request in traffic.burst(burst):
            sender.send(request)
        with run_repeatedly(sender.step):
            self._watch(job, seconds / 4)

    def _change(self) -> None:
        topic = self._settings.topics.policy_topics()["lenses6"]
        offsets = publish(self._settings, [document for _, document in read_documents(traffic.CHANGE)])
        self._tracker.change(Change(topic, offsets[topic]["0"], time.monotonic()))
        self._view.say(
            "policies changed: reading prod's topics is denied, so the probes turn from allow to deny; "
            "user:trent gets a role with `*`: an alert must follow"
        )

    def _watch(self, job: Supervised, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._until(job, lambda: time.monotonic() >= end, seconds + 1, "unreachable")

    def _until(self, job: Supervised, condition: Callable[[], bool], seconds: float, failure: str) -> None:
        """Refresh the view until ``condition`` holds; raises DemoFailed when the job ends or time runs out."""
        deadline = time.monotonic() + seconds
        while not condition():
            if job.ended:
                raise DemoFailed(f"the job ended with exit code {job.stop()}:\n{self._end_of_log()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"{failure} within {seconds:.0f} seconds:\n{self._end_of_log()}")
            self._view.refresh()
            time.sleep(REFRESH_SECONDS)

    @contextlib.contextmanager
    def _job(self) -> Iterator[Supervised]:
        """The job, which Ctrl-C does not reach: it is stopped when all is decided.

        It ends, and the folder goes, also where this process is killed: without its broker it would wait for ever.
        """
        command = [sys.executable, "-m", "streaming.cli", "run", "--config", str(self._config)]
        self._log.touch()
        with self._log.open(encoding="utf-8", errors="replace") as self._read_log:
            log, folder = str(self._log), str(self._log.parent)
            job = Supervised({"commands": [command], "log": log, "folder": folder, "grace_seconds": SETTLE_SECONDS})
            try:
                yield job
            finally:
                job.stop()

    def _stop(self, job: Supervised) -> None:
        self._view.say("stopping the job …")
        if code := job.stop():
            raise DemoFailed(f"the job ended with exit code {code}:\n{self._end_of_log()}")

    def _end_of_log(self) -> str:
        self._read_log.seek(0)
        return "".join(deque(self._read_log, 30))
