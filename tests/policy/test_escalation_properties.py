"""What holds of escalations whatever the documents: reported if and only if something opens, in any order.

A *probe* is one permission on one object, asked for by a subject, a claim, or two of them in one request. What lies
in no power and was not denied before opens without being reported: that is an ordinary grant.
"""

import functools
import itertools
import json
import operator
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from policy.core.document import identify
from policy.core.pattern import Name, matches
from policy.evaluation.evaluate import deny_overrides
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from tests.examples import examples
from tests.policy.changes import Change
from tests.policy.strategies import lenses6
from tests.policy.test_properties import WRITTEN, documents_of

probed = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])

ADMINISTRATION = {"iam:ListRoles": "iam:CreateRole", "iam:L*": "iam:C*", "kafka:ListQuotas": "kafka:CreateAcl"}
TEXTS = ("a", "ab", "az", "b", "z")  # one for each pattern of the strategies that the others do not match
PERMISSIONS = (
    *(("kafka", "ListTopic"), ("kafka", "ListZ"), ("kafka", "DeleteTopic"), ("kafka", "Z"), ("kafka", "CreateAcl")),
    ("kafka", "UpdateAcl"),  # what is left of a power of which another part is denied
    *(("iam", "CreateRole"), ("iam", "CreateZ"), ("iam", "UpdateZ"), ("audit", "UpdateChannel"), ("z", "Z")),
)
OBJECTS = (
    *(("kafka", "topic", *path) for path in itertools.product(TEXTS, repeat=3)),
    *(("kafka", "topic", text, "z", "z", "z") for text in TEXTS),
    *(("iam", "role", text) for text in TEXTS),
    *(("kafka", "acl", "z"), ("iam", "z", "z"), ("audit", "z", "z"), ("z", "z", "z")),
)
SUBJECTS = (*lenses6.SUBJECTS, "user:nobody")
CLAIMS = tuple(f"claim:{name}" for name in lenses6.GROUPS)
PLACES = tuple(itertools.product(PERMISSIONS, OBJECTS))
ASKERS = (*((who,) for who in SUBJECTS), *itertools.product((*SUBJECTS, *CLAIMS), CLAIMS))
ALLOWED, DENIED = 1, 2
Askers = tuple[str, ...]
Place = tuple[Name, Name]
Opened = tuple[Askers, Place, bool]


def administrative(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same documents without windows, and about administration in place of what is none."""
    text = json.dumps([{k: v for k, v in d.items() if not k.startswith("valid_")} for d in documents])
    for old, new in ADMINISTRATION.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return list(json.loads(text))


def change_of(data: st.DataObject, system: str) -> Change:
    """Documents, and others in the place of some; some go."""
    old, new = data.draw(documents_of(system)), data.draw(documents_of(system))
    return Change(system, old, new)


changes = st.builds(lambda old, new: Change("lenses6", old, new), *[lenses6.documents().map(administrative)] * 2)


class Held:
    """What every asker holds at every probed place, as a sum of ALLOWED and DENIED."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._policy_set = snapshot.policy_sets["lenses6"]
        self._effects = {who: [self._effect(who, *place) for place in PLACES] for who in (*SUBJECTS, *CLAIMS)}

    def _effect(self, who: str, permission: Name, object_: Name) -> int:
        permissions = self._policy_set.effective_principals((who,), 0).permissions(permission)
        effects = {grant.effect for grant in deny_overrides(permissions.on(object_))}
        return ALLOWED * ("allow" in effects) | DENIED * ("deny" in effects)

    def at_all_places(self, askers: Askers) -> Iterable[int]:
        """What the askers of one request hold together."""
        held = zip(*(self._effects[who] for who in askers), strict=True)
        return (functools.reduce(operator.or_, together) for together in held)


def opened(change: Change) -> list[Opened]:
    """The probes that are allowed after the change and were not before, and whether a deny had taken them away."""
    before, after = Held(change.before), Held(change.after)
    return [
        (askers, place, bool(had & DENIED))
        for askers in ASKERS
        for place, had, has in zip(PLACES, before.at_all_places(askers), after.at_all_places(askers), strict=True)
        if has == ALLOWED and had != ALLOWED
    ]


POWERS = [power for power in all_systems()["lenses6"].privileged_permissions() if power.kind == "administration"]


@functools.cache
def is_power(permission: Name, object_: Name) -> bool:
    """Whether a probe is about administration."""
    return any(matches(power.permission, permission) and matches(power.object, object_) for power in POWERS)


@probed
@given(changes)
def test_what_opens_is_reported(change: Change) -> None:
    """Principals that are allowed what was denied to them, or administration that they had not, are reported."""
    lifted = {who for one in change.opened if one.kind == "deny-lifted" for who in one.principals}
    powerful = {who for one in change.opened if one.kind == "administration" for who in one.principals}
    for askers, place, denied in opened(change):
        if denied:
            assert lifted.intersection(askers)
        elif is_power(*place):
            assert powerful.intersection(askers)


def _role(name: str, *statements: tuple[str, str, str]) -> dict[str, Any]:
    written = [
        {"effect": effect, "action": [action], "resource": [resource]} for effect, action, resource in statements
    ]
    return {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": written}}


HELD_BY_READERS = {"roles": ["r2", "r3"], "members": ["user:dana"]}
PART_OF_A_POWER = [
    _role("r2", ("deny", "kafka:CreateAcl", "*")),
    _role("r3", ("allow", "kafka:*", "*")),
    {"system": "lenses6", "kind": "Group", "name": "readers", "spec": HELD_BY_READERS},
]


@probed
@given(changes)
@example(Change("lenses6", PART_OF_A_POWER[:1], PART_OF_A_POWER))
def test_what_is_reported_opens(change: Change) -> None:
    """By each principal reported, some probe is allowed now that was not: of administration, or denied before."""
    event("reported" if change.opened else "silent")
    found = opened(change)
    for one in change.opened:
        for who in one.principals:
            own = ((place, denied) for askers, place, denied in found if who in askers)
            assert any(_is_of(one.kind, place, denied) for place, denied in own), (one, who)


def _is_of(kind: str, place: Place, denied: bool) -> bool:
    if kind == "deny-lifted":
        return denied
    return kind == "wildcard" or is_power(*place)


@pytest.mark.parametrize("system", WRITTEN)
@probed
@given(data=st.data(), seed=st.integers(0, 9))
def test_the_order_of_documents_in_a_change_tells_nothing(system: str, data: st.DataObject, seed: int) -> None:
    """A folder is published in any order."""
    change = change_of(data, system)
    assert change.judged(random.Random(seed).sample(change.edits, len(change.edits))) == change.opened


@pytest.mark.parametrize("system", WRITTEN)
@probed
@given(data=st.data())
def test_the_same_again_opens_nothing(system: str, data: st.DataObject) -> None:
    """Every document published once more."""
    documents = data.draw(documents_of(system))
    assert Change(system, documents, documents).opened == ()


@pytest.mark.parametrize("system", WRITTEN)
@probed
@given(data=st.data())
def test_taking_all_away_gives_no_power(system: str, data: st.DataObject) -> None:
    """No principal holds anything where there is nothing; of an engine, every deny that goes is reported (CE-Q1)."""
    documents = data.draw(documents_of(system))
    change = Change(system, documents, [], [identify(document) for document in documents])
    with_engine = engine_of(all_systems()[system]) is not None
    assert [one for one in change.opened if not (with_engine and one.kind == "deny-lifted")] == []
