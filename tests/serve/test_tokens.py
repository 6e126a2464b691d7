"""JSON Web Tokens: one is accepted if the issuer signed it for this server and it is valid now, and no other."""

import asyncio
import base64
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey, RSAKey

from streaming.serve import keys as serve_keys
from streaming.serve.keys import (
    MAX_AGE_SECONDS,
    QUIET_SECONDS,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    IssuerKeys,
    KeysUnavailable,
    read_keys,
)
from streaming.serve.tokens import InvalidToken, Tokens
from streaming.settings import SettingsError
from streaming.settings.serve import JwtSettings
from tests.serve.issuer import AUDIENCE, ISSUER, Issuer, encoded
from tests.slow_server import slow_server
from tests.stream.certificates import Authority, Pem
from tests.waiting import wait_until

OURS = Issuer()
SETTINGS = JwtSettings(ISSUER, AUDIENCE, "keys.json")


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _keys(folder: Path, jwks: bytes, clock: Clock | None = None) -> IssuerKeys:
    (folder / "keys.json").write_bytes(jwks)
    keys = IssuerKeys(str(folder / "keys.json"), clock or Clock())
    keys.load()
    return keys


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    """What verifies the tokens of the issuer."""
    return Tokens(SETTINGS, _keys(tmp_path_factory.mktemp("jwks"), OURS.jwks()))


def _subject(tokens: Tokens, token: bytes) -> str:
    return asyncio.run(tokens.subject(token))


def test_a_token_of_the_issuer_names_the_caller(tokens: Tokens) -> None:
    for key in (OURS.rsa, OURS.ec):
        assert _subject(tokens, OURS.token(key)) == "checkout"
    assert _subject(tokens, OURS.token(aud=["other", AUDIENCE], sub="other")) == "other"
    assert _subject(tokens, OURS.token(header={"typ": "at+jwt", "x5t": "abc", "rh": "unknown"})) == "checkout"


def _tampered(token: bytes, **claims: Any) -> bytes:
    header, payload, signature = token.split(b".")
    held = json.loads(base64.urlsafe_b64decode(payload + b"=="))
    return b".".join([header, encoded({**held, **claims}), signature])


def _in(seconds: int) -> int:
    """A moment so long after this one: the tests of a busy machine may begin minutes after they are collected."""
    return int(time.time()) + seconds


