"""AuthZEN's searches: which subjects, resources or actions an evaluation would allow.

Candidates are what the documents and catalogues name; each result is one that `policy.decide` allows. Others may be
allowed too, that no document names: then the answer says `complete: false`.
"""

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from policy import CLAIMS, ListsActions, MalformedRequest, PolicySet, all_systems, decide, parse_request
from policy.analysis import KnownNames, known_names, literal_name, who_can
from streaming.enforcer.answers import TIME
from streaming.pdp.deadlines import is_late
from streaming.pdp.reading import AnswerContext, Read, lacking
from streaming.serve import authzen
from streaming.serve.authzen import BadRequest, EvaluationRequest, Rules

Name = tuple[str, ...]
Kind = Literal["subject", "resource", "action"]
KINDS: tuple[Kind, ...] = ("subject", "resource", "action")
MOST_CANDIDATES = 100_000
PAGE = 1000  # results, where the request names no limit
ANY = "any"  # in the place of what is searched


class Search(msgspec.Struct, frozen=True):
    """A search. `evaluation`: its request, any name for what is searched. `after`: the last result seen."""

    kind: Kind
    evaluation: EvaluationRequest
    after: str
    limit: int


class Found(msgspec.Struct, frozen=True):
    """Ids of subjects or resources, or names of actions, sorted. `complete`: whether there can be no others."""

    names: list[str]
    complete: bool


def parse_search(kind: Kind, body: bytes, id_: str, system: str, rules: Rules) -> Search:
    """A search of one kind. Raises BadRequest."""
    value = authzen.parse_object(body)
    value[kind] = _open(kind, value.get(kind, {}))
    request = authzen.parse_evaluation(authzen.encode(value), id_, system, rules)
    try:
        parse_request(request.body)
    except MalformedRequest as malformed:
        raise BadRequest(str(malformed)) from None
    return Search(kind, request, *_page(value.get("page", {})))


def _has_actions(system: str) -> bool:
    """Whether a catalogue lists the actions of a system, or the documents of one with an engine name some."""
    implementation = all_systems().get(system)
    return isinstance(implementation, ListsActions) or hasattr(implementation, "engine")


def _open(kind: Kind, value: Any) -> dict[str, Any]:
    """What is searched: its type and properties count, its id does not."""
    if not isinstance(value, dict):
        raise BadRequest(f"{kind}: must be an object")
    return {"name": ANY} if kind == "action" else {**value, "id": ANY}


def _page(value: Any) -> tuple[str, int]:
    if not isinstance(value, dict):
        raise BadRequest("page: must be an object")
    token, limit = value.get("token", ""), value.get("limit", PAGE)
    if type(limit) is not int or limit < 1:
        raise BadRequest("page.limit: must be a number, at least 1")
    try:
        if not isinstance(token, str):
            raise ValueError(token)
        return base64.b64decode(token.encode(), b"-_", validate=True).decode(), min(limit, PAGE)
    except ValueError:
        raise BadRequest("page.token: must be the next_token of a response") from None


def answer(search: Search, answer_context: AnswerContext, rules: Rules) -> bytes:
    """The body of the response. Raises BadRequest."""
    read = answer_context.read
    body = search.evaluation.body
    if (behind := lacking(body, read.without_topics(rules.unseen).all_offsets)) is not None:
        raise BadRequest(behind)
    if is_late(body.get("deadline"), answer_context.time):  # else nobody would be found
        raise BadRequest("the deadline of the search is over")
    request = {**body, "time": answer_context.time}
    if request["system"] not in read.snapshot.policy_sets:
        raise BadRequest(f"the system is not known; there are {', '.join(rules.systems)}")
    if search.kind == "action" and not _has_actions(request["system"]):
        raise BadRequest("search/action: the system has no catalogue of actions; search for subjects or resources")
    matches = _SEARCHES[search.kind](request, read, rules)
    left = [name for name in matches.names if name > search.after]
    shown = left[: search.limit]
    token = base64.urlsafe_b64encode(shown[-1].encode()).decode() if len(left) > len(shown) else ""
    type_ = request[search.kind].get("type")
    results = [{"name": name} if search.kind == "action" else {"type": type_, "id": name} for name in shown]
    context = authzen.response_context(answer_context, rules)
    return authzen.encode(
        {
            "results": results,
            "page": {"next_token": token, "count": len(shown), "total": len(matches.names)},
            "context": {**context, "complete": matches.complete},
        }
    )


