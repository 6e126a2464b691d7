"""Each bug that a cache of answers may have is found: what is kept is compared with what is worked out anew.

The comparison runs once as the code is, and then with each of the bugs planted.
"""

import importlib
import itertools
import marshal
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import policy
from policy.core.facts import Facts, Reads
from policy.core.request import CLAIMS, parse_request
from policy.core.unique_names import decode_json
from policy.evaluation import answers
from policy.evaluation.answers import FIRST, LAST, AnswerCache, Basis, ByState, States
from policy.evaluation.trace import ExpressionResult
from policy.store.documents import DocumentStore
from policy.store.overlay import FactOverlay
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from streaming.enforcer import answers as contents
from streaming.enforcer import evaluator as evaluators
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, PartitionEvaluator, Source
from streaming.enforcer.source import Records
from streaming.settings import Limits
from tests.policy.test_answers import change, spoiled
from tests.stream.arrow import records_batch

AUTHORIZE = importlib.import_module("policy.evaluation.authorize")
AT, LATE = 15, 40
Request = dict[str, Any]


class Difference(AssertionError):
    """An answer that is kept is not the one that is worked out."""


def _document(system: str, kind: str, name: str, spec: Any, **more: Any) -> dict[str, Any]:
    return {"system": system, "kind": kind, "name": name, "spec": spec, **more}


def _statement(effect: str, resource: str) -> dict[str, Any]:
    return {"effect": effect, "action": "kafka:Get*", "resource": resource}


CONSUMED = "Kafka Consumers / View"
NAMESPACE = {"connection": "kafka", "type": "Kafka", "datasets": ["t"], "permissions": ["Show Topic"]}
ENTRY = {"userId": "dana", "workspaceId": "w", "namespaceId": "n", "role": "EDITOR"}
POLICIES = [
    _document("lenses6", "Role", "reader", {"statements": [_statement("allow", "kafka:topic:a/*")]}),
    _document("lenses6", "Role", "barred", {"statements": [_statement("deny", "kafka:topic:a/b/secret*")]}),
    _document("lenses6", "Role", "brief", {"statements": [_statement("allow", "*")]}, valid_from=10, valid_until=20),
    _document("lenses6", "Group", "g", {"roles": ["reader", "barred"], "members": ["user:dana"]}),
    _document("lenses6", "Group", "h", {"roles": ["brief"], "members": ["user:tom"]}),
    _document("lenses5", "Group", "g", {"namespaces": [NAMESPACE], "application": [CONSUMED], "members": ["dana"]}),
    _document("lenses5", "ConsumerGroup", "dated", {"connection": "kafka", "topics": ["t"]}, effective_at=10),
    _document("lenses5", "ConsumerGroup", "dated", {"connection": "kafka", "topics": ["x"]}, effective_at=20),
    _document("ververica", "InitialAccess", "w", {"initialAccess": [ENTRY]}),
    _document("ververica", "ReservedKinds", "reserved", {"kinds": ["Session"]}),
    _document("streamsets", "Organization", "acme", {"enforcement": True}),
    _document(
        "streamsets",
        "Object",
        "pipeline:p",
        {"type": "pipeline", "owner": "o", "acl": {"user:dana": ["READ"], "group:late": ["READ"]}},
    ),
]


def _request(system: str, who: str, action: str, type_: str, id_: str, **more: Any) -> Request:
    resource = {"type": type_, "id": id_, **({"properties": more.pop("scope")} if "scope" in more else {})}
    subject = {"type": "user", "id": who, **({"properties": more.pop("claims")} if "claims" in more else {})}
    action_ = {"name": action}
    return {"id": "r", "system": system, "subject": subject, "action": action_, "resource": resource, **more}


def _topic(name: str, who: str = "user:dana", **more: Any) -> Request:
    return _request("lenses6", who, "kafka:GetTopicDetails", "lrn", f"kafka:topic:{name}", **more)


def _dataset(id_: str, dataset: str, connection: str = "kafka") -> Request:
    scope = {"connection": connection, "dataset": dataset}
    return _request("lenses5", "dana", "kafka.topic.show", "topic", id_, scope=scope)


def _with(request: Request, *path: str, value: Any) -> Request:
    if not path:
        return value  # type: ignore[no-any-return]
    return {**request, path[0]: _with(request.get(path[0], {}), *path[1:], value=value)}


