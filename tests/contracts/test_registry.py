"""Against a real schema registry: ids, what Confluent's own serializers make and read, and a registry that is away."""

import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from policy import compile_documents
from streaming.enforcer.evaluator import EncodedEvaluator, EvaluationContext, Evaluator, Source
from streaming.errors import CannotStart, Stopping
from streaming.monitor.intake import Intake
from streaming.records.avro import Reader, Undecodable, Writer
from streaming.records.encodings import ASKED_AT_ONCE, Encodings, open_encodings
from streaming.records.formats import Formats
from streaming.records.registry import Deserializer, Registry, RegistryDown, RegistryRefused
from streaming.records.schemas import read
from streaming.replay.run import with_schemas
from streaming.settings import DEFAULT_TRUST, Limits, SchemaRegistry, Settings
from streaming.topics import TopicNames
from tests.bench import workload
from tests.brokers import free_port
from tests.contracts import examples
from tests.contracts.apicurio import HOST, Apicurio

DOCUMENTS = workload.documents(20)
SNAPSHOT = compile_documents(DOCUMENTS)
ASKED: dict[str, Any] = next(workload.requests(DOCUMENTS, 1))
AT = 1_795_000_000_000


@pytest.fixture
def settings(registry: Apicurio, fresh_name: Callable[[str], str]) -> Settings:
    """Settings with the registry, and topics that nobody else registers schemas for."""
    name = fresh_name("contracts")
    topics = TopicNames(
        decisions=f"{name}.decisions",
        alerts=f"{name}.alerts",
        changes=f"{name}.changes",
        access_changes=f"{name}.access-changes",
    )
    return Settings(encoding="avro-confluent", schema_registry=SchemaRegistry(url=registry.url), topics=topics)


@pytest.fixture
def client(registry: Apicurio) -> SchemaRegistryClient:
    """Confluent's client, as other applications use it."""
    return SchemaRegistryClient({"url": registry.url})


def _stop() -> threading.Event:
    """The job is asked to stop: it waits for nothing."""
    stop = threading.Event()
    stop.set()
    return stop


def _serialized(client: SchemaRegistryClient, topic: str, datum: dict[str, Any]) -> bytes:
    """A request by Confluent's own serializer, which registers the schema."""
    made: bytes = AvroSerializer(client, read("avro/request.avsc"))(
        datum, SerializationContext(topic, MessageField.VALUE)
    )
    return made


def _datum(asked: dict[str, Any]) -> dict[str, Any]:
    """A request as an Avro library wants it: free parts as text, absent ones null."""
    subject = {**asked["subject"], "properties": json.dumps(asked["subject"]["properties"])}
    action, resource = ({**asked[name], "properties": None} for name in ("action", "resource"))
    rest = dict.fromkeys(("context", "time", "deadline", "evaluations", "options"))
    return {
        **rest,
        "id": asked["id"],
        "system": asked["system"],
        "subject": subject,
        "action": action,
        "resource": resource,
    }


def test_a_request_by_confluents_serializer_is_read_once_its_schema_is_known(
    settings: Settings, client: SchemaRegistryClient
) -> None:
    value, encodings = _serialized(client, settings.job_name, _datum(ASKED)), Encodings(settings)
    first = Reader(encodings.formats())
    with pytest.raises(Undecodable):
        first.transcode("request", value)
    assert encodings.learn(first.needed, _stop())
    second = Reader(encodings.formats())
    assert {**json.loads(second.transcode("request", value)), "context": {}} == ASKED
    assert not encodings.learn(second.needed, _stop())


def test_decisions_and_alerts_are_read_by_confluents_deserializer(
    settings: Settings, client: SchemaRegistryClient
) -> None:
    encodings, limits = Encodings(settings), Limits()
    source, topics = Source("requests", 0, "topic-id", DEFAULT_TRUST, 1), settings.topics
    partition_evaluator = Evaluator(SNAPSHOT, limits).for_partition(
        source, EvaluationContext(SNAPSHOT.version, {"policies": {"0": 4}}, 7, {}, AT)
    )
    asked = json.dumps(ASKED).encode()
    plain = json.loads(partition_evaluator.decide(b"k", asked, None, 17, AT)[2] or b"")
    encoded = EncodedEvaluator(partition_evaluator, source, limits, encodings.formats())
    number, key, value, headers = encoded.decide(b"k", asked, [{"key": "traceparent", "value": b"00"}], 17, AT)
    assert (number, key) == (0, b"k")
    content_type = ("content-type", b"application/vnd.apache.avro; encoding=confluent")
    assert headers == [content_type, ("traceparent", b"00")]
    read_ = AvroDeserializer(client)(value, SerializationContext(topics.decisions, MessageField.VALUE))
    assert (read_["request_id"], read_["decision"]) == (ASKED["id"], plain["decision"])
    assert read_["context"]["reasons"] == plain["context"]["reasons"]
    assert read_["time"].timestamp() * 1000 == AT
    [(_, _, alert, headers)] = encodings.encoded([(topics.alerts, b"k", examples.alerts()[0], [])])
    assert headers == [content_type]
    read_ = AvroDeserializer(client)(alert, SerializationContext(topics.alerts, MessageField.VALUE))
    assert json.loads(read_["subject"]) == "lenses6/Role/x"


