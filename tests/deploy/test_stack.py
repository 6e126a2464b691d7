"""`docker compose up` as a user runs it, on a machine with a Docker engine: a project of its own, on ports of its own.

Nothing of a user's stack is touched: names, ports, volumes and the image's tag are this test's.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.brokers import free_port, has_image
from tests.deploy.files import ROOT, read_yaml
from tests.waiting import wait_until

COMPOSE = ROOT / "docker-compose.yml"
ALLOWED = ["--system", "lenses6", "--subject", "user:dana", "--action", "kafka:GetTopicDetails"]
RESOURCE = ["--resource", "kafka:topic:prod/main/orders"]
QUESTION = {
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
}
TOKEN = "local-development-only"
START_SECONDS = 600.0
MEMORY = "2g"  # what docs/pages/guides/deploy.md says that the job needs

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(1800)]


class Stack:
    """The stack of docker-compose.yml under another name, with other ports, and with bounded memory for the job."""

    def __init__(self, folder: Path) -> None:
        self.name = f"lockkeeper-test-{uuid.uuid4().hex[:8]}"
        services = read_yaml(COMPOSE)["services"]
        self._ports = {
            name: {int(port.split(":")[-1]): free_port() for port in service["ports"]}
            for name, service in services.items()
            if "ports" in service
        }
        self._override = folder / "override.yaml"
        self._override.write_text(self._overrides(services))

    def _overrides(self, services: dict[str, Any]) -> str:
        changed: dict[str, dict[str, Any]] = {name: {} for name in services}
        for name, service in services.items():
            if "build" in service:
                changed[name] |= {"image": self.name}
        advertised = f"INSIDE://kafka:19092,OUTSIDE://localhost:{self._ports['kafka'][9092]}"
        changed["kafka"]["environment"] = {"KAFKA_ADVERTISED_LISTENERS": advertised}
        changed["enforcer"] |= {"mem_limit": MEMORY, "memswap_limit": MEMORY}
        text: str = yaml.safe_dump({"services": changed})
        for name, ports in self._ports.items():  # `!override` replaces the list, to which Compose would add
            published = json.dumps([f"127.0.0.1:{host}:{inside}" for inside, host in ports.items()])
            head = f"  {name}:" + (" {}" if not changed[name] else "")
            text = text.replace(f"{head}\n", f"  {name}:\n    ports: !override {published}\n")
        return text

    def compose(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run docker compose; fails the test, showing what it printed, when that fails."""
        files = ["--file", str(COMPOSE), "--file", str(self._override), "--project-directory", str(ROOT)]
        command = ["docker", "compose", "--project-name", self.name, *files, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS * 2)
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def up(self, *services: str) -> None:
        """As the guide says; returns when every service is healthy or has ended well."""
        self.compose("up", "--detach", *services)
        wait_until(self.is_healthy, "the stack is healthy", START_SECONDS)

    def is_healthy(self) -> bool:
        listed = self.compose("ps", "--all", "--format", "json").stdout
        services = [json.loads(line) for line in listed.splitlines()]
        assert not [s for s in services if s["State"] == "exited" and s["ExitCode"] != 0], listed
        return all(s["State"] == "exited" or s["Health"] == "healthy" for s in services)

    def port(self, service: str, inside: int) -> int:
        return self._ports[service][inside]

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self.port('kafka', 9092)}"

    def lockkeeper(self, *arguments: str, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """The command on this machine, from the clone, with the file of settings that the services have."""
        settings = {"LOCKKEEPER_CONFIG": "deploy/lockkeeper.yaml", "LOCKKEEPER_BOOTSTRAP_SERVERS": self.bootstrap}
        command = [sys.executable, "-m", "streaming.cli", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=timeout
        )

    def decision(self) -> bool:
        """What the job decides for a request from this machine."""
        done = self.lockkeeper("request", *ALLOWED, *RESOURCE, "--json", "--timeout", "180")
        assert done.stdout, done.stderr
        return bool(json.loads(done.stdout)["decision"])

    def http_decision(self) -> bool:
        """What the server answers."""
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        address = f"http://localhost:{self.port('serve', 8080)}/lenses6/access/v1/evaluation"
        request = urllib.request.Request(address, json.dumps(QUESTION).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return bool(json.load(response)["decision"])

    def container(self, service: str) -> str:
        return self.compose("ps", "--all", "--quiet", service).stdout.strip()


def _inspect(container: str, path: str) -> str:
    return _docker("inspect", "--format", path, container).stdout.strip()


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=300)


def _why_not() -> str:
    """Why the stack cannot be started here; empty: it can."""
    try:
        if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0:
            return "no `docker compose` (v2) on this machine"
    except FileNotFoundError:
        return "no docker on this machine"
    services = read_yaml(COMPOSE)["services"].values()
    base = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").split("FROM ")[1].split()[0]
    missing = [image for image in (base, *(s["image"] for s in services if "build" not in s)) if not has_image(image)]
    return f"the engine has no image {missing[0]}, and cannot pull it" if missing else ""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The running stack; afterwards nothing is left of it."""
    if reason := _why_not():
        pytest.skip(reason)
    stack = Stack(tmp_path_factory.mktemp("stack"))
    volumes = _volumes()
    try:
        stack.compose("build", "enforcer")
        started = time.monotonic()
        stack.up()
        print(f"the stack is healthy after {time.monotonic() - started:.0f} s")
        yield stack
        stack.compose("down")
        left = _volumes() - volumes
        assert left == {f"{stack.name}_{name}" for name in read_yaml(COMPOSE)["volumes"]}, "anonymous volumes are left"
    finally:
        stack.compose("down", "--volumes", check=False)
        subprocess.run(["docker", "image", "rm", stack.name], capture_output=True)


def _volumes() -> set[str]:
    return set(_docker("volume", "ls", "--quiet").stdout.split())


def test_a_request_from_this_machine_one_from_a_container_and_one_over_http_are_allowed(stack: Stack) -> None:
    assert stack.decision() is True
    assert stack.http_decision() is True
    asked = stack.compose("exec", "--no-TTY", "serve", "lockkeeper", "request", *ALLOWED, *RESOURCE, "--json")
    assert json.loads(asked.stdout)["decision"] is True
    assert "ALLOW" in stack.compose("logs", "consumer").stdout


def test_prometheus_scrapes_the_job_and_the_server(stack: Stack) -> None:
    address = f"http://localhost:{stack.port('prometheus', 9090)}/api/v1/query?query=up"

    def scraped() -> dict[str, str]:
        with urllib.request.urlopen(address, timeout=30) as response:
            results = json.load(response)["data"]["result"]
        return {result["metric"]["job"]: result["value"][1] for result in results}

    wait_until(lambda: scraped() == {"lockkeeper": "1", "lockkeeper-serve": "1"}, "both are scraped", 60)


def test_starting_the_stack_again_does_not_undo_a_revocation(stack: Stack) -> None:
    documents = stack.lockkeeper("policy", "get", "lenses6").stdout
    keys = [f"lenses6/{d['kind']}/{d['name']}" for d in yaml.safe_load_all(documents) if d["kind"] == "Group"]
    assert keys
    assert stack.lockkeeper("policy", "delete", *keys).returncode == 0
    assert stack.decision() is False
    for services in (["serve"], []):
        stack.up(*services)
        assert stack.decision() is False
    wait_until(lambda: not stack.http_decision(), "the server has read the revocation")
    applied = stack.lockkeeper("policy", "apply", "deploy/policies")
    assert applied.returncode == 0, applied.stderr
    assert stack.decision() is True


def test_the_job_is_back_after_a_kill_and_takes_over_from_a_second_instance(stack: Stack) -> None:
    container = stack.container("enforcer")
    _kill_main_process(container)
    wait_until(lambda: int(_inspect(container, "{{.RestartCount}}")) > 0, "the job is restarted", 120)
    assert stack.decision() is True
    second = stack.compose("run", "--detach", "--no-deps", "--name", f"{stack.name}-second", "enforcer").stdout.strip()
    try:
        wait_until(
            lambda: not _is_running(second) or int(_inspect(container, "{{.RestartCount}}")) > 1, "one is fenced", 240
        )
    finally:
        subprocess.run(["docker", "rm", "--force", f"{stack.name}-second"], capture_output=True)
    assert stack.decision() is True


def _kill_main_process(container: str) -> None:
    """As the kernel does when memory is short: `docker kill` would count as a wish that it stays stopped."""
    pid = _inspect(container, "{{.State.Pid}}")
    os.kill(int(pid), 9)


def _is_running(container: str) -> bool:
    return _inspect(container, "{{.State.Running}}") == "true"


def test_the_job_ends_within_its_grace_period(stack: Stack) -> None:
    container = stack.container("enforcer")
    stack.compose("stop", "enforcer")
    assert _inspect(container, "{{.State.ExitCode}}") == "0"
    assert _inspect(container, "{{.State.OOMKilled}}") == "false"
    stack.up("enforcer")


def test_policies_and_decisions_are_there_after_down_and_up(stack: Stack) -> None:
    before = stack.lockkeeper("policy", "get").stdout
    stack.compose("down")
    stack.up()
    assert stack.lockkeeper("policy", "get").stdout == before
    assert stack.decision() is True


def test_a_user_id_that_the_platform_chose_runs_the_job(stack: Stack) -> None:
    """Java refuses an id without a name, and Hadoop ended the job with it."""
    environment = {"JOB_NAME": "other", "CHECKPOINT": "/tmp/checkpoint", "MONITOR_ENABLED": "false"}
    options = [option for name, value in environment.items() for option in ("--env", f"LOCKKEEPER_{name}={value}")]
    name = f"{stack.name}-other"
    stack.compose("run", "--detach", "--no-deps", "--user", "12345:0", *options, "--name", name, "enforcer")
    try:
        wait_until(lambda: _is_ready(name), "the job of another user is ready", 240)
        _docker("stop", "--time", "60", name)
        assert _inspect(name, "{{.State.ExitCode}}") == "0"
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True)


def _is_ready(container: str) -> bool:
    assert _is_running(container), _docker("logs", container).stderr
    return _inspect(container, "{{.State.Health.Status}}") == "healthy"


def test_a_checkpoint_that_cannot_be_written_is_named_with_its_path(stack: Stack) -> None:
    user = ["--user", "12345:54321", "--no-TTY"]
    refused = stack.compose("run", "--rm", "--no-deps", *user, "serve", "run", check=False)
    assert refused.returncode != 0
    assert "the checkpoint /var/lib/lockkeeper/checkpoint cannot be used" in refused.stdout + refused.stderr


def test_verify_finds_nothing_lost_doubled_or_unasked_on_this_machine(stack: Stack) -> None:
    shown = stack.lockkeeper("verify")
    assert shown.returncode == 0, shown.stdout + shown.stderr
