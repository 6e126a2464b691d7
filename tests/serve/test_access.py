"""Who may ask `lockkeeper serve`: callers with credentials, about their systems. Nothing else is decided."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from joserfc.jwk import RSAKey
from structlog.testing import capture_logs

from streaming.serve.authentication import Authentication, Unauthorized
from streaming.serve.callers import load_callers
from streaming.serve.tls import PEER, Peer, Tls, peer_of
from streaming.settings import ServeSettings, Settings, SettingsError, check_settings
from streaming.settings.serve import JwtSettings, TlsSettings
from streaming.topics import TopicNames
from tests.brokers import TestBroker
from tests.serve.issuer import AUDIENCE, ISSUER, Issuer
from tests.serve.test_serve import ASKED, PATH, Running, serving
from tests.stream.certificates import Authority, Pem
from tests.stream.world import LOOKS_BACK, SYSTEM, World, group, role
from tests.waiting import wait_until

PUBLIC = "/.well-known/authzen-configuration"
SECRET, OTHER = "checkout-" + "a1" * 20, "billing-" + "b2" * 20
ISSUED = Issuer()
CLAIMING = {**ASKED, "subject": {"type": "user", "id": "user:eve", "properties": {"groups": ["readers"]}}}


def hashed(token: str) -> str:
    """As the file of callers has it."""
    return hashlib.sha256(token.encode()).hexdigest()


CALLERS: dict[str, Any] = {
    "checkout": {
        "systems": [SYSTEM],
        "trust": ["groups"],
        "search": True,
        "tokens": [hashed("an-older-one"), hashed(SECRET)],
        "subjects": ["checkout"],
    },
    "billing": {"systems": [LOOKS_BACK, SYSTEM], "tokens": [hashed(OTHER)], "certificates": ["CN:billing"]},
    "audit": {"systems": [LOOKS_BACK], "subjects": ["audit"], "certificates": ["DNS:audit.example.com"]},
}


class Site:
    """A server with TLS, its files, and clients of it."""

    def __init__(self, folder: Path, world: World) -> None:
        (folder / "other").mkdir()
        self.authority, self.foreign = Authority(folder), Authority(folder / "other")
        self.pem = self.authority.issue("server")
        self.callers, self.jwks = folder / "callers.yaml", folder / "jwks.json"
        self.callers.write_text(yaml.safe_dump({"callers": CALLERS}))
        self.jwks.write_bytes(ISSUED.jwks())
        serve = ServeSettings(
            port=0,
            default_system=SYSTEM,
            record="none",
            callers=str(self.callers),
            tls=TlsSettings(str(self.pem.certificate), str(self.pem.key), str(self.authority.ca), "optional"),
            jwt=JwtSettings(ISSUER, AUDIENCE, str(self.jwks)),
        )
        self.settings = msgspec.structs.replace(world.settings, serve=serve)
        self.running: Running

    @property
    def port(self) -> int:
        return self.running.server.port

    def context(self, client: Pem | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def send(self, data: bytes, client: Pem | None = None) -> bytes:
        """What comes back until the server closes the connection, of bytes as they are."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        with self.context(client).wrap_socket(raw, server_hostname="127.0.0.1") as one:
            one.sendall(data)
            received = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while part := one.recv(65536):
                    received += part
            return received

    def ask(
        self, token: str | bytes | None = None, path: str = PATH, body: Any = ASKED, client: Pem | None = None
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """The status, the JSON and the headers of the response."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=self.context(client))
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token.decode() if isinstance(token, bytes) else token}"
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), headers)
            found = connection.getresponse()
            return found.status, json.loads(found.read()), found.headers

    def decided(self) -> float:
        """How many evaluations the server has decided."""
        registry = self.running.server._metrics.registry
        families = [family for family in registry.collect() if family.name == "lockkeeper_serve_decisions"]
        return sum(s.value for family in families for s in family.samples if s.name.endswith("_total"))


@pytest.fixture(scope="module")
def site(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server, for all tests of this file."""
    folder = tmp_path_factory.mktemp("access")
    world = World(broker, f"access-{uuid.uuid4().hex[:12]}", str(folder / "checkpoint"))
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    world.publish(group("readers", "user:dana"))
    made = Site(folder, world)
    with serving(made.settings) as made.running:
        yield made


stream = pytest.mark.stream
pytestmark = pytest.mark.timeout(120)


@stream
def test_each_kind_of_credentials_names_a_caller(site: Site) -> None:
    billing, audit = site.authority.issue("billing"), site.authority.issue("nobody")
    assert site.ask(SECRET)[:2][1]["decision"] is True
    assert site.ask("an-older-one")[0] == 200
    assert site.ask(ISSUED.token())[1]["decision"] is True
    assert site.ask(client=billing)[1]["decision"] is True
    assert site.ask(client=audit)[0] == 401  # of our authority, and of no caller
    assert site.ask(SECRET, client=audit)[1]["decision"] is True  # the token names the caller


@stream
@pytest.mark.parametrize(
    ("token", "error"),
    [
        (None, ""),
        ("nonesuch", "invalid_token"),
        (SECRET[:-1], "invalid_token"),
        (SECRET + "a", "invalid_token"),
        (hashed(SECRET), "invalid_token"),
        ("a" * 9000, "invalid_token"),
        (ISSUED.token(sub="nonesuch"), "invalid_token"),
        (ISSUED.token(exp=1), "invalid_token"),
        (ISSUED.unsigned(), "invalid_token"),
        (ISSUED.by_hmac(ISSUED.public_pem()), "invalid_token"),
        (ISSUED.token(RSAKey.generate_key(2048, {"kid": "new"})), "invalid_token"),
    ],
)
def test_without_valid_credentials_nothing_is_decided(site: Site, token: Any, error: str) -> None:
    before = site.decided()
    for path in (PATH, f"/{SYSTEM}{PATH}", "/access/v1/evaluations", "/access/v1/search/subject"):
        status, said, headers = site.ask(token, path)
        assert status == 401
        assert isinstance(said, str)
        challenges = headers.get_all("www-authenticate")
        assert challenges is not None
        assert len(challenges) == 1
        assert challenges[0].startswith('Bearer realm="lockkeeper"')
        assert ('error="' + error + '"' in challenges[0]) if error else ("error" not in challenges[0])
    assert site.decided() == before


HEAD = b"POST /access/v1/evaluation HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = json.dumps(ASKED).encode()
GOOD = b"authorization: Bearer %s\r\n" % SECRET.encode()


def _request(*headers: bytes, body: bytes = BODY, head: bytes = HEAD) -> bytes:
    return head + b"".join(headers) + b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@stream
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([GOOD], 200),
        ([GOOD.replace(b"Bearer", b"bEARER")], 200),
        ([GOOD, GOOD], 400),
        ([GOOD, b"Authorization: Bearer nonesuch\r\n"], 400),
        ([b"authorization: Bearer nonesuch\r\n", GOOD], 400),
        ([b"authorization: Basic %s\r\n" % SECRET.encode()], 401),
        ([b"authorization: %s\r\n" % SECRET.encode()], 401),
        ([b"authorization: Bearer %s, Bearer x\r\n" % SECRET.encode()], 401),
        ([b"authorization: Bearer %s extra\r\n" % SECRET.encode()], 401),
        ([b"authorization: Bearer\r\n"], 401),
        ([b"authorization:\r\n"], 401),
        ([b"authorization: Bearer \xff\xfe\r\n"], 401),
        ([b"authorization : Bearer %s\r\n" % SECRET.encode()], 400),
        ([b"x: y\r\n authorization: Bearer %s\r\n" % SECRET.encode()], 400),
        ([b"proxy-authorization: Bearer %s\r\n" % SECRET.encode()], 401),
        ([b"cookie: access_token=%s\r\n" % SECRET.encode()], 401),
        ([b'x-forwarded-client-cert: Subject="CN=billing"\r\n'], 401),
        # Two ways to say where the body ends are one too many: a proxy in front may have read another request.
        ([GOOD, b"transfer-encoding: chunked\r\n"], 400),
        ([GOOD, b"content-length: 5\r\n"], 400),
        ([GOOD, b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n"], 400),
        ([GOOD, b"x-a: b\x00c\r\n"], 400),
        ([GOOD, b"x-a: b\rc: d\r\n"], 400),
    ],
)
def test_headers_as_they_are_written(site: Site, headers: list[bytes], status: int) -> None:
    before, received = site.decided(), site.send(_request(*headers))
    assert received.startswith(b"HTTP/1.1 %d " % status), received[:200]
    assert received.count(b"HTTP/1.1 ") == 1
    assert site.decided() == before + (status == 200)


@stream
def test_a_token_in_the_url_counts_for_nothing(site: Site) -> None:
    assert site.ask(path=f"{PATH}?access_token={SECRET}")[0] == 401


@stream
@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/{SYSTEM}{PATH}", 200),
        (f"/{LOOKS_BACK}{PATH}", 403),
        (f"/{LOOKS_BACK}/access/v1/evaluations", 403),
        (f"/{LOOKS_BACK}/access/v1/search/subject", 403),
        (f"//{SYSTEM}{PATH}", 404),
        (f"/{SYSTEM}/{PATH}", 404),
        (f"/{SYSTEM}%2faccess/v1/evaluation", 404),
        (f"/{SYSTEM}{PATH}%00", 404),
        ("/%61ccess/v1/evaluation", 404),
        (f"/{SYSTEM}/../{LOOKS_BACK}{PATH}", 404),
        (f"/{SYSTEM.upper()}{PATH}", 404),
        (f"/{SYSTEM}{PATH}/", 404),
        (f"/{SYSTEM}{PATH};a=b", 404),
        (f"/{SYSTEM}{PATH}?system={LOOKS_BACK}", 200),
        ("/cdap" + PATH, 403),
        ("/nonesuch" + PATH, 404),
    ],
)
def test_a_path_leads_to_the_callers_systems_alone(site: Site, path: str, status: int) -> None:
    before = site.decided()
    found, said, _ = site.ask(SECRET, path)
    assert found == status, said
    assert site.decided() == before + (status == 200)


