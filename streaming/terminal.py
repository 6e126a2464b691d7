"""What goes to a terminal or a log: nothing in it can rewrite what is shown, or pass for a line of its own.

Names, reasons and messages come from untrusted clients. The streams of every command are wrapped, so also what other
libraries print is escaped: their errors, tracebacks, logs. The escapes are those of JSON, so JSON stays what it says.
"""

import codecs
import contextlib
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode: C0, C1 and DEL; zero width and changes of direction; lone surrogates; line separators."""
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""Others that show nothing: https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point, and a blank Braille."""
_UNUSUAL = re.compile(r"[^\n\t -~]")  # all that may have to be escaped: few lines have any


def escape(text: str) -> str:
    """The text with what is invisible as `\\uXXXX`, a pair of these beyond U+FFFF; line breaks and tabs stay."""
    return _UNUSUAL.sub(_escaped, text)


def one_line(text: str) -> str:
    """The same as a single line: a name with a line break is no line of its own."""
    return escape(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    category = unicodedata.category(character)
    is_blank = category == "Zs" or _BLANK.match(character) is not None
    return _units(character) if category in _HIDDEN or is_blank else character


def _units(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


class _Escaping:
    """A stream of text that escapes what is written to it. All else is that of `raw`."""

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(escape(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw(stream: TextIO) -> TextIO:
    """The stream below, for what has colours: its texts must be escaped one by one."""
    return stream.raw if isinstance(stream, _Escaping) else stream


def _encode_escaped(error: UnicodeError) -> tuple[str, int]:
    """What the encoding of a stream does not have, as its escapes."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_units, error.object[error.start : error.end])), error.end


codecs.register_error("lockkeeper.escape", _encode_escaped)


@contextlib.contextmanager
def escaped_streams() -> Iterator[None]:
    """Standard output and standard error escape what is written to them, as long as the context."""
    before = sys.stdout, sys.stderr
    for stream in map(raw, before):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="lockkeeper.escape")
    sys.stdout, sys.stderr = (cast("TextIO", _Escaping(raw(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def open_missing_streams() -> None:
    """Have standard streams that are closed lead nowhere: else a file or a connection would get their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (to the end of the process)


def drop_output() -> None:
    """Have what is left for standard output lead nowhere: Python would fail to write it once more at its end."""
    with contextlib.suppress(OSError, ValueError):  # of a test it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), raw(sys.stdout).fileno())