SCOPE = {"workspaceId": "w", "namespaceId": "n"}
VERVERICA = _request("ververica", "dana", "write", "Deployment", "d", scope=SCOPE)
USED = {"connection": "kafka", "topics": ["t"]}
CONSUMERS = _request(
    "lenses5", "dana", "kafka-consumers.view", "consumer-group", "c", scope={"consumer_group": "c"}, context=USED
)
TOPIC = _topic("a/b/c")
ONE_FIELD = [
    (TOPIC, _with(TOPIC, "system", value="lenses5")),
    (TOPIC, _with(TOPIC, "subject", "type", value="service-account")),
    (TOPIC, _with(TOPIC, "subject", "id", value="user:eve")),
    (_topic("a/b/c", "user:eve"), _topic("a/b/c", "user:eve", claims={"groups": ["g"]})),
    (TOPIC, _with(TOPIC, "action", "name", value="kafka:DeleteTopic")),
    (TOPIC, _with(TOPIC, "action", "properties", value={"a": 1})),
    (_with(TOPIC, "action", "properties", value=1), _with(TOPIC, "action", "properties", value=True)),
    (TOPIC, _topic("a/b/secret-1")),
    (TOPIC, _topic("b/b/c")),
    (TOPIC, _topic("a/b/c ")),
    (_topic("a/b/secret-1"), _topic("a/b/open")),
    (VERVERICA, _with(VERVERICA, "resource", "type", value="Session")),
    (VERVERICA, _with(VERVERICA, "resource", "id", value="d ")),
    (VERVERICA, _with(VERVERICA, "resource", "properties", value={**SCOPE, "workspaceId": "x"})),
    (CONSUMERS, _with(CONSUMERS, "context", "topics", value=["x"])),
    (_dataset("t", "t"), _dataset("t", "x")),
    (_dataset("x", "x"), _dataset("x", "t")),
    (_dataset("kafka", "t"), _dataset("t", "kafka", "t")),
    (_dataset("t", "t"), _with(_dataset("t", "t"), "resource", "properties", "dataset", value=None)),
    (_dataset("t", "t"), _with(_dataset("t", "t"), "resource", "properties", value={"connection": "kafka"})),
    (_dataset("kafka", "kafka", "kafka"), _dataset("t", "t", "t")),
    (_dataset("t", "t", "\N{INTERLINEAR ANNOTATION ANCHOR}"), _dataset("x", "x", "\N{INTERLINEAR ANNOTATION ANCHOR}")),
]
SESSION = _document("streamsets", "Session", "nora", {"login_at": 10, "groups": ["late"]})
BADLY = spoiled(SESSION)
VIEW = [
    _request("streamsets", who, "pipeline.view", "pipeline", "pipeline:p", claims={"organization": "acme"})
    for who in ("nora", "dana")
]


def _same(kept: Any, worked_out: Any, what: object) -> None:
    if kept != worked_out:
        raise Difference(f"{what}: {kept} is kept, {worked_out} is worked out")


def _alone(snapshot: Snapshot, request: Request, trust: frozenset[str] = CLAIMS) -> policy.Decision:
    return policy.answer(snapshot, parse_request(request), trust)


