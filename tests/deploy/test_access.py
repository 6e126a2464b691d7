"""Who may do what: the generated users on a broker with SCRAM, client certificates and ACLs, and no job.

Each user runs what the documentation says that the user can run. Then each permission is taken away in turn, and what
needs it must say who lacks which operation on which resource, and how to add it.
"""

import contextlib
import dataclasses
import html
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import yaml
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from starlette.testclient import TestClient

from streaming.access_changes.running import run as run_access_changes
from streaming.application import check_permissions, run
from streaming.cli.access_changes import check_access as check_access_changes
from streaming.cli.browser import check_access as check_console_access
from streaming.cli.failure import Failure
from streaming.cli.serve import check_access
from streaming.client import (
    AccessChangeConsumer,
    AlertConsumer,
    Client,
    ClientError,
    Connection,
    DecisionConsumer,
    NotReported,
)
from streaming.commit.transaction import Output
from streaming.console.live import console
from streaming.enforcer.source import connection_options
from streaming.errors import CannotStart, CannotWrite
from streaming.kafka.manifests import (
    CHECK,
    enforcer_permissions,
    permissions_of,
    rights_by_user,
    topic_manifests,
    user_manifests,
)
from streaming.kafka.permissions import Permission, missing_permissions
from streaming.kafka.publish import PublishFailed, transactional_id
from streaming.runtime.spark import start_session
from streaming.serve.server import Server
from streaming.settings import ServeSettings, Settings, monitor_settings
from streaming.settings.monitor import MonitorSettings
from streaming.topics import topic_specs
from tests.cli.lockkeeper import Command
from tests.deploy.files import documented_commands, parse_command
from tests.stream.certificates import Authority
from tests.stream.secured_broker import SecuredBroker, add_logins, apply, binding, grant, secured_broker, without
from tests.stream.world import SHORT_LIVED, SYSTEM, group, request, role
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long]

SETTINGS = Settings()
NAMES, JOB = SETTINGS.topics, SETTINGS.job_name
TOPICS = tuple(spec.name for spec in topic_specs(NAMES))
OWNERS = {system: f"{JOB}-policies-{system}" for system in SETTINGS.systems}
USERS = tuple(rights_by_user(SETTINGS))
SECONDS = 15.0
DOCUMENTS: dict[str, dict[str, Any]] = {
    "lenses6": group("readers", "user:dana"),
    "lenses5": {"system": "lenses5", "kind": "Group", "name": "readers", "spec": {"namespaces": []}},
    "ververica": {"system": "ververica", "kind": "ReservedKinds", "name": "readers", "spec": {"kinds": []}},
    "streamsets": {"system": "streamsets", "kind": "Organization", "name": "acme", "spec": {"enforcement": True}},
    "cdap": {"system": "cdap", "kind": "Backend", "name": "readers", "spec": {"admins": ["root"]}},
}
EVENT = {
    "system": SYSTEM,
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
    "outcome": "success",
}


@dataclass(frozen=True, slots=True)
class Session:
    """What a user works with: the command, settings with the user's login, and a folder. `ran`: commands so far."""

    user: str
    lockkeeper: Command
    settings: Settings
    folder: Path
    ran: set[str] = field(default_factory=set)

    @property
    def connection(self) -> Connection:
        """The same for the Python API."""
        return Connection.of(self.settings)

    def run(self, *arguments: str, even_if: str = "", prints: str = "") -> str:
        """Run a command. What it says when it fails, unless it says what it says without a job, or prints a result."""
        file = self.folder / "lockkeeper.yaml"
        kafka = self.settings.kafka
        file.write_text(yaml.safe_dump({"bootstrap_servers": self.settings.bootstrap_servers, "kafka": kafka}))
        self.ran.add(parse_command(arguments))
        shown = self.lockkeeper(*arguments, "--config", str(file))
        if shown.code == 0 or (even_if and even_if in shown.err) or (prints and prints in shown.out):
            return ""
        return shown.err or f"exit code {shown.code}: {shown.out}"

    def documents(self, name: str, *documents: dict[str, Any]) -> str:
        """A file with documents."""
        file = self.folder / name
        file.write_text(yaml.safe_dump_all(documents))
        return str(file)


Step = Callable[[Session], str]
"""Something that a user does; what is said when it cannot be done, or nothing."""


