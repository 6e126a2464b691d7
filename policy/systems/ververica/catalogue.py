"""Roles and kinds of access (VV-MODEL), read from catalogue.yaml beside this file."""

import functools
from collections.abc import Iterator
from typing import Any

from policy.core.model import Unanswerable
from policy.core.suggest import nearest
from policy.systems.kit.query import Need
from policy.systems.kit.system import load_catalogue


@functools.cache
def catalogue() -> dict[str, Any]:
    """``roles`` (role → scope), ``implies`` (role → roles), ``actions`` (kind of access → need) and ``protocols``
    (oidc, saml → their fields).
    """
    return load_catalogue(__package__, dict[str, Any])


def need_of(action: str) -> Need:
    """What a kind of access needs; raises Unanswerable for an unknown one."""
    needs: dict[str, Need] = catalogue()["actions"]
    if action not in needs:
        hint = nearest(action, needs, most=1)
        raise Unanswerable("unknown-action", f"action {action!r} is not one of {', '.join(needs)}{hint}", "VV-MODEL")
    return needs[action]


def documented_actions() -> Iterator[tuple[str, str]]:
    """Every action, each after what it is about: for the documentation."""
    yield from (("every kind", name) for name in catalogue()["actions"])
