"""Records of the policy, facts and history topics, and what is decided by them."""

import json
from random import Random
from typing import Any

import yaml

from policy import decide
from policy.analysis.lint import lint_documents
from policy.core.request import CLAIMS, parse_request
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay, changes_of
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from streaming.errors import CannotStart
from streaming.kafka.reader import TopicLog
from streaming.records.size_gate import fits, record_size
from streaming.settings import Limits, Settings
from streaming.snapshots.alerts import policy_rejected
from streaming.snapshots.at_offsets import DocumentLog
from streaming.snapshots.documents import DocumentRecord, History, Loader
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import FAULTY, LARGE, mutate_bytes, mutate_data, mutate_text, to_json
from tests.fuzz.samples import Data, all_documents, all_requests, draw_sample, system_of, words
from tests.fuzz.targets.judged import by_reference, compare

AT = 1_795_000_000_123
MAX_BYTES = Limits().document
ASKED = 2  # requests by each set of documents


class Documents:
    """Some records of one system's policy topic and of the facts topic, then requests that they decide."""

    name, share, records = "documents", 6, 1

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """The documents of a sample, one of them changed; and requests of the sample."""
        sample = draw_sample(dice)
        system = system_of(sample)
        documents = list((sample.policies + sample.facts)[-12:])
        place = dice.randrange(len(documents)) if documents else 0
        if not documents:
            documents = [dice.choice(all_documents())]
        changed: Any = mutate_data(dice, documents[place], words(system)) if dice.random() < 0.9 else documents[place]
        if dice.randrange(LARGE) == 0:
            changed = _large(dice, changed)
        records = [[_key(document), to_json(dice, document), "facts"] for document in sample.facts[:8]]
        records += [[_key(document), to_json(dice, document), "policies"] for document in documents if document]
        value = _written(dice, changed)
        key = _key(documents[place]) if dice.random() < 0.8 else _key(changed)
        if not deep:
            value = mutate_bytes(dice, value)
            key = mutate_bytes(dice, key) if dice.random() < 0.1 else key
        topic = dice.choice(("policies", "policies", "policies", "facts"))
        records.append([key, dice.choice((value, value, value, value, b"")), topic])
        requests = [dice.choice(sample.requests or all_requests()) for _ in range(ASKED)]
        return {"system": system if system in all_systems() else "lenses6", "records": records, "requests": requests}

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        system = given["system"]
        policies, facts = DocumentStore(), DocumentStore(facts_only=True)
        loaders = {"policies": Loader(policies, system, MAX_BYTES), "facts": Loader(facts, None, MAX_BYTES)}
        refused, overlay = None, FactOverlay()
        for offset, (key, value, topic) in enumerate(given["records"]):
            key = key if topic == "facts" else key.partition(b"/")[2]
            record = DocumentRecord(topic, key, value, offset, AT - 1000 + offset)
            refused = loaders[topic].take(record)
            if refused is not None:
                alert = policy_rejected("alerts", refused)
                if not fits(size := record_size(alert[1], alert[2], alert[3]), Limits().record_out):
                    raise Violation(f"size: an alert of {size} bytes")
            if topic == "facts":
                _apply(overlay, facts, loaders["facts"].key_of(record))
        snapshot = Snapshot(policies).with_facts(overlay)
        for rejected in snapshot.rejected:
            if not rejected.errors:
                raise Violation(f"refused: {rejected.key} without an error")
        if len(given["records"]) <= 8:
            lint_documents(policies)
        allows = sum(_asked(snapshot, request) for request in given["requests"])
        return Execution(refused is None or not _unreadable(refused.errors), refused is not None, allows)


def _apply(overlay: FactOverlay, facts: DocumentStore, key: Any) -> None:
    document_history = facts.histories.get(key) if key is not None else None
    for change in changes_of(key, document_history, 1) if document_history is not None else ():
        overlay.apply(change)


def _asked(snapshot: Snapshot, request: Data) -> int:
    """How many allows are the same by the reference, which has to agree."""
    request = {**request, "time": AT}
    decision = decide(snapshot, request)
    reasons = [reason for part in (decision, *decision.evaluations) for reason in part.reasons]
    if bugs := [reason for reason in reasons if reason.code == "internal-error"]:
        raise Violation(f"internal-error: {bugs[0].message}")
    if any(reason.code == "malformed-request" for reason in reasons):
        return 0
    wanted = by_reference(snapshot, parse_request(request), CLAIMS)
    compare((decision.outcome, *(item.outcome for item in decision.evaluations)), wanted, {r.code for r in reasons})
    return wanted.count("allow")