def _owner(system: str) -> list[Step]:
    document = DOCUMENTS[system]
    key = f"{system}/{document['kind']}/{document['name']}"

    def apply_documents(session: Session) -> str:
        return session.run("policy", "apply", session.documents("documents.yaml", document))

    def get(session: Session) -> str:
        return session.run("policy", "get", key)

    def prune(session: Session) -> str:
        return session.run("policy", "apply", session.documents("documents.yaml", document), "--prune")

    def diff(session: Session) -> str:
        file = session.documents("documents.yaml", document)
        return session.run("policy", "diff", file, file, "--newest", "5")

    def delete_and_apply(session: Session) -> str:
        return session.run("policy", "delete", key) or apply_documents(session)

    def compare(session: Session) -> str:
        file = session.documents("documents.yaml", document)
        return session.run("policy", "status", file) or session.run("policy", "diff", "live", file)

    def log(session: Session) -> str:
        return session.run("policy", "log")

    return [apply_documents, get, prune, diff, compare, log, delete_and_apply]


def _ask(session: Session) -> str:
    asked = ("--system", SYSTEM, "--subject", "user:dana", "--action", "kafka:ListTopic", "--resource", "kafka:topic:*")
    return session.run("request", *asked, "--timeout", "2", even_if="no decision within")


def _ask_in_python(session: Session) -> str:
    with Client(session.connection) as client:
        decision = client.authorize(request("r-1", "dana", "orders"), 2.0 if client.ready(2) else 0.1)
    return "" if "no decision within" in str(decision) else str(decision)


def _report(session: Session) -> str:
    try:
        with Client(session.connection) as client:
            client.report(EVENT, timeout=SECONDS)
    except NotReported as error:
        return str(error)
    return ""


def _publish_facts(session: Session) -> str:
    return _produced(session.settings, NAMES.facts)


def _produced(settings: Settings, topic: str) -> str:
    said: list[str] = []
    producer = Producer({**settings.kafka, "bootstrap.servers": settings.bootstrap_servers, "log_level": "2"})
    producer.produce(topic, None, b"cdap/Entity/none", on_delivery=lambda error, _: said.append(error and error.name()))
    producer.flush(SECONDS)
    [name] = said
    return name or ""


def _tail(what: str, session: Session) -> str:
    return session.run("tail", what, "--from-beginning", "--count", "1")


def _follow(
    make: Callable[[Connection, str], DecisionConsumer | AlertConsumer | AccessChangeConsumer], session: Session
) -> str:
    try:
        with make(session.connection, f"{session.user}-1") as consumer:
            next(iter(consumer))
    except ClientError as error:
        return str(error)
    return ""


def _run_report(session: Session) -> str:
    return session.run("report", "--json", "--last", "1h")


def _check_topics(session: Session) -> str:
    return session.run("topics", "check")


def _log(session: Session) -> str:
    return session.run("policy", "log")


def _search(session: Session) -> str:
    return session.run("decisions", "--limit", "1")


def _explain(session: Session) -> str:
    return session.run("explain", "--decision", "none", even_if="no decision none")


def _doctor(session: Session) -> str:
    return session.run("doctor", "r-1", prints="produced to")


def _status(session: Session) -> str:
    return session.run("status", prints=f"job {JOB}")


def _who_and_what(session: Session) -> str:
    live = ("--system", SYSTEM, "--live")
    asked = ("--action", "kafka:ListTopic", "--resource", "kafka:topic:prod/main/orders", *live)
    return session.run("who-can", *asked) or session.run("what-can", "--subject", "user:dana", *live)


def _history(session: Session) -> str:
    """There is no job, so there are no changes."""
    shown = session.run("policy", "show", "HEAD", even_if="no changes on their topic")
    return shown or session.run("policy", "get", SYSTEM, "--at", "2026-01-01T00:00:00Z", even_if="no longer known")


def _differs(session: Session) -> str:
    file = session.documents("documents.yaml", DOCUMENTS[SYSTEM])
    return session.run("policy", "status", file) or session.run("policy", "diff", "live", file)


def _verify(session: Session) -> str:
    """What it finds is another matter: somebody wrote a decision here, and there is no job."""
    return session.run("verify", "--json", prints="violations")


def _serve(session: Session) -> str:
    """Until the policies are read; then it is asked to stop."""
    session.ran.add(parse_command(["serve"]))
    settings = msgspec.structs.replace(session.settings, serve=ServeSettings(port=0, record="none"))
    stop = threading.Event()
    try:
        check_access(settings)
        Server(settings).run(stop, stop.set)
    except Failure as error:
        return str(error)
    return ""


