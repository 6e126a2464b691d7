"""Envoy's external authorization: 200 for what the policies allow on a route, 403 for anything else."""

import contextlib
import hashlib
import http.client
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streaming.serve.callers import Caller
from streaming.serve.ext_authz import Denied, File, Routes, load_routes
from streaming.settings import ServeSettings, Settings, SettingsError, check_settings
from tests.brokers import TestBroker
from tests.serve.test_serve import Running, serving
from tests.stream.world import LOOKS_BACK, SYSTEM, World, group, role

TOKEN = "envoy-" + "d4" * 20
FILE: dict[str, Any] = {
    "system": SYSTEM,
    "subject": {"header": "x-user", "prefix": "user:"},
    "routes": [
        {
            "methods": ["GET", "HEAD"],
            "path": "/topics/{topic}",
            "action": "kafka:GetTopicDetails",
            "resource": {"type": "lrn", "id": "kafka:topic:prod/main/{topic}", "properties": {"a": "b-{topic}"}},
        },
        {
            "methods": ["DELETE"],
            "path": "/topics/{topic}",
            "action": "kafka:DeleteTopic",
            "resource": {"type": "lrn", "id": "kafka:topic:prod/main/{topic}"},
        },
    ],
}
DANA = [(b"x-user", b"dana")]
PAIR = {**FILE["routes"][0], "path": "/{a}/{b}", "resource": {"type": "dataset", "id": "dataset:{a}.{b}"}}


def _loaded(folder: Path, file: Any) -> Routes:
    path = folder / "routes.yaml"
    path.write_text(yaml.safe_dump(file))
    found = load_routes(Settings(serve=ServeSettings(callers="c", ext_authz=str(path))))
    assert found is not None
    return found


