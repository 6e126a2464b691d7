"""The settings of the job: a YAML file, then environment variables `LOCKKEEPER_…`, then checks that name the fix."""

import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml

from policy import CLAIMS, MAX_CLAIMED_GROUPS, all_systems, nearest
from streaming.alert_kinds import AlertKind
from streaming.authentication_settings import (
    ConsoleSettings,
    JwtSettings,
    TlsSettings,
    console_problem,
    jwt_problem,
    tls_problem,
)
from streaming.monitor_settings import MonitorSettings
from streaming.topics import DEFAULT_SYSTEMS, TopicNames, topic_with_two_uses
from streaming.unique_yaml import DuplicateName, parse_yaml, place_of

PREFIX = "LOCKKEEPER_"
OTHER_VARIABLES = frozenset(
    f"LOCKKEEPER_{name}" for name in ("CONFIG", "IVY_SETTINGS", "AUTHOR", "COMMIT", "REASON")
)  # they are no settings of the job
TEST_PREFIX = "LOCKKEEPER_TEST_"
# Kubernetes sets variables for each Service of the namespace, this one for all of them.
SERVICE_HOST = re.compile(r"(LOCKKEEPER(?:_.+)?)_SERVICE_HOST")
MAY_HOLD_SECRETS = frozenset({"kafka", "source", "spark", "schema_registry", "tracing"})
MASK = "***"
USER_INFO = re.compile(r"//.*@")
DEFAULT_TRUST = CLAIMS - {"time"}
MIB = 1 << 20

Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Mode = Literal["enforce", "shadow"]
RecordMode = Literal["all", "durable", "denials", "none"]
Encoding = Literal["json", "avro-single-object", "avro-confluent"]


CONSTANT = "the value that was its default always holds"
REMOVED: Mapping[tuple[str, ...], str] = {
    ("candidate",): "lockkeeper policy diff --newest and lockkeeper replay try policies on past requests",
    ("snapshots_kept",): CONSTANT,
    ("answer_clock_skew",): CONSTANT,
    ("idle_seconds",): CONSTANT,
    ("limits", "cached_decisions"): CONSTANT,
    ("limits", "cached_bytes"): CONSTANT,
    ("monitor", "accesses_per_subject"): CONSTANT,
    ("serve", "wait_seconds"): CONSTANT,
    ("serve", "poll_seconds"): CONSTANT,
    ("serve", "record_topic"): "answers are recorded on the first topic of topics.answered",
    ("serve", "record_queue"): CONSTANT,
    ("serve", "record_full"): "an answer that cannot be recorded is an error",
    ("serve", "jwt", "leeway_seconds"): CONSTANT,
    ("console", "session_seconds"): CONSTANT,
    ("console", "oidc", "scopes"): CONSTANT,
}
"""Settings of the version before that this one accepts without effect, and what takes their place."""


class SettingsError(Exception):
    """A setting is unknown or wrong; the message names it, its value and what would fix it."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Beyond these a record becomes `error` or a dead letter. Sizes in bytes.

    `claimed_groups`: groups that a request may claim, and roles.
    """

    record_in: Positive = MIB
    record_out: Positive = 4 * MIB
    document: Positive = MIB
    claimed_groups: Positive = MAX_CLAIMED_GROUPS


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where /metrics, /healthz and /readyz are served. `port`: 0 serves nothing; nothing listens unless asked to."""

    port: Port = 0
    address: Text = "127.0.0.1"


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lockkeeper serve`. Without `callers` only this machine may ask.

    `callers`: a YAML file of who may ask, by which credentials, what; "": callers need none. `tls`, `jwt`: see there.
    `allow_plaintext`: an address that other machines reach without TLS, where a proxy or service mesh encrypts. `port`:
    0 takes a free one. `url`: at which callers reach it, for `/.well-known/authzen-configuration`; "": address and
    port. `default_system`: of the paths that name none; "": they need `context.system`. `trust`: what callers may
    claim; `search`: whether they may search who may do what. `max_staleness_seconds`: policies that could not be read
    for so long decide nothing. `request_seconds`: for a request to be sent, and for its response to be read.
    `max_requests`: that are answered at once. `drain_seconds`: how long it goes on answering, while it is not ready,
    once it is asked to stop. `access_log`: a line per response. `record`: which answers are recorded, `durable`: and
    given once Kafka has them; `record_systems`: by system. `name`: in records; "": of the machine. `ext_authz`: a YAML
    file of routes for Envoy's external authorization; "": there is none.
    """

    address: Text = "127.0.0.1"
    port: Port = 8080
    callers: str = ""
    tls: TlsSettings = TlsSettings()
    jwt: JwtSettings = JwtSettings()
    allow_plaintext: bool = False
    url: str = ""
    default_system: str = ""
    trust: frozenset[str] = frozenset()
    max_staleness_seconds: Seconds = 15.0
    search: bool = True
    request_seconds: Seconds = 10.0
    max_connections: Positive = 1000
    max_requests: Positive = 256
    drain_seconds: Annotated[float, msgspec.Meta(ge=0, le=300)] = 0.0
    access_log: bool = False
    ext_authz: str = ""
    record: RecordMode = "all"
    record_systems: dict[str, RecordMode] = {}
    name: Annotated[str, msgspec.Meta(max_length=256)] = ""

    def record_of(self, system: str) -> RecordMode:
        """Which answers of a system are recorded."""
        return self.record_systems.get(system, self.record)

    @property
    def records(self) -> bool:
        """Whether any answers are recorded."""
        return {self.record, *self.record_systems.values()} != {"none"}


class AccessChangesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`lockkeeper access-changes`. `hours`: for how long a question is remembered; `questions`: how many are."""

    hours: Seconds = 24.0
    questions: Positive = 100_000


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `policy apply`, `delete` and `rollback` require a change to say of itself; it stays a claim."""

    require_author: bool = False
    require_commit: bool = False
    require_reason: bool = False


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`level`: from which on events are logged. `decisions`: at debug level each decision too, of those in JSON."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    decisions: bool = False


class TracingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenTelemetry: needs the extra `tracing`. `endpoint`: of OTLP over HTTP, with its path."""

    enabled: bool = False
    endpoint: Text = "http://localhost:4318/v1/traces"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Without a user and password within the endpoint."""
        return [("enabled", self.enabled), ("endpoint", USER_INFO.sub(f"//{MASK}@", self.endpoint))]

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
    `max_records`: of a micro-batch. `max_batch_bytes`: of the records that one transaction reads and writes, and
    `max_batch_seconds`: how long workers decide these; what is beyond follows in other transactions.
    `policy_stale_seconds`: after so long without the policies, an alert.
    `progress_deadline_seconds`: if records wait for so long and none is decided, the job is not ready; if Spark has had
    no executors for so long, it ends.
    `accepted_topic_ids`: of topics that were deleted and re-created and may be read in place of the deleted ones; with
    `:` and the log start offset, of documents' topics whose records were deleted. The error that asks for it names it.
    `idle_commit_seconds`: how often offsets are committed while there are no requests (Kafka forgets them after days; a
    fenced job notices).
    `encoding`: of decisions and alerts; that of requests is recognised by their first bytes.
    """

    job_name: Text = "lockkeeper"
    mode: Mode = "enforce"
    bootstrap_servers: Text = "localhost:9092"
    systems: tuple[str, ...] = DEFAULT_SYSTEMS
    topics: TopicNames = TopicNames()
    trust: dict[str, frozenset[str]] = {}
    weights: dict[str, Seconds] = {}
    kafka: dict[str, str] = {}
    source: dict[str, str] = {}
    spark: dict[str, str] = {}
    master: Text = "local[4,8]"
    checkpoint: Text = "checkpoint"
    max_records: Positive = 200_000
    max_batch_bytes: Positive = 128 * MIB
    max_batch_seconds: Seconds = 3.0
    limits: Limits = Limits()
    monitor: MonitorSettings = MonitorSettings()
    policy_stale_seconds: Seconds = 30.0
    progress_deadline_seconds: Seconds = 120.0
    accepted_topic_ids: tuple[str, ...] = ()
    idle_commit_seconds: Seconds = 30.0
    transaction_timeout_seconds: Seconds = 30.0
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

    def trust_of(self, topic: str) -> frozenset[str]:
        """The claims that the producers of a topic of requests or audit events may make."""
        return self.trust.get(topic, DEFAULT_TRUST)

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


def load_settings(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    warn: Callable[[str], None] = lambda _warning: None,
) -> Settings:
    """Read the YAML file, if any, and let `LOCKKEEPER_…` variables take precedence. Raises SettingsError.

    `warn`: called for each setting that was removed, and has no effect.
    """
    given, environment = _read(path) if path else {}, os.environ if environment is None else environment
    for removed, instead in REMOVED.items():
        if _drop(given, removed) or variable(removed) in environment:
            warn(f"{'.'.join(removed)} is no setting any more and has no effect: {instead}. Remove it")
    for field, text in _from_environment(environment):
        _set(given, field, text)
    return check_settings(given, str(path or "the environment"))


def check_settings(given: Mapping[str, Any], where: str = "settings") -> Settings:
    """The settings from plain data; `where` is named in errors. Raises SettingsError."""
    try:
        settings = msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        known = ", ".join(".".join(field) for field, _ in _fields(Settings))
        raise SettingsError(f"{where}: {error}{_value_at(given, str(error))}. Settings are: {known}") from None
    except UnicodeEncodeError:
        raise SettingsError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff): it is no character") from None
    _check_systems(given, settings, where)
    _check_topics(settings, where)
    _check_trust(settings, where)
    _check_weights(settings, where)
    _check_registry(settings, where)
    _check_serve(settings, where)
    _check_console(settings, where)
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 at byte {error.start}") from None  # the error holds the file
    given = parse_text(str(path), text)
    if given is not None and not isinstance(given, dict):
        kind = type(given).__name__
        raise SettingsError(f"{path}: settings are a mapping such as `job_name: lockkeeper`, not a {kind}")
    return given or {}


def _fields(struct: type[msgspec.Struct], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every setting with its path and type, those of inner structs one by one."""
    for field in msgspec.structs.fields(struct):
        path = (*above, field.name)
        if path == ("topics", "systems"):
            continue  # follows `systems`
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _fields(field.type, path)
        else:
            yield path, field.type