def _access_changes(session: Session) -> str:
    """It is ready once it has its transactional id and its first commit."""
    session.ran.add(parse_command(["access-changes"]))
    stop = threading.Event()
    try:
        check_access_changes(session.settings)
        run_access_changes(session.settings, stop, stop.set)
    except (Failure, CannotWrite) as error:
        return str(error)
    return "" if stop.is_set() else "it is not ready"


def _console(session: Session) -> str:
    """Until the policies are read; then each page that reads Kafka is asked for."""
    session.ran.add(parse_command(["console"]))
    try:
        check_console_access(session.settings)
    except Failure as error:
        return str(error)
    stop = threading.Event()
    with console(session.settings, stop) as app:
        client = TestClient(app, base_url="http://localhost:8090", raise_server_exceptions=False)
        wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read")
        for page in ("/overview", "/decisions", "/alerts", "/changes", f"/draft?document={SYSTEM}/Role/r"):
            response = client.get(page)
            if response.status_code != 200:
                return f"{page}: {response.text}"
    return ""


def _start(session: Session) -> str:
    """What a job says of its permissions before it starts anything. Without the enforcer's it does not start."""
    admin = AdminClient({**session.settings.kafka, "bootstrap.servers": session.settings.bootstrap_servers})
    with structlog.testing.capture_logs() as logs:
        try:
            check_permissions(admin, session.settings)
        except CannotStart as error:
            return f"refused: {error}"
    return "".join(str(entry["error"]) for entry in logs)


ANALYST: list[Step] = [_search, _explain, _doctor, _status, _who_and_what, _log, _history, _differs]
STEPS: dict[str, list[Step]] = {
    **{owner: _owner(system) for system, owner in OWNERS.items()},
    f"{JOB}-client": [partial(_follow, DecisionConsumer), _ask, _ask_in_python],
    f"{JOB}-service": [
        partial(_follow, DecisionConsumer),
        _ask,
        _ask_in_python,
        _report,
        partial(_follow, AccessChangeConsumer),
    ],
    f"{JOB}-audit": [_report],
    f"{JOB}-facts": [_publish_facts],
    f"{JOB}-watch": [
        _check_topics,
        _run_report,
        _log,
        partial(_tail, "alerts"),
        partial(_tail, "decisions"),
        partial(_follow, AlertConsumer),
        partial(_follow, AccessChangeConsumer),
        partial(_follow, DecisionConsumer),
    ],
    f"{JOB}-analyst": ANALYST,
    f"{JOB}-console": [*ANALYST, _console],
    f"{JOB}-serve": [_serve],
    f"{JOB}-access-changes": [_access_changes],
    f"{JOB}-verify": [_verify],
}


@pytest.fixture(scope="module")
def broker() -> Iterator[SecuredBroker]:
    """A broker with the generated topics and users, and something in each topic that is read here."""
    with secured_broker() as found:
        certified = [_of_certificates(user) for user in user_manifests(SETTINGS, "kafka", "tls")]
        apply(found.admin, [*topic_manifests(SETTINGS, "kafka", 2, 1), *user_manifests(SETTINGS, "kafka"), *certified])
        _seed(found)
        yield found


def _of_certificates(user: dict[str, Any]) -> dict[str, Any]:
    assert user["spec"]["authentication"] == {"type": "tls"}
    return user


def _seed(broker: SecuredBroker) -> None:
    alert = {"id": "a", "kind": "k", "severity": "low", "time": "2026-11-22T00:00:00Z", "message": "m"}
    place = {"topic": NAMES.requests[0], "partition": 0, "offset": 0}
    decision = {"id": "d", "request_id": "r-1", "system": SYSTEM, "decision": False, "time": "2026-11-22T00:00:00Z"}
    context = {"outcome": "deny", "source": place, "reasons": [], "missing": [], "policy_version": "sha256:"}
    access_change = {
        **{name: EVENT[name] for name in ("system", "subject", "action", "resource")},
        "id": "c",
        "time": "2026-11-22T00:00:00Z",
        "policy_version": "sha256:",
        "policy_offsets": {},
        "facts_offset": -1,
        "before": {"outcome": "allow", "statements": []},
        "after": {"outcome": "deny", "statements": []},
    }
    producer = Producer({"bootstrap.servers": broker.plain})
    for topic, record in (
        (NAMES.alerts, alert),
        (NAMES.access_changes, access_change),
        (NAMES.decisions, {**decision, "context": context}),
        (NAMES.requests[0], request("r-1", "dana", "orders")),
        *((NAMES.policy_topics()[system], document) for system, document in DOCUMENTS.items()),
    ):
        key = f"{record.get('kind')}/{record.get('name')}"
        producer.produce(topic, json.dumps(record).encode(), key, partition=0)
    assert producer.flush(SECONDS) == 0


