"""Which change a record of a policy topic belongs to, and who made it: its headers (contracts, "Policy document").

The publisher sets them itself, so they are claims: a client that may write to the topic may write any of them.
"""

import uuid
from typing import Any

import msgspec

CHANGE, AUTHOR, COMMIT, REASON = (f"lockkeeper-{name}" for name in ("change", "author", "commit", "reason"))
MOST = 1024  # characters of each

Headers = list[tuple[str, str | bytes | None]]


class Authorship(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a publisher claims of a change. `change`: its id, one for all documents that are published together."""

    change: str = ""
    author: str = ""
    commit: str = ""
    reason: str = ""

    def with_id(self) -> "Authorship":
        """With a new id, unless there is one."""
        return self if self.change else msgspec.structs.replace(self, change=uuid.uuid4().hex)

    def headers(self) -> Headers:
        """The headers of each of its records; none for what is not said. Raises ValueError for what is too long."""
        said = zip((CHANGE, AUTHOR, COMMIT, REASON), msgspec.structs.astuple(self), strict=True)
        return [(name, _encoded(name, text)) for name, text in said if text]


def _encoded(name: str, text: str) -> bytes:
    if len(text) > MOST:
        raise ValueError(f"{name.removeprefix('lockkeeper-')}: {len(text)} characters; at most {MOST}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name.removeprefix('lockkeeper-')}: it is not valid Unicode") from None


NO_CLAIMS = Authorship()


def authorship_of(headers: Any) -> Authorship:
    """What the headers of a record claim, as Kafka's client gives them; of each at most `MOST` characters."""
    if not headers:
        return NO_CLAIMS
    values = {name: value for name, value in headers if name in (CHANGE, AUTHOR, COMMIT, REASON)}
    return Authorship(*(_decoded(values.get(name)) for name in (CHANGE, AUTHOR, COMMIT, REASON)))


def _decoded(value: Any) -> str:
    raw = value if isinstance(value, bytes) else b""
    return raw[: 4 * MOST].decode("utf-8", "replace")[:MOST]