FOREIGN = RSAKey.generate_key(2048, {"kid": "rsa"})
HOSTILE: dict[str, Callable[[], bytes]] = {
    "alg none": OURS.unsigned,
    "alg None": lambda: OURS.unsigned(alg="None", kid="rsa"),
    "alg none with a signature": lambda: OURS.unsigned() + b"AAAA",
    "HS256 with the public key": lambda: OURS.by_hmac(OURS.public_pem()),
    "HS256 with the JWK": lambda: OURS.by_hmac(OURS.jwks()),
    "HS256 with nothing": lambda: OURS.by_hmac(b""),
    "an algorithm that is not accepted": lambda: OURS.token(header={"alg": "PS256"}),
    "the algorithm of another key": lambda: OURS.token(FOREIGN, {"kid": "ec"}),
    "a list of algorithms": lambda: OURS.unsigned(alg=["RS256"]),
    "no algorithm": lambda: OURS.unsigned(alg=None),
    "a foreign key with our id": lambda: OURS.token(FOREIGN),
    "a foreign key in the header": lambda: OURS.token(FOREIGN, {"jwk": FOREIGN.as_dict(private=False)}),
    "a foreign key at a URL": lambda: OURS.token(FOREIGN, {"jku": "https://evil.example.com/keys"}),
    "an unknown key id": lambda: OURS.token(header={"kid": "nonesuch"}),
    "a key id that is a path": lambda: OURS.token(header={"kid": "../../dev/null"}),
    "no key id among several keys": lambda: OURS.token(header={"kid": None}),
    "a key id of another type": lambda: OURS.unsigned(alg="RS256", kid={"a": 1}),
    "critical headers": lambda: OURS.token(header={"crit": ["kid"]}),
    "the wrong audience": lambda: OURS.token(aud="other"),
    "an audience that begins alike": lambda: OURS.token(aud="lockkeeper2"),
    "audiences without ours": lambda: OURS.token(aud=["other", "lockkeeper2"]),
    "an audience of another type": lambda: OURS.token(aud={"lockkeeper": 1}),
    "audiences of other types": lambda: OURS.token(aud=[AUDIENCE, 1]),
    "no audience": lambda: OURS.token(aud=None),
    "the wrong issuer": lambda: OURS.token(iss="https://evil.example.com"),
    "an issuer with a slash": lambda: OURS.token(iss=ISSUER + "/"),
    "issuers": lambda: OURS.token(iss=[ISSUER]),
    "no issuer": lambda: OURS.token(iss=None),
    "expired": lambda: OURS.token(exp=_in(-60)),
    "no expiry": lambda: OURS.token(exp=None),
    "an expiry that is a text": lambda: OURS.token(exp=str(_in(300))),
    "an expiry that is true": lambda: OURS.token(exp=True),
    "an expiry without end": lambda: OURS.token(exp=float("inf")),
    "an expiry that is no number": lambda: OURS.token(exp=float("nan")),
    "not valid yet": lambda: OURS.token(nbf=_in(600)),
    "from the future": lambda: OURS.token(iat=_in(600)),
    "no subject": lambda: OURS.token(sub=None),
    "an empty subject": lambda: OURS.token(sub=""),
    "subjects": lambda: OURS.token(sub=["checkout"]),
    "another subject than was signed": lambda: _tampered(OURS.token(), sub="admin"),
    "a later expiry than was signed": lambda: _tampered(OURS.token(exp=_in(-60)), exp=_in(600)),
    "no signature": lambda: OURS.token().rpartition(b".")[0] + b".",
    "two parts": lambda: OURS.token().rpartition(b".")[0],
    "four parts": lambda: OURS.token() + b".a",
    "an encrypted token": lambda: b"a.b.c.d.e",
    "not base64": lambda: b"!.!.!",
    "claims that are no object": lambda: b".".join([encoded({"alg": "RS256", "kid": "rsa"}), encoded([1]), b"AA"]),
    "nesting": lambda: b".".join([base64.urlsafe_b64encode(b"[" * 3000).rstrip(b"="), b"e30", b"AA"]),
    "a header that is too large": lambda: OURS.token(header={"x5t": "a" * 8000}),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_other_token_is_accepted(tokens: Tokens, make: Callable[[], bytes]) -> None:
    token = make()
    with pytest.raises(InvalidToken) as refused:
        _subject(tokens, token)
    said = str(refused.value)
    assert said.isascii()
    assert '"' not in said, "it becomes part of a header"
    assert "evil" not in said


@given(st.binary(max_size=60) | st.lists(st.binary(max_size=30), min_size=3, max_size=3).map(b".".join))
def test_any_bytes_are_refused_as_a_token(tokens: Tokens, token: bytes) -> None:
    with pytest.raises(InvalidToken):
        _subject(tokens, token)


def test_a_changed_bit_of_the_signature_is_refused_also_where_the_token_was_accepted_before(tokens: Tokens) -> None:
    token = OURS.token()
    assert _subject(tokens, token) == "checkout"
    changed = token[:-5] + (b"A" if token[-5:-4] != b"A" else b"B") + token[-4:]
    with pytest.raises(InvalidToken, match="signature"):
        _subject(tokens, changed)


def test_a_token_that_was_accepted_ends_with_its_expiry(tmp_path: Path) -> None:
    clock = Clock()
    clock.now = time.time()
    tokens = Tokens(SETTINGS, _keys(tmp_path, OURS.jwks()), clock)
    token = OURS.token(exp=int(clock.now) + 100)
    assert _subject(tokens, token) == "checkout"
    clock.now += 129  # within the leeway
    assert _subject(tokens, token) == "checkout"
    clock.now += 2
    with pytest.raises(InvalidToken, match="expired"):
        _subject(tokens, token)


def test_a_key_that_names_no_algorithm_verifies_that_of_its_curve(tmp_path: Path) -> None:
    edwards, large = OKPKey.generate_key("Ed25519", {"kid": "ed"}), ECKey.generate_key("P-384", {"kid": "p384"})
    tokens = Tokens(SETTINGS, _keys(tmp_path, OURS.jwks(edwards, large)))
    assert _subject(tokens, OURS.token(edwards, {"alg": "EdDSA"})) == "checkout"
    assert _subject(tokens, OURS.token(large, {"alg": "ES384"})) == "checkout"
    with pytest.raises(InvalidToken):  # the key is of another curve
        _subject(tokens, OURS.token(OURS.ec, {"kid": "p384"}))


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "PS384", "PS512"])
def test_an_rsa_key_verifies_another_algorithm_than_rs256_only_if_it_names_it(tmp_path: Path, algorithm: str) -> None:
    unnamed = RSAKey.generate_key(2048, {"kid": "a"})
    named = RSAKey.import_key({**unnamed.as_dict(private=True), "alg": algorithm})
    token = OURS.token(unnamed, {"alg": algorithm})
    assert _subject(Tokens(SETTINGS, _keys(tmp_path, OURS.jwks(named))), token) == "checkout"
    with pytest.raises(InvalidToken):
        _subject(Tokens(SETTINGS, _keys(tmp_path, OURS.jwks(unnamed))), token)


