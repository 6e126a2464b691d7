"""HTTP as bytes: what a client without credentials may hold of the server, in which order, and for how long."""

import contextlib
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streaming.pdp.recording import Recorder
from streaming.serve import connections, protocol, search
from streaming.serve.admission import Admission
from streaming.serve.connections import Connections
from streaming.settings import Settings
from streaming.settings.serve import TlsSettings
from streaming.topics import TopicNames
from tests.serve.local_server import (
    ASKED,
    BODY,
    HEAD,
    PATH,
    LocalServer,
    chunked,
    closed_by_server,
    local_server,
    received,
    request,
    statuses,
)
from tests.stream.certificates import Authority
from tests.stream.world import SYSTEM
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(60)
LAST = b"connection: close\r\n"
WELL_KNOWN = b"/.well-known/authzen-configuration"


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with the default bounds."""
    with local_server() as found:
        yield found


@pytest.mark.parametrize(
    "sent",
    [
        chunked(BODY, end=b"0\r\n" + b"a: b\r\n" * 20_000),
        chunked(BODY, end=b"0\r\na: " + b"b" * 200_000),
        chunked(BODY, end=b"0\r\n" + b"a" * 200_000),
        chunked(BODY, end=b"0;" + b"a" * 200_000),
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1;a=%s\r\nx\r\n" % (b"b" * 1000) * 200,
        HEAD + b"a:b\r\n" * 1000,
        HEAD + b"a: " + b"b" * 200_000,
        b"POST /" + b"a" * 200_000,
        b"\r\n" * 100_000,
    ],
    ids=[
        "trailers",
        "a trailer",
        "its name",
        "a last extension",
        "extensions",
        "headers",
        "a header",
        "a URL",
        "lines",
    ],
)
def test_what_is_no_body_is_bounded(server: LocalServer, sent: bytes) -> None:
    """400, and the response is not lost though the client still sends."""
    assert statuses(server.send(sent)) == [400]


@pytest.mark.parametrize(
    "sent",
    [
        chunked(*(b"%c" % byte for byte in BODY), end=b"0\r\nx-a: b\r\n\r\n", head=HEAD + LAST),
        chunked(BODY + b" " * 300_000, head=HEAD + LAST),
        chunked(*[b" "] * 30_000, BODY, head=HEAD + LAST),
        request(LAST, body=BODY + b" " * 900_000),
        request(LAST, b"expect: 100-continue\r\n"),
        request(LAST, *(b"x-%d: b\r\n" % n for n in range(200))),
        b"\r\n\r\n" + request(LAST),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["chunks of a byte", "a large chunk", "30,000 chunks", "a large body", "expect", "headers", "lines", "1.0"],
)
def test_what_is_within_the_bounds_is_answered(server: LocalServer, sent: bytes) -> None:
    assert statuses(server.send(sent)) == [200]
    half = len(sent) // 2
    assert statuses(server.send(sent[:half], sent[half:])) == [200]


PLAIN_HEAD = b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % PATH


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"content-type: application/json; charset=utf-8\r\n", 200),
        (b"Content-Type: Application/JSON\r\ncontent-encoding: identity\r\n", 200),
        (b"", 400),
        (b"content-type: text/plain\r\n", 400),
        (b"content-type: application/x-www-form-urlencoded\r\n", 400),
        (b"content-type: application/json\r\ncontent-type: text/plain\r\n", 400),
        (b"content-type: text/plain\r\ncontent-type: application/json\r\n", 400),
        (b"content-type: application/json\r\ncontent-encoding: gzip\r\n", 415),
        (b"content-type: application/json\r\nContent-Encoding: BR\r\n", 415),
        (b"content-encoding: gzip\r\ncontent-encoding: identity\r\ncontent-type: application/json\r\n", 415),
        (b"content-type: application/json\r\ncontent-encoding: gzip, identity\r\n", 415),
    ],
)
def test_the_content_type_and_coding_of_a_body(server: LocalServer, headers: bytes, status: int) -> None:
    """400 and 415, as the certification of AuthZEN asks."""
    found = server.send(request(headers, LAST, head=PLAIN_HEAD))
    assert statuses(found) == [status]
    assert (b"\r\naccept-encoding: identity\r\n" in found) == (status == 415)


def test_blanks_around_the_value_of_a_header_are_not_part_of_it(server: LocalServer) -> None:
    """RFC 9110, 5.5. A length with a blank after it was said to be too large."""
    headers = (b"host:localhost \t", b"content-type: application/json ", b"connection: close ")
    length = b"content-length:  %d\t" % len(BODY)
    assert statuses(server.send(b"\r\n".join((b"POST %s HTTP/1.1" % PATH, *headers, length, b"", BODY)))) == [200]


def test_a_request_that_is_too_large_with_its_answer_is_refused_for_good() -> None:
    """503 with Retry-After had clients send it again and again."""
    settings = Settings(bootstrap_servers="localhost:1", topics=TopicNames(answered=("answered",)))
    with local_server() as server, contextlib.closing(Recorder(settings)) as recorder:
        server.app._recorder = recorder
        large = json.dumps({**ASKED, "context": {"pad": "x" * ((1 << 20) - 300)}}).encode()
        assert len(large) < settings.limits.record_in
        response = server.send(request(LAST, body=large))
        assert statuses(response) == [413]
        assert b"retry-after" not in response
        assert recorder.lost == recorder.queued == 0


def test_a_trailer_is_no_header(server: LocalServer) -> None:
    """What is in front of the server has not looked at it: here a second host would be refused."""
    sent = chunked(BODY, end=b"0\r\nhost: evil.example\r\nx-request-id: abc\r\n\r\n", head=HEAD + LAST)
    found = server.send(sent)
    assert statuses(found) == [200]
    assert b"abc" not in found


def test_what_follows_a_request_to_upgrade_is_not_read_as_requests(server: LocalServer) -> None:
    """As the body of one request, another one would be smuggled past a proxy."""
    upgrade = request(b"connection: upgrade\r\n", b"upgrade: h2c\r\n", body=request())
    for parts in ((upgrade,), (upgrade[: -len(request())], request()), (b"CONNECT a:1 HTTP/1.1\r\n\r\n", request())):
        assert len(statuses(server.send(*parts))) == 1
    assert server.answers()


def test_pipelined_requests_are_answered_in_order_however_many_there_are(server: LocalServer) -> None:
    bodies = [{**ASKED, "resource": {"type": "lrn", "id": f"kafka:topic:prod/main/t{n}"}} for n in range(2000)]
    bodies[700] = {}  # 400, in its place
    sent = b"".join(request(b"x-request-id: r%d\r\n" % n, body=json.dumps(b).encode()) for n, b in enumerate(bodies))
    with server.connect() as one:
        one.sendall(sent)
        one.shutdown(socket.SHUT_WR)  # it still reads
        found = received(one)
    assert statuses(found) == [400 if n == 700 else 200 for n in range(2000)]
    ids = [int(part.partition(b"\r\n")[0]) for part in found.split(b"x-request-id: r")[1:]]
    assert ids == list(range(2000))


def test_what_is_malformed_is_answered_after_the_requests_before_it(server: LocalServer) -> None:
    for bad in (b"nonsense\r\n\r\n", chunked(b"{", end=b"nonsense\r\n")):
        for count in (0, 1, 3, 6, 50):
            assert statuses(server.send(request() * count + bad + request())) == [*[200] * count, 400]


def test_a_target_with_a_fragment_is_malformed(server: LocalServer) -> None:
    """Of a path that the parser cuts off there, what is in front of the server may have read more."""
    for target in (PATH + b"#", PATH + b"#/../secrets", PATH + b"?a#b"):
        assert statuses(server.send(request() + request(head=HEAD.replace(PATH, target)))) == [200, 400]
    assert server.answers()


@pytest.mark.parametrize(
    ("coding", "version", "status"),
    [
        (b"chunked", b"1.1", 200),
        (b"Chunked", b"1.1", 200),
        (b"gzip, chunked", b"1.1", 400),
        (b"identity, chunked", b"1.1", 400),
        (b"chunked, chunked", b"1.1", 400),
        (b"chunked\r\ntransfer-encoding: chunked", b"1.1", 400),
        (b"gzip\r\ntransfer-encoding: chunked", b"1.1", 400),
        (b"chunked\r\ncontent-length: 4", b"1.1", 400),
        (b"chunked", b"1.0", 400),
    ],
)
def test_a_body_is_sent_in_one_way_that_is_known(
    server: LocalServer, coding: bytes, version: bytes, status: int
) -> None:
    """RFC 9112, 6.1: what is in front of the server would take another coding off, or end one of 1.0 elsewhere."""
    sent = chunked(BODY, head=HEAD + LAST).replace(b"transfer-encoding: chunked", b"transfer-encoding: " + coding)
    assert statuses(server.send(sent.replace(b"HTTP/1.1", b"HTTP/" + version))) == [status]


def test_a_body_that_ends_too_early_is_no_request(server: LocalServer) -> None:
    with server.connect() as one:
        one.sendall(request()[:-1])
        one.shutdown(socket.SHUT_WR)
        assert received(one) == b""


def test_a_client_that_sends_nothing_more_gets_the_answers_to_its_complete_requests(server: LocalServer) -> None:
    for cut in (b"", b"POST /acc", request()[:-1], chunked(BODY, end=b"")):
        with server.connect() as one:
            one.sendall(request() * 50 + cut)
            one.shutdown(socket.SHUT_WR)
            assert statuses(received(one)) == [200] * 50


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"POST /access",
        request()[:-1],
        chunked(BODY, end=b"0\r\na: b"),
        b"GET %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n" % WELL_KNOWN,  # answered before its body
    ],
    ids=["nothing", "a line", "half a line", "half a body", "half a trailer", "no body"],
)
def test_a_request_has_to_be_sent_in_time(sent: bytes) -> None:
    with local_server(seconds=0.5) as server:
        found = server.send(sent)
        assert statuses(found) in ([], [200] if WELL_KNOWN in sent else [])
        assert not server.connections.open


def test_a_connection_is_idle_for_so_long_whatever_lines_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.5)
    with local_server() as server, server.connect() as one:
        one.sendall(request() + b"\r\n")
        assert statuses(received(one)) == [200]


def test_responses_that_are_not_read_end_the_connection_and_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 3600.0)
    with local_server(seconds=1.0) as server, server.connect() as one:
        one.setblocking(False)
        sent = request() * 1000
        most = 0

        def is_ended() -> bool:
            nonlocal most
            with contextlib.suppress(OSError):
                one.send(sent)
            held = list(server.connections.open)
            most = max([most, *(len(c.pipeline) for c in held), *((c.pending + c.unread) >> 14 for c in held)])
            return closed_by_server(one)

        wait_until(is_ended, "the server ends the connection", 30)
        assert most <= protocol.PIPELINED + protocol.SLICE // 16 + 32


def test_half_a_response_is_not_waited_for_for_ever() -> None:
    """The last response, on a connection that is being closed, is also one that a client may not read."""
    with local_server(seconds=1.0) as server, server.connect() as one:
        evaluations = json.dumps({**ASKED, "evaluations": [{}] * 1000}).encode()
        head = HEAD.replace(PATH, b"/access/v1/evaluations")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            one.sendall(request(body=evaluations, head=head) * 40)
        wait_until(lambda: not server.connections.open and not server.connections.closing, "it is ended", 30)


def test_buffers_of_all_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUFFERED_BYTES", 1 << 20)
    with local_server(seconds=3600.0) as server, contextlib.ExitStack() as stack:
        floods = [stack.enter_context(server.connect()) for _ in range(12)]
        for one in floods:
            one.setblocking(False)

        def some_are_ended() -> bool:
            for one in floods:
                with contextlib.suppress(OSError):
                    one.send(request() * 1000)
            return any(map(closed_by_server, floods))

        wait_until(some_are_ended, "the connections that hold most are ended", 30)
        assert server.answers()


@pytest.mark.parametrize("sent", [b"", b"POST /access", request()[:-1]], ids=["nothing", "half a line", "half a body"])
def test_connections_that_let_the_server_wait_make_room(sent: bytes) -> None:
    """They get 503 rather than a reset; those that are new have a second."""
    with local_server(connections=20, seconds=3600.0) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(server.connect()) for _ in range(20)]
        for one in silent:
            one.sendall(sent)
        wait_until(lambda: len(server.connections.open) == 20, "all are there")
        refused = server.send(request())
        assert statuses(refused) == [503]
        assert b"\r\nretry-after: 1\r\n" in refused
        wait_until(server.answers, "there is room", 10)
        assert statuses(received(silent[0])) == [503]
        assert not server.health.problems()


def test_a_flood_from_one_address_does_not_end_the_connections_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PRESSED_SECONDS", 0.0)
    monkeypatch.setattr(connections, "RELIEF_SECONDS", 0.0)
    with local_server(connections=20, seconds=3600.0) as server, contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.socket())
        other.bind(("127.0.0.2", 0))
        other.connect(("127.0.0.1", server.port))
        for _ in range(60):
            stack.enter_context(server.connect())
        wait_until(lambda: len(server.connections.open) > 10, "there is a flood")
        other.sendall(request(LAST))
        assert statuses(received(other)) == [200]


def test_connections_between_two_requests_make_room_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PRESSED_SECONDS", 0.0)
    with local_server(connections=20, seconds=3600.0) as server, contextlib.ExitStack() as stack:
        idle = stack.enter_context(server.connect())
        idle.sendall(request())
        idle.recv(65536)
        for _ in range(60):
            stack.enter_context(server.connect())
        wait_until(server.answers, "there is room", 10)
        idle.sendall(request(LAST))
        assert received(idle).endswith(b"}}")


def test_unfinished_bodies_make_room_for_other_requests() -> None:
    with local_server(requests=8, seconds=3600.0) as server, contextlib.ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(server.connect()).sendall(request()[:-1])
        wait_until(server.answers, "there is room", 10)


def test_without_room_for_long_it_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REFUSING_SECONDS", 0.2)
    monkeypatch.setattr(connections, "PRESSED_SECONDS", 3600.0)
    with local_server(connections=2, seconds=3600.0) as server:
        server.health.running = True
        assert server.health.problems() == []
        with server.connect(), server.connect():
            wait_until(lambda: not server.answers() and server.health.problems(), "it is not ready", 10)
            [problem] = server.health.problems()
            assert "have been refused" in problem
        wait_until(lambda: server.answers() and not server.health.problems(), "it is ready again", 10)


def test_a_loop_that_does_not_answer_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.serve.metrics.SILENT_SECONDS", 0.1)

    ends = threading.Event()
    with local_server() as server:
        server.http.call(lambda: ends.wait(30) and None)
        server.http.ask()
        wait_until(lambda: any("HTTP server has not answered" in p for p in server.health.problems()), "noticed")
        ends.set()
        wait_until(lambda: not server.health.problems(), "it answers again")


def test_handshakes_count_as_connections_and_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("server")
    context = ssl.create_default_context(cafile=str(authority.ca))
    tls = TlsSettings(str(pem.certificate), str(pem.key))
    with local_server(tls=tls, connections=20) as server, contextlib.ExitStack() as stack:

        def answers() -> bool:
            with server.connect() as raw:
                raw.settimeout(5)
                with context.wrap_socket(raw, server_hostname="127.0.0.1") as one:
                    one.sendall(request(LAST))
                    return statuses(received(one)) == [200]
            return False

        assert answers()
        silent = [stack.enter_context(server.connect()) for _ in range(20)]
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the beginning of a handshake
        silent[1].sendall(request())  # none at all
        wait_until(lambda: len(server.connections.open) >= 19, "they count")
        wait_until(answers, "there is room", 10)
        for one in silent:
            one.close()
        wait_until(lambda: not server.connections.open and not server.connections.closing, "all are gone", 10)
        monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.3)
        with server.connect() as late:
            wait_until(partial(closed_by_server, late), "it took too long")


def test_the_share_of_a_network_is_that_of_an_address_or_of_a_customer() -> None:
    shares = {
        host: connections.network_of((host, 1, 0, 0))
        for host in (
            "192.0.2.1",
            "::ffff:192.0.2.1",
            "2001:db8::1",
            "2001:db8::ffff:0:0:1",
            "2001:db8:0:1::1",
            "fe80::1%3",
        )
    }
    assert shares["192.0.2.1"] == shares["::ffff:192.0.2.1"]
    assert shares["2001:db8::1"] == shares["2001:db8::ffff:0:0:1"] != shares["2001:db8:0:1::1"]
    assert connections.network_of("/run/socket") == connections.network_of(None) == ""


def test_fewer_connections_where_files_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[tuple[int, int]]()
    monkeypatch.setattr("resource.setrlimit", lambda _kind, limit: limits.append(limit))
    for soft, hard, expected in ((1024, 1024, 660), (1024, 4096, 1000), (1 << 20, 1 << 20, 1000), (256, 256, 45)):
        monkeypatch.setattr("resource.getrlimit", lambda _kind, at=(soft, hard): at)
        assert connections.room_for(1000) == pytest.approx(expected, abs=5)
    assert limits == [(1024, 1024), (1450, 4096), (256, 256)]


def test_closing_connections_are_bounded() -> None:
    load = Connections(8, 10.0)
    assert [load.close(object(), "refused") for _ in range(5)] == [True, True, True, True, False]  # type: ignore[arg-type]


def _two_callers(folder: Path) -> tuple[Path, bytes, bytes]:
    """A file of callers, and the header of each."""
    tokens = {name: f"{name}-" + "a1" * 20 for name in ("greedy", "modest")}
    hashes = {name: hashlib.sha256(token.encode()).hexdigest() for name, token in tokens.items()}
    file = folder / "callers.yaml"
    allowed = {"systems": [SYSTEM], "search": True}
    file.write_text(json.dumps({"callers": {name: {**allowed, "tokens": [hash_]} for name, hash_ in hashes.items()}}))
    greedy, modest = (b"authorization: Bearer %s\r\n" % tokens[name].encode() for name in tokens)
    return file, greedy, modest


def test_one_callers_unfinished_bodies_do_not_shut_out_others(tmp_path: Path) -> None:
    """It may have three quarters of the requests that are answered at once."""
    file, greedy, modest = _two_callers(tmp_path)
    with (
        local_server(callers=str(file), requests=16, seconds=3600.0) as server,
        contextlib.ExitStack() as stack,
    ):
        bodies = [stack.enter_context(server.connect()) for _ in range(20)]
        for one in bodies:
            one.sendall(request(greedy)[:-1])
        wait_until(lambda: len(server.connections.open) == 12, "the rest is refused")
        assert statuses(server.send(request(modest, LAST))) == [200]
        refused = server.send(request(greedy, LAST))
        assert statuses(refused) == [503]
        assert b"\r\nretry-after: 1\r\n" in refused
        assert statuses(server.send(request(LAST))) == [401]


def test_one_callers_searches_do_not_shut_out_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have three of the four that are under way at once."""
    file, greedy, modest = _two_callers(tmp_path)
    may_end, under_way = threading.Event(), list[str]()
    answer, parse = search.answer, search.parse_search

    def parse_and_count(kind: search.Kind, *others: Any) -> search.Search:
        under_way.append(kind)
        return parse(kind, *others)

    def answer_slowly(*arguments: Any) -> bytes:
        assert may_end.wait(60)
        return answer(*arguments)

    monkeypatch.setattr(search, "answer", answer_slowly)
    monkeypatch.setattr(search, "parse_search", parse_and_count)
    head = HEAD.replace(PATH, b"/access/v1/search/action")
    body = json.dumps({name: value for name, value in ASKED.items() if name != "action"}).encode()
    with local_server(callers=str(file)) as server, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(4)]
        for number, connection in enumerate(connections[:3], 1):
            connection.sendall(request(greedy, LAST, head=head, body=body))
            wait_until(lambda least=number: len(under_way) == least, "the search is under way")
        refused = server.send(request(greedy, LAST, head=head, body=body))
        assert statuses(refused) == [503]
        assert b"too many searches of this caller" in refused
        connections[3].sendall(request(modest, LAST, head=head, body=body))
        wait_until(lambda: len(under_way) == 4, "the other caller's search is under way")
        assert statuses(server.send(request(modest, LAST, head=head, body=body))) == [503]
        may_end.set()
        for connection in connections:
            assert statuses(received(connection)) == [200]


def test_however_many_callers_there_are_a_new_one_has_room() -> None:
    admission = Admission(100)
    for caller in "abc":
        count = 0
        while (admission.begin() or True) and admission.has_room() and admission.admit(caller):
            count += 1
        assert count > 0
        admission.end(None)
    admission.begin()
    assert (admission.has_room(), admission.admit("f")) == (True, True)
    alone = Admission(1)
    alone.begin()
    assert (alone.has_room(), alone.admit("a")) == (True, True)