@pytest.fixture
def session_of(broker: SecuredBroker, lockkeeper: Command, tmp_path: Path) -> Callable[[str], Session]:
    """A session for a user who logs in with SCRAM over TLS."""

    def of(user: str) -> Session:
        settings = Settings(bootstrap_servers=broker.scram, kafka=broker.kafka(user))
        return Session(user, lockkeeper, msgspec.structs.replace(settings, checkpoint=str(tmp_path / "c")), tmp_path)

    return of


SessionOf = Callable[[str], Session]


def test_there_is_something_that_each_user_does() -> None:
    assert {*STEPS, JOB} == {*USERS}


@pytest.mark.parametrize("user", STEPS)
def test_each_user_can_run_what_the_documentation_says(session_of: SessionOf, user: str) -> None:
    session = session_of(user)
    assert [said for step in STEPS[user] if (said := step(session))] == []
    assert session.ran == documented_commands()[user]


@pytest.mark.parametrize("user", STEPS)
def test_each_permission_that_is_missing_is_named_with_the_acl_that_grants_it(
    broker: SecuredBroker, session_of: SessionOf, user: str
) -> None:
    session, unnamed = session_of(user), {}
    for permission in permissions_of(SETTINGS, user):
        with without(broker.admin, f"User:{user}", permission):
            steps = _shown_by(user, permission)
            said = next((said for step in steps if (said := step(session))), "nothing fails without it")
        # The producer of facts is not ours.
        if said != "TOPIC_AUTHORIZATION_FAILED" and not _names(said, f"User:{user}", permission, broker):
            unnamed[str(permission)] = said
    assert unnamed == {}


def _shown_by(user: str, permission: Permission) -> list[Step]:
    """Those of a user's steps that may need a permission; where topics are described, it is not for being read."""
    describes = permission.type == "topic" and permission.operation.startswith("Describe")
    always = (_verify, _serve, _console, _access_changes, *ANALYST) if user != f"{JOB}-watch" else ()
    return [step for step in STEPS[user] if (step is _check_topics) == describes or step in always]


def _names(said: str, principal: str, permission: Permission, broker: SecuredBroker) -> bool:
    """Whether it says who lacks what, with the command of Kafka's that grants it."""
    add = f"kafka-acls.sh --bootstrap-server {broker.scram} --add --allow-principal '{principal}' "
    wanted = (f"--operation {permission.operation} ", f" {permission.name}")
    lines = [line.strip() for line in said.splitlines() if all(part in f"{line} " for part in wanted)]
    commands = [line for line in lines if line.startswith(add)]
    lacks = str(permission).removesuffix("…")  # of a prefix, a name that begins so
    return f"{principal} is not authorized to {lacks}" in said and len(commands) == 1


def test_the_console_names_a_permission_that_is_taken_away_while_it_runs(
    broker: SecuredBroker, session_of: SessionOf
) -> None:
    """On the page that needs it, with the ACL that grants it, and without a host; the other pages go on."""
    user, unnamed = f"{JOB}-console", dict[str, str]()
    pages = {"/decisions": NAMES.decisions, "/alerts": NAMES.alerts, "/changes": NAMES.changes}
    stop = threading.Event()
    with console(session_of(user).settings, stop) as app:
        client = TestClient(app, base_url="http://localhost:8090", raise_server_exceptions=False)
        wait_until(lambda: client.get("/readyz").status_code == 200, "the policies are read")
        for page, topic in pages.items():
            permission = Permission("topic", topic, "Read")
            with without(broker.admin, f"User:{user}", permission):
                wait_until(lambda page=page: client.get(page).status_code == 503, "it may not read it")  # type: ignore[misc]
                said = html.unescape(client.get(page, headers={"accept": "text/html"}).text)
                others = [client.get(other).status_code for other in pages if other != page]
            add = f"kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal 'User:{user}' "
            if f"User:{user} is not authorized to {permission}\n" not in said or add not in said:
                unnamed[page] = said
            assert (others, broker.scram in said) == ([200, 200], False)
            wait_until(lambda page=page: client.get(page).status_code == 200, "it may again")  # type: ignore[misc]
    assert unnamed == {}


