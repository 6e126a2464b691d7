"""The command as a whole: help with examples, plain errors, exit codes, a quick start."""

import subprocess
import sys
import time

import pytest

from streaming.cli import register_commands
from streaming.cli.app import app, policy_app, topics_app
from tests.cli.lockkeeper import Command, shorten_cluster_timeout

UNREACHABLE = "127.0.0.1:1"
COMMANDS = [
    ["run"],
    ["monitor"],
    ["decide"],
    ["explain"],
    ["who-can"],
    ["what-can"],
    ["request"],
    ["tail"],
    ["topics", "create"],
    ["topics", "check"],
    ["topics", "manifest"],
    ["contracts"],
    ["policy", "apply"],
    ["policy", "get"],
    ["policy", "delete"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_commands_help_shows_examples(lockkeeper: Command, command: list[str]) -> None:
    shown = lockkeeper(*command, "--help")
    assert shown.code == 0
    assert "Example" in shown.out
    assert f"lockkeeper {' '.join(command)}" in shown.out


def test_the_commands_above_are_all_there_are_but_those_of_other_modules() -> None:
    """A new command in these modules must come with examples too."""
    register_commands()
    here = {
        f"streaming.cli.{name}" for name in ("run", "deciding", "explaining", "request", "topics", "policies", "who")
    }
    groups = {"": app, "topics": topics_app, "policy": policy_app}
    found = {
        tuple(filter(None, (group, command.name)))
        for group, typer_app in groups.items()
        for command in typer_app.registered_commands
        if command.callback is not None and command.callback.__module__ in here
    }
    assert found == {tuple(command) for command in COMMANDS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["polcy"], "Did you mean 'policy'?"),
        (["decide"], "Missing option '--policies'"),
        (["topics", "create", "--partitions", "none"], "Invalid value for '--partitions'"),
        (["tail", "denials"], "'decisions'"),
        (["request", "--timeout", "inf"], "Invalid value for '--timeout'"),
        (["topics", "create", "--wait", "inf"], "Invalid value for '--wait'"),
        (["demo", "--seconds", "inf"], "Invalid value for '--seconds'"),
        (["verify", "--send", "--seconds", "inf"], "Invalid value for '--seconds'"),
    ],
)
def test_wrong_usage_is_reported_with_exit_code_2(lockkeeper: Command, arguments: list[str], message: str) -> None:
    shown = lockkeeper(*arguments)
    assert shown.code == 2
    assert message in shown.err
    assert "Usage: lockkeeper" in shown.err


def test_what_lacks_names_no_option_that_the_command_does_not_have(lockkeeper: Command) -> None:
    """`request` and `explain` take a request by --file; these two do not."""
    assert lockkeeper("who-can").err == "lockkeeper: --system, --action, --resource: required; give a value for each\n"
    assert lockkeeper("what-can").err == "lockkeeper: --system, --subject: required; give a value for each\n"


def test_a_wrong_setting_is_reported_with_its_place_and_exit_code_2(lockkeeper: Command, tmp_path: object) -> None:
    file = f"{tmp_path}/lockkeeper.yaml"
    with open(file, "w", encoding="utf-8") as out:
        out.write("bootstrap_server: localhost:9092\n")
    shown = lockkeeper("topics", "check", "--config", file)
    assert shown.code == 2
    assert file in shown.err
    assert "bootstrap_server" in shown.err


def test_a_broker_that_does_not_answer_is_reported_within_seconds(lockkeeper: Command) -> None:
    began = time.monotonic()
    shown = lockkeeper("topics", "create", "--bootstrap", UNREACHABLE, "--wait", "3")
    assert time.monotonic() - began < 50, "Kafka's clients would wait for a minute"
    assert shown.code == 1
    assert f"waiting for Kafka at {UNREACHABLE}, up to 3 s" in shown.err
    assert f"no Kafka at {UNREACHABLE}" in shown.err
    assert "--bootstrap HOST:PORT" in shown.err


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["topics", "check"],
        ["policy", "get"],
        ["policy", "delete", "lenses6/Role/r"],
        [
            "request",
            "--system",
            "lenses6",
            "--subject",
            "user:a",
            "--action",
            "a:b",
            "--resource",
            "c:d",
            "--allow-unknown",
        ],
        ["tail", "alerts"],
    ],
    ids=" ".join,
)
def test_every_command_asks_for_the_broker_before_it_waits_for_more(
    lockkeeper: Command, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_cluster_timeout(monkeypatch)
    shown = lockkeeper(*command, "--bootstrap", UNREACHABLE)
    assert shown.code == 1
    assert f"no Kafka at {UNREACHABLE}" in shown.err


def test_help_loads_neither_kafka_nor_spark() -> None:
    """It must be there at once; what is imported tells without a clock."""
    program = (
        "import sys\n"
        "from streaming.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        "    print(sorted({'confluent_kafka', 'pyspark', 'rich', 'policy'} & sys.modules.keys()))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[]"


def test_output_without_a_terminal_is_plain_text(lockkeeper: Command) -> None:
    shown = lockkeeper("--help")
    assert shown.out.isascii()
    assert "\x1b" not in shown.out
