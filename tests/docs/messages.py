"""The messages in the code that end a command or a job, as templates in which `…` stands for what is filled in."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ANYTHING, ROOT

ENDING = frozenset(
    {
        "Failure",
        "SettingsError",
        "CannotStart",
        "OffsetsDisagree",
        "TopicChanged",
        "Fenced",
        "JobStopped",
        "JavaNotFoundError",
        "JarError",
        "BrokerError",
        "SparkStartError",
        "CheckpointInUse",
        "PublishFailed",
        "FilesRefused",
        "WorkersFailed",
    }
)
"""The errors that a user meets: their commands exit with 1 or 2, or their job ends or does not start."""

WORKBENCH = ("bench", "demo")
LEAST = 12  # letters of a template: less has only what another error says


def sources() -> Iterator[Path]:
    """The code that users run."""
    for package in ("policy", "streaming"):
        yield from (
            file for file in (ROOT / package).rglob("*.py") if not set(WORKBENCH) & set(file.relative_to(ROOT).parts)
        )


@functools.cache
def syntax_trees() -> tuple[ast.Module, ...]:
    """The code that users run, parsed."""
    return tuple(ast.parse(file.read_text(encoding="utf-8")) for file in sources())


@functools.cache
def raised() -> dict[str, str]:
    """Each template of an error in `ENDING`, with the name of its class."""
    found: dict[str, str] = {}
    for tree in syntax_trees():
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := _name(node.func)) in ENDING and node.args:
                details = [keyword.value for keyword in node.keywords if keyword.arg == "details"]
                text = "".join(template(part, constants) for part in (node.args[0], *node.args[2:], *details))
                if sum(map(str.isalpha, text)) >= LEAST:
                    found[text] = name
    return found


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def template(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """A text with `…` for what is filled in; nothing for what is no text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, constants) for part in node.values)
    if isinstance(node, ast.Name) and node.id in constants:
        return template(constants[node.id], {})
    if isinstance(node, ast.Call) and _name(node.func) == "join" and isinstance(node.args[0], ast.List):
        return "".join(template(part, constants) for part in node.args[0].elts)
    if isinstance(node, ast.List):
        return "".join(template(part, constants) for part in node.elts)
    return ANYTHING


def quotes(message: str, text: str) -> bool:
    """Whether a quoted message is part of a template: its pieces between `…` are there in their order."""
    place = 0
    for piece in message.split(ANYTHING):
        place = text.find(piece.strip(), place)
        if place < 0:
            return False
        place += len(piece.strip())
    return True
