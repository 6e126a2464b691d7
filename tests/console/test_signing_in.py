"""Who sees the console from elsewhere: those whom an issuer or a proxy names, and a file lets see something."""

import contextlib
import html
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from joserfc.jwk import ECKey
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from streaming.console import sessions
from streaming.console.guard import Guard, Tokens
from streaming.console.pages import Pages, StaticFiles
from streaming.console.playground import Playground
from streaming.console.sandbox import Sandbox
from streaming.console.server import application
from streaming.console.sessions import Cookie, Session
from streaming.console.signing_in import SignedIn, sign_in_method
from streaming.console.viewer import viewer_of
from streaming.settings import SettingsError, check_settings
from streaming.settings.console import ConsoleSettings, OidcSettings, ProxySettings
from tests.console.conftest import served
from tests.console.issuer import CLIENT, SECRET, TestIssuer
from tests.console.test_in_force import follower, in_force, pages_alone
from tests.console.visit import violations, visit

__all__ = ["follower", "in_force", "pages_alone"]  # fixtures

URL = "https://console.example.com"
VIEWERS = """
viewers:
  analysts: {systems: [lenses6], subjects: [dana], groups: [analysts]}
  owners: {systems: ["*"], groups: [owners]}
  others: {systems: [cdap], groups: [analysts]}
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[TestIssuer]:
    found = TestIssuer()
    with served(found.app) as address:
        found.url = address.replace("localhost", "127.0.0.1")
        yield found


@pytest.fixture
def access(tmp_path: Path) -> Path:
    path = tmp_path / "viewers.yaml"
    path.write_text(VIEWERS, encoding="utf-8")
    return path


def _app(console: ConsoleSettings, host: str, sandbox: Sandbox | None = None) -> ASGIApp:
    """A page that names its viewer, and the playground, behind what all pages of the console are behind."""
    settings = check_settings({"console": msgspec.to_builtins(console)})
    tokens, static = Tokens(), StaticFiles()
    pages = Pages(static, (), tokens.of)
    way = sign_in_method(settings, tokens, pages)
    routes = [Route("/", _named), *Playground(pages, tokens, sandbox or Sandbox(0)).routes, *way.routes]
    return Guard(SignedIn(application(routes, pages, static), way, pages), {host})


def _named(request: Request) -> JSONResponse:
    viewer = viewer_of(request)
    return JSONResponse({"name": viewer.name, "systems": None if viewer.systems is None else sorted(viewer.systems)})


def _by_issuer(issuer: TestIssuer, access: Path, url: str = URL) -> ConsoleSettings:
    oidc = OidcSettings(issuer=issuer.url, client_id=CLIENT, client_secret=SECRET)
    return ConsoleSettings(address="0.0.0.0", url=url, access=str(access), oidc=oidc)


def _client(app: ASGIApp, url: str = URL, host: str = "10.0.0.9") -> TestClient:
    return TestClient(app, url, raise_server_exceptions=False, follow_redirects=False, client=(host, 40000))


PAGE = {"accept": "text/html"}


def _sign_in(client: TestClient, issuer: TestIssuer, path: str = "/") -> Any:
    """What the console answers to the browser that the issuer sends back."""
    begun = client.get(client.get(path, headers=PAGE).headers["location"])
    assert begun.headers["location"].startswith(f"{issuer.url}/authorize?")
    with TestClient(issuer.app, issuer.url, follow_redirects=False) as browser:
        back = browser.get(begun.headers["location"]).headers["location"]
    return client.get(back.removeprefix(URL))


def test_who_is_signed_in_sees_what_the_file_says(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    refused = client.get("/")
    assert (refused.status_code, "lenses6" in refused.text) == (401, False)
    answer = _sign_in(client, issuer, "/?a=b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?a=b")
    assert client.get("/").json() == {"name": "dana", "systems": ["lenses6"]}
    form = issuer.asked[-1]
    assert (form["grant_type"], form["redirect_uri"]) == ("authorization_code", f"{URL}/sign-in/callback")
    assert form["authorization"].startswith("Basic ")
    access.write_text(VIEWERS.replace("[dana]", "[erik]"), encoding="utf-8")
    deadline = time.monotonic() + 10
    while client.get("/").status_code == 200:
        assert time.monotonic() < deadline, "the file is read again"
        time.sleep(0.05)
    assert client.get("/", headers=PAGE).status_code == 403


def test_groups_of_the_token_count_together(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    issuer.claims = {"sub": "frank", "groups": ["analysts", 7]}
    _sign_in(client, issuer)
    assert client.get("/").json() == {"name": "frank", "systems": ["cdap", "lenses6"]}
    issuer.claims = {"sub": "olga", "groups": ["owners"]}
    _sign_in(_client(_app(_by_issuer(issuer, access), "console.example.com")), issuer)
    issuer.claims = {}


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"iss": "https://issuer.example.com"},
        {"exp": 1},
        {"sub": None},
        {"sub": ["dana"]},
    ],
    ids=str,
)
def test_no_other_token_signs_anybody_in(issuer: TestIssuer, access: Path, claims: dict[str, Any]) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    issuer.claims = claims
    try:
        assert _sign_in(client, issuer).status_code == 403
    finally:
        issuer.claims = {}
    assert client.get("/").status_code == 401


def test_a_token_that_another_key_signed_signs_nobody_in(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    issuer.signed_by = ECKey.generate_key("P-256", {"kid": "1"})
    try:
        assert _sign_in(client, issuer).status_code == 403
    finally:
        issuer.signed_by = issuer.key
    assert client.get("/").status_code == 401


def test_a_sign_in_of_another_browser_is_none(issuer: TestIssuer, access: Path) -> None:
    app = _app(_by_issuer(issuer, access), "console.example.com")
    client, other = _client(app), _client(app)
    begun = client.get("/sign-in").headers["location"]
    with TestClient(issuer.app, issuer.url, follow_redirects=False) as browser:
        back = browser.get(begun).headers["location"].removeprefix(URL)
    assert other.get(back).status_code == 400, "it has no cookie"
    assert client.get(back.replace("state=", "state=x")).status_code == 400
    assert client.get(back).status_code == 303
    assert client.get(back).status_code == 400, "once"


def test_a_session_is_kept_from_scripts_and_other_sites_and_ends(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    [cookie] = [
        one for one in _sign_in(client, issuer).headers.get_list("set-cookie") if one.startswith("__Host-lockkeeper=")
    ]
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax"} <= {part.strip() for part in cookie.split(";")}
    assert re.search(r"Max-Age=(3600|359\d)\b", cookie)
    value = client.cookies["__Host-lockkeeper"]
    page = client.get("/playground").text
    token = html.unescape(re.findall(r'name="token" value="([^"]+)"', page)[0])
    other_site = client.post("/sign-out", data={"token": token}, headers={"origin": "https://evil.example"})
    without = client.post("/sign-out", data={}, headers={"origin": URL})
    assert (other_site.status_code, without.status_code) == (403, 403)
    assert client.get("/").status_code == 200
    assert client.post("/sign-out", data={"token": token}, headers={"origin": URL}).status_code == 200
    client.cookies.set("__Host-lockkeeper", value)
    assert client.get("/").status_code == 401, "a cookie that somebody kept counts no longer"


def test_a_cookie_that_was_changed_or_is_over_is_none() -> None:
    now = [1000.0]
    cookie = Cookie("a", Session, secure=False, clock=lambda: now[0])
    response = JSONResponse({})
    cookie.write(response, Session("1", "dana", (), 2000.0))
    value = response.headers["set-cookie"].split(";")[0].removeprefix("a=")

    def read(text: str) -> Session | None:
        return cookie.read(Request({"type": "http", "headers": [(b"cookie", f"a={text}".encode())]}))

    text, _, signature = value.partition(".")
    assert read(value) is not None
    for wrong in ("", ".", text, f"{text}.", f"{text[:-4]}AAAA.{signature}", f".{signature}", "é.é"):
        assert read(wrong) is None, wrong
    now[0] = 2000.0
    assert read(value) is None
    with pytest.raises(ValueError, match="too long"):
        cookie.write(response, Session("1", "x" * sessions.MOST_BYTES, (), 2000.0))


@pytest.mark.parametrize("path", ["//evil.example/", "https://evil.example", "/\\evil.example", "/\r\nset-cookie: a=b"])
def test_signing_in_leads_to_no_other_site(issuer: TestIssuer, access: Path, path: str) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    begun = client.get("/sign-in", params={"next": path}).headers["location"]
    with TestClient(issuer.app, issuer.url, follow_redirects=False) as browser:
        back = browser.get(begun).headers["location"].removeprefix(URL)
    assert client.get(back).headers["location"] == "/"


def test_signing_in_leads_back_to_the_very_page(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    for path in ("/alerts/a%3Fb%23c%25", "/changes/%C3%BC%2F?compare=1&x=%26"):
        begun = urlsplit(client.get(path, headers=PAGE).headers["location"])
        assert (begun.path, parse_qs(begun.query)) == ("/sign-in", {"next": [path]})


def test_a_form_that_is_sent_without_a_session_says_how_it_is_not_lost(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    headers = {"origin": URL, "sec-fetch-site": "same-origin", **PAGE}
    sent = client.post("/draft", headers=headers, data={"documents": "x"})
    assert (sent.status_code, "load this page again, which sends the form again" in sent.text) == (401, True)


def test_while_the_issuer_is_away_the_page_says_so(access: Path) -> None:
    away = TestIssuer()
    away.url = "http://127.0.0.1:1"
    client = _client(_app(_by_issuer(away, access), "console.example.com"))
    for _ in range(2):  # the second answer is that of the first
        answer = client.get("/sign-in")
        assert (answer.status_code, SECRET in answer.text) == (503, False)
    assert client.get("/").status_code == 401


def _by_proxy(access: Path) -> ConsoleSettings:
    proxy = ProxySettings(addresses=("10.0.0.9", "fd00::/64"), header="X-User", groups_header="X-Groups")
    return ConsoleSettings(address="0.0.0.0", url=URL, access=str(access), proxy=proxy)


def test_a_proxy_names_the_viewer_and_nobody_else_does(access: Path) -> None:
    app = _app(_by_proxy(access), "console.example.com")
    for host in ("10.0.0.9", "fd00::7", "::ffff:10.0.0.9"):
        found = _client(app, host=host).get("/", headers={"x-user": "dana", "x-groups": "none, analysts"})
        assert found.json() == {"name": "dana", "systems": ["cdap", "lenses6"]}
    for host in ("10.0.0.8", "127.0.0.1", "fd00:1::7", "testclient"):
        assert _client(app, host=host).get("/", headers={"x-user": "dana"}).status_code == 403, host
    client = _client(app)
    assert client.get("/").status_code == 403
    assert client.get("/", headers={"x-user": "nobody"}).status_code == 403
    assert client.get("/", headers=[("x-user", "dana"), ("x-user", "erik")]).status_code == 403
    assert client.get("/playground").status_code == 403


def test_without_a_viewer_only_the_files_of_pages_are_answered(issuer: TestIssuer, access: Path) -> None:
    client = _client(_app(_by_issuer(issuer, access), "console.example.com"))
    file = StaticFiles().address("console.css")
    assert client.get(file).status_code == 200
    for path in (
        "/playground",
        "/playground/actions/lenses6",
        "/nothing",
        "/static",
        "/sign-in/x",
        "/Sign-In/callback",
    ):
        assert client.get(path).status_code == 401, path
    assert client.post("/playground/evaluate", json={}, headers={"origin": URL}).status_code == 401


@pytest.mark.parametrize(
    ("console", "problem"),
    [
        ({"address": "0.0.0.0"}, "console.address: 0.0.0.0 lets other machines see"),
        ({"address": "::"}, "console.address"),
        ({"url": "http://console.example.com"}, "console.url: must be an https URL"),
        ({"url": "https://user@console.example.com"}, "console.url"),
        ({"access": "a.yaml"}, "console.access: needs a way to sign in"),
        ({"oidc": {"issuer": "https://a.example", "client_id": "c"}, "access": "a"}, "console.url: must be set"),
        ({"oidc": {"issuer": "https://a.example"}, "url": URL, "access": "a"}, "needs client_id"),
        ({"oidc": {"issuer": "http://a.example", "client_id": "c"}, "url": URL, "access": "a"}, "https URL"),
        ({"oidc": {"issuer": "https://a.example", "client_id": "c"}, "url": URL}, "console.access: must name a file"),
        ({"proxy": {"addresses": ["10.0.0.1"]}, "address": "0.0.0.0"}, "console.access: must name a file"),
        ({"proxy": {"addresses": ["proxy"]}, "access": "a"}, "'proxy' is no IP address"),
    ],
    ids=str,
)
def test_settings_that_would_let_others_look_are_refused(console: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(problem)):
        check_settings({"console": console})


@pytest.mark.parametrize(
    "text",
    ["viewers: {}", "viewers: {a: {systems: [none], groups: [b]}}", "viewers: {a: {systems: [cdap]}}", "[", "a: 1"],
)
def test_a_file_that_names_nobody_or_unknown_systems_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "viewers.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="viewers"):
        _app(_by_proxy(path), "a")


def test_a_browser_signs_in_and_out(browser: Browser, issuer: TestIssuer, access: Path) -> None:
    """On this machine, where the pages and the issuer are of plain HTTP."""
    late = _Late()
    with served(late) as address, contextlib.closing(Sandbox(1)) as sandbox:
        late.app = _app(_by_issuer(issuer, access, address), urlsplit(address).hostname or "", sandbox)
        with visit(browser, f"{address}/playground") as page:
            assert urlsplit(page.url).path == "/playground"
            assert page.locator(".viewer").inner_text().startswith("dana")
            page.get_by_role("button", name="Sign out").click()
            page.get_by_role("heading", name="Signed out").wait_for()
            assert violations(page) == []


def test_a_draft_that_is_sent_without_a_session_is_not_lost(
    browser: Browser, issuer: TestIssuer, access: Path, pages_alone: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is where it was typed, with why, and is sent as it is said there, unless by another. Kafka is away here."""
    late, signed_in = _Late(), pages_alone._app
    assert isinstance(signed_in, SignedIn)
    assert isinstance(signed_in._app, Starlette)
    with served(late) as address, contextlib.closing(browser.new_context()) as context:
        settings = check_settings({"console": msgspec.to_builtins(_by_issuer(issuer, access, address))})
        static = StaticFiles()
        pages = Pages(static, (), Tokens().of)
        method = sign_in_method(settings, Tokens(), pages)
        late.app = SignedIn(application([*signed_in._app.routes, *method.routes], pages, static), method, pages)
        page = context.new_page()
        page.goto(f"{address}/draft")
        documents = page.get_by_label("Documents, as YAML")
        documents.fill("kind: Role")
        context.clear_cookies()
        page.get_by_role("button", name="Which decisions would differ?").click()
        expect(page.get_by_role("alert")).to_contain_text("sign in in another tab, then load this page again")
        expect(documents).to_have_value("kind: Role")
        other = context.new_page()
        other.goto(f"{address}/ask")
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("Kafka does not answer")
        expect(documents).to_have_value("kind: Role")
        monkeypatch.setattr(issuer, "claims", {"sub": "olga", "groups": ["owners"]})
        context.clear_cookies()
        other.goto(f"{address}/ask")
        page.reload()
        expect(page.locator(".viewer")).to_contain_text("olga")
        expect(documents).to_have_value("")


class _Late:
    """An application that is known once its address is."""

    app: ASGIApp

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)
