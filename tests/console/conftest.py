"""A browser for the pages, and a server that it asks."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, sync_playwright
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from streaming.console import background, changes, comparisons, live, resources, sandbox
from streaming.console.live import console
from streaming.console.server import playground, serve
from streaming.serve.server import bind
from streaming.settings import SchemaRegistry, TracingSettings
from streaming.settings.console import ConsoleSettings, OidcSettings, ProxySettings
from tests.brokers import TestBroker
from tests.console.decided import SECRET, client_of, client_of_viewer, decided_world
from tests.report.browser import find_browser
from tests.stream.world import World
from tests.waiting import wait_until

PROGRAM = find_browser()
# A busy machine is no large cluster: pages are whole at once, and what they show is not cut by time.
background.WAIT_SECONDS = resources.SECONDS = changes.REQUEST_SECONDS = comparisons.REQUEST_SECONDS = 30.0
sandbox.SECONDS = sandbox.WAIT_SECONDS = live.COMPARISON_SECONDS = 60.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or the one that LOCKKEEPER_TEST_BROWSER names.

    Of one file's tests: until it ends, Playwright's event loop runs in this thread, where others have theirs.
    """
    if PROGRAM is None:
        pytest.skip("no Chromium here: install one, or name it in LOCKKEEPER_TEST_BROWSER")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield found
        found.close()


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """An application at an address of this machine."""
    stop, ready = threading.Event(), threading.Event()
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=serve, args=(app, bound, stop, ready.set))
        thread.start()
        port = bound.getsockname()[1]
        try:
            wait_until(lambda: _answers(port), "the server answers")
            yield f"http://localhost:{port}"
        finally:  # else the thread outlives a test that fails, and the process all tests
            stop.set()
            thread.join()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The playground alone."""
    with playground() as app, served(app) as found:
        yield f"{found}/playground"


@pytest.fixture(scope="session")
def world(broker: TestBroker, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Decisions of a real job; afterwards the deny is lifted, so that today's answer is another one."""
    return decided_world(broker, (tmp_path_factory.mktemp("job") / "checkpoint").as_uri())


@pytest.fixture(scope="session")
def app(world: World) -> Iterator[ASGIApp]:
    """The console, with a secret in each setting that may hold one."""
    settings = msgspec.structs.replace(
        world.settings,
        kafka={"sasl.password": SECRET, "ssl.key.password": SECRET},
        source={"kafka.sasl.jaas.config": SECRET},
        spark={"spark.hadoop.fs.s3a.secret.key": SECRET},
        schema_registry=SchemaRegistry("http://localhost:1", "registry", SECRET),
        console=ConsoleSettings(oidc=OidcSettings(client_secret=SECRET)),
        tracing=TracingSettings(endpoint=f"http://user:{SECRET}@localhost:1/"),
    )
    with console(settings, threading.Event()) as found:
        client = client_of(found)
        wait_until(lambda: client.get("/access?subject=user:dana").status_code != 503, "the policies are read")
        yield found


@pytest.fixture(scope="session")
def client(app: ASGIApp) -> TestClient:
    return client_of(app)


@pytest.fixture(scope="session")
def site_address(app: ASGIApp) -> Iterator[str]:
    with served(app) as found:
        yield found


@pytest.fixture(scope="session")
def others(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ASGIApp]:
    """The console for a viewer who may see one system, of which nothing was decided, and for one who sees all."""
    access = tmp_path_factory.mktemp("access") / "viewers.yaml"
    access.write_text("viewers: {a: {systems: [streamsets], subjects: [carl]}, b: {systems: ['*'], subjects: [olga]}}")
    proxy = ProxySettings(addresses=("127.0.0.1",), header="X-User")
    chosen = ConsoleSettings(access=str(access), proxy=proxy, url="https://console.example.com")
    with console(msgspec.structs.replace(world.settings, console=chosen), threading.Event()) as found:
        olga = client_of_viewer(found, "olga")
        wait_until(lambda: olga.get("/access?subject=user:dana").status_code != 503, "the policies are read")
        yield found
