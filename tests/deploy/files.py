"""What is deployed, read as plain data, and what of the code it is held against."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

from streaming.cli import register_commands
from streaming.cli.app import app
from streaming.topics import DEFAULT_SYSTEMS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is eight times as fast; manifests are built often
IN_IMAGE = "/opt/lockkeeper/"  # where the image has the project


def read_yaml(path: Path) -> Any:
    """The only document of a YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), LOADER)


def read_documents(path: Path) -> list[Any]:
    """All documents of a YAML file."""
    return list(yaml.load_all(path.read_text(encoding="utf-8"), LOADER))


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each in one line, without comments."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\s*\\\n\s*", " ", lines)
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def instruction(name: str) -> str:
    """What the last instruction of a name says."""
    return [rest for word, rest in instructions() if word == name][-1]


def in_exec_form(name: str) -> list[str]:
    """The parts of a command; fails when a shell would be between."""
    parts: list[str] = json.loads(instruction(name))
    return parts


def parse_command(arguments: Sequence[str]) -> str:
    """The name of the command that `lockkeeper ARGUMENTS` runs; raises a UsageError when it would not."""
    register_commands()
    command: Any = typer.main.get_command(app)
    rest, names = list(arguments), list[str]()
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(command.context_class(command), rest)
        names.append(name)
    command.make_context(names[-1], rest)
    return " ".join(names)


def documented_commands() -> dict[str, set[str]]:
    """The commands that each user can run, as the guide to access says, by the user."""
    guide = (ROOT / "docs" / "pages" / "guides" / "access.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(lockkeeper(?:-[\w<>-]+)?)` \| ([^|]+) \|", guide, re.MULTILINE)
    commands = {
        user.replace("<system>", system): {
            parse_command(command.split()) for command in re.findall(r"`lockkeeper ([^`]+)`", does)
        }
        for user, does in rows
        for system in DEFAULT_SYSTEMS
    }
    for user, does in rows:
        for other in re.findall(r"the commands of `([\w-]+)`", does):
            commands[user] |= commands[other]
    return commands
