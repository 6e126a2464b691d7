"""Follows the topics of policies and facts with the job's own reader, for a process that decides by itself.

A thread reads up to the last stable offsets, again and again, and puts what it read in place of what it read before:
an immutable snapshot, swapped as a whole. So threads that decide take no lock, and a half-read change is never used.
"""

import sys
import threading
import time
from collections.abc import Callable

import msgspec
import structlog
from confluent_kafka import KafkaException

from policy import Compiler, FactOverlay, Snapshot
from streaming.errors import Stopping
from streaming.kafka.clients import RETRIED_SECONDS, LoginErrors, admin_client, login_failure
from streaming.kafka.permissions import Permission, explain_refused, topic_permissions
from streaming.kafka.reader import document_topics, find_logs
from streaming.ops.tally import Compiled
from streaming.pdp.reading import Read, suspend_aware_clock
from streaming.settings import Settings
from streaming.snapshots.alerts import StaleWatch
from streaming.snapshots.at_offsets import read_retention
from streaming.snapshots.policies import Policies

log = structlog.get_logger()

ATTEMPT_SECONDS = 2.0
POLL_SECONDS = 0.02  # between two readings of the policies: each takes a fraction of a millisecond
STUCK_SECONDS = 1.0  # between two looks at transactions that are not ended
PAUSE_SECONDS = 0.2  # before Kafka is asked again that did not answer


class Follower:
    """Reads until `stop` is set. `read`: the newest complete reading, None before the first one.

    `on_read` is called in the thread with each reading; `on_failure` when it ends by an error, which `failure` holds:
    nothing may be decided from then on. `on_compiled`: with each snapshot that is compiled. `on_policies`: with the
    policies of each reading in which they are others than before; None: nobody asks. A reading that asks for the ends
    at a moment or after it is had by `ask`. `ends_without_login`: refused for long it is such an error.
    """

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        on_read: Callable[[Read], None],
        on_failure: Callable[[], None],
        on_compiled: Callable[[Compiled], None] = lambda _compiled: None,
        on_policies: Callable[[Compiler], None] | None = None,
        *,
        ends_without_login: bool = False,
    ) -> None:
        self._settings, self._stop = settings, stop
        self._on_read, self._on_failure, self._on_compiled = on_read, on_failure, on_compiled
        self._on_policies, self._ends_without_login = on_policies, ends_without_login
        self._wake = threading.Event()
        self.read: Read | None = None
        self.facts = FactOverlay()
        """Where `on_policies` is there: the facts of the newest reading, with their past. It is not changed."""
        self.failure: Exception | None = None
        self.unread_since: float | None = None
        """Since when Kafka could not be read (monotonic, s)."""
        self.unread_error: Exception | None = None
        """Why it could not be read the last time; None: it was."""
        self.stuck = 0
        """Partitions that cannot be read on: a transaction on them is not ended. None of it may be decided by."""
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def ask(self) -> None:
        """Read at once: a reading that begins after this call follows."""
        self._wake.set()

    def close(self) -> None:
        """Wait until it has left Kafka; `stop` must be set."""
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except Stopping:
            pass
        except Exception as failure:
            self.read, self.failure = None, failure
            self._on_failure()

    def _follow(self) -> None:
        policies = self._open()
        try:
            settings, bound = self._settings, self._settings.serve.max_staleness_seconds
            watched = msgspec.structs.replace(settings, policy_stale_seconds=bound)
            watch = StaleWatch(admin_client(settings), watched, policies.positions)
            stuck_at = 0.0
            while not self._stop.is_set():
                self._wake.clear()  # before the moment is taken: who asks later is read for later
                if self._catch_up(policies) and time.monotonic() >= stuck_at:
                    watch.stuck()
                    self.stuck, stuck_at = watch.late, time.monotonic() + STUCK_SECONDS
                self._wake.wait(POLL_SECONDS)
        finally:
            policies.close()

    def _open(self) -> Policies:
        """The reader of the job, with all alerts noted as written: only the job writes them.

        It refuses topics that were re-created as the job does, by what the job noted on the history topic.
        """
        settings = self._settings
        documents = document_topics(settings.topics)
        errors = LoginErrors(settings)  # one for all attempts: a connection may take longer than one of them
        # An application that closes its client while Kafka is away waits for an attempt to end. But a query of settings
        # takes four answers at first, which are late where a broker is overloaded.
        seconds = RETRIED_SECONDS
        while True:
            try:
                logs = find_logs(errors.admin, (*documents, settings.topics.history), seconds=seconds)
                published = {(topic, 0): sys.maxsize for topic in documents}
                retention = read_retention(settings, logs, seconds, errors.admin)
                return Policies(settings, published, self._on_compiled, logs, retention, stop=self._stop)
            except (KafkaException, TimeoutError) as error:
                self._note_unread(errors.cause_of(error))
                seconds = min(2 * seconds, 4 * RETRIED_SECONDS)

    def _catch_up(self, policies: Policies) -> bool:
        began = suspend_aware_clock()
        try:
            policies.catch_up(ATTEMPT_SECONDS)
        except (KafkaException, TimeoutError) as error:
            self._note_unread(error)
            return False
        self.unread_since = self.unread_error = None
        facts, before = policies.take_fact_changes(), self.read
        is_new, self._compiled = policies.snapshot is not self._compiled, policies.snapshot
        if before is None or facts or is_new:
            snapshot = policies.snapshot.with_facts(policies.overlay)
            policies.pending()  # is the job's to write; what was returned is forgotten
            policies.published()
            self.read = _read(policies, snapshot, began)
        else:  # the snapshot that keeps what it worked out
            self.read = _read(policies, before.snapshot, began)
        self._on_read(self.read)
        if self._on_policies is not None:
            self.facts = policies.overlay.copy() if facts or before is None else self.facts
            if is_new:
                self._on_policies(policies.compiled())
        return True

    _compiled: Snapshot | None = None

    def _note_unread(self, error: Exception) -> None:
        self.unread_error = error
        if self.unread_since is None:
            self.unread_since = time.monotonic()
            documents, group = self._settings.topics.documents, Permission("group", self._settings.job_name, "Describe")
            needed = [*topic_permissions("Read", documents), *topic_permissions("DescribeConfigs", documents), group]
            why = explain_refused(self._settings, error, needed)
            log.warning("the policies cannot be read to their end; trying again", error=why)
        if self._ends_without_login and (refused := login_failure(error, self.unread_since)) is not None:
            raise refused from error
        self._stop.wait(PAUSE_SECONDS)
        if self._stop.is_set():
            raise Stopping("asked to stop while the policies were read")


def _read(policies: Policies, snapshot: Snapshot, began: float) -> Read:
    return Read(snapshot, began, policies.policy_offsets(), policies.facts_offset(), policies.all_offsets())
