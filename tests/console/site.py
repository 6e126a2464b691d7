"""The playground as a client in the same process asks it."""

import contextlib
import html
import re
from collections.abc import Iterator
from typing import Any

from starlette.testclient import TestClient

from streaming.console.guard import Rates
from streaming.console.server import playground

ORIGIN = "http://localhost:8090"
DRAFT: dict[str, Any] = {
    "system": "lenses6",
    "documents": "{kind: Role, name: r, spec: {statements: [{effect: allow, action: '*', resource: '*'}]}}",
    "requests": [{"subject": "user:dana", "action": "kafka:ListTopic", "resource": "kafka:topic:a/b/c"}],
}


class Site:
    """A client with the token of a page, as its script has it."""

    def __init__(self, client: TestClient, path: str = "/playground") -> None:
        self.client = client
        page = client.get(path).text
        found = re.search(r'name="lockkeeper-token" content="([^"]+)"', page)
        self.token = html.unescape(found[1]) if found else ""

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """A POST as the page's script sends it; a header that is empty is left out."""
        whole = {"origin": ORIGIN, "x_lockkeeper_token": self.token, "sec_fetch_site": "same-origin", **headers}
        sent = {name.replace("_", "-"): value.encode() for name, value in whole.items() if value}
        return self.client.post(path, json=body, headers=sent)


@contextlib.contextmanager
def playground_site(rates: Rates | None = None) -> Iterator[Site]:
    """The playground alone."""
    with playground(rates=rates) as app:
        yield Site(TestClient(app, base_url=ORIGIN, raise_server_exceptions=False, follow_redirects=False))
