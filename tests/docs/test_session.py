"""The documentation's commands that ask Kafka, in one session: one broker, and the job that the tutorial starts."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from policy.systems import all_systems
from streaming.settings import variable
from tests.brokers import TestBroker, free_port
from tests.docs.pages import PAGES, Block, blocks, pages
from tests.docs.shell import (
    JOB,
    SERVED,
    SERVER,
    elsewhere,
    environment_of,
    folder_for,
    leaves_nothing,
    needs_broker,
    run,
    save,
)
from tests.endpoint import get
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(600)]

TUTORIAL = PAGES / "tutorial.md"
READY_SECONDS = 240.0
END_SECONDS = 60.0
PORT, SERVE_PORT = variable(("metrics", "port")), variable(("serve", "port"))


@pytest.fixture
def environment(broker: TestBroker, fresh_name: Callable[[str], str], tmp_path: Path) -> dict[str, str]:
    """The variables that name the broker, and topics and a job of this test alone."""
    prefix = fresh_name("docs")
    values: dict[tuple[str, ...], str] = {
        ("bootstrap_servers",): broker.bootstrap_servers,
        ("job_name",): prefix,
        ("checkpoint",): (tmp_path / "checkpoint").as_uri(),
        ("metrics", "port"): str(free_port()),
        ("systems",): json.dumps(sorted(all_systems())),
        ("serve", "port"): str(free_port()),
        ("topics", "requests"): json.dumps([f"{prefix}.requests"]),
        ("topics", "audit"): json.dumps([f"{prefix}.audit"]),
        ("topics", "policies"): json.dumps({system: f"{prefix}.policies.{system}" for system in all_systems()}),
        **{
            ("topics", name): f"{prefix}.{name}"
            for name in ("facts", "history", "decisions", "verdicts", "alerts", "changes", "access_changes")
        },
    }
    return environment_of(**{variable(path): value for path, value in values.items()})


def _is_ready(environment: dict[str, str]) -> bool:
    return get(environment[PORT], "/readyz")[0] == 200


@contextmanager
def _job(command: str, folder: Path, environment: dict[str, str], log: Path) -> Iterator[None]:
    """The job, as a page starts it, until SIGTERM; it must end well."""
    with log.open("wb") as output:
        job = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=output, stderr=output
        )
        try:
            wait_until(lambda: _is_ready(environment) or job.poll() is not None, "the job is ready", READY_SECONDS)
            assert job.poll() is None, f"the job ended by itself:\n{log.read_text()[-3000:]}"
            yield
            os.kill(job.pid, signal.SIGTERM)
            wait_until(lambda: job.poll() is not None, "the job has ended", END_SECONDS)
            assert job.returncode == 0, log.read_text()[-3000:]
        finally:
            job.kill()
            job.wait()


def _asking(page: Path) -> bool:
    return any(map(needs_broker, blocks(page)))


def test_the_commands_of_the_pages_give_the_output_that_they_show(environment: dict[str, str], tmp_path: Path) -> None:
    """The tutorial first, as its topics and its job are the others' as well."""
    others = [page for page in pages() if page != TUTORIAL and _asking(page)]
    with ExitStack() as jobs:
        for number, page in enumerate([TUTORIAL, *others]):
            folder = folder_for(tmp_path / f"page-{number}")
            for block in blocks(page):
                save(block, folder)
                _follow(block, folder, environment, tmp_path / "job.log", jobs)


def _follow(block: Block, folder: Path, environment: dict[str, str], log: Path, jobs: ExitStack) -> None:
    for command in block.commands:
        if command.text.startswith(JOB):
            jobs.enter_context(_job(command.text, folder, environment, log))
        elif command.text.startswith(SERVER):
            own = {**environment, PORT: str(free_port())}
            jobs.enter_context(_job(command.text, folder, own, log.with_name("serve.log")))
        elif SERVED in command.text:
            asked = replace(command, text=command.text.replace(SERVED, f"localhost:{environment[SERVE_PORT]}"))
            run(block, asked, folder, environment)
        elif not elsewhere(command) and (needs_broker(block) or not leaves_nothing(command)):
            run(block, command, folder, environment)