def test_the_job_names_each_missing_permission_before_it_starts_anything(
    broker: SecuredBroker, session_of: SessionOf
) -> None:
    """Without what its monitor alone needs, it decides all the same."""
    session, unnamed = session_of(JOB), {}
    assert _start(session) == ""
    needed = set(enforcer_permissions(SETTINGS))
    asked = [permission for permission in permissions_of(SETTINGS, JOB) if permission.type != "transactionalId"]
    for permission in asked:
        with without(broker.admin, f"User:{JOB}", permission):
            said = _start(session)
        refused = said.startswith("refused") == (permission in needed)
        if not refused or not _names(said, f"User:{JOB}", permission, broker):
            unnamed[str(permission)] = said
    assert unnamed == {}
    with without(broker.admin, f"User:{JOB}", asked[0]), pytest.raises(CannotStart, match="is not authorized to"):
        run(session.settings, threading.Event())


def test_a_job_beside_a_separate_monitor_names_what_it_lacks_to_follow_it(
    broker: SecuredBroker, session_of: SessionOf
) -> None:
    """It decides all the same. The users of the other tests are those of a job with its monitor."""
    separate = MonitorSettings(mode="separate")
    session = session_of(JOB)
    session = dataclasses.replace(session, settings=msgspec.structs.replace(session.settings, monitor=separate))
    added = set(permissions_of(session.settings, JOB)) - set(enforcer_permissions(session.settings))
    assert _start(session) == ""
    verdicts, following = Permission("topic", NAMES.verdicts, "Read"), Permission("group", f"{JOB}-monitor", "Describe")
    assert added == {verdicts, following}
    with without(broker.admin, f"User:{JOB}", verdicts):
        assert _names(_start(session), f"User:{JOB}", verdicts, broker)
    with without(broker.admin, f"User:{JOB}", Permission("group", f"{JOB}-monitor", "Read")):
        said = _start(session)
        assert _names(said, f"User:{JOB}", following, broker), said


def test_the_jobs_writer_names_its_transactional_id_and_logs_in_by_password_or_certificate_as_its_reader_does(
    broker: SecuredBroker,
) -> None:
    by_password, by_certificate = broker.by_password(Settings(), JOB), broker.by_certificate(Settings(), JOB)
    spark = start_session("access", SHORT_LIVED, "local[1]")
    try:
        for settings in (by_password, monitor_settings(by_password)):
            needed = Permission("transactionalId", settings.job_name, "Write")
            with without(broker.admin, f"User:{JOB}", needed), pytest.raises(CannotWrite) as refused:
                Output(settings, spark)
            assert _names(str(refused.value), f"User:{JOB}", needed, broker), str(refused.value)
        for settings in (by_password, by_certificate):
            output = Output(settings, spark)
            output.publish([(NAMES.verdicts, b"key", b"{}", ())], [TopicPartition(NAMES.requests[0], 0, 0, "")])
            output.close()
            options = {**connection_options(settings), "subscribe": NAMES.verdicts}
            assert spark.read.format("kafka").options(**options).load().count() > 0
    finally:
        spark.stop()


def test_users_with_client_certificates_can_do_the_same(
    broker: SecuredBroker, lockkeeper: Command, tmp_path: Path
) -> None:
    for user in (f"{JOB}-client", OWNERS[SYSTEM]):
        settings = Settings(bootstrap_servers=broker.mtls, kafka=broker.kafka_by_certificate(user))
        session = Session(user, lockkeeper, settings, tmp_path)
        assert [said for step in STEPS[user] if (said := step(session))] == []
        lacking = Permission("topic", NAMES.requests[0], "Write" if user.endswith("client") else "Read")
        with without(broker.admin, f"User:CN={user}", lacking):
            said = "".join(step(session) for step in STEPS[user])
        certificate = settings.kafka["ssl.certificate.location"]
        assert f"the principal of the certificate {certificate} is not authorized to {lacking}" in said


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("sasl.password", "s3cret", "uthentication failed"),
        ("ssl.ca.location", "broker.crt", "certificate verify failed"),
    ],
)
def test_a_login_that_fails_says_why(
    session_of: SessionOf, tmp_path: Path, setting: str, value: str, said: str
) -> None:
    session = session_of(f"{JOB}-client")
    value = value if setting == "sasl.password" else str(Authority(tmp_path).ca)
    wrong = msgspec.structs.replace(session.settings, kafka={**session.settings.kafka, setting: value})
    answers: list[str] = []
    with Client(Connection.of(wrong)) as client:

        def answer() -> str:
            answers.append(str(client.authorize(request("r-1", "dana", "orders"), 0.1)))
            return answers[-1]

        wait_until(lambda: said in answer(), "it says why")
    assert "s3cret" not in "".join(answers)