def test_what_is_no_alert_is_written_as_it_is(settings: Settings) -> None:
    """History beside the alerts, deletions, and what a bug of ours makes."""
    alerts = settings.topics.alerts
    results = [("history", b"k", b"v", [("at", b"1")]), (alerts, b"k", None, []), (alerts, b"k", b"{}", [])]
    assert list(Encodings(settings).encoded(results)) == results


def test_an_evolved_schema_of_a_sender_is_read(settings: Settings, registry: Apicurio) -> None:
    schema = json.loads(read("avro/request.avsc"))
    schema["fields"].append({"name": "tenant", "type": ["null", "string"], "default": None})
    id_ = registry.register(f"{settings.topics.decisions}-evolved", json.dumps(schema))
    encodings = Encodings(settings)
    encodings.learn([id_], _stop())
    assert id_ in encodings.formats().known


@pytest.mark.parametrize("schema", ['{"type":"string"}', read("avro/decision.avsc")], ids=["text", "decision"])
def test_a_schema_that_is_none_of_requests_is_of_no_use(settings: Settings, registry: Apicurio, schema: str) -> None:
    """Ids of other topics' schemas are all there, and all readable: they must not fill the memory."""
    id_ = registry.register(f"{settings.topics.decisions}-other", schema)
    encodings = Encodings(settings)
    encodings.learn([id_], _stop())
    formats = encodings.formats()
    assert id_ not in formats.known
    assert "AccessRequest or AuditEvent" in formats.unusable[id_]


def test_an_id_that_is_not_there_is_of_no_use_and_so_are_too_many_at_once(settings: Settings) -> None:
    encodings = Encodings(settings)
    ids = range(1_000_000, 1_000_000 + ASKED_AT_ONCE + 5)
    assert encodings.learn(ids, _stop())
    unusable = encodings.formats().unusable
    assert unusable.keys() == set(ids)
    assert "404" in unusable[ids[0]]
    assert f"more than {ASKED_AT_ONCE}" in unusable[ids[-1]]
    assert not encodings.learn([], _stop()), "with these the batch is evaluated"
    assert encodings.formats().unusable.keys() == set(ids[:ASKED_AT_ONCE]), "what was not asked for is, next time"


def test_schemas_are_registered_once_and_not_at_all_when_the_job_may_not(settings: Settings) -> None:
    def may(register: bool) -> Settings:
        changed = msgspec.structs.replace(settings.schema_registry, register=register)
        return msgspec.structs.replace(settings, schema_registry=changed)

    with pytest.raises(CannotStart, match="encoding avro-confluent: the schema registry says"):
        open_encodings(may(False))
    first = Encodings(may(True)).formats().ids
    assert first.keys() == {"decision", "alert", "change", "access-change"}
    assert Encodings(may(True)).formats().ids == first
    assert Encodings(may(False)).formats().ids == first


def _away(url: str = f"http://{HOST}:{free_port()}", **more: Any) -> Settings:
    return Settings(schema_registry=SchemaRegistry(url=url, **more))


def test_a_registry_that_does_not_answer_stops_a_job_that_writes_by_it_before_it_begins() -> None:
    settings = msgspec.structs.replace(_away(), encoding="avro-confluent")
    with pytest.raises(CannotStart, match=r"does not answer.*is it running\?"):
        open_encodings(settings)


def test_while_the_registry_is_away_nothing_is_refused_and_it_is_asked_again() -> None:
    encodings, stop = Encodings(_away()), threading.Event()
    ended: list[type[BaseException]] = []

    def learn() -> None:
        try:
            encodings.learn([7], stop)
        except BaseException as error:
            ended.append(type(error))

    waiting = threading.Thread(target=learn)
    waiting.start()
    assert not ended
    assert encodings.formats().unusable == {}
    stop.set()
    waiting.join(30)
    assert ended == [Stopping]