@stream
@pytest.mark.parametrize(
    "body",
    [
        {**ASKED, "context": {"system": LOOKS_BACK}},
        {**ASKED, "context": {"system": "nonesuch"}},
        {**ASKED, "evaluations": [{"context": {"system": LOOKS_BACK}}]},
        {**ASKED, "evaluations": [{}, {"context": {"system": LOOKS_BACK}}]},
        {**ASKED, "system": SYSTEM, "context": {"system": LOOKS_BACK}, "evaluations": [{}]},
    ],
)
def test_a_context_leads_to_the_callers_systems_alone(site: Site, body: Any) -> None:
    before = site.decided()
    searches = (f"/access/v1/search/{kind}" for kind in ("subject", "resource", "action"))
    single = (PATH, *searches) if "context" in body else ()  # they do not know `evaluations`
    for path in ("/access/v1/evaluations", *single):
        assert site.ask(SECRET, path, body)[0] == 403, path
    assert site.decided() == before


@stream
def test_a_batch_cannot_name_another_system_beside_the_callers(site: Site) -> None:
    before = site.decided()
    items = [{"context": {"system": SYSTEM}}, {"context": {"system": LOOKS_BACK}}]
    assert site.ask(SECRET, "/access/v1/evaluations", {**ASKED, "evaluations": items})[0] == 400
    assert site.decided() == before
    # Under a path, it is a field of the context like any other.
    status, said, _ = site.ask(SECRET, f"/{SYSTEM}/access/v1/evaluations", {**ASKED, "evaluations": items})
    assert (status, [one["decision"] for one in said["evaluations"]]) == (200, [True, True])