def variable(path: tuple[str, ...]) -> str:
    """The environment variable of a setting: `topics.decisions` is `LOCKKEEPER_TOPICS_DECISIONS`."""
    return PREFIX + "_".join(path).upper()


def variables() -> dict[str, tuple[tuple[str, ...], Any]]:
    """Every environment variable that is a setting, with the setting's path and type."""
    return {variable(path): (path, type_) for path, type_ in _fields(Settings)}


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], Any]]:
    known = variables()
    _check_variables(environment, known)
    for name, text in environment.items():
        if name in known:
            path, type_ = known[name]
            yield path, text if type_ in (str, Text) else parse_text(name, text)


def _check_variables(environment: Iterable[str], known: Iterable[str]) -> None:
    """An unknown variable must not be ignored: its setting would keep the default. Values may be secrets."""
    known, services = {*known, *OTHER_VARIABLES, *map(variable, REMOVED)}, _service_variables(environment)
    unknown = sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and name not in known
        and not name.startswith(TEST_PREFIX)
        and not services.fullmatch(name)
    )
    if unknown:
        hints = (f"{name}: there is no such setting{_variable_meant(name.upper(), known)}" for name in unknown)
        raise SettingsError(f"the environment: {'. '.join(hints)}. Correct the name, or unset the variable")


def _variable_meant(name: str, known: Iterable[str]) -> str:
    """A variable in the wrong case, else the nearest one."""
    return f"; did you mean {name}?" if name in known else nearest(name, known, PREFIX)


def _service_variables(environment: Iterable[str]) -> re.Pattern[str]:
    """What Kubernetes calls the variables of its Services: NAME_SERVICE_HOST, NAME_SERVICE_PORT…, NAME_PORT…"""
    services = [re.escape(found[1]) for found in map(SERVICE_HOST.fullmatch, environment) if found]
    return re.compile(rf"(?:{'|'.join(services)})_(?:SERVICE_HOST|(?:SERVICE_)?PORT(?:_.+)?)" if services else r"(?!)")