def test_schemas_that_are_known_stay_known_while_the_registry_is_away(settings: Settings, registry: Apicurio) -> None:
    """The registry that answers is behind a door, which then is shut."""
    id_ = registry.register(f"{settings.topics.decisions}-known", read("avro/request.avsc"))
    encodings = Encodings(settings)
    encodings.learn([id_], _stop())
    encodings.close()  # from now on nothing can be asked
    reader = Reader(encodings.formats())
    value = b"\0" + id_.to_bytes(4) + _serialized_data()
    assert json.loads(reader.transcode("request", value))["id"] == ASKED["id"]
    assert reader.needed == set()


def _serialized_data() -> bytes:
    return Writer("request", "avro-single-object").encode(json.dumps(ASKED).encode())[10:]


def test_what_goes_wrong_is_reported_without_the_password() -> None:
    registry = Registry(_away(user="dana", password="s3cret").schema_registry)
    with pytest.raises(RegistryDown) as raised:
        registry.schema(7)
    chain = [raised.value, raised.value.__cause__]
    assert not any("s3cret" in f"{error!r} {error}" for error in chain)
    assert "s3cret" not in repr(_away(user="dana", password="s3cret"))


def test_the_monitor_reads_decisions_of_every_version_of_their_schema(settings: Settings, registry: Apicurio) -> None:
    topic, record = settings.topics.decisions, examples.decisions()[0]
    older = json.loads(read("avro/decision.avsc"))
    older["fields"].append({"name": "shard", "type": ["null", "string"], "default": None})
    old_id = registry.register(f"{topic}-value", json.dumps(older))
    encodings = Encodings(settings)
    formats = encodings.of_decisions(topic)
    assert formats.known.keys() == {old_id, encodings.formats().ids["decision"]}
    value = Writer("decision", "avro-confluent", encodings.formats().ids["decision"]).encode(record)
    intake = Intake(topic, "verdicts", 60_000, pickle.loads(pickle.dumps(formats)))
    assert list(intake.read(topic, 0, 0, AT, value)) == list(intake.read(topic, 0, 0, AT, record)) != []


def test_without_an_answer_the_monitor_reads_what_needs_no_registry() -> None:
    settings = _away()
    assert Encodings(settings).of_decisions(settings.topics.decisions).known == {}


def test_tools_read_whatever_the_encoding_and_ask_for_a_schema_once(settings: Settings) -> None:
    record, encodings = examples.decisions()[0], Encodings(settings)
    readings = Deserializer(settings.schema_registry)
    confluent = Writer("decision", "avro-confluent", encodings.formats().ids["decision"]).encode(record)
    single = Writer("decision", "avro-single-object").encode(record)
    for value in (record, single, confluent, confluent):
        assert json.loads(readings.json("decision", value)) == json.loads(record)
    with pytest.raises(Undecodable, match="id 987654 cannot be read by: the schema registry says"):
        readings.json("decision", b"\0" + (987_654).to_bytes(4) + b"x")
    with pytest.raises(Undecodable, match=r"set schema_registry\.url"):
        Deserializer(SchemaRegistry()).json("decision", confluent)


def test_a_replay_reads_on_where_a_record_names_a_schema_that_is_not_there(settings: Settings) -> None:
    id_ = Encodings(settings).formats().ids["decision"]
    formats = with_schemas(settings, Formats(registry=True), [987_654, id_])
    assert (formats.known.keys(), formats.unusable.keys()) == ({id_}, {987_654})
    assert formats.known[id_] == Registry(settings.schema_registry).schema(id_)
    reader = Reader(formats)
    with pytest.raises(Undecodable, match="id 987654 cannot be read by: the schema registry says"):
        reader.transcode("request", b"\0" + (987_654).to_bytes(4) + b"x")
    assert reader.needed == set(), "it is not asked for again"


def test_an_unknown_subject_is_distinguished_from_a_registry_that_is_away(registry: Apicurio) -> None:
    with pytest.raises(RegistryRefused):
        Registry(SchemaRegistry(url=registry.url)).schema(987_654)


def test_a_subject_may_refer_to_another(registry: Apicurio, fresh_name: Callable[[str], str]) -> None:
    inner, outer = fresh_name("inner"), fresh_name("outer")
    subject = {"type": "record", "name": "Inner", "namespace": "x", "fields": [{"name": "a", "type": "int"}]}
    main = {"type": "record", "name": "Outer", "namespace": "x", "fields": [{"name": "s", "type": "x.Inner"}]}
    registry.register(inner, json.dumps(subject))
    id_ = registry.register(outer, json.dumps(main), [{"name": "x.Inner", "subject": inner, "version": 1}])
    texts = Registry(SchemaRegistry(url=registry.url)).schema(id_)
    assert [json.loads(text)["name"] for text in texts] == ["Inner", "Outer"]
