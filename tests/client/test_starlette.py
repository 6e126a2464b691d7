"""The dependency for FastAPI and Starlette: an endpoint runs for an allow alone."""

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from streaming.client import AsyncLocalClient, Connection, Decision
from streaming.client.starlette import Requires
from tests.brokers import TestBroker
from tests.stream.world import SYSTEM, World, group, role

pytestmark = [pytest.mark.stream, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Topics with a role that dana has."""
    made = World(broker, f"starlette-{uuid.uuid4().hex[:12]}", str(tmp_path_factory.mktemp("c") / "checkpoint"))
    made.publish(role("readers", "kafka:topic:prod/main/orders"))
    made.publish(group("readers", "user:dana"))
    return made


def _requires(client: AsyncLocalClient) -> Requires:
    return Requires(
        client,
        system=SYSTEM,
        action="kafka:GetTopicDetails",
        subject=lambda request: request.headers.get("x-user"),
        resource=lambda request: f"kafka:topic:prod/main/{request.path_params['topic']}",
    )


def _fastapi(client: AsyncLocalClient) -> Any:
    app, requires = FastAPI(), _requires(client)

    @app.get("/topics/{topic}")
    async def read(topic: str, decision: Annotated[Decision, Depends(requires)]) -> dict[str, Any]:
        return {"topic": topic, "allowed": decision.allowed}

    return app


def _starlette(client: AsyncLocalClient) -> Any:
    requires = _requires(client)

    async def read(request: Request) -> JSONResponse:
        decision = await requires(request)
        return JSONResponse({"topic": request.path_params["topic"], "allowed": decision.allowed})

    return Starlette(routes=[Route("/topics/{topic}", read)])


async def _get(app: Any, path: str, user: str = "") -> tuple[int, bytes]:
    """The status and body of a response of an ASGI application."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"x-user", user.encode())] if user else []
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    await app({**scope, "scheme": "http", "server": ("localhost", 80), "client": None}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("made", [_fastapi, _starlette])
def test_an_endpoint_runs_for_an_allow_alone(world: World, made: Callable[[AsyncLocalClient], Any]) -> None:
    async def session() -> None:
        async with AsyncLocalClient(Connection.of(world.settings), record="none") as client:
            app = made(client)
            assert await client.ready(60)
            status, body = await _get(app, "/topics/orders", "user:dana")
            assert (status, json.loads(body)) == (200, {"topic": "orders", "allowed": True})
            for path, user, expected in (
                ("/topics/secrets", "user:dana", 403),
                ("/topics/orders", "user:eve", 403),
                ("/topics/orders", "", 401),
            ):
                status, body = await _get(app, path, user)
                assert status == expected
                assert b"role" not in body, "the reason is not for the client"
        status, _ = await _get(app, "/topics/orders", "user:dana")
        assert status == 503, "the client is closed"

    asyncio.run(session())


def test_in_shadow_mode_no_endpoint_runs(world: World) -> None:
    async def session() -> None:
        async with AsyncLocalClient(Connection.of(world.settings), record="none", mode="shadow") as client:
            assert await client.ready(60)
            assert (await _get(_starlette(client), "/topics/orders", "user:dana"))[0] == 403

    asyncio.run(session())