def _unreadable(errors: tuple[str, ...]) -> bool:
    return any("not JSON" in error or "not YAML" in error or "UTF-8" in error for error in errors)


def _key(document: Any) -> bytes:
    if not isinstance(document, dict):
        return b"x/y/z"
    parts = (str(document.get(field)) for field in ("system", "kind", "name"))
    return "/".join(parts).encode("utf-8", "replace")


def _written(dice: Random, document: Any) -> bytes:
    """As JSON, or as YAML in one of its styles."""
    if dice.random() < 0.5:
        return to_json(dice, document)
    try:
        flow = dice.choice((None, True, False))
        text: str = yaml.safe_dump(document, default_flow_style=flow, allow_unicode=True, sort_keys=False)
        return text.encode()
    except (yaml.YAMLError, ValueError, RecursionError):
        return to_json(dice, document)


def _large(dice: Random, document: Any) -> Any:
    """With one of its lists or mappings repeated many times."""
    if not isinstance(document, dict) or not isinstance(document.get("spec"), dict):
        return document
    spec = dict(document["spec"])
    for name, value in spec.items():
        if isinstance(value, list) and value:
            spec[name] = (value * 2000)[:2000]
        elif isinstance(value, dict) and value:
            spec[name] = {f"{key}{number}": part for number in range(1000) for key, part in value.items()}
        elif isinstance(value, str):
            spec[name] = mutate_text(dice, value) * 1000
    return {**document, "spec": spec}


class HistoryRecords:
    """Records of the history topic, as a job that starts reads them, and as `verify` does."""

    name, share, records = "history", 80, 1

    def __init__(self, seed: str) -> None:
        self._topics = Settings().topics

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """A kept version with its marks, or the log of a topic."""
        document = dice.choice(all_documents())
        kind = dice.choice((document.get("kind"), "Role", "", "a/b"))
        key = f"{document.get('system')}/{kind}/{document.get('name')}/{dice.choice((0, 7, -1, 1 << 70, 'x', ''))}"
        marks = {"at": b"5", "next": b"9", "format": b"1", "topic-id": b"id"}
        for name in dice.sample(sorted(marks), dice.choice((0, 0, 1, 2))):
            marks[name] = dice.choice((b"", b"-1", b"1e9", b"x", b"\xff", b"9" * 5000, b"2", b" 3 ", b"1_0"))
        for name in dice.sample(sorted(marks), dice.choice((0, 0, 1))):
            del marks[name]
        value: bytes | None = to_json(dice, document)
        raw = key.encode("utf-8", "replace")
        if dice.random() < 0.2:
            raw, value = b"topic/" + raw, dice.choice((b"id", b"id:5", b"id:x", b":", b"", b"\xff", b"a:b:c", None))
        if not deep:
            raw = mutate_bytes(dice, raw)
            value = None if value is None else mutate_bytes(dice, value)
        headers = [[name, text] for name, text in marks.items()]
        headers += [[dice.choice(FAULTY[:20]), b"x"]] if dice.random() < 0.1 else []
        return {"key": raw, "value": value, "headers": headers}

    def run(self, given: Any) -> Execution:
        """Only the error for records of a newer release is allowed."""
        by_system = self._topics.policy_topics()
        logs = {topic: TopicLog("id") for topic in by_system.values()}
        history = History(self._topics.history, by_system, MAX_BYTES, logs)
        log = DocumentLog(self._topics, MAX_BYTES, AT)
        headers = [(name, text) for name, text in given["headers"]]
        try:
            version = history.read_back(given["key"], given["value"], headers)
        except CannotStart:
            return Execution(True, True)
        if version is None:
            return Execution(False, True)
        record = version.record
        log.add_kept(version)
        store = DocumentStore()
        system = next(name for name, topic in by_system.items() if topic == record.topic)
        Loader(store, system, MAX_BYTES).take(record)
        history.close_gaps(store, AT)
        history.changes(store)
        ends = {(topic, 0): 100 for topic in log.topics}
        log.read_to(ends)
        Snapshot(store)
        return Execution()


__all__ = ["Documents", "HistoryRecords", "json"]
