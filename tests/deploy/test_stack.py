"""`docker compose up` as a user runs it, on a machine with a Docker engine: a project of its own, on ports of its own.

Nothing of a user's stack is touched. With LOCKKEEPER_TEST_ROWS=FILE the faults add lines to FILE, as `make chaos` does.
"""

import json
import os
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.chaos.run import Run, evaluator, keep_row, new_row
from tests.deploy.files import ROOT, read_yaml
from tests.deploy.stack import ALLOWED, COMPOSE, RESOURCE, Stack, docker, inspect, why_not
from tests.waiting import wait_until

pytestmark = [pytest.mark.stream, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The running stack; afterwards nothing is left of it."""
    if reason := why_not():
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
    return set(docker("volume", "ls", "--quiet").stdout.split())


def test_a_request_from_this_machine_one_from_a_container_and_one_over_http_are_allowed(stack: Stack) -> None:
    assert stack.decision() is True
    assert stack.http_decision() is True
    asked = stack.compose("exec", "--no-TTY", "serve", "lockkeeper", "request", *ALLOWED, *RESOURCE, "--json")
    assert json.loads(asked.stdout)["decision"] is True
    assert "ALLOW" in stack.compose("logs", "consumer").stdout


def test_prometheus_scrapes_every_service_that_its_file_names(stack: Stack) -> None:
    configured = read_yaml(ROOT / "deploy" / "prometheus" / "prometheus.yml")["scrape_configs"]
    address = f"http://localhost:{stack.port('prometheus', 9090)}/api/v1/query?query=up"

    def scraped() -> dict[str, str]:
        with urllib.request.urlopen(address, timeout=30) as response:
            results = json.load(response)["data"]["result"]
        return {result["metric"]["job"]: result["value"][1] for result in results}

    wait_until(lambda: scraped() == {each["job_name"]: "1" for each in configured}, "all are scraped", 60)


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
    wait_until(lambda: int(inspect(container, "{{.RestartCount}}")) > 0, "the job is restarted", 120)
    assert stack.decision() is True
    second = stack.compose("run", "--detach", "--no-deps", "--name", f"{stack.name}-second", "enforcer").stdout.strip()
    try:
        wait_until(
            lambda: not _is_running(second) or int(inspect(container, "{{.RestartCount}}")) > 1, "one is fenced", 240
        )
    finally:
        subprocess.run(["docker", "rm", "--force", f"{stack.name}-second"], capture_output=True)
    assert stack.decision() is True


def _kill_main_process(container: str) -> None:
    """As the kernel does when memory is short: `docker kill` would count as a wish that it stays stopped."""
    pid = inspect(container, "{{.State.Pid}}")
    os.kill(int(pid), 9)


def _is_running(container: str) -> bool:
    return inspect(container, "{{.State.Running}}") == "true"


def test_the_job_ends_within_its_grace_period(stack: Stack) -> None:
    container = stack.container("enforcer")
    stack.compose("stop", "enforcer")
    assert inspect(container, "{{.State.ExitCode}}") == "0"
    assert inspect(container, "{{.State.OOMKilled}}") == "false"
    stack.up("enforcer")


def test_policies_and_decisions_are_there_after_down_and_up(stack: Stack) -> None:
    before = stack.lockkeeper("policy", "get")
    assert (before.returncode, before.stdout != "") == (0, True), before.stderr
    stack.compose("down")
    stack.up()
    after = stack.lockkeeper("policy", "get")
    assert (after.returncode, after.stdout) == (0, before.stdout), after.stderr
    assert stack.decision() is True


def test_a_user_id_that_the_platform_chose_runs_the_job(stack: Stack) -> None:
    """Java refuses an id without a name, and Hadoop ended the job with it."""
    environment = {"JOB_NAME": "other", "CHECKPOINT": "/tmp/checkpoint", "MONITOR_MODE": "none"}
    options = [option for name, value in environment.items() for option in ("--env", f"LOCKKEEPER_{name}={value}")]
    name = f"{stack.name}-other"
    stack.compose("run", "--detach", "--no-deps", "--user", "12345:0", *options, "--name", name, "enforcer")
    try:
        wait_until(lambda: _is_ready(name), "the job of another user is ready", 240)
        docker("stop", "--time", "60", name)
        assert inspect(name, "{{.State.ExitCode}}") == "0"
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True)


def _is_ready(container: str) -> bool:
    assert _is_running(container), docker("logs", container).stderr
    return inspect(container, "{{.State.Health.Status}}") == "healthy"


def test_a_checkpoint_that_cannot_be_written_is_named_with_its_path(stack: Stack) -> None:
    user = ["--user", "12345:54321", "--no-TTY"]
    refused = stack.compose("run", "--rm", "--no-deps", *user, "serve", "run", check=False)
    assert refused.returncode != 0
    assert "the checkpoint /var/lib/lockkeeper/checkpoint cannot be used" in refused.stdout + refused.stderr


def _restart_broker(stack: Stack) -> None:
    stack.compose("restart", "kafka")


def _start_second_instance(stack: Stack) -> None:
    """Two instances that are restarted fence each other for ever; this one is not."""
    name = f"{stack.name}-rival"
    stack.compose("run", "--detach", "--no-deps", "--name", name, "enforcer")
    try:
        wait_until(lambda: not _is_running(name), "the second instance is fenced by the first, restarted", 240)
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True)


FAULTS: dict[str, tuple[str, Callable[[Stack], None]]] = {
    "compose-job-killed": ("SIGKILL to the job", lambda stack: _kill_main_process(stack.container("enforcer"))),
    "compose-broker-killed": ("SIGKILL to the broker", lambda stack: _kill_main_process(stack.container("kafka"))),
    "compose-broker-restarted": ("`docker compose restart kafka`", _restart_broker),
    "compose-second-instance": ("a second instance, which the first fences after its restart", _start_second_instance),
}


@pytest.mark.parametrize("name", FAULTS)
def test_under_traffic_nothing_is_lost_doubled_or_wrong(stack: Stack, name: str) -> None:
    """Beside the traffic of the stack's own client."""
    fault, act = FAULTS[name]
    seed = secrets.randbits(32)

    def under_traffic(run: Run) -> None:
        run.begin()
        with run.fault():
            act(stack)
        run.pause(5, 10)

    row = evaluator(Run(stack.world, seed), under_traffic, new_row(name, f"compose: {fault}", seed, "compose"))
    keep_row(row)
    assert row.ok, row
    assert row.requests > 1000


def test_verify_finds_nothing_lost_doubled_or_unasked_on_this_machine(stack: Stack) -> None:
    shown = stack.lockkeeper("verify")
    assert shown.returncode == 0, shown.stdout + shown.stderr