class InWorker:
    """The answers of a worker to requests in JSON, as long as it lives."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.evaluator = Evaluator(snapshot, Limits())

    def compare(self, request: Request | bytes, at: int = AT) -> None:
        """With the answer of one that keeps nothing."""
        value = request if isinstance(request, bytes) else msgspec.json.encode(request)
        kept = self._decide(self.evaluator, value, at)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(PartitionEvaluator, "_answer", lambda *_: None)
            alone = self._decide(Evaluator(self.evaluator.snapshot, Limits()), value, at)
        _same(kept, alone, value)

    @staticmethod
    def _decide(evaluator: Evaluator, value: bytes, at: int) -> Any:
        source = Source("requests", 0, "topic-id", CLAIMS, 1)
        partition = evaluator.for_partition(source, EvaluationContext("v", {}, 7, {}, at))
        made = partition.decide_all(Records(records_batch([(b"k", value, None)], at)))
        return [(topic, *batch.values.to_pylist()) for topic, batch in made.batches()]


def _fields() -> None:
    for one, other in ONE_FIELD:
        for first, second in ((one, other), (other, one)):
            snapshot = policy.compile_documents(POLICIES)
            worker = InWorker(snapshot)
            for request in (first, second, first):
                asked = {**request, "time": AT}
                _same(policy.decide(snapshot, asked), _alone(snapshot, asked), asked)
                worker.compare(request)


def _times() -> None:
    asked = _topic("a/b/c", "user:tom")
    for moments in itertools.permutations((None, 9, 10, 19, 20), 3):
        snapshot = policy.compile_documents(POLICIES)
        worker = InWorker(snapshot)
        for at in moments:
            request = asked if at is None else {**asked, "time": at}
            _same(policy.decide(snapshot, request), _alone(snapshot, request), (moments, at))
            if at is not None:
                worker.compare(asked, at)


def _trusts() -> None:
    asked = {**_topic("a/b/c", "user:eve", claims={"groups": ["g", "h"]}), "time": AT}
    snapshot = policy.compile_documents(POLICIES)
    for trust in (CLAIMS, CLAIMS - {"groups"}, CLAIMS - {"time"}, CLAIMS):
        _same(policy.decide(snapshot, asked, trust=trust), _alone(snapshot, asked, trust), trust)
    few = policy.decide(snapshot, asked, max_claimed_groups=1)
    _same(few, policy.answer(snapshot, parse_request(asked, 1)), "many groups")


def _changed_policies() -> None:
    """Also the patterns of resources, so that ids lead to other states."""
    lifted = _document("lenses6", "Role", "barred", {"statements": [_statement("deny", "kafka:topic:a/b/c*")]})
    after = policy.compile_documents([*(one for one in POLICIES if one["name"] != "barred"), lifted])
    worker = InWorker(policy.compile_documents(POLICIES))
    requests = [TOPIC, _topic("a/b/secret-1"), VERVERICA, *VIEW]
    for snapshot in (worker.evaluator.snapshot, after):
        worker.evaluator.follow(snapshot, ())
        for request in requests * 2:
            worker.compare(request)


def _changed_facts(most: int) -> None:
    """A session that was not known, is, says something else, is refused, which affects whom it names, and is gone."""
    other, gone = {**SESSION, "spec": {"login_at": 12, "groups": []}}, {**SESSION, "spec": None}
    steps = [None, SESSION, other, BADLY, SESSION, gone, BADLY, SESSION]
    facts, overlay = DocumentStore(facts_only=True), FactOverlay()
    compiled = policy.compile_documents(POLICIES)
    worker = InWorker(compiled.with_facts(overlay))
    worker.evaluator._most = most
    for order, document in enumerate(steps):
        if document is not None:
            changed = [("streamsets", lookup) for lookup in overlay.apply(change(facts, document, order))]
            worker.evaluator.follow(compiled.with_facts(overlay), changed)
        for request in VIEW * 2:
            worker.compare(request, LATE)
        worker.compare(VIEW[0], 5)
        worker.compare(TOPIC)  # where there is no room for more, the others are old now


def _dated_facts() -> None:
    """A fact that is in force for a time."""
    snapshot = policy.compile_documents(POLICIES)
    asked = _request(
        "lenses5", "dana", "kafka-consumers.view", "consumer-group", "dated", scope={"consumer_group": "dated"}
    )
    for moments in itertools.permutations((9, 10, 19, 20), 2):
        worker = InWorker(snapshot)
        for at in moments:
            worker.compare(asked, at)


def _texts() -> None:
    """Names that stand twice, what stands for an id, and other ways of writing."""
    worker, value = InWorker(policy.compile_documents(POLICIES)), msgspec.json.encode(TOPIC)
    marked = msgspec.json.encode(_with(TOPIC, "resource", "properties", value={"a": contents.ID}))
    for text in (
        value,
        value.replace(b'"system":', b'"system":"lenses5","system":'),
        value.replace(b'"id":"kafka', b'"id":"kafka:topic:a/b/x","id":"kafka'),
        value.replace(b'"id":"r"', b'"unknown":{"a":1,"a":2},"id":"r"'),
        value.replace(b'"id":"r"', b'"unknown":%b,"id":"r"' % (b"[" * 40 + b"]" * 40)),
        value.replace(b'"id":"r"', b'"Subject":{},"id":"r"'),
        value.replace(b'"id":"r"', b'"id":"r\xff"'),
        value.replace(b'"id":"r"', b'"unknown":"\xff","id":"r"'),
        value.replace(b"a/b/c", b"a/b/\\u0063"),
        marked,
        marked.replace(contents.ID_BYTES, b"\\uFFF9"),
        msgspec.json.encode(VERVERICA),
        msgspec.json.encode(_with(VERVERICA, "resource", "id", value="")),
        msgspec.json.encode({**VERVERICA, "id": ""}),
        msgspec.json.encode({**VERVERICA, "evaluations": [TOPIC]}),
    ):
        worker.compare(text)
        worker.compare(text)


CHECKS = (_fields, _times, _trusts, _changed_policies, lambda: _changed_facts(100), lambda: _changed_facts(2))
ALL = (*CHECKS, _dated_facts, _texts)


def compare() -> None:
    """Raises Difference."""
    for check in ALL:
        check()


def test_what_is_kept_is_what_is_worked_out() -> None:
    compare()


MALFORMED = (
    (VERVERICA, ("id",), ""),
    (VERVERICA, ("resource", "id"), ""),
    (TOPIC, ("resource", "properties"), None),
    (TOPIC, ("context",), None),
)


@pytest.mark.parametrize(("request_", "path", "value"), MALFORMED)
def test_no_answer_that_is_kept_is_one_to_a_malformed_request(
    request_: Request, path: tuple[str, ...], value: str | None
) -> None:
    snapshot = policy.compile_documents(POLICIES)
    assert policy.decide(snapshot, request_).outcome == "allow"
    assert policy.decide(snapshot, _with(request_, *path, value=value)).outcome == "error"


Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def _without(parts: Any, path: tuple[Any, ...]) -> Any:
    """Nested parts without one of them."""
    head, *rest = path
    if isinstance(parts, dict):
        return {name: part for name, part in parts.items() if name != head}
    inner = (_without(parts[head], tuple(rest)),) if rest else ()
    return (*parts[:head], *inner, *parts[head + 1 :])


def _plain_content_without(path: tuple[Any, ...]) -> Plant:
    """In `policy.decide`."""

    def dumps(parts: Any, version: int) -> bytes:
        return marshal.dumps(_without(parts, path), version)

    return lambda patch: patch.setattr(AUTHORIZE, "marshal", SimpleNamespace(dumps=dumps))


def _json_content_without(name: str) -> Plant:
    """In a worker."""

    def content_of(parts: Any) -> tuple[bytes, bool]:
        resource = parts.resource
        emptied = msgspec.structs.replace(resource, **({name: msgspec.Raw()} if hasattr(resource, name) else {}))
        other = {} if hasattr(resource, name) else {name: msgspec.Raw()}
        return contents.content_of(msgspec.structs.replace(parts, resource=emptied, **other))

    return lambda patch: patch.setattr(evaluators, "content_of", content_of)


def _ids_in_any_property(patch: Patch) -> None:
    def without_id(properties: dict[str, Any], id_: str) -> tuple[str | None, dict[str, Any]]:
        repeating = "".join(name for name, value in properties.items() if value == id_)
        return repeating or None, {name: value for name, value in properties.items() if value != id_}

    patch.setattr(AUTHORIZE, "_without_id", without_id)


def _one_state(patch: Patch) -> None:
    right = States.put

    def put(states: States, id_: str, state: Any) -> Any:
        right(states, id_, state)
        states.by_id[id_] = next(iter(states.by_id.values()))
        return states.by_id.get(id_, state)

    patch.setattr(States, "put", put)


def _only_facts_that_were_found(patch: Patch) -> None:
    get = Facts.get

    def get_without_note(facts: Facts, kind: str, name: str) -> Any:
        body, reads = get(facts, kind, name), facts._reads
        if body is None and reads is not None:
            reads.lookups.discard(("name", kind, name))
        return body

    patch.setattr(Facts, "get", get_without_note)


def _interval(change: Callable[[int, int], tuple[int, int]]) -> Plant:
    """Of what is kept while the time is known."""
    right = answers._basis

    def basis(system: str, policy_sets: Any, reads: Reads, at: int | None, first: int) -> Basis:
        made = right(system, policy_sets, reads, at, first)
        if at is None:
            return made
        since, until = change(made.since, made.until)
        return Basis(made.system, made.lookups, since, until)

    return lambda patch: patch.setattr(answers, "_basis", basis)


def _no_edges_of_facts(patch: Patch) -> None:
    right = PolicySet.interval
    patch.setattr(PolicySet, "interval", lambda policy_set, at, _edges=(): right(policy_set, at))


class _Careless(dict[Any, Any]):
    """Finds the caches of `policy.decide` by a part of what they rest on."""

    def __init__(self, part: int) -> None:
        super().__init__()
        self._part = part

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[self._part], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[self._part], value)


def _caches_by(part: int) -> Plant:
    init = Snapshot.__init__

    def plant(patch: Patch) -> None:
        def init_carelessly(snapshot: Snapshot, *arguments: Any) -> None:
            init(snapshot, *arguments)
            snapshot.answers = _Careless(part)

        patch.setattr(Snapshot, "__init__", init_carelessly)

    return plant


def _all_claims_trusted(patch: Patch) -> None:
    init: Any = AnswerCache.__init__
    patch.setattr(AnswerCache, "__init__", lambda cache, sets, _, *more: init(cache, sets, CLAIMS, *more))


def _allowed_by_default(patch: Patch) -> None:
    patch.setattr(answers, "leaf", lambda check, grants: ExpressionResult(check, not grants, grants))


def _old_ones_stay(patch: Patch) -> None:
    right = AnswerCache.follow

    def follow(cache: Any, policy_sets: Any, changed: Any) -> None:
        old, cache._old = cache._old, answers._Generation[Any]()
        right(cache, policy_sets, changed)
        cache._old = old

    patch.setattr(AnswerCache, "follow", follow)


def _bound_not_noted(patch: Patch) -> None:
    right = answers._basis

    def basis(*arguments: Any) -> Basis:
        made = right(*arguments)
        return Basis(made.system, made.lookups[:-1], made.since, made.until)

    patch.setattr(answers, "_basis", basis)


def _timeless_at_any_moment(patch: Patch) -> None:
    right = Basis.holds
    patch.setattr(Basis, "holds", lambda basis, at: basis.until < basis.since or right(basis, at))


def _set(target: Any, name: str, value: Any) -> Plant:
    return lambda patch: patch.setattr(target, name, value)


PLAIN = {
    "the system": (0,),
    "the subject's type": (1, "type"),
    "the subject's id": (1, "id"),
    "the subject's properties": (1, "properties"),
    "the action's name": (2, "name"),
    "the resource's type": (3,),
    "the resource's properties": (4,),
    "which property is the id": (5,),
    "the context": (6,),
}
MUTANTS: dict[str, Plant] = {
    **{f"decide: a content without {name}": _plain_content_without(path) for name, path in PLAIN.items()},
    **{
        f"worker: a content without {name}": _json_content_without(name)
        for name in ("system", "subject", "action", "type", "properties", "context")
    },
    "decide: an id stands in several properties": _ids_in_any_property,
    "all ids lead to one state": _one_state,
    "ids are not checked": _set(answers, "check_resource", lambda _id: None),
    "changed policies end nothing": _set(PolicySet, "says_the_same", lambda *_: True),
    "states outlive their policies": _set(answers.Cache, "__delitem__", lambda *_: None),
    "changed facts end nothing": _set(answers._Generation, "end", lambda *_: None),
    "facts that were not found are not noted": _only_facts_that_were_found,
    "changed facts end nothing among the old ones": _old_ones_stay,
    "what every answer rests on is not noted": _bound_not_noted,
    "an answer holds for ever": _interval(lambda _since, _until: (FIRST, LAST)),
    "it begins a moment early": _interval(lambda since, until: (since - 1, until)),
    "it begins with the beginning": _interval(lambda _since, until: (FIRST, until)),
    "it ends a moment late": _interval(lambda since, until: (since, until + 1)),
    "edges of facts do not count": _no_edges_of_facts,
    "without a time an answer holds at any moment": _timeless_at_any_moment,
    "decide: the trust does not count": _caches_by(1),
    "decide: the bound of groups does not count": _caches_by(0),
    "all claims are trusted": _all_claims_trusted,
    "what nothing grants is allowed": _allowed_by_default,
    "worker: an echo may have the mark of ids": _set(evaluators, "may_share", lambda _content: True),
    "worker: an empty id is kept, and of several requests the first": _set(evaluators, "may_be_kept", lambda _: True),
    "worker: names may stand twice": _set(evaluators, "check_members", lambda *_: None),
    "worker: unknown members are not read": _set(
        contents, "decode_json", lambda value: decode_json(value) if b"unknown" not in value else None
    ),
    "worker: names may differ in case alone": _set(contents, "check_letter_case", lambda *_: None),
    "decide: an answer is for another id": _set(AUTHORIZE, "decision_for", lambda answer, _: answer.rendered.decision),
    "one grant determines all": _set(ByState, "work_out", lambda query, state: _first_answer(query, state)),
}
_work_out = ByState.work_out


def _first_answer(query: Any, state: Any) -> Any:
    return next(iter(query._answers.values()), None) or _work_out(query, state)


def _found_by(checks: Iterable[Callable[[], None]]) -> Iterator[bool]:
    for check in checks:
        try:
            check()
        except Difference:
            yield True
        else:
            yield False


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[mutant](patch)
        assert any(_found_by(ALL))