def test_a_key_of_one_algorithm_verifies_no_other(tmp_path: Path) -> None:
    key = RSAKey.generate_key(2048, {"kid": "a", "alg": "RS256"})
    tokens = Tokens(SETTINGS, _keys(tmp_path, OURS.jwks(key)))
    assert _subject(tokens, OURS.token(key)) == "checkout"
    twin = RSAKey.import_key({**key.as_dict(private=True), "alg": "RS512"})
    with pytest.raises(InvalidToken):
        _subject(tokens, OURS.token(twin, {"alg": "RS512"}))


SMALL = RSAKey.generate_key(1024, {"kid": "small"})


@pytest.mark.parametrize(
    "jwks",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}',
        b'{"keys": [{"kty": "RSA", "kid": "rsa", "n": "AQAB"}]}',
        b'{"keys": [null, 1, {"kty": "nonesuch"}]}',
        OURS.jwks(SMALL),
        b"[" * 100_000,
    ],
)
def test_a_set_without_a_public_key_for_signatures_is_refused(tmp_path: Path, jwks: bytes) -> None:
    with pytest.raises(SettingsError, match=r"serve\.jwt\.jwks: .*keys\.json"):
        _keys(tmp_path, jwks)


_MEMBERS = {**json.loads(OURS.jwks())["keys"][0], **json.loads(OURS.jwks())["keys"][1], "k": "c2VjcmV0", "d": "AQAB"}
_ODD: tuple[Any, ...] = (
    *(None, True, 5, -1, 0.5, "", "!", "=", "AQAB", "\u0000", "é", "A" * 5000, "RSA", "EC", "OKP", "oct", "enc"),
    *([], [[]], ["verify"], ["sign"], [1], {}, {"a": {}}),
)
_NESTED: Any = []
for _ in range(60):
    _NESTED = [_NESTED]


@given(st.dictionaries(st.sampled_from(sorted(_MEMBERS)), st.sampled_from((*_ODD, _NESTED)), max_size=4), st.integers())
def test_a_malformed_key_is_left_out_and_the_others_count(changed: dict[str, Any], omitted: int) -> None:
    """Whatever is wrong with it: a set of an issuer also has keys for what is not spoken here."""
    names = sorted(_MEMBERS)
    members = {name: value for name, value in _MEMBERS.items() if name != names[omitted % len(names)]}
    odd = {**members, **changed, "kid": "odd"}
    text = json.dumps({"keys": [odd, changed, [odd], *json.loads(OURS.jwks())["keys"]]}).encode()
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        keys = read_keys(file.name)
    assert {"rsa", "ec"} <= {key.kid for key in keys} <= {"rsa", "ec", "odd"}
    assert not any(key.as_dict().get("d") for key in keys)