@stream
@pytest.mark.parametrize("path", [PATH, "/access/v1/evaluations", "/access/v1/search/subject"])
def test_a_response_says_nothing_of_the_topics_of_other_systems(site: Site, path: str) -> None:
    names = site.settings.topics
    ours, theirs = (names.policy_topics()[system] for system in (SYSTEM, LOOKS_BACK))
    body = {**ASKED, "evaluations": [{}, {}]} if path.endswith("s") else ASKED
    context = site.ask(SECRET, path, body)[1]["context"]
    assert (list(context["policy_offsets"]), context["facts_offset"]) == ([ours], -1)
    assert context["policy_offsets"][ours]["0"] >= 1
    for topic in (theirs, names.facts, "nonesuch"):
        asked = {**body, "context": {"min_policy_offsets": {topic: {"0": -1}}}}
        text = json.dumps(site.ask(SECRET, path, asked)[1])
        assert f"{topic!r} is not a policy topic" in text
    if "search" not in path:  # which this caller may not
        context = site.ask(OTHER, path, body)[1]["context"]
        assert set(context["policy_offsets"]) == {ours, theirs}
        asked = {**body, "context": {"min_policy_offsets": context["policy_offsets"]}}
        assert "policies-behind" not in json.dumps(site.ask(OTHER, path, asked)[1])


