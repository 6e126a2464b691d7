"""The documentation's pages as tests see them: fenced blocks, and the commands in them."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "pages"
SHELL = frozenset({"bash", "console"})
PROMPT, ANYTHING, FAILS = "$ ", "…", "# exit code 1"

_FENCE = re.compile(r"^(?P<indent> *)```(?P<head>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Command:
    """A command as its page has it. `output`: what must come, None: anything. `code`: what it must end with."""

    text: str
    code: int
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `title`: the file it is to be saved as, or empty."""

    page: Path
    line: int
    language: str
    title: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(PAGES)}:{self.line}"

    @property
    def commands(self) -> list[Command]:
        """The commands of a block for a shell, in order."""
        if self.language == "console":
            return list(_with_output(self.body))
        return [_command(text) for text in _logical_lines(self.body)] if self.language in SHELL else []


def pages() -> list[Path]:
    """Every page that is written by hand."""
    return sorted(PAGES.rglob("*.md"))


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        language, _, attributes = found["head"].strip().partition(" ")
        title = _TITLE.search(attributes)
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, language, title[1] if title else "", textwrap.dedent(found["body"]))


def _logical_lines(body: str) -> list[str]:
    """Lines with those that a backslash goes on in; without empty ones and comments."""
    joined = re.sub(r" *\\\n\s*", " ", body)
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _command(line: str, output: str | None = None) -> Command:
    text = line.removesuffix(FAILS).rstrip()
    return Command(text, int(line.endswith(FAILS)), output)


def _with_output(body: str) -> Iterator[Command]:
    joined = re.sub(r" *\\\n\s*", " ", body)
    for part in re.split(rf"^{re.escape(PROMPT)}", joined, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield _command(line, output.strip())


def fits(expected: str, found: str) -> bool:
    """Whether an output is as a page shows it, where `…` stands for anything."""
    pattern = ".*".join(map(re.escape, expected.split(ANYTHING)))
    return re.fullmatch(pattern, found.strip(), re.DOTALL) is not None