@pytest.mark.parametrize(
    "key",
    [
        {"kty": ["RSA"]},
        {"kty": {"RSA": 1}},
        {"kty": "RSA", "key_ops": 5},
        {"kty": "RSA", "n": 5, "e": []},
        {"kty": "RSA", "n": "A" * 700_000, "e": "AQAB"},
        {"kty": "RSA", "n": "_" * 3900, "e": "AQAB"},
        {"kty": "RSA", "n": "_" * 400, "e": ""},
        {"kty": "EC", "crv": ["P-256"], "x": "AQAB", "y": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AQAB"},
        {"kty": "OKP", "crv": "X25519", "x": 1},
    ],
    ids=str,
)
def test_a_set_of_a_malformed_key_alone_is_refused(tmp_path: Path, key: Any) -> None:
    with pytest.raises(SettingsError, match="has no public key"):
        _keys(tmp_path, json.dumps({"keys": [{"kid": "rsa", **key}]}).encode())


class Endpoint:
    """Serves a JWK Set over HTTP. `asked`: how often."""

    def __init__(self) -> None:
        self.body, self.status, self.asked = OURS.jwks(), 200, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                self.send_response(outer.status)
                self.send_header("location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"

    def use_tls(self, pem: Pem) -> str:
        """Speak https from now on; returns the URL."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem.certificate, pem.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        return self.url.replace("http:", "https:")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """The issuer's endpoint."""
    made = Endpoint()
    yield made
    made.close()


def test_an_unknown_key_is_looked_for_at_the_issuer_at_most_once_in_a_while(endpoint: Endpoint) -> None:
    clock = Clock()
    keys = IssuerKeys(endpoint.url, clock)
    keys.load()
    tokens, new = Tokens(SETTINGS, keys), RSAKey.generate_key(2048, {"kid": "new"})
    token = OURS.token(new)

    async def rotate() -> None:
        endpoint.body = OURS.jwks(OURS.rsa, new)
        subjects = await asyncio.gather(*(tokens.subject(token) for _ in range(5)))
        assert (subjects, endpoint.asked) == (["checkout"] * 5, 2)  # one fetch for all of them
        for n in range(20):
            with pytest.raises(InvalidToken):
                await tokens.subject(OURS.token(FOREIGN, {"kid": f"unknown-{n}"}))
        assert endpoint.asked == 2
        clock.now += RETRY_SECONDS
        with pytest.raises(InvalidToken):
            await tokens.subject(OURS.token(FOREIGN, {"kid": "unknown"}))
        assert endpoint.asked == 3

    asyncio.run(rotate())


def test_a_key_that_the_issuer_withdrew_ends_and_so_do_tokens_that_were_accepted(endpoint: Endpoint) -> None:
    clock = Clock()
    keys = IssuerKeys(endpoint.url, clock)
    keys.load()
    tokens, token = Tokens(SETTINGS, keys), OURS.token()

    async def withdraw() -> None:
        assert await tokens.subject(token) == "checkout"
        endpoint.body = OURS.jwks(OURS.ec)
        clock.now += REFRESH_SECONDS + 1
        assert await tokens.subject(token) == "checkout"  # they are fetched meanwhile
        wait = asyncio.get_running_loop().time() + 10
        while keys.find("RS256", "rsa") is not None:
            assert asyncio.get_running_loop().time() < wait
            await asyncio.sleep(0)
        with pytest.raises(InvalidToken):
            await tokens.subject(token)

    asyncio.run(withdraw())


@pytest.mark.parametrize("seconds", [REFRESH_SECONDS + QUIET_SECONDS + 1, MAX_AGE_SECONDS])
def test_a_key_that_was_withdrawn_while_nobody_asked_does_not_count_once_more(
    endpoint: Endpoint, seconds: float
) -> None:
    """A stolen key is used when its thief likes: the first token after a quiet time finds the issuer's new keys."""
    clock = Clock()
    keys = IssuerKeys(endpoint.url, clock)
    keys.load()
    tokens, token = Tokens(SETTINGS, keys), OURS.token()
    assert _subject(tokens, token) == "checkout"
    endpoint.body = OURS.jwks(OURS.ec)
    clock.now += seconds
    with pytest.raises(InvalidToken):
        _subject(tokens, token)


def test_an_issuer_that_does_not_answer_is_waited_for_once(endpoint: Endpoint) -> None:
    clock = Clock()
    keys = IssuerKeys(endpoint.url, clock)
    keys.load()
    tokens, token = Tokens(SETTINGS, keys), OURS.token()
    endpoint.status, asked = 500, endpoint.asked
    clock.now += MAX_AGE_SECONDS / 2

    async def ask() -> None:
        assert await tokens.subject(token) == "checkout"
        assert endpoint.asked == asked + 1
        clock.now += RETRY_SECONDS
        assert await tokens.subject(token) == "checkout"
        assert endpoint.asked == asked + 1, "it is asked meanwhile"

    asyncio.run(ask())


@pytest.mark.parametrize("keys", [[], [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]], ids=["none", "none for tokens"])
def test_an_issuer_that_withdraws_all_keys_ends_all_tokens(endpoint: Endpoint, keys: list[Any]) -> None:
    clock = Clock()
    issuer_keys = IssuerKeys(endpoint.url, clock)
    issuer_keys.load()
    tokens, token = Tokens(SETTINGS, issuer_keys), OURS.token()
    assert _subject(tokens, token) == "checkout"
    endpoint.body = json.dumps({"keys": keys}).encode()
    clock.now += MAX_AGE_SECONDS / 2
    with pytest.raises(InvalidToken):
        _subject(tokens, token)
    endpoint.body = OURS.jwks()
    clock.now += RETRY_SECONDS
    assert _subject(tokens, token) == "checkout", "and new ones count"


def test_a_file_that_has_no_key_any_more_ends_all_tokens(tmp_path: Path) -> None:
    keys = _keys(tmp_path, OURS.jwks())
    tokens, token = Tokens(SETTINGS, keys), OURS.token()
    assert _subject(tokens, token) == "checkout"
    (tmp_path / "keys.json").write_text('{"keys": []}')
    keys.reread()
    with pytest.raises(InvalidToken):
        _subject(tokens, token)


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_response_of_a_byte_at_a_time_ends_too(monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    """Also within its status and headers: while it lasts, no other fetch begins, and the keys grow old."""
    monkeypatch.setattr(serve_keys, "FETCH_SECONDS", 0.3)
    with slow_server(beginning) as port:
        began = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            read_keys(f"http://localhost:{port}/jwks")
        assert time.monotonic() - began < 5


def test_keys_that_cannot_be_fetched_for_long_verify_nothing(endpoint: Endpoint) -> None:
    clock = Clock()
    keys = IssuerKeys(endpoint.url, clock)
    endpoint.status = 500
    keys.load()
    tokens = Tokens(SETTINGS, keys)
    with pytest.raises(KeysUnavailable):
        _subject(tokens, OURS.token())
    endpoint.status = 302  # a redirect is not followed
    clock.now += RETRY_SECONDS
    with pytest.raises(KeysUnavailable):
        _subject(tokens, OURS.token())
    endpoint.status = 200
    clock.now += RETRY_SECONDS
    assert _subject(tokens, OURS.token()) == "checkout"
    endpoint.status = 500
    clock.now += MAX_AGE_SECONDS - 1
    assert _subject(tokens, OURS.token()) == "checkout"
    wait_until(lambda: endpoint.asked >= 3, "they were looked for")
    clock.now += RETRY_SECONDS
    with pytest.raises(KeysUnavailable):
        _subject(tokens, OURS.token())


def test_keys_for_encryption_and_symmetric_ones_are_left_out(tmp_path: Path) -> None:
    other = RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"}).as_dict(private=False)
    signing = RSAKey.generate_key(2048, {"kid": "no", "key_ops": ["sign"]}).as_dict(private=True)
    oct_ = {"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [oct_, other, signing, OURS.rsa.as_dict(private=False)]}))
    assert [key.kid for key in read_keys(str(file))] == ["rsa"]


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", b"HTTP/1.1 x y\r\n"]
)
def test_what_is_no_response_leaves_the_keys_as_they_are(answer: bytes) -> None:
    """At the start, and later: it must not end a request with an error of the server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                one, _ = listener.accept()
                with one:
                    one.recv(65536)
                    one.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        clock = Clock()
        keys = IssuerKeys(f"http://localhost:{listener.getsockname()[1]}/jwks", clock)
        keys.load()
        with pytest.raises(KeysUnavailable):
            _subject(Tokens(SETTINGS, keys), OURS.token())


def test_plain_http_goes_through_no_proxy(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy could give other keys."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert len(read_keys(endpoint.url)) == 2


def test_over_https_the_certificate_must_be_of_a_trusted_authority(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    url = endpoint.use_tls(authority.issue("issuer"))
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        read_keys(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    assert len(read_keys(url)) == 2


def test_a_url_of_another_scheme_or_host_is_refused_when_it_is_fetched_too() -> None:
    """Also where the settings were not checked."""
    with pytest.raises(ValueError, match="https"):
        read_keys("file:///dev/null")
