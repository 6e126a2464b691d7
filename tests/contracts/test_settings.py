"""Settings that are wrong, or with which nothing could be decided, are reported; passwords never are."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from policy import compile_documents
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.settings import DEFAULT_TRUST, Settings, SettingsError, check_settings, load_settings

URL = "http://registry:8081"


def test_the_environment_sets_them_one_by_one() -> None:
    given = {
        "LOCKKEEPER_ENCODING": "avro-confluent",
        "LOCKKEEPER_SCHEMA_REGISTRY_URL": URL,
        "LOCKKEEPER_SCHEMA_REGISTRY_USER": "dana",
        "LOCKKEEPER_SCHEMA_REGISTRY_PASSWORD": "0123",
        "LOCKKEEPER_SCHEMA_REGISTRY_REGISTER": "false",
    }
    settings = load_settings(None, given)
    registry = settings.schema_registry
    assert settings.encoding == "avro-confluent"
    assert (registry.url, registry.user, registry.password, registry.register) == (URL, "dana", "0123", False)


def test_json_without_a_registry_is_what_there_is_without_settings() -> None:
    assert (Settings().encoding, Settings().schema_registry.url) == ("json", "")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"encoding": "avro"}, "encoding"),
        ({"encoding": "avro-confluent"}, "set schema_registry.url"),
        ({"schema_registry": {"url": "registry:8081"}}, "not an address such as http://localhost:8081"),
        ({"schema_registry": {"url": "http://"}}, "not an address"),
        ({"schema_registry": {"url": "http://[]:8081"}}, "not an address"),
        ({"serve": {"url": "https://[::1"}}, "not an address"),
        ({"schema_registry": {"url": "http://dana:s3cret@registry"}}, "leave user and password out of it"),
        ({"schema_registry": {"url": f"{URL},http://dana:s3cret@other"}}, "leave user and password out of it"),
        ({"schema_registry": {"url": f"{URL},other"}}, "not an address"),
        ({"schema_registry": {"url": URL, "password": "s3cret"}}, "needs schema_registry.user"),
        ({"schema_registry": {"url": URL, "user": "dana", "password": ["s3cret"]}}, "schema_registry.password"),
        ({"schema_registry": {"url": URL, "passwort": "s3cret"}}, "passwort"),
        ({"schema_registry": {"url": 5, "password": "s3cret"}}, "`$.schema_registry.url`"),
        ({"limits": {"record_in": 0}}, "it is 0"),
        ({"console": {"oidc": {"client_secret": ["s3cret"]}}}, "console.oidc.client_secret"),
        ({"schema_registry": ["s3cret"]}, "schema_registry"),
        ({"schema_registry": "http://dana:s3cret@registry"}, "schema_registry"),
    ],
)
def test_a_wrong_one_is_reported_without_the_password(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_settings(given)
    assert says in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"max_records": "5"}, "settings: Expected `int`, got `str` - at `$.max_records` (it is '5')"),
        ({"max_record": 5}, "settings: Object contains unknown field `max_record`; did you mean max_records?"),
        (
            {"serve": {"prot": 5}},
            "settings: Object contains unknown field `prot` - at `$.serve`; did you mean serve.port?",
        ),
        (
            {"metrics": {"xyz": 5}},
            "settings: Object contains unknown field `xyz` - at `$.metrics`. "
            "Settings there are: metrics.port, metrics.address",
        ),
    ],
)
def test_an_error_names_the_setting_that_is_meant_and_not_all_of_them(given: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_settings(given)
    assert str(refused.value) == error


INFINITE, NO_NUMBER = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"limits": {"record_in": 1}}, "`int` >= 1024 - at `$.limits.record_in` (it is 1)"),
        ({"limits": {"record_out": 1}}, "`int` >= 65536 - at `$.limits.record_out` (it is 1)"),
        ({"limits": {"document": 1}}, "`int` >= 1024 - at `$.limits.document` (it is 1)"),
        ({"limits": {"record_out": 1 << 31}}, "`int` <= 268435456 - at `$.limits.record_out`"),
        ({"limits": {"document": 1 << 70}}, "`int` <= 268435456 - at `$.limits.document`"),
        ({"max_records": 1 << 31}, "at `$.max_records`"),
        ({"monitor": {"partitions": 1 << 31}}, "at `$.monitor.partitions`"),
        ({"transaction_timeout_seconds": 0.0001}, "`float` >= 1.0 - at `$.transaction_timeout_seconds`"),
        ({"transaction_timeout_seconds": 3e6}, "`float` <= 2147483.0"),
        ({"policy_stale_seconds": 0.1}, "`float` >= 1.0"),
        ({"policy_stale_seconds": 1e300}, "at `$.policy_stale_seconds`"),
        ({"policy_stale_seconds": INFINITE}, "at `$.policy_stale_seconds`"),
        ({"policy_stale_seconds": NO_NUMBER}, "at `$.policy_stale_seconds`"),
        ({"progress_deadline_seconds": 0.01}, "at `$.progress_deadline_seconds`"),
        ({"serve": {"max_staleness_seconds": 0.01}}, "at `$.serve.max_staleness_seconds`"),
        ({"serve": {"max_staleness_seconds": INFINITE}}, "at `$.serve.max_staleness_seconds`"),
        ({"serve": {"max_staleness_seconds": NO_NUMBER}}, "at `$.serve.max_staleness_seconds`"),
        ({"monitor": {"rules": {"window_seconds": INFINITE}}}, "at `$.monitor.rules.window_seconds`"),
        ({"monitor": {"systems": {"cdap": {"window_seconds": INFINITE}}}}, "window_seconds"),
        ({"monitor": {"systems": {"cdap": {"window_seconds": NO_NUMBER}}}}, "window_seconds"),
        ({"access_changes": {"hours": 1e300}}, "at `$.access_changes.hours`"),
        ({"weights": {"authz.requests.v1": INFINITE}}, "at `$.weights[...]`"),
    ],
)
def test_a_number_with_which_nothing_can_be_decided_or_written_is_refused(given: dict[str, Any], says: str) -> None:
    """Or that is no bound: policies would never be stale."""
    with pytest.raises(SettingsError) as refused:
        check_settings(given)
    assert says in str(refused.value)


SMALLEST = check_settings({"limits": {"record_in": 1024, "record_out": 65536, "document": 1024}}).limits


def test_with_the_smallest_limits_a_request_is_decided_and_a_dead_letter_has_its_record() -> None:
    role = {"statements": [{"effect": "allow", "action": "*", "resource": "*"}]}
    group = {"roles": ["r"], "members": ["user:u"]}
    documents = [{"kind": "Role", "name": "r", "spec": role}, {"kind": "Group", "name": "g", "spec": group}]
    snapshot = compile_documents([{"system": "lenses6", **document} for document in documents])
    action, subject = {"name": "kafka:ReadTopicData"}, {"type": "user", "id": "user:u"}
    resource = {"type": "lrn", "id": "kafka:topic:prod/main/orders"}
    request = {"id": "r", "system": "lenses6", "subject": subject, "action": action, "resource": resource}
    source = Source("requests", 0, "topic-id", DEFAULT_TRUST, 1)
    decided = Evaluator(snapshot, SMALLEST).for_partition(source, EvaluationContext(snapshot.version, {}, -1, {}, 0))
    _, _, decision, _ = decided.decide(b"k", msgspec.json.encode(request), None, 0, 0)
    assert msgspec.json.decode(decision or b"")["decision"] is True
    _, _, dead_letter, _ = decided.decide(b"k", b"{" * 1000, None, 1, 0)
    assert dead_letter == b"{" * 1000


TWICE = "kafka:\n  security.protocol: SSL\n  security.protocol: PLAINTEXT\n"


def test_a_name_that_is_there_twice_is_refused_with_its_line_and_without_its_value(tmp_path: Path) -> None:
    """In a file and in a variable; of two, the last would count."""
    file = tmp_path / "lockkeeper.yaml"
    file.write_text(TWICE)
    for path, given in ((file, {}), (None, {"LOCKKEEPER_KAFKA": "{a: 1, b: {c: s3cret, c: s3cret}}"})):
        with pytest.raises(SettingsError, match=r"there twice in one mapping at line [13]") as refused:
            load_settings(path, given)
        assert "s3cret" not in str(refused.value)
    file.write_text("monitor: {rules: &a {}}\nserve: {<<: {port: 1}, port: 2}\n")
    assert load_settings(file, {}).serve.port == 2, "a name of its own may replace a merged one"


def test_a_moment_is_text_as_in_documents(tmp_path: Path) -> None:
    """The end of an exemption needs no quotes, as in the sample of all settings, nor a password like a date."""
    file = tmp_path / "lockkeeper.yaml"
    exempt = "{subject: u, reason: backup, until: 2027-01-31T00:00:00Z}"
    file.write_text(f"monitor: {{exempt: [{exempt}]}}\nkafka: {{sasl.password: 2024-12-31}}\n")
    settings = load_settings(file, {})
    assert settings.monitor.exempt[0].until == "2027-01-31T00:00:00Z"
    assert settings.kafka["sasl.password"] == "2024-12-31"


@pytest.mark.parametrize("variable", ["BOOTSTRAP_SERVERS", "JOB_NAME", "SERVE_CALLERS"])
def test_a_text_that_is_no_utf_8_is_refused_with_the_setting(variable: str) -> None:
    """Python reads such arguments and variables as halves of surrogate pairs."""
    with pytest.raises(SettingsError, match=rf"'{variable.partition('_')[0].lower()}.*no UTF-8"):
        load_settings(None, {f"LOCKKEEPER_{variable}": "a\udce9"})


def test_a_secret_that_is_no_text_is_not_shown_either() -> None:
    with pytest.raises(SettingsError, match=r"console\.oidc\.client_secret") as refused:
        check_settings({"console": {"oidc": {"client_secret": 47110815}}})
    assert "47110815" not in str(refused.value)
