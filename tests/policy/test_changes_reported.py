"""Whatever changes: a request that was denied or an error and is allowed now is reported, in every system.

A change is one that the log of a policy topic could bring: documents are published, edited somewhere, bound in time,
broken, deleted. Requests are asked after it, and the reference evaluator answers. Reported are they by `policy diff`
(its exit code of ``--fail-on widening``), by what the change's record says that it widens, and by escalations where
their rule says so: a deny that is lifted, a privileged permission that a principal has newly.
"""

import copy
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import policy
from policy.analysis import Widening, analyse
from policy.analysis.diff import compare
from policy.analysis.unknown_names import leaves
from policy.analysis.wording import grant_words
from policy.core.document import Key, identify
from policy.core.limits import Work
from policy.core.model import ALLOW, DENY, AuthorizationQuery, Grant, PermissionCheck, StatementId, Unanswerable
from policy.core.pattern import exactly, matches
from policy.core.request import CLAIMS, Request, parse_request
from policy.core.times import Window, to_ms
from policy.evaluation import reference
from policy.evaluation.evaluate import deny_overrides
from policy.store.snapshot import Snapshot
from policy.systems.kit.engine import engine_of
from policy.systems.kit.query import authorization_query
from tests.policy.changes import Change, Published
from tests.policy.test_properties import WRITTEN, documents_of, requests_of

MOMENT = 3  # of the change; what is generated is published from 0 on and valid until 7
LATEST = 8
ASKED = 100  # requests about each change
POOL = 300  # requests of a system
CHANGES = 5  # of the same documents
FLIPPED = {True: False, False: True, "ALLOW": "DENY", "DENY": "ALLOW", "allow": "deny", "deny": "allow"}
EDITS = ("less", "less", "less", "more", "flip", "lift", "lift", "bound", "unbound", "until", "broken")
QUICK, LONG = 30, 4_000
PHASES = (Phase.explicit, Phase.generate)  # a change that fails is small as it is: to shrink it takes minutes

Documents = list[dict[str, Any]]


def pool_of(system: str) -> list[dict[str, Any]]:
    """Requests of a system, drawn once: they are asked about many changes."""
    found: list[dict[str, Any]] = []

    @settings(max_examples=POOL, deadline=None, database=None, phases=[Phase.generate], derandomize=True)
    @given(requests_of(system), st.integers(MOMENT, LATEST))
    def draw(request: dict[str, Any], time: int) -> None:
        found.append({**request, "time": time})

    draw()
    return found


def without_dates(documents: Documents) -> list[Published]:
    """As a log has them: each published at the moment from which on its file would say that it counts."""
    found = [(document.get("effective_at", 0), document) for document in documents]
    ordered = sorted(found, key=lambda one: one[0])
    return [Published({k: v for k, v in one.items() if k != "effective_at"}, min(at, MOMENT)) for at, one in ordered]


def edited(chance: random.Random, document: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A document with one difference: something of a list or mapping is gone, another's is there, or it is refused."""
    new = copy.deepcopy(document)
    if new["spec"].pop("misspelt", False) and chance.random() < 0.8:
        return new
    kind = chance.choice(EDITS)
    if kind == "less":
        _take_away(chance, new["spec"])
    elif kind == "more" and other["kind"] == new["kind"]:
        _put_in(chance, new["spec"], other["spec"])
    elif kind == "lift":
        _lift(chance, new["spec"])
    elif kind == "flip":
        _flip(chance, new["spec"])
    elif kind == "bound":
        new["valid_from"] = chance.randrange(MOMENT, LATEST)
    elif kind == "until":
        new["valid_until"] = chance.randrange(MOMENT, LATEST)
    elif kind == "unbound":
        new.pop("valid_from", None), new.pop("valid_until", None)
    elif kind == "broken":
        new["spec"]["misspelt"] = True
    return new


def _containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers(part)


def _take_away(chance: random.Random, spec: Any) -> None:
    filled = [one for one in _containers(spec) if one]
    if filled:
        part = chance.choice(filled)
        part.pop(chance.choice(sorted(part)) if isinstance(part, dict) else chance.randrange(len(part)))


def _lift(chance: random.Random, spec: Any) -> None:
    lists = [part for part in _containers(spec) if isinstance(part, list)]
    denies = [(part, one) for part in lists for one in part if isinstance(one, dict) and _denies(one)]
    if denies:
        part, one = chance.choice(denies)
        part.remove(one)


def _denies(one: dict[str, Any]) -> bool:
    return "deny" in (str(one.get("effect")), str(one.get("permission")).lower())


def _flip(chance: random.Random, spec: Any) -> None:
    switches = [
        (one, name) for one in _containers(spec) if isinstance(one, dict) for name in one if _is_switch(one[name])
    ]
    if switches:
        part, name = chance.choice(switches)
        part[name] = FLIPPED[part[name]]


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool | str) and value in FLIPPED


