"""Addresses of pages: each page's state is in its own, and pages link to each other by them."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_TEXT = 2000  # characters of a field
# With a blank at an end a name is another one, or refused.
VERBATIM = frozenset({"subject", "action", "resource", "request_id", "document"})


def fields_of(request: Request, names: Sequence[str]) -> dict[str, str]:
    """The texts of an address. Raises HTTPException for one that is too long: a part would name something else."""
    fields = {name: request.query_params.get(name, "") for name in names}
    for name, text in fields.items():
        if len(text) > MOST_TEXT:
            raise HTTPException(400, f"{name}: more than {MOST_TEXT} characters; a command of lockkeeper takes them")
    return {name: text if name in VERBATIM else text.strip() for name, text in fields.items()}


def own_address(request: Request) -> str:
    """The address of a request itself, on this site."""
    return f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path


def address(path: str, fields: Mapping[str, str]) -> str:
    """A page in a state; what is "" is left out. "": a text is too long, so that `fields_of` would refuse it."""
    texts = {name: text for name, text in fields.items() if text}
    if any(len(text) > MOST_TEXT for text in texts.values()):
        return ""
    return f"{path}?{urlencode(texts)}" if texts else path


def decisions_address(fields: Mapping[str, str]) -> str:
    """The list of decisions about the very names of some fields, also those that end with a `*`."""
    is_pattern = any(fields.get(name, "").endswith("*") for name in ("subject", "action", "resource"))
    return address("/decisions", {**fields, "exact": "1" if is_pattern else ""})
