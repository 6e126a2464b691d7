"""What the settings are: names, types and defaults. Plain data."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from streaming.alert_kinds import MOST_NUMBER, MOST_SECONDS, AlertKind
from streaming.settings.console import ConsoleSettings
from streaming.settings.monitor import MonitorSettings
from streaming.settings.serve import CLAIMABLE, ServeSettings
from streaming.topics import DEFAULT_SYSTEMS, ROOM, Sizes, TopicNames

MASK = "***"
USER_INFO = re.compile(r"//.*@")
DEFAULT_TRUST = CLAIMABLE
MIB = 1 << 20

Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST_NUMBER)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=MOST_NUMBER)]
Hours = Annotated[float, msgspec.Meta(gt=0, le=MOST_SECONDS / 3600)]
# Of policies that may be as old, and of steps that may take as long: the job looks at the policies twice a second.
Bound = Annotated[float, msgspec.Meta(ge=1, le=MOST_SECONDS)]
# librdkafka takes a second at least, and both clients take milliseconds of 32 bits.
TransactionSeconds = Annotated[float, msgspec.Meta(ge=1, le=2_147_483)]
# A request or document has some hundred bytes, and a producer, which has to take two documents of the largest size and
# more, at most 10^9 (librdkafka's message.max.bytes).
InputBytes = Annotated[int, msgspec.Meta(ge=1 << 10, le=256 * MIB)]
# A dead letter needs 16 KiB beside the record that it keeps, and a decision some for its reasons.
OutputBytes = Annotated[int, msgspec.Meta(ge=ROOM, le=256 * MIB)]
BatchBytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Mode = Literal["enforce", "shadow"]
Encoding = Literal["json", "avro-single-object", "avro-confluent"]
Authorship = Literal["author", "commit", "reason"]


class Limits(Sizes, frozen=True, forbid_unknown_fields=True):
    """Beyond these a record becomes `error` or a dead letter. Sizes in bytes."""

    record_in: InputBytes = MIB
    record_out: OutputBytes = 4 * MIB
    document: InputBytes = MIB


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where /metrics, /healthz and /readyz are served. `port`: 0 serves nothing; nothing listens unless asked to."""

    port: Port = 0
    address: Text = "127.0.0.1"


class AccessChangesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lockkeeper access-changes`. `hours`: for how long a question is remembered; `questions`: how many are."""

    hours: Hours = 24.0
    questions: Positive = 100_000


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `policy apply`, `delete` and `rollback` require a change to say of itself; it stays a claim."""

    require: tuple[Authorship, ...] = ()


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`level`: from which on events are logged."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class TracingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenTelemetry: needs the extra `tracing`. `endpoint`: of OTLP over HTTP, with its path; "": no traces."""

    endpoint: str = ""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Without a user and password within the endpoint."""
        return [("endpoint", USER_INFO.sub(f"//{MASK}@", self.endpoint))]

    def __repr__(self) -> str:
        """Without a user and password within the endpoint."""
        return _shown(self)


class SchemaRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema registry, for Avro in the Confluent wire format; without a `url` there is none.

    `ca`: a file with the certificates to trust, if not the usual ones. `register`: whether the job may register the
    schemas of what it writes; else they must be there.
    """

    url: str = ""
    user: str = ""
    password: str = ""
    ca: str = ""
    register: bool = True

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Without the password."""
        return [("url", self.url), ("user", self.user)]

    def __repr__(self) -> str:
        """Without the password: settings end up in logs."""
        return _shown(self)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of `run` and `serve`. `kafka` is for librdkafka's clients, `source` for Java's (`kafka.…`).

    Of these, Spark's reader takes what is in `source`, and the job's writer what a producer knows of it.

    `mode`: in `shadow` everything is decided as always, and every decision says that it is not enforced.
    `job_name`: the transactional id and the consumer group; a second job with this name fences the first.
    `systems`: the policy languages that have topics, of those that are installed. Of another one, a document is refused
    and a request answered `error`, `unknown-system`.
    `trust`: by topic of requests, answered requests or audit events, what its producers may claim; one not named gets
    all but `time`.
    `weights`: by input topic, its share of a batch while more records wait than a batch has; one not named has 1.
    `master`: Spark's; of `local[K,F]`, K are the threads, and a task that fails, as when a Python worker is killed, is
    run F times in all before the job ends; with `local[K]`, once. A try may meet another killed worker: F above K.
    `max_records`: of a micro-batch. `max_batch_bytes`: of the records that one transaction reads and writes; what is
    beyond follows in other transactions.
    `policy_stale_seconds`: after so long without the policies, an alert.
    `progress_deadline_seconds`: if records wait for so long and none is decided, the job is not ready; if Spark has had
    no executors for so long, it ends.
    `accepted_topic_ids`: of topics that were deleted and re-created and may be read in place of the deleted ones; with
    `:` and the log start offset, of documents' topics whose records were deleted. The error that asks for it names it.
    `encoding`: of decisions and alerts; that of requests is recognised by their first bytes.
    """

    job_name: Text = "lockkeeper"
    mode: Mode = "enforce"
    bootstrap_servers: Text = "localhost:9092"
    systems: tuple[str, ...] = DEFAULT_SYSTEMS
    topics: TopicNames = TopicNames()
    trust: dict[str, frozenset[str]] = {}
    weights: dict[str, Weight] = {}
    kafka: dict[str, str] = {}
    source: dict[str, str] = {}
    spark: dict[str, str] = {}
    master: Text = "local[4,8]"
    checkpoint: Text = "checkpoint"
    max_records: Positive = 200_000
    max_batch_bytes: BatchBytes = 128 * MIB
    limits: Limits = Limits()
    monitor: MonitorSettings = MonitorSettings()
    policy_stale_seconds: Bound = 30.0
    progress_deadline_seconds: Bound = 120.0
    accepted_topic_ids: tuple[str, ...] = ()
    transaction_timeout_seconds: TransactionSeconds = 30.0
    metrics: MetricsSettings = MetricsSettings()
    serve: ServeSettings = ServeSettings()
    console: ConsoleSettings = ConsoleSettings()
    access_changes: AccessChangesSettings = AccessChangesSettings()
    policy: PolicySettings = PolicySettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    encoding: Encoding = "json"
    schema_registry: SchemaRegistry = SchemaRegistry()

    def __post_init__(self) -> None:
        """Let the names of topics be those of the systems."""
        if self.topics.systems != self.systems:
            msgspec.structs.force_setattr(self, "topics", msgspec.structs.replace(self.topics, systems=self.systems))

    @property
    def records_answers(self) -> bool:
        """Whether answers outside the job are recorded, of any system."""
        return any(self.serve.record_of(system) != "none" for system in self.systems)

    def trust_of(self, topic: str) -> frozenset[str]:
        """The claims that the producers of a topic of requests or audit events may make."""
        return self.trust.get(topic, DEFAULT_TRUST)

    def trusted_in_answers(self, trust: frozenset[str]) -> frozenset[str]:
        """Of what a caller may claim, what counts for an answer outside the job: its record's topic is trusted with it.

        The job judges by both, and would call an answer by another claim wrong.
        """
        is_recorded = self.records_answers and self.topics.answered
        return trust & self.trust_of(self.topics.answered[0]) if is_recorded else trust

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Of the settings for Kafka's clients and Spark the names alone: any of their values may be a secret."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        masked = {"kafka", "source", "spark"}
        return [(name, dict.fromkeys(value, MASK) if name in masked else value) for name, value in values]

    def __repr__(self) -> str:
        """Without secrets: settings end up in logs."""
        return _shown(self)


def _shown(settings: Settings | SchemaRegistry | TracingSettings) -> str:
    return f"{type(settings).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.__rich_repr__())})"


def setting_types(struct: type[msgspec.Struct], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every setting with its path and type, those of inner structs one by one."""
    for field in msgspec.structs.fields(struct):
        path = (*above, field.name)
        if path == ("topics", "systems"):
            continue  # follows `systems`
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from setting_types(field.type, path)
        else:
            yield path, field.type


def monitor_settings(settings: Settings) -> Settings:
    """The job's settings under the monitor's own name and checkpoint."""
    checkpoint = settings.monitor.checkpoint or f"{settings.checkpoint}-monitor"
    monitor = msgspec.structs.replace(settings.monitor, systems=_monitored(settings))
    return msgspec.structs.replace(
        settings, job_name=f"{settings.job_name}-monitor", checkpoint=checkpoint, monitor=monitor
    )


def access_changes_settings(settings: Settings) -> Settings:
    """The settings of the job under the own name of `lockkeeper access-changes`: its group and transactional id."""
    return msgspec.structs.replace(settings, job_name=f"{settings.job_name}-access-changes")


def unrecorded_systems(settings: Settings) -> list[str]:
    """Those whose answers over HTTP are not all recorded: accesses of theirs may have been allowed without a record."""
    return [system for system in settings.systems if settings.serve.record_of(system) in ("denials", "none")]


def _monitored(settings: Settings) -> dict[str, dict[str, Any]]:
    """`monitor.systems`, with `unrequested-access` off where not all answers are recorded."""
    systems = dict(settings.monitor.systems)
    for system in unrecorded_systems(settings):
        rules = systems.get(system, {})
        kinds = {**rules.get("kinds", {})}
        kinds[AlertKind.UNREQUESTED_ACCESS] = {**kinds.get(AlertKind.UNREQUESTED_ACCESS, {}), "enabled": False}
        systems[system] = {**rules, "kinds": kinds}
    return systems