def thinned(chance: random.Random, documents: Documents) -> Documents:
    """The same with less in them, at times: where little is allowed or denied, one part alone decides."""
    found = copy.deepcopy(documents)
    if found and chance.random() < 0.2:
        chance.choice(found)["spec"]["misspelt"] = True  # refused
    for document in found if chance.random() < 0.6 else ():
        for part in [one for one in _containers(document["spec"]) if isinstance(one, list)]:
            del part[chance.randrange(1, 3) :]
    for document in found if chance.random() < 0.4 else ():
        _allow_under_denies(chance, document["spec"])
    return found


def _allow_under_denies(chance: random.Random, spec: Any) -> None:
    """Beside each deny the same as an allow, so that something opens when the deny goes; for all hosts, at times."""
    for part in [one for one in _containers(spec) if isinstance(one, list)]:
        for one in [each for each in part if isinstance(each, dict) and _denies(each)]:
            under = {name: FLIPPED[value] if _is_switch(value) else value for name, value in one.items()}
            part.append({name: value for name, value in under.items() if name != "host" or chance.random() < 0.5})


def _put_in(chance: random.Random, spec: dict[str, Any], other: dict[str, Any]) -> None:
    for field, value in other.items():
        if isinstance(value, list) and isinstance(spec.get(field, []), list):
            spec[field] = [*spec.get(field, []), *copy.deepcopy(value)]
        elif chance.random() < 0.5:
            spec[field] = copy.deepcopy(value)


def change_of(chance: random.Random, system: str, old: Documents, others: Documents) -> Change:
    """A change of one document, mostly, or of a few."""
    published = without_dates(old)
    keys = {identify(one.document): one.document for one in published}
    new: Documents = []
    gone: list[Key] = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        key, other = chance.choice(sorted(keys)), chance.choice(others)
        manner = chance.choice(("edit", "edit", "edit", "delete", "publish"))
        document = other if manner == "publish" else edited(chance, keys[key], other)
        if manner == "delete":
            gone.append(key)
        else:
            new.append({k: v for k, v in document.items() if k != "effective_at"})
    new = list({identify(one): one for one in new}.values())
    written = set(map(identify, new))
    return Change(system, published, new, [key for key in dict.fromkeys(gone) if key not in written], MOMENT)


class Turned:
    """A request that was not allowed before a change, and is after it."""

    def __init__(self, change: Change, request: dict[str, Any], outcome: str) -> None:
        parsed = parse_request(request)
        assert isinstance(parsed, Request)
        self.change, self.request, self.outcome, self._parsed = change, request, outcome, parsed

    def query(self, snapshot: Snapshot) -> AuthorizationQuery | None:
        """The request in terms of the core; None: it is an error."""
        system, facts = self.change.system, snapshot.policy_sets[self.change.system.name].facts
        try:
            return authorization_query(system, self._parsed, facts.at(self._parsed.time), CLAIMS)
        except Unanswerable:
            return None

    def principals(self) -> frozenset[str]:
        """Whom it is about, on either side: the subject, and those whose permissions are asked for beside it.

        By the query before as well: a host that no entry names after the change is no principal after it (KA-HOST).
        """
        queries = [query for one in (self.change.before, self.change.after) if (query := self.query(one)) is not None]
        starts = {query.principals for query in queries}
        starts |= {leaf.principals for query in queries for leaf in _checks(query) if leaf.principals}
        found: set[str] = set()
        for snapshot in (self.change.before, self.change.after):
            policy_set = snapshot.policy_sets[self.change.system.name]
            for start in starts:
                found |= policy_set.effective_principals(start, self._parsed.time).via.keys()
        return frozenset(found)

    def effects(self, snapshot: Snapshot, query: AuthorizationQuery, leaf: PermissionCheck) -> set[str]:
        """Of the grants that determine a permission check."""
        policy_set = snapshot.policy_sets[self.change.system.name]
        effective = policy_set.effective_principals(leaf.principals or query.principals, self._parsed.time)
        return {grant.effect for grant in deny_overrides(effective.permissions(leaf.permission).on(leaf.object))}


def _checks(query: AuthorizationQuery) -> list[PermissionCheck]:
    return [leaf for leaf in leaves(query.expression) if isinstance(leaf, PermissionCheck)]


def turned(change: Change, denied: list[tuple[dict[str, Any], str]]) -> Iterator[Turned]:
    """The requests that a change turns into allows. ``denied``: those that were none before, with their answers."""
    for request, before in denied:
        if reference.decide(change.after, request) == "allow":
            yield Turned(change, request, before)


def check(one: Turned) -> None:
    """It is reported, wherever it has to be."""
    change, name = one.change, one.change.system.name
    differences = compare(change.before, change.after)
    assert any(difference.widens for difference in differences), (one.request, change.documents)
    found = analyse(change.system, change.after.policy_sets[name], change.edits, change.at, Work()).widenings.found
    assert found, (one.request, change.documents)
    query = one.query(change.after)
    assert query is not None, "it is allowed"
    if engine_of(change.system) is None:
        who = one.principals() | {"*"}
        assert any(widening.who in who for widening in found), (one.request, found, change.documents)
        check_wording(one, query, who, found)
        check_escalation(one, query, who)


