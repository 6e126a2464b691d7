"""What a request claims about its subject."""

from collections.abc import Mapping

from policy.model import Unanswerable
from policy.requests import Request


def claimed_names(request: Request, field: str, rule: str) -> tuple[str, ...]:
    """The names in ``subject.properties.<field>``, sorted; raises Unanswerable unless it is a list of texts."""
    return names_in(request.subject.properties, field, f"subject.properties.{field}", rule)


def names_in(properties: Mapping[str, object], field: str, place: str, rule: str) -> tuple[str, ...]:
    """The list of texts under ``field``, sorted; () when it is not given. ``place``: what an error calls it."""
    names = properties.get(field)
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Unanswerable("malformed-claim", f"{place} must be a list of texts", rule)
    return tuple(sorted(set(names)))