@pytest.mark.parametrize(
    "command", [["run"], ["serve"], ["console", "--no-browser"], ["access-changes"], ["decisions"], ["topics", "check"]]
)
def test_a_command_whose_login_is_refused_says_so_and_does_not_blame_the_address(
    session_of: SessionOf, command: list[str]
) -> None:
    session = session_of(f"{JOB}-analyst")
    session.settings.kafka["sasl.password"] = "wr0ng"
    said = session.run(*command)
    assert f"Kafka at {session.settings.bootstrap_servers} refuses the login" in said
    assert "uthentication failed" in said
    assert "no Kafka" not in said
    assert "wr0ng" not in said


def test_verify_sends_with_the_rights_of_those_who_may_ask_and_change_policies(
    broker: SecuredBroker, session_of: SessionOf
) -> None:
    """As docs/pages/guides/access.md says: no user that is shipped has all of them."""
    session = session_of("checker")
    add_logins(broker.admin, ["checker"])
    parts = (f"{JOB}-verify", f"{JOB}-client", OWNERS[SYSTEM])
    grant(broker.admin, "User:checker", {permission for part in parts for permission in permissions_of(SETTINGS, part)})
    lacking = Permission("topic", NAMES.policy_topics()[SYSTEM], "Write")
    with without(broker.admin, "User:checker", lacking):
        said = session.run("verify", "--send", "--seconds", "1")
    assert _names(said, "User:checker", lacking, broker), said


def test_acls_are_imported_by_those_alone_who_may_list_them(broker: SecuredBroker, session_of: SessionOf) -> None:
    """librdkafka drops the broker's refusal: the import ended with no documents and exit code 0."""
    session = session_of("importer")
    add_logins(broker.admin, ["importer"])
    command = ("import", "kafka-acls", "--out", str(session.folder), "--dry-run")
    said = session.run(*command)
    assert "User:importer is not authorized to Describe cluster" in said
    assert "--operation Describe --cluster" in said
    grant(broker.admin, "User:importer", [Permission("cluster", "kafka-cluster", "Describe")])
    assert session.run(*command) == ""