def check_wording(one: Turned, query: AuthorizationQuery, who: frozenset[str], found: tuple[Widening, ...]) -> None:
    """What is newly allowed is worded so that a reader finds it: the action, the resource and the time."""
    if one.query(one.change.before) is None or one.outcome == "error":
        return
    new = [
        leaf
        for leaf in _checks(query)
        if one.effects(one.change.after, query, leaf) == {ALLOW} != one.effects(one.change.before, query, leaf)
    ]
    by_facts = any(widening.kind == "fact" or widening.statement is None for widening in found)
    if not new or by_facts:
        return
    time, system = one.request["time"], one.change.system
    literal = [
        grant_words(system, Grant("", ALLOW, exactly(leaf.permission), exactly(leaf.object), StatementId("")))
        for leaf in new
    ]
    assert any(
        widening.who in who
        and window_of(widening.when).holds(time)
        and any(
            pattern_matches(widening.action, words.action) and pattern_matches(widening.resource, words.resource)
            for words in literal
        )
        for widening in found
    ), (one.request, literal, found, one.change.documents)


def pattern_matches(pattern: str, text: str) -> bool:
    """Whether the words of a pattern are those of a name, as its readers take them."""
    expression = re.escape(pattern).replace(r"/\*\*", ".*").replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, text, re.DOTALL) is not None


def window_of(when: str) -> Window:
    """The window that words say."""
    words = when.split()
    ends = dict(zip(words[::2], map(to_ms, words[1::2]), strict=True))
    return Window(ends.get("from"), ends.get("until"))


def check_escalation(one: Turned, query: AuthorizationQuery, who: frozenset[str]) -> None:
    """By the rule of escalations: what a deny took away, and privileged permissions."""
    change, before = one.change, one.query(one.change.before)
    kinds = {escalation.kind for escalation in change.opened if who.intersection(escalation.principals)}
    asked = [*_checks(query), *(_checks(before) if before is not None else ())]
    lifted = [
        leaf
        for leaf in asked
        if one.outcome == "deny"
        and DENY in one.effects(change.before, before or query, leaf)
        and one.effects(change.after, query, leaf) == {ALLOW}
    ]
    assert not lifted or "deny-lifted" in kinds, (one.request, lifted, change.documents)
    powers = [power for power in change.system.privileged_permissions() if not (power.lone or power.changes_hands)]
    for leaf in _checks(query):
        is_power = any(matches(p.permission, leaf.permission) and matches(p.object, leaf.object) for p in powers)
        if is_power and one.effects(change.after, query, leaf) == {ALLOW}:
            assert one.effects(change.before, query, leaf) == {ALLOW} or kinds, (one.request, leaf, change.documents)


def worth_asking(chance: random.Random, before: Snapshot, pool: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some of the requests: first those that a deny decides, which are few."""
    mixed = chance.sample(pool, len(pool))
    mixed.sort(key=lambda one: all(reason.code != "denied" for reason in policy.decide(before, one).reasons))
    return mixed[:ASKED]


def look_for_unreported(system: str, count: int) -> Counter[str]:
    """How many requests turned from what, in so many changes; each of them is checked."""
    pool, seen = pool_of(system), Counter[str]()

    @settings(
        max_examples=max(1, count // CHANGES), deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES
    )
    @given(documents_of(system), documents_of(system), st.integers(0, 1 << 32))
    def each(old: Documents, others: Documents, seed: int) -> None:
        chance = random.Random(seed)
        old = thinned(chance, old)
        before = Change(system, without_dates(old), [], (), MOMENT).before
        requests = worth_asking(chance, before, pool)
        denied = [(one, str(answer)) for one in requests if (answer := reference.decide(before, one)) != "allow"]
        for _ in range(CHANGES if old and others else 0):
            change = change_of(chance, system, old, others)
            seen["changes"] += 1
            for one in turned(change, denied):
                seen[one.outcome] += 1
                check(one)

    each()
    return seen


@pytest.mark.parametrize("system", WRITTEN)
def test_what_is_allowed_now_and_was_not_is_reported(system: str) -> None:
    assert look_for_unreported(system, QUICK)["changes"] > 0


@pytest.mark.long
@pytest.mark.parametrize("system", WRITTEN)
def test_what_is_allowed_now_and_was_not_is_reported_of_four_thousand_changes(system: str) -> None:
    """Together with the other systems; that requests turn at all is seen as well."""
    seen = look_for_unreported(system, LONG // len(WRITTEN) + 1)
    print(f"{system}: {dict(seen)}")
    assert seen["deny"] + seen["error"] > 5