@stream
def test_each_caller_has_its_own_trust(site: Site) -> None:
    assert site.ask(SECRET, body=CLAIMING)[1]["decision"] is True
    assert site.ask(OTHER, body=CLAIMING)[1]["decision"] is False


@stream
def test_a_caller_searches_if_it_may(site: Site) -> None:
    search = {**ASKED, "subject": {"type": "user"}}
    assert site.ask(SECRET, "/access/v1/search/subject", search)[1]["results"] == [ASKED["subject"]]
    assert site.ask(OTHER, f"/{SYSTEM}/access/v1/search/subject", search)[0] == 403


@stream
def test_the_configuration_is_public(site: Site) -> None:
    received = site.send(b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % PUBLIC.encode())
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"policy_decision_point":"https://127.0.0.1:' in received


@stream
def test_a_request_id_cannot_bring_headers_or_control_characters(site: Site) -> None:
    for given in (b"a\tb", b"a b", b"\xc3\xa9", b"a" * 300):
        received = site.send(_request(GOOD, b"x-request-id: %s\r\n" % given))
        assert re.search(rb"\r\nx-request-id: [0-9a-f]{32}\r\n", received), received


@stream
def test_plain_http_and_foreign_certificates_end_the_connection(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as one:
        one.sendall(_request(GOOD))
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1" not in one.recv(65536)
    foreign = site.foreign.issue("billing")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        site.ask(SECRET, client=foreign)
    old = site.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(socket.create_connection(("127.0.0.1", site.port)), server_hostname="127.0.0.1")


@stream
def test_nothing_of_tokens_or_properties_is_logged(site: Site) -> None:
    with capture_logs() as logged:
        site.ask("nonesuch-" + SECRET)
        site.ask(ISSUED.token(exp=1), body=CLAIMING)
        site.ask(SECRET, body=CLAIMING)
        site.send(_request(b"authorization : Bearer %s\r\n" % SECRET.encode()))
    text = str(logged)
    assert SECRET not in text
    assert "eyJ" not in text
    assert "user:eve" not in text


@stream
def test_files_are_read_again_when_they_change_and_kept_where_they_cannot_be_used(site: Site) -> None:
    """A token is replaced, a caller is removed, the keys and the certificate are renewed: without a restart."""
    fresh = "fresh-" + "c3" * 20
    changed = {**CALLERS, "billing": {**CALLERS["billing"], "tokens": [hashed(fresh)]}}
    try:
        assert site.ask(OTHER)[0] == 200
        _replace(site.callers, yaml.safe_dump({"callers": changed}).encode())
        wait_until(lambda: site.ask(fresh)[0] == 200, "the new token is accepted")
        assert site.ask(OTHER)[0] == 401
        with capture_logs() as logged:
            _replace(site.callers, b"callers: {checkout: {systems: []}}")
            wait_until(lambda: any("cannot be used" in entry["event"] for entry in logged), "it is refused")
        assert site.ask(fresh)[0] == 200

        new = Issuer()
        assert site.ask(new.token())[0] == 401
        _replace(site.jwks, new.jwks())
        wait_until(lambda: site.ask(new.token())[0] == 200, "the new keys are used")
        assert site.ask(ISSUED.token())[0] == 401

        renewed = site.authority.issue("renewed")
        _replace(site.pem.certificate, renewed.certificate.read_bytes())  # it does not fit the key yet
        wait_until(lambda: _subject_of(site) == "server", "the certificate stays")
        _replace(site.pem.key, renewed.key.read_bytes())
        wait_until(lambda: _subject_of(site) == "renewed", "the new certificate is used")
        assert site.ask(client=site.authority.issue("billing"))[0] == 200  # clients are still asked for theirs
    finally:
        _replace(site.callers, yaml.safe_dump({"callers": CALLERS}).encode())
        _replace(site.jwks, ISSUED.jwks())
        wait_until(lambda: site.ask(OTHER)[0] == 200 and site.ask(ISSUED.token())[0] == 200, "all is as before")


def _replace(file: Path, content: bytes) -> None:
    beside = file.with_suffix(".new")
    beside.write_bytes(content)
    os.replace(beside, file)


def _subject_of(site: Site) -> str:
    raw = socket.create_connection(("127.0.0.1", site.port), timeout=20)
    with site.context().wrap_socket(raw, server_hostname="127.0.0.1") as one:
        certificate: Any = one.getpeercert()
    return str(certificate["subject"][0][0][1])


@stream
def test_without_authentication_other_hosts_names_are_refused(broker: TestBroker, tmp_path: Path) -> None:
    """A web page whose name resolves to this machine asks with its own name."""
    world = World(broker, f"access-{uuid.uuid4().hex[:12]}", str(tmp_path / "checkpoint"))
    serve = ServeSettings(port=0, default_system=SYSTEM, record="none", url="https://pdp.example.com")
    with serving(msgspec.structs.replace(world.settings, serve=serve)) as running:
        for host in (
            "evil.example.com",
            "127.0.0.1.evil.example.com",
            "",
            "127.0.0.1@evil.example.com",
            "\xf5",
            "[",
            "[::1",
        ):
            status, said, _ = running.ask(PATH, ASKED, Host=host)
            assert (status, isinstance(said, str)) == (403, True), host
        for host in ("localhost:1", "127.0.0.1", "[::1]:8080", "pdp.example.com"):
            assert running.ask(PATH, ASKED, Host=host)[0] == 200, host


def _load(tmp_path: Path, text: str, **serve: Any) -> None:
    file = tmp_path / "callers.yaml"
    file.write_text(text)
    jwt = JwtSettings(ISSUER, AUDIENCE, "keys.json")
    load_callers(Settings(serve=ServeSettings(callers=str(file), jwt=jwt, **serve)))


A, B = hashed("a"), hashed("b")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Expected `object`"),
        ("callers: {}", "length >= 1"),
        ("callers: {a: {systems: [lenses6]}}", "has no credentials"),
        (f"callers: {{a: {{systems: [], tokens: [{A}]}}}}", "length >= 1"),
        (f"callers: {{a: {{tokens: [{A}]}}}}", "missing required field `systems`"),
        (f"callers: {{a: {{systems: [nonesuch], tokens: [{A}]}}}}", "not among the setting systems"),
        (f"callers: {{a: {{systems: [lenses6], trust: [time], tokens: [{A}]}}}}", "not among"),
        (f"callers: {{a: {{systems: [lenses6], serach: true, tokens: [{A}]}}}}", "unknown field `serach`"),
        ("callers: {a: {systems: [lenses6], tokens: [my-secret-token]}}", "matching regex"),
        (f"callers: {{a: {{systems: [lenses6], tokens: [{A.upper()}]}}}}", "matching regex"),
        ("callers: {a: {systems: [lenses6], certificates: ['CN:a']}}", "set serve.tls.client_ca"),
        ("callers: {a: {systems: [lenses6], subjects: ['']}}", "length >= 1"),
        (f'callers: {{"a\\nb": {{systems: [lenses6], tokens: [{A}]}}}}', "matching regex"),
        (
            f"callers: {{a: {{systems: [lenses6], tokens: [{A}]}}, b: {{systems: [cdap], tokens: [{A}]}}}}",
            "one is also of a",
        ),
        (f"callers: {{a: {{systems: [lenses6], tokens: [{A}]}}, a: {{systems: [cdap], tokens: [{B}]}}}}", "twice"),
        ("callers: {a: my-secret-token", "not YAML"),
    ],
)
def test_a_file_of_callers_that_cannot_be_used_is_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _load(tmp_path, text)
    assert error in str(refused.value)
    assert "my-secret-token" not in str(refused.value)


