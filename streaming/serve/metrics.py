"""What `lockkeeper serve` counts, and whether it is fit to decide."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from policy import OUTCOMES, Decision, all_systems
from streaming.ops.health import Health
from streaming.ops.registry import MetricsRegistry
from streaming.ops.tally import OTHER, Compiled
from streaming.pdp.reading import Read, suspend_aware_clock
from streaming.serve.connections import Connections, Refusals

if TYPE_CHECKING:
    from streaming.pdp.follower import Follower
    from streaming.pdp.recording import Recorder

BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
SILENT_SECONDS = 2.0  # of the loop, after which the server is not ready


class ServeHealth(Health):
    """Whether a server is fit to decide: also whether its loop answers, and has room."""

    def __init__(self, bound: float) -> None:
        super().__init__(bound)
        self._silent: Callable[[], float] = lambda: 0.0
        self._refusals: tuple[Refusals, ...] = ()

    def watches(self, silent: Callable[[], float], *refusals: Refusals) -> None:
        """`silent`: for how long the loop has not answered, s; `refusals`: for lack of room."""
        self._silent, self._refusals = silent, refusals

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        silent, refusing = self._silent(), max((refusal.lasting() for refusal in self._refusals), default=0.0)
        if silent > SILENT_SECONDS:
            yield f"the HTTP server has not answered for {silent:.0f} s: it is overloaded"
        if refusing:
            yield f"all connections or requests have been refused for {refusing:.0f} s: there are too many"


class ServeMetrics(MetricsRegistry):
    """The metrics of one server on a registry of its own, and `health`, which `/readyz` shows."""

    def __init__(self, systems: tuple[str, ...], health: Health) -> None:
        super().__init__()
        self.health = health
        self.health.running = True
        decisions = self.counter("lockkeeper_serve_decisions", "Evaluations decided over HTTP.", "system", "outcome")
        self._decisions = {
            (system, outcome): decisions.labels(system, outcome) for system in (*systems, OTHER) for outcome in OUTCOMES
        }
        self._responses = self.counter("lockkeeper_serve_responses", "Responses by HTTP status.", "status")
        self._statuses = {status: self._responses.labels(str(status)) for status in (200, 400, 503)}
        self._seconds = self.histogram(
            "lockkeeper_serve_response_seconds", "From the headers of a request to its response.", BUCKETS
        )
        self._closed = self.counter(
            "lockkeeper_serve_connections_closed", "Connections that ended, by reason.", "reason"
        )
        self._compile = self.histogram(
            "lockkeeper_serve_compile_seconds", "Time to compile a snapshot of the policies."
        )
        self._read_at = 0.0
        self.gauge(
            "lockkeeper_serve_policies_age_seconds",
            "How long ago the ends were asked for up to which policies and facts are read; 0 before the first reading.",
            lambda: suspend_aware_clock() - self._read_at if self._read_at else 0.0,
        )

    def connected(self, connections: Connections) -> None:
        """Show how many connections there are."""
        self.gauge("lockkeeper_serve_connections", "Connections that are open.", lambda: len(connections.open))

    def connection_closed(self, reason: str) -> None:
        """Count a connection that ended."""
        self._closed.labels(reason).inc()

    def recording(self, recorder: "Recorder") -> None:
        """Show what is recorded, lost, and waits for Kafka."""
        self.gauge("lockkeeper_serve_recorded", "Answers that Kafka has as records.", lambda: recorder.recorded)
        self.gauge("lockkeeper_serve_records_lost", "Answers that could not be recorded.", lambda: recorder.lost)
        about = "Answers that wait to be recorded: what is lost when the process is killed."
        self.gauge("lockkeeper_serve_records_queued", about, lambda: recorder.queued)

    def answered(self, status: int, seconds: float) -> None:
        """Count a response."""
        counter = self._statuses.get(status)
        if counter is None:
            counter = self._statuses[status] = self._responses.labels(str(status))
        counter.inc()
        self._seconds.observe(seconds)

    def decided(self, system: str, decision: Decision) -> None:
        """Count an evaluation, or each of several; untrusted callers choose the names of systems."""
        label = system if (system, "allow") in self._decisions and system in all_systems() else OTHER
        for evaluation in decision.evaluations or (decision,):
            self._decisions[label, evaluation.outcome].inc()

    def compiled(self, compilation: Compiled) -> None:
        """Note a new snapshot."""
        self._compile.observe(compilation.seconds)

    def read(self, read: Read) -> None:
        """Note that policies and facts were read to their ends."""
        self._read_at = read.at
        self.health.policies_read()

    def looked_at(self, follower: "Follower") -> None:
        """Note what keeps the follower from reading."""
        self.health.stuck = follower.stuck
        if follower.unread_since is not None:
            self.health.policies_unread(follower.unread_since)
        self.health.note()
