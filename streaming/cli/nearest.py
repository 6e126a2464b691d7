"""What is nearest to a request that is denied, as lines below its explanation."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policy.analysis import Nearest, Who

SOME = "nobody of the first names that were tried: `lockkeeper who-can` tries all of them"
MORE = "; that alone would not allow the request"


def nearest_lines(nearest: "Nearest | None") -> Iterator[str]:
    """Denies that stand against it, statements of the subject that fall short, and who is allowed."""
    from policy import StatementId

    if nearest is None:
        return
    for deny in nearest.denies:
        yield f"against it: {StatementId(deny.document, deny.statement)}: {deny.text}{_route(deny.route)}"
    for near in nearest.near:
        yield f"nearest: {StatementId(near.document, near.statement)}: {near.text}{_route(near.route)}"
        yield f"  falls short in {near.lacks}: {near.detail}{'' if near.suffices else MORE}"
    if not nearest.near and not nearest.denies:
        yield "nearest: no statement of the subject comes close"
    yield f"allowed to: {_allowed_principals(nearest.principals, nearest.more)}"
    yield from nearest.notes


def who_text(who: "Who") -> str:
    """A subject by type and id, or any principal that claims a name."""
    return f"any principal that claims {who.name} in {who.claim}" if who.claim else f"{who.type} {who.name}".strip()


def _route(route: str) -> str:
    return f" ({route})" if route else ""


def _allowed_principals(principals: "Sequence[Who]", more: bool) -> str:
    if not principals:
        return SOME if more else "no principal that the documents name"
    return "; ".join(map(who_text, principals)) + ("; and others: see `lockkeeper who-can`" if more else "")