@pytest.mark.parametrize(
    ("serve", "error"),
    [
        ({"address": "0.0.0.0"}, "without credentials. Use 127.0.0.1, or say who may ask"),
        ({"address": "::"}, "without credentials"),
        ({"address": "10.0.0.1", "allow_plaintext": True}, "without credentials"),
        ({"address": "0.0.0.0", "tls": {"certificate": "c", "key": "k"}}, "without credentials"),
        ({"address": "0.0.0.0", "callers": "c.yaml"}, "without encryption"),
        ({"callers": "c.yaml", "trust": ["groups"]}, "serve.trust"),
        ({"tls": {"certificate": "c"}}, "go together"),
        ({"tls": {"client_ca": "c"}}, "need TLS"),
        ({"tls": {"certificate": "c", "key": "k", "client_ca": "a"}}, "serve.callers"),
        ({"jwt": {"issuer": "i", "audience": "a", "jwks": "f"}}, "serve.callers"),
        ({"jwt": {"issuer": "i", "jwks": "f"}, "callers": "c"}, "audience is not set"),
        ({"jwt": {"issuer": "i", "audience": "a", "jwks": "http://issuer/keys"}, "callers": "c"}, "https"),
        ({"jwt": {"issuer": "i", "audience": "a", "jwks": "http://localhost.evil/k"}, "callers": "c"}, "https"),
        ({"jwt": {"issuer": "i", "audience": "a", "jwks": "http://127.0.0.1@evil/k"}, "callers": "c"}, "https"),
        *(
            ({"jwt": {"issuer": "i", "audience": "a", "jwks": url}, "callers": "c"}, "https")
            for url in (
                "file:///keys",
                "ftp://localhost/keys",
                "http://localhost:80@evil.example/",
                "http://localhost:80:@evil.example/",
                "http://[::1]@evil.example/",
                "http://localhost\\@evil.example/",
                "http://localhost#@evil.example/",
                "http://localhost?@evil.example/#",
                "http://evil.example#.localhost/",
                "http://localhost./keys",
                "http://localhost.evil.example:80/",
                "http://127.1/keys",
                "http://127.0.0.1.nip.io/keys",
                "http://2130706433/keys",
                "http://0x7f.0.0.1/keys",
                "http://[::ffff:127.0.0.1]/keys",
                "http://[::1%25eth0]/keys",
                "http://%6cocalhost/keys",
                "http://ⓛocalhost/keys",
                "http://localhost\n/keys",
                " http://localhost/keys",
                "http:///keys",
                "http://:80/keys",
                "http://localhost:99999/keys",
                "https://user:password@issuer.example/keys",
                "https://@issuer.example/keys",
                "https://issuer.example\\@evil.example/keys",
                "https:///keys",
                "HTTP://evil.example/keys",
                "javascript://localhost/keys",
            )
        ),
    ],
)
def test_settings_that_would_let_others_ask_are_refused(serve: dict[str, Any], error: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_settings({"serve": serve})
    assert error in str(refused.value)


@pytest.mark.parametrize(
    "serve",
    [
        {"address": "0.0.0.0", "callers": "c.yaml", "tls": {"certificate": "c", "key": "k"}},
        {"address": "0.0.0.0", "callers": "c.yaml", "allow_plaintext": True},
        {"address": "::1"},
        *(
            {"callers": "c", "jwt": {"issuer": "i", "audience": "a", "jwks": url}}
            for url in (
                "http://127.0.0.1:8080/keys",
                "HTTP://LocalHost/keys",
                "http://[::1]:8080/keys?a=b",
                "https://issuer.example",
                "HTTPS://Issuer.Example.:8443/tenant/@keys?version=1&a=%20",
                "https://[2001:db8::1]/keys",
                "keys.json",
            )
        ),
    ],
)
def test_settings_with_credentials_and_encryption_are_accepted(serve: dict[str, Any]) -> None:
    check_settings({"serve": serve})


@pytest.mark.parametrize(
    ("trust", "record", "counts"),
    [
        ({}, "all", {"groups"}),
        ({"answers": {"roles"}}, "all", set()),
        ({"answers": set()}, {SYSTEM: "durable"}, set()),
        ({"answers": set()}, "none", {"groups"}),
    ],
)
def test_a_caller_may_claim_what_the_topic_of_its_answers_is_trusted_with(
    tmp_path: Path, trust: Any, record: Any, counts: set[str]
) -> None:
    """The job would call an answer by another claim wrong."""
    (tmp_path / "callers.yaml").write_text(f"callers: {{a: {{systems: [{SYSTEM}], trust: [groups], tokens: [{A}]}}}}")
    names = TopicNames(answered=("answers", "others"))
    claims = {topic: frozenset(chosen) for topic, chosen in trust.items()}
    for serve in (
        ServeSettings(record=record, callers=str(tmp_path / "callers.yaml")),
        ServeSettings(record=record, trust=frozenset({"groups"})),
    ):
        authentication = Authentication(Settings(topics=names, trust=claims, serve=serve))
        headers = [(b"host", b"localhost"), (b"authorization", b"Bearer a")]
        assert asyncio.run(authentication.caller({"headers": headers})).rules.trust == counts


@pytest.mark.parametrize(
    ("systems", "unseen"),
    [
        (["lenses6"], {"authz.policies.cdap.v1", "authz.policies.ververica.v1", "own.streamsets", "authz.facts.v1"}),
        (["lenses6", "cdap"], {"authz.policies.ververica.v1", "own.streamsets"}),
        (["streamsets"], {"authz.policies.cdap.v1", "authz.policies.ververica.v1", "authz.policies.lenses6.v1"}),
        (["cdap", "lenses6", "streamsets", "ververica"], set()),
    ],
)
def test_a_caller_sees_no_topic_that_is_of_other_systems_alone(
    tmp_path: Path, systems: list[str], unseen: set[str]
) -> None:
    (tmp_path / "callers.yaml").write_text(f"callers: {{a: {{systems: {json.dumps(systems)}, tokens: [{A}]}}}}")
    served = ("cdap", "lenses6", "streamsets", "ververica")
    settings = Settings(
        systems=served,
        topics=TopicNames(policies={"streamsets": "own.streamsets"}, systems=served),
        serve=ServeSettings(callers=str(tmp_path / "callers.yaml")),
    )
    caller = load_callers(settings).by_token(b"a")
    assert caller is not None
    assert caller.rules.unseen == unseen
    anyone = asyncio.run(Authentication(Settings()).caller({"headers": [(b"host", b"localhost")]}))
    assert anyone.rules.unseen == set()


def test_a_certificate_that_expired_on_an_open_connection_counts_no_more(tmp_path: Path) -> None:
    (tmp_path / "callers.yaml").write_text("callers: {a: {systems: [lenses6], certificates: ['CN:a', 'DNS:b']}}")
    tls = TlsSettings("c", "k", "ca")
    made = Authentication(
        Settings(serve=ServeSettings(callers=str(tmp_path / "callers.yaml"), tls=tls)), lambda: 1000.0
    )
    found = peer_of(
        {
            "subject": ((("organizationName", "CN:x"),), (("commonName", "a"),)),
            "subjectAltName": (("DNS", "c"), ("IP Address", "b")),
            "notAfter": "Jan  1 00:16:41 1970 GMT",
        }
    )
    assert found == Peer(frozenset({"CN:a", "DNS:c"}), 1001.0)
    assert asyncio.run(made.caller({"headers": [], PEER: found})).name == "a"
    for peer in (None, Peer(found.names, 1000.0), Peer(frozenset({"CN:c", "DNS:a"}), 2000.0)):
        with pytest.raises(Unauthorized):
            asyncio.run(made.caller({"headers": [], PEER: peer}))


def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    for certificate, key in ((one.certificate, other.key), (one.key, one.key), (tmp_path / "none", one.key)):
        with pytest.raises(SettingsError, match=r"serve\.tls"):
            Tls(TlsSettings(str(certificate), str(key)))
    with pytest.raises(SettingsError, match="client_ca"):
        Tls(TlsSettings(str(one.certificate), str(one.key), str(one.key)))