def test_topics_are_created_by_those_alone_who_may(
    broker: SecuredBroker, session_of: SessionOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics that it might not describe were waited for, for a minute, and nothing named what was missing."""
    session = session_of("creator")
    add_logins(broker.admin, ["creator"])
    names = [spec.name for spec in topic_specs(NAMES)]
    needed = [Permission("topic", name, operation) for name in names for operation in CHECK]

    def lacks(operation: str, resource: str, *options: str) -> str:
        said = session.run("topics", "create", *options)
        assert f"User:creator is not authorized to {operation} {resource}" in said
        assert "kafka-acls.sh" in said
        return said

    lacks("Describe", f"topic {NAMES.requests[0]}")
    grant(broker.admin, "User:creator", needed)
    assert session.run("topics", "create") == ""
    lacks("AlterConfigs", f"topic {NAMES.requests[0]}", "--mend")
    for name in ("alerts", "changes"):
        monkeypatch.setenv(f"LOCKKEEPER_TOPICS_{name.upper()}", f"new.{name}")
        grant(broker.admin, "User:creator", [Permission("topic", f"new.{name}", operation) for operation in CHECK])
    grant(broker.admin, "User:creator", [Permission("topic", "new.alerts", "Create")])
    assert "made   new.alerts\n" in lacks("Create", "cluster")


@pytest.mark.parametrize("command", [["--prune"], ["--expect", "c"], ["--expect", "sha256:0"]], ids=" ".join)
def test_what_an_apply_reads_is_named_before_another_publisher_is_fenced(
    broker: SecuredBroker, session_of: SessionOf, command: list[str]
) -> None:
    session = session_of(OWNERS[SYSTEM])
    file = session.documents("documents.yaml", DOCUMENTS[SYSTEM])
    topic = NAMES.facts if "sha256:0" in command else NAMES.policy_topics()[SYSTEM]
    read = Permission("topic", topic, "Read")
    with contextlib.ExitStack() as stack:
        if topic != NAMES.facts:
            stack.enter_context(without(broker.admin, f"User:{session.user}", read))
        for arguments in (["apply", file], ["delete", f"{SYSTEM}/Group/readers"]):
            if arguments[0] == "apply" or "--expect" in command:
                said = session.run("policy", *arguments, *command)
                assert _names(said, f"User:{session.user}", read, broker), said


def test_a_request_whose_answer_may_not_be_read_is_refused_before_it_waits(
    broker: SecuredBroker, session_of: SessionOf
) -> None:
    """It waited for 15 s to read without the group that librdkafka names."""
    session = session_of(f"{JOB}-client")
    with without(broker.admin, f"User:{session.user}", Permission("group", session.user, "Read", prefix=True)):
        said = _ask(session)
    assert said.startswith(f"lockkeeper: User:{session.user} is not authorized to Describe consumer group"), said


def test_only_its_writers_write_a_topic(session_of: SessionOf) -> None:
    """The trust root: policies by their owners alone, what was decided by the job alone."""
    for user in USERS:
        may = {p.name for p in permissions_of(SETTINGS, user) if p.type == "topic" and p.operation == "Write"}
        settings = session_of(user).settings
        producer = Producer({**settings.kafka, "bootstrap.servers": settings.bootstrap_servers, "log_level": "2"})
        refused: dict[str, str] = {}

        def note(error: Any, message: Any, refused: dict[str, str] = refused) -> None:
            refused[message.topic()] = error.name() if error else "written"

        for topic in set(TOPICS) - may:
            producer.produce(topic, b"{}", b"Role/forged", on_delivery=note)
        producer.flush(SECONDS)
        assert refused == dict.fromkeys(set(TOPICS) - may, "TOPIC_AUTHORIZATION_FAILED"), user


def test_only_the_job_uses_its_group_and_transactional_ids_have_one_owner(session_of: SessionOf) -> None:
    own = {OWNERS[system]: transactional_id(SETTINGS, [system]) for system in SETTINGS.systems}
    ids = [JOB, monitor_settings(SETTINGS).job_name, *own.values()]
    for user in STEPS:
        settings = session_of(user).settings
        kafka = {**settings.kafka, "bootstrap.servers": settings.bootstrap_servers, "log_level": "2"}
        for id_ in ids:
            if id_ != own.get(user):
                with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
                    Producer({**kafka, "transactional.id": id_}).init_transactions(SECONDS)
        admin = AdminClient(kafka)
        joining = [Permission("group", name, "Read") for name in (JOB, monitor_settings(SETTINGS).job_name)]
        assert missing_permissions(admin, joining) == joining
        if Permission("group", JOB, "Describe") in permissions_of(SETTINGS, user):  # others do not find the group
            moved = ConsumerGroupTopicPartitions(JOB, [TopicPartition(NAMES.requests[0], 0, 0)])
            [done] = admin.alter_consumer_group_offsets([moved]).values()
            [partition] = done.result(SECONDS).topic_partitions
            assert partition.error is not None
            assert partition.error.name() == "GROUP_AUTHORIZATION_FAILED"


def test_no_user_deletes_a_topic_or_changes_its_settings_or_the_acls(session_of: SessionOf) -> None:
    for user in USERS:
        settings = session_of(user).settings
        admin = AdminClient({**settings.kafka, "bootstrap.servers": settings.bootstrap_servers, "log_level": "2"})
        entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        changes = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in TOPICS]
        acl = binding(f"User:{user}", Permission("topic", NAMES.decisions, "Write"))
        done = [
            *admin.delete_topics(list(TOPICS)).values(),
            *admin.incremental_alter_configs(changes).values(),
            *admin.create_acls([acl]).values(),
        ]
        for future in done:
            with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
                future.result(SECONDS)


def test_a_publication_that_is_not_authorized_says_so_in_python_too(session_of: SessionOf) -> None:
    from streaming.client import PolicyPublisher

    publisher = PolicyPublisher(session_of(OWNERS["cdap"]).connection)
    with pytest.raises(PublishFailed, match=r"is not authorized to Write topic authz\.policies\.lenses6\.v1"):
        publisher.publish([role("forged", "kafka:topic:*")])
