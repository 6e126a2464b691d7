"""Envoy's external authorization over HTTP (`ext_authz`, `http_service`): the routes that `serve.ext_authz` names.

Envoy sends the method, path and some headers of a request below `/ext_authz`. 200 lets it pass; anything else does not.
A status of 5xx would pass too where `failure_mode_allow` is set, so whatever is not allowed is 403.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from streaming.settings import Settings, SettingsError, parse_text

PREFIX = "/ext_authz"
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
# One segment, of characters that are written in one way, and mean nothing in names of resources.
SEGMENT = r"(?!\.{1,2}(?:/|$))([A-Za-z0-9._~@-]+)"

Text = Annotated[str, msgspec.Meta(min_length=1)]
Template = Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9._~@/{}-]*$")]
Method = Annotated[str, msgspec.Meta(pattern=r"^[A-Z]+$")]
Header = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+$")]


class Denied(Exception):
    """No route says what to ask. The message goes to the client of Envoy."""


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The subject: `header` of Envoy's request has it, after `prefix`. `type`: of the subject."""

    header: Header
    type: Text = "user"
    prefix: str = ""


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked about. `{name}` in the id and in properties is what the path has there."""

    type: Text
    id: Text
    properties: dict[str, str] = {}


class Route(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests with one of `methods` need whose path fits. `{name}` in the path stands for one segment."""

    methods: Annotated[tuple[Method, ...], msgspec.Meta(min_length=1)]
    path: Template
    action: Text
    resource: Resource


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `system`: of all its routes, of which the first that fits counts."""

    system: str
    subject: Subject
    routes: Annotated[tuple[Route, ...], msgspec.Meta(min_length=1)]


class Routes:
    """From Envoy's requests to those of the API. `system`: that they are about."""

    def __init__(self, file: File) -> None:
        self.system = file.system
        self._subject, self._header = file.subject, file.subject.header.encode()
        self._routes = [(re.compile(_pattern(route.path)), route) for route in file.routes]

    def request(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        """A single evaluation. `path`: after the prefix, without the query. Raises Denied."""
        values = [value for name, value in headers if name == self._header]
        if len(values) != 1 or not values[0].strip():
            raise Denied("the request names no subject")
        try:
            id_ = values[0].decode()
        except UnicodeDecodeError:
            raise Denied("the request names no subject") from None
        route, parameters = self._find(method, path)
        resource = {"type": route.resource.type, "id": _filled(route.resource.id, parameters)}
        properties = {name: _filled(text, parameters) for name, text in route.resource.properties.items()}
        return {
            "subject": {"type": self._subject.type, "id": self._subject.prefix + id_},
            "action": {"name": route.action},
            "resource": {**resource, "properties": properties} if properties else resource,
        }

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        for pattern, route in self._routes:
            if method in route.methods and (match := pattern.fullmatch(path)):
                return route, dict(zip(PLACEHOLDER.findall(route.path), match.groups(), strict=True))
        raise Denied("no route fits the request")


def _pattern(template: str) -> str:
    literals = PLACEHOLDER.split(template)[::2]
    return SEGMENT.join(map(re.escape, literals))


def _filled(text: str, parameters: dict[str, str]) -> str:
    """The text with the values in place of the placeholders. Raises Denied where other values could give the same.

    Of `{namespace}.{dataset}`, `a.b` and `c` would ask about what `a` and `b.c` are.
    """
    for name, separator in _separators(text):
        value = parameters[name]
        if (value + separator).index(separator) < len(value):
            raise Denied("no route fits the request")
    return PLACEHOLDER.sub(lambda match: parameters[match[1]], text)


def _separators(text: str) -> list[tuple[str, str]]:
    """Each placeholder that another one follows, with what stands between them."""
    _, *parts = PLACEHOLDER.split(text)
    return list(zip(parts[0:-2:2], parts[1:-2:2], strict=True))


def load_routes(settings: Settings) -> Routes | None:
    """The routes of the file; None: there is no file. Raises SettingsError."""
    if not settings.serve.ext_authz:
        return None
    path = Path(settings.serve.ext_authz)
    try:
        file = msgspec.convert(parse_text(f"serve.ext_authz: {path}", path.read_text(encoding="utf-8")), File)
    except (OSError, ValueError) as error:
        raise SettingsError(f"serve.ext_authz: {path}: {error}") from None
    if file.system not in settings.systems:
        raise SettingsError(f"serve.ext_authz: {path}: system: {file.system!r} is not one of {settings.systems}")
    for number, route in enumerate(file.routes):
        _check(f"serve.ext_authz: {path}: routes[{number}]", route)
    return Routes(file)


def _check(where: str, route: Route) -> None:
    names = PLACEHOLDER.findall(route.path)
    if len(set(names)) != len(names) or any(brace in PLACEHOLDER.sub("", route.path) for brace in "{}"):
        raise SettingsError(f"{where}.path: write placeholders as {{name}}, each once")
    if any(PLACEHOLDER.search(part) and not PLACEHOLDER.fullmatch(part) for part in route.path.split("/")):
        raise SettingsError(f"{where}.path: a placeholder must be a whole segment")
    for text in (route.resource.id, *route.resource.properties.values()):
        if unknown := sorted(set(PLACEHOLDER.findall(text)) - set(names)):
            raise SettingsError(f"{where}.resource: the path has no {{{unknown[0]}}}")
        if not all(separator for _, separator in _separators(text)):
            raise SettingsError(f"{where}.resource: {text!r}: write something between two placeholders")
