"""Pages out of templates, and the files that they load. What comes from outside is escaped, whatever it is."""

import gzip
import importlib.resources
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from policy import to_text
from streaming.records.formats import ID_CHARACTERS, shorten_id
from streaming.report.templates import page_environment
from streaming.terminal import escape, one_line

MEDIA = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
KEPT = "public, max-age=31536000, immutable"  # the address has the digest


class StaticFiles:
    """The files of the package that pages load, each under an address that changes with it."""

    def __init__(self) -> None:
        folder = importlib.resources.files("streaming.console").joinpath("static")
        files = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in MEDIA}
        self._files = {name: (data, gzip.compress(data, mtime=0)) for name, data in files.items()}
        self._digests = {name: sha256(data).hexdigest()[:12] for name, data in files.items()}

    def address(self, name: str) -> str:
        """Where a page loads a file from."""
        return f"/static/{self._digests[name]}/{name}"

    def respond(self, request: Request) -> Response:
        """A file; 404 for another one."""
        name, digest = request.path_params["name"], request.path_params["digest"]
        if name not in self._files or self._digests[name] != digest:
            return Response(status_code=404)
        (whole, small), media = self._files[name], MEDIA[name.rpartition(".")[2]]
        headers = {"cache-control": KEPT, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(small, headers={**headers, "content-encoding": "gzip"}, media_type=media)
        return Response(whole, headers=headers, media_type=media)


class Pages:
    """The templates. `links`: the address and name of each page in the navigation. `token`: of a session's forms."""

    def __init__(
        self,
        static: StaticFiles,
        links: tuple[tuple[str, str], ...] = (),
        token: Callable[[str], str] = lambda _session: "",
    ) -> None:
        self._environment = page_environment("streaming.console")
        self._environment.globals |= {"static": static.address, "links": links, "form_token": token}
        self._environment.filters |= {"lines": lines, "exactly": exactly, "seen": one_line, "link_name": link_name}
        self._environment.filters["moment"] = to_text

    def render(self, template: str, **values: Any) -> str:
        """The text of a template."""
        return self._environment.get_template(template).render(values)

    def respond(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """A page, or a part of one."""
        return HTMLResponse(self.render(template, **{"here": "", **values}), status)


def lines(text: str) -> Markup:
    """A text of several lines, such as a document: what cannot be seen in it is escaped, line breaks stay."""
    return Markup.escape(escape(text))


def exactly(text: str) -> Markup:
    """A text that a browser sends back or goes to: as it is and whole, what cannot be seen in it by its number."""
    return Markup(UNUSUAL.sub(_by_number, str(Markup.escape(text))))


def link_name(document: str) -> str:
    """A document as links name it: a long name as records of changes have it, which an address has room for."""
    return shorten_id(document) if len(document) > ID_CHARACTERS else document


UNUSUAL = re.compile(r"[^\n -~]")
REMAPPED = range(0x80, 0xA0)
"""HTML takes their numbers for those of windows-1252, and the characters themselves as they are."""


def _by_number(found: re.Match[str]) -> str:
    character = found[0]
    is_seen = escape(character) == character and character != "\t"
    return character if is_seen or ord(character) in REMAPPED else f"&#{ord(character)};"