def test_a_route_says_what_a_request_needs(tmp_path: Path) -> None:
    assert _loaded(tmp_path, FILE).request("GET", "/topics/orders", DANA) == {
        "subject": {"type": "user", "id": "user:dana"},
        "action": {"name": "kafka:GetTopicDetails"},
        "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders", "properties": {"a": "b-orders"}},
    }
    assert _loaded(tmp_path, FILE).request("DELETE", "/topics/orders", DANA)["action"] == {"name": "kafka:DeleteTopic"}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/topics/orders", DANA),
        ("get", "/topics/orders", DANA),
        ("GET", "/topics", DANA),
        ("GET", "/topics/", DANA),
        ("GET", "/topics/orders/", DANA),
        ("GET", "/topics/orders/more", DANA),
        ("GET", "//topics/orders", DANA),
        ("GET", "/topics/..", DANA),
        ("GET", "/topics/.", DANA),
        ("GET", "/topics/a b", DANA),
        ("GET", "/topics/*", DANA),
        ("GET", "/topics/a:b", DANA),
        ("GET", "/topics/a\n", DANA),
        ("GET", "/topics/é", DANA),
        ("GET", "/topics/orders;a", DANA),
        ("GET", "/TOPICS/orders", DANA),
        ("GET", "/topics/orders", []),
        ("GET", "/topics/orders", [(b"x-user", b"")]),
        ("GET", "/topics/orders", [(b"x-user", b" ")]),
        ("GET", "/topics/orders", [(b"x-user", b"\xff")]),
        ("GET", "/topics/orders", [*DANA, (b"x-user", b"eve")]),
        ("GET", "/topics/orders", [(b"x-users", b"dana")]),
    ],
)
def test_what_fits_no_route_is_denied(
    tmp_path: Path, method: str, path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(Denied):
        _loaded(tmp_path, FILE).request(method, path, headers)


@pytest.mark.parametrize("separator", [".", "-", "/", "..", "--", "-.-", ".a.", ":"])
@given(st.lists(st.text(".-a", min_size=1, max_size=4), min_size=3, max_size=3))
def test_two_paths_never_ask_about_the_same_resource(separator: str, names: list[str]) -> None:
    resource = {"type": "x", "id": separator.join(("{a}", "{b}")), "properties": {"p": "{b}" + separator + "{a}"}}
    routes = Routes(msgspec.convert({**FILE, "routes": [{**PAIR, "resource": resource}]}, File))
    whole = separator.join(names)
    splits = [at for at in range(len(whole)) if whole.startswith(separator, at)]
    asked = []
    for at in splits:
        with contextlib.suppress(Denied):
            asked.append(routes.request("GET", f"/{whole[:at]}/{whole[at + len(separator) :]}", DANA))
    assert len(asked) <= 1


def test_the_last_of_two_names_may_have_what_separates_them(tmp_path: Path) -> None:
    routes = _loaded(tmp_path, {**FILE, "routes": [PAIR]})
    assert routes.request("GET", "/default/orders.eu", DANA)["resource"]["id"] == "dataset:default.orders.eu"
    with pytest.raises(Denied):
        routes.request("GET", "/default.orders/eu", DANA)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"system": "nonesuch"}, "is not one of"),
        ({"routes": []}, "length >= 1"),
        ({"subject": {"header": "X User"}}, "regex"),
        ({"rutes": []}, "unknown field"),
        ({"routes": [{**FILE["routes"][0], "path": "/topics/{name}"}]}, r"has no {topic}"),
        ({"routes": [{**FILE["routes"][0], "path": "/topics/x-{topic}"}]}, "a whole segment"),
        ({"routes": [{**FILE["routes"][0], "path": "/{topic}/{topic}"}]}, "each once"),
        ({"routes": [{**FILE["routes"][0], "path": "/{topic"}]}, "each once"),
        ({"routes": [{**FILE["routes"][0], "path": "topics"}]}, "regex"),
        ({"routes": [{**PAIR, "resource": {"type": "dataset", "id": "dataset:{a}{b}"}}]}, "between two placeholders"),
        ({"routes": [{**FILE["routes"][0], "path": "/a.*"}]}, "regex"),
    ],
)
def test_a_file_of_routes_that_cannot_be_used_is_refused(tmp_path: Path, change: Any, error: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _loaded(tmp_path, {**FILE, **change})
    assert error in str(refused.value)


def test_a_file_of_routes_with_a_name_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    """The last of them would count: a route would ask for another action than the one that is read first."""
    path, routes = tmp_path / "routes.yaml", yaml.safe_dump(FILE)
    path.write_text(routes.replace("- action:", "- action: kafka:ListTopics\n  action:"))
    with pytest.raises(SettingsError, match="there twice in one mapping at line 3,"):
        load_routes(Settings(serve=ServeSettings(callers="c", ext_authz=str(path))))


def test_envoy_needs_credentials() -> None:
    with pytest.raises(SettingsError, match=r"needs serve\.callers"):
        check_settings({"serve": {"ext_authz": "routes.yaml"}})


@pytest.fixture(scope="module")
def running(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with these routes, for Envoy, and another caller that may not ask about the system."""
    folder = tmp_path_factory.mktemp("envoy")
    world = World(broker, f"envoy-{uuid.uuid4().hex[:12]}", str(folder / "checkpoint"))
    world.publish(role("readers", "kafka:topic:prod/main/orders"))
    world.publish(group("readers", "user:dana"))
    (folder / "routes.yaml").write_text(yaml.safe_dump(FILE))
    callers = {
        "envoy": {"systems": [SYSTEM], "tokens": [hashlib.sha256(TOKEN.encode()).hexdigest()]},
        "other": {"systems": [LOOKS_BACK], "tokens": [hashlib.sha256(b"other").hexdigest()]},
    }
    (folder / "callers.yaml").write_text(yaml.safe_dump({"callers": callers}))
    serve = ServeSettings(
        port=0, record="none", callers=str(folder / "callers.yaml"), ext_authz=str(folder / "routes.yaml")
    )
    with serving(msgspec.structs.replace(world.settings, serve=serve)) as found:
        yield found


Check = Callable[..., int]


@pytest.fixture
def check(running: Running) -> Check:
    """What Envoy sends, and the status that it gets."""

    def send(method: str = "GET", path: str = "/topics/orders", token: str = TOKEN, user: str = "dana") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=20)
        headers = {"host": "shop.example.com", "authorization": f"Bearer {token}", "x-user": user}
        with contextlib.closing(connection):
            connection.request(method, f"/ext_authz{path}", None, {k: v for k, v in headers.items() if v})
            found = connection.getresponse()
            found.read()
            return found.status

    return send


@pytest.mark.stream
def test_envoys_request_passes_where_the_policies_allow_it_and_else_it_is_403(check: Check) -> None:
    assert check() == 200
    assert check("HEAD") == 200
    assert check(path="/topics/orders?a=b&c=%2f") == 200
    assert check("DELETE") == 403
    assert check(user="eve") == 403
    assert check(user="") == 403
    assert check(path="/topics/secrets") == 403
    assert check(path="/other") == 403
    assert check(path="/topics/secrets/../orders") == 403
    assert check(path="/topics/%6frders") == 404  # Envoy denies whatever is not 200
    assert check(path="//topics/orders") == 403
    assert check(token="wrong") == 403
    assert check(token="other") == 403


@pytest.mark.stream
def test_while_policies_are_stale_it_is_403_which_envoy_denies_by_any_setting(
    running: Running, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.server._app, "_stuck", lambda: 1)
    assert check() == 403
    monkeypatch.undo()
    assert check() == 200


@pytest.mark.stream
def test_an_error_that_nobody_expects_is_403_too(
    running: Running, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.server._app, "_wait", None)
    assert check() == 403
    monkeypatch.undo()
    assert check() == 200


@pytest.mark.stream
def test_in_shadow_mode_nothing_passes(running: Running, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = running.server._authentication._callers
    assert callers is not None
    monkeypatch.setattr(callers, "_hashes", [(digest, _shadowed(one)) for digest, one in callers._hashes])
    assert check() == 403
    monkeypatch.undo()
    assert check() == 200


def _shadowed(caller: Caller) -> Caller:
    return msgspec.structs.replace(caller, rules=msgspec.structs.replace(caller.rules, enforced=False))
