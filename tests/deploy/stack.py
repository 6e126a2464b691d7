"""The stack of docker-compose.yml as a project of its own, with names, ports, volumes and an image's tag of its own."""

import json
import os
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from streaming.settings import Settings, load_settings
from streaming.topics import TopicNames
from tests.brokers import free_port, has_image
from tests.deploy.files import ROOT, read_yaml
from tests.waiting import wait_until

COMPOSE = ROOT / "docker-compose.yml"
SETTINGS = "deploy/lockkeeper.yaml"
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


class StackWorld(NamedTuple):
    """What `tests.stream.world.World` has of topics that are there."""

    settings: Settings
    names: TopicNames
    admin: AdminClient
    producer: Producer


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
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, which goes on beside the test."""
        settings = {"LOCKKEEPER_CONFIG": SETTINGS, "LOCKKEEPER_BOOTSTRAP_SERVERS": self.bootstrap}
        command = [sys.executable, "-m", "streaming.cli", *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **settings}, **pipes)

    @property
    def settings(self) -> Settings:
        """What the services have, with the broker's address on this machine."""
        return load_settings(ROOT / SETTINGS, {"LOCKKEEPER_BOOTSTRAP_SERVERS": self.bootstrap})

    @property
    def world(self) -> "StackWorld":
        """The stack as scenarios of `make chaos` know it."""
        client: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "log_level": "2"}
        producer = Producer({**client, "linger.ms": "0"})
        return StackWorld(self.settings, self.settings.topics, AdminClient(client), producer)

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


def inspect(container: str, path: str) -> str:
    return docker("inspect", "--format", path, container).stdout.strip()


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=300)


def why_not() -> str:
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