def parse_text(where: str, text: str) -> Any:
    """The YAML of a file or a variable. Raises SettingsError, which says where, and not what stands there: it may be
    part of a secret.
    """
    try:
        return parse_yaml(text)
    except DuplicateName as error:
        place = place_of(error)
        raise SettingsError(f"{where}: a name that is there twice in one mapping{place}: remove one") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{where}: not YAML{place_of(error)}: put the value in quotes; a quote within single quotes is written "
            'twice, within double quotes as \\". What is there is not shown, as it may be a secret'
        ) from None


def _drop(given: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a setting was there; it is not any more."""
    inner: Any = given
    for name in path[:-1]:
        inner = inner.get(name) if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or path[-1] not in inner:
        return False
    del inner[path[-1]]
    return True


def _set(given: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        given = given.setdefault(name, {})
        if not isinstance(given, dict):
            raise SettingsError(f"{variable(path)}: {name}, which holds it, is not a mapping")
    given[path[-1]] = value


def _value_at(given: Any, message: str) -> str:
    """What stands where an error message points: "… - at `$.limits.record_in`"; nothing where it may hold a secret."""
    path = message.rpartition("`$.")[2].rstrip("`").split(".") if "`$." in message else []
    if not path or path[0] in MAY_HOLD_SECRETS:
        return ""
    for name in path:
        if not isinstance(given, Mapping) or name not in given:
            return ""
        given = given[name]
    return "" if isinstance(given, Mapping | list) else f" (it is {given!r})"


def _check_systems(given: Mapping[str, Any], settings: Settings, where: str) -> None:
    """A system that has topics must be installed, and all policies of one topic are of one system."""
    installed, topics = all_systems(), given.get("topics", {})
    if "systems" in topics and tuple(topics["systems"]) != settings.systems:
        raise SettingsError(f"{where}: topics.systems: is no setting; `systems` says which systems have topics")
    if not settings.systems:
        raise SettingsError(f"{where}: systems: must name at least one of {', '.join(installed)}")
    for system in settings.systems:
        if system not in installed:
            raise SettingsError(f"{where}: systems: {system!r} is not installed{_installed_ones(system)}")
        if settings.systems.count(system) > 1:
            raise SettingsError(f"{where}: systems: {system!r} is there twice; leave one out")
    # Else the default topic, or the default rules, would count in place of those that are named here.
    by_system: dict[str, Iterable[str]] = {
        "topics.policies": settings.topics.policies,
        "monitor.systems": settings.monitor.systems,
    }
    for setting, named in by_system.items():
        for system in named:
            if system not in installed:
                known = _installed_ones(system)
                raise SettingsError(f"{where}: {setting}.{system}: no such system is installed{known}")
    for system in sorted(frozenset[str]().union(*(one.systems for one in settings.monitor.exempt))):
        if system not in installed:
            known = _installed_ones(system)
            raise SettingsError(f"{where}: monitor.exempt: no system {system!r} is installed{known}")


def _installed_ones(system: str) -> str:
    """Which systems there are, the one that may be meant first; to end a message with."""
    return f"{nearest(system, all_systems())}; there are {', '.join(all_systems())}"


def _check_topics(settings: Settings, where: str) -> None:
    """Who may write to a topic follows from its use: who publishes requests or facts must not publish policies."""
    if found := topic_with_two_uses(settings.topics):
        topic, *uses = found
        raise SettingsError(f"{where}: topic {topic!r} is both {' and '.join(uses)}: give each a topic of its own")


def _check_trust(settings: Settings, where: str) -> None:
    for topic, claims in settings.trust.items():
        inputs = settings.topics.inputs
        if topic not in inputs:
            fields = "topics.requests, topics.audit or topics.answered"
            raise SettingsError(f"{where}: trust.{topic}: not one of {fields}: {inputs}")
        if unknown := claims - CLAIMS:
            raise SettingsError(f"{where}: trust.{topic}: {sorted(unknown)} are not among {sorted(CLAIMS)}")


def _check_weights(settings: Settings, where: str) -> None:
    for topic in settings.weights:
        if topic not in settings.topics.inputs:
            fields = "topics.requests, topics.audit or topics.answered"
            raise SettingsError(f"{where}: weights.{topic}: not one of {fields}: {settings.topics.inputs}")


def _check_serve(settings: Settings, where: str) -> None:
    serve = settings.serve
    if unknown := serve.trust - DEFAULT_TRUST:
        raise SettingsError(f"{where}: serve.trust: {sorted(unknown)} are not among {sorted(DEFAULT_TRUST)}")
    if serve.default_system and serve.default_system not in settings.systems:
        raise SettingsError(
            f"{where}: serve.default_system: {serve.default_system!r} is not one of systems: {settings.systems}"
        )
    if serve.url and not _is_address(serve.url):
        raise SettingsError(f"{where}: serve.url: not an address such as https://pdp.example.com")
    if problem := tls_problem(serve.tls) or jwt_problem(serve.jwt):
        raise SettingsError(f"{where}: {problem}")
    _check_access(serve, where)


def _check_console(settings: Settings, where: str) -> None:
    if problem := console_problem(settings.console, _is_loopback(settings.console.address)):
        raise SettingsError(f"{where}: {problem}")


def _check_access(serve: ServeSettings, where: str) -> None:
    """Other machines ask with credentials alone, and send them with encryption."""
    if serve.callers and serve.trust:
        raise SettingsError(f"{where}: serve.trust: leave it out, as serve.callers gives each caller its own")
    if serve.ext_authz and not serve.callers:
        raise SettingsError(f"{where}: serve.ext_authz: needs serve.callers: Envoy is one of them, and names subjects")
    if not serve.callers and (serve.jwt.issuer or serve.tls.client_ca):
        raise SettingsError(f"{where}: serve.callers: must name a file that says who may ask, with these credentials")
    if _is_loopback(serve.address):
        return
    if not serve.callers:
        raise SettingsError(
            f"{where}: serve.address: {serve.address} lets other machines ask, without credentials. Use 127.0.0.1, or "
            "say who may ask in a file that serve.callers names (LOCKKEEPER_SERVE_CALLERS)"
        )
    if not serve.tls.certificate and not serve.allow_plaintext:
        raise SettingsError(
            f"{where}: serve.address: at {serve.address} credentials would be sent without encryption. Set "
            "serve.tls.certificate and serve.tls.key; where a proxy or service mesh on the way encrypts, set "
            "serve.allow_plaintext (LOCKKEEPER_SERVE_ALLOW_PLAINTEXT=true)"
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _check_registry(settings: Settings, where: str) -> None:
    """The URL is shown in errors and logs: it must not hold a password."""
    registry = settings.schema_registry
    if "@" in registry.url:
        raise SettingsError(f"{where}: schema_registry.url: leave user and password out of it; they are settings too")
    if registry.url and not all(map(_is_address, registry.url.split(","))):
        raise SettingsError(f"{where}: schema_registry.url: not an address such as http://localhost:8081")
    if registry.password and not registry.user:
        raise SettingsError(f"{where}: schema_registry.password: needs schema_registry.user")
    if settings.encoding == "avro-confluent" and not registry.url:
        raise SettingsError(f"{where}: encoding: avro-confluent needs a schema registry: set schema_registry.url")


def _is_address(url: str) -> bool:
    parts = urlsplit(url.strip())
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def monitor_settings(settings: Settings) -> Settings:
    """The job's settings under the monitor's own name and checkpoint."""
    place = settings.monitor.checkpoint or f"{settings.checkpoint}-monitor"
    monitor = msgspec.structs.replace(settings.monitor, systems=_monitored(settings))
    return msgspec.structs.replace(settings, job_name=f"{settings.job_name}-monitor", checkpoint=place, monitor=monitor)


def access_changes_settings(settings: Settings) -> Settings:
    """The settings of the job under the own name of `lockkeeper access-changes`: its group and transactional id."""
    return msgspec.structs.replace(settings, job_name=f"{settings.job_name}-access-changes")


def check_separate_monitor(settings: Settings) -> None:
    """Raise SettingsError where `lockkeeper run` runs the monitor: it and `lockkeeper monitor` would fence each other.

    Or where heartbeats are missing, as `lockkeeper run` takes the monitor for switched off.
    """
    for name, is_set in (("enabled", settings.monitor.enabled), ("separate", settings.monitor.separate)):
        if not is_set:
            raise SettingsError(
                f"monitor.{name}: must be true for `lockkeeper monitor`. Set it in the settings of `lockkeeper run`, "
                "too, which then leaves the monitor to `lockkeeper monitor`"
            )


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