def _subjects(request: dict[str, Any], read: Read, rules: Rules) -> Found:
    """By `who_can`, or those that an engine's documents name; each with the type and properties asked for."""
    subject, named = request["subject"], _known_names(request, read)
    shared = {name: value for name, value in subject.get("properties", {}).items() if name not in CLAIMS}
    own = {"type": subject["type"], **({"properties": shared} if shared else {})}
    if named is not None:
        names, complete = {id_ for type_, id_ in named.subjects if type_ == subject["type"]}, False
    else:
        reach = who_can(read.snapshot, request, trust=rules.trust | TIME)
        names = {who.name for who in reach.allowed if not who.claim}
        complete = not reach.everyone and not any(who.claim for who in reach.allowed)
    return Found(_allowed(names, lambda name: {**request, "subject": {**own, "id": name}}, read, rules), complete)


def _resources(request: dict[str, Any], read: Read, rules: Rules) -> Found:
    """What facts and grants name, or an engine's documents. Patterns may match others, and a platform may have any."""
    system, resource = all_systems()[request["system"]], request["resource"]
    action = request["action"]["name"]
    if (named := _known_names(request, read)) is not None:
        names = {id_ for type_, id_ in named.resources if type_ == resource["type"]}
    else:
        ids = _named(read.snapshot.policy_sets[request["system"]], system, resource["type"])
        names = {name for name in ids if system.resource_type(action, name) == resource["type"]}
    return Found(_allowed(names, lambda name: {**request, "resource": {**resource, "id": name}}, read, rules), False)


def _named(policy_set: PolicySet, system: Any, type_: str) -> Iterator[str]:
    for kind in system.kinds:
        yield from policy_set.facts.names(kind)
    for grants in policy_set.grants.values():
        for grant in grants:
            name = literal_name(grant.object)
            if name:
                yield from _spelled(name, type_, system.name_of_resource)


def _spelled(name: Name, type_: str, name_of: Callable[[str], Name] | None) -> Iterator[str]:
    """The id that is read as this name, or what follows its type."""
    if name_of is None:
        yield from name[1:] if len(name) == 2 and name[0] == type_ else ()
        return
    for text in ("/".join(name), f"{':'.join(name[:3])}{''.join(f'/{part}' for part in name[3:])}"):
        with contextlib.suppress(Exception):  # not an id of the system
            if name_of(text) == name:
                yield text


def _actions(request: dict[str, Any], read: Read, rules: Rules) -> Found:
    """Those of the system's catalogue, which are all, or those that an engine's documents name."""
    system = all_systems()[request["system"]]
    if isinstance(system, ListsActions):
        names, complete = tuple(system.actions()), True
    else:
        named = _known_names(request, read)
        names, complete = () if named is None else named.actions, False
    return Found(_allowed(names, lambda name: {**request, "action": {"name": name}}, read, rules), complete)


def _known_names(request: dict[str, Any], read: Read) -> KnownNames | None:
    """What the documents of the request's system name; None: it has no engine of its own, but grants."""
    return known_names(read.snapshot.policy_sets[request["system"]], request["system"])


def _allowed(names: Iterable[str], asking: Callable[[str], dict[str, Any]], read: Read, rules: Rules) -> list[str]:
    """The names with which the request is allowed, sorted."""
    names = sorted(set(names))
    if len(names) > MOST_CANDIDATES:
        raise BadRequest(f"the search has {len(names)} candidates; at most {MOST_CANDIDATES}")
    trust = rules.trust | TIME
    return [name for name in names if decide(read.snapshot, asking(name), trust=trust).allowed]


_SEARCHES: dict[Kind, Callable[[dict[str, Any], Read, Rules], Found]] = {
    "subject": _subjects,
    "resource": _resources,
    "action": _actions,
}
