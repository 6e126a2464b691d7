"""Runs the commands of a page, as somebody would who follows it from top to bottom."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from streaming.cli import main
from tests.docs.pages import ROOT, Block, Command, fits

SECONDS = 120
LINKED = ("deploy", "docker-compose.yml", "Makefile")

ELSEWHERE = {
    r"docker ": "needs a Docker engine; tests/deploy looks at what it is given",
    r"kubectl ": "needs a cluster; tests/deploy builds and checks the resources",
    r"helm ": "needs a cluster and the platform's release",
    r"kafka-[a-z-]+\.sh ": "Kafka's own tools, which come with Kafka and not with lockkeeper",
    r"lockkeeper import kafka-acls": "needs ACLs; tests/cli/test_acls.py gives a broker some and reads them",
    r"make ": "run by .ci/run, which runs these tests",
    r"export PATH=": "the tests have the path",
    r"lockkeeper demo": "tests/demo runs it",
    r"lockkeeper replay": "needs Spark; tests/cli/test_replay.py runs it",
    r"lockkeeper policy review origin/": "needs a pull request; tests/cli/test_pull_requests.py runs it",
    r"lockkeeper (console|playground)": "they answer until they are ended; tests/console runs them, in a browser",
    r"lockkeeper access-changes": "it runs until it is ended; tests/access_changes runs it",
    r"lockkeeper verify": "tests/stream runs it, over all that a job's tests have sent",
    r"lockkeeper broker": "the tests have a broker that runs already; tests/cli starts one",
    r"curl .*localhost:9464/": "the port is the machine's; tests/observability asks what is behind it",
    r"lockkeeper checkpoint archive": "no job has left one; tests/cli/test_checkpoint_command.py runs it",
    r"mv checkpoint-monitor": "no job has left one; tests/stream/test_monitor.py moves it away",
    r"LOCKKEEPER_ACCEPTED_TOPIC_IDS=": "no topic is re-created here; tests/stream/test_topic_logs reads it",
}
"""What is not run here, by how it begins, and why not."""

JOB = "lockkeeper run "
SERVER, SERVED = "lockkeeper serve ", "localhost:8080"

NEEDS_BROKER = re.compile(
    r"lockkeeper (run|serve|request|tail|report|decisions|doctor|status|topics (create|check)"
    r"|policy (apply|get|delete|log|show|rollback|status|diff live|diff .*--newest))\b"
    r"|lockkeeper .* --(live|decision)\b"
    r"|python (ask|report_access|publish|follow)\.py"
    r"|curl .*localhost:8080/"
)

LEAVES_NOTHING = re.compile(r"lockkeeper (decide|explain|who-can|policy (lint|test))\b")
"""What no later command of a page can rest on."""

OF_A_SHELL = re.compile(r"[|&;<>()$`*?~{}\[\]#!\\\n]")
_started = set[tuple[str, ...]]()


def elsewhere(command: Command) -> bool:
    """Whether a command cannot run here."""
    return any(re.match(pattern, command.text) for pattern in ELSEWHERE)


def needs_broker(block: Block) -> bool:
    """Whether some command of a block asks Kafka."""
    return any(NEEDS_BROKER.match(command.text) and not elsewhere(command) for command in block.commands)


def leaves_nothing(command: Command) -> bool:
    """Whether a command only looks: once is enough, without a broker."""
    return LEAVES_NOTHING.match(command.text) is not None


def folder_for(path: Path) -> Path:
    """A folder like the project's, in which a page's files can be made."""
    path.mkdir()
    for name in LINKED:
        (path / name).symlink_to(ROOT / name)
    return path


def save(block: Block, folder: Path) -> None:
    """Save a block that has a title as the file it names."""
    if block.title:
        file = folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.body, encoding="utf-8")


def run(block: Block, command: Command, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command as a process; it must end and print as its page says."""
    _check(block, command, *_ended(command, folder, environment))


def run_or_call(block: Block, command: Command, folder: Path, environment: Mapping[str, str]) -> None:
    """The same, but each command of lockkeeper is a process once only: to start one takes longer than what it does."""
    words = shlex.split(command.text)
    name = tuple(words[1:3] if words[1:2] in (["policy"], ["topics"]) else words[1:2])
    here = words[:1] == ["lockkeeper"] and name in _started and not OF_A_SHELL.search(_unquoted(command.text))
    _started.add(name)
    ended = _called(words[1:], folder, environment) if here else _ended(command, folder, environment)
    _check(block, command, *ended)


def _unquoted(text: str) -> str:
    """What a shell reads as more than text: all but what stands in single quotes."""
    return re.sub(r"'[^']*'", "", text)


def _ended(command: Command, folder: Path, environment: Mapping[str, str]) -> tuple[int | str | None, str]:
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env={**environment, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"},  # as in a terminal: lines in their order
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def _called(words: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[int | str | None, str]:
    with (
        mock.patch.dict(os.environ, {**environment, "COLUMNS": "200"}, clear=True),
        contextlib.chdir(folder),
        open(os.devnull, encoding="utf-8") as nothing,
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) as printed,
        mock.patch.multiple(sys, stdin=nothing, stdout=printed, stderr=printed),
    ):
        try:
            main(words)
        except SystemExit as ended:
            return ended.code or 0, printed.buffer.getvalue().decode()


def _check(block: Block, command: Command, code: int | str | None, printed: str) -> None:
    assert code == command.code, f"{block}: {command.text}\nexit code {code}\n{printed}"
    if command.output is not None:  # what it waits for depends on the machine
        result = "".join(line for line in printed.splitlines(True) if not line.startswith("waiting for "))
        assert fits(command.output, result), f"{block}: {command.text}\nprinted\n{printed}"


def environment_of(**variables: str) -> dict[str, str]:
    """This process's environment, with the commands of its virtual environment and nothing set for lockkeeper."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("LOCKKEEPER_")}
    return {**own, "PATH": path, **variables}
