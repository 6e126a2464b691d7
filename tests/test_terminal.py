"""What is printed shows what it says: no character rewrites a line, none is invisible, and JSON stays what it was."""

import io
import json
import sys
import unicodedata

import pytest

from streaming.cli.output import echo, echo_err, echo_json
from streaming.terminal import escape, escaped_streams, one_line

BLOCKS = (
    range(0x3200),
    range(0xD7F0, 0xE010),
    range(0xFE00, 0x10010),
    range(0x1F600, 0x1F610),
    range(0xE0000, 0xE0200),
)
EVERY = [chr(code) for block in BLOCKS for code in block]  # those with hidden characters in them
SHOWN = {"L", "M", "N", "P", "S"}  # the first letters of the categories of what can be seen


def test_what_is_printed_is_ascii_or_can_be_seen() -> None:
    for character in EVERY:
        shown = escape(character)
        if shown == character:
            assert character in " \n\t" or unicodedata.category(character)[0] in SHOWN, hex(ord(character))
        else:
            assert json.loads(f'"{shown}"') == character, "an escape is JSON's"


@pytest.mark.parametrize(
    "hidden",
    [
        *"\x00\x07\x08\r\x1b\x7f\x85\x9b\u034f\u061c\u115f\u200b\u200d\u200e\u2028\u2029",
        *"\u202e\u2066\u2069\u3164\ufe0f\ufeff\ud800\udfff\U000e0001\U000e0101\xa0\xad",
    ],
)
def test_hidden_characters_are_escaped(hidden: str) -> None:
    assert one_line(f"a{hidden}b").isprintable()
    assert one_line(f"a{hidden}b").isascii()


def test_letters_of_all_scripts_stay() -> None:
    text = "Grüße, 漢字, שלום, ελληνικά, é, 😀, …, ✔, −"
    assert one_line(text) == text


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    echo("ann\nuser:eve  ALLOW\t\r")
    echo_err("ann\nlockkeeper: all is well")
    shown = capsys.readouterr()
    assert shown.out == "ann\\nuser:eve  ALLOW\\t\\u000d\n"
    assert shown.err == "ann\\nlockkeeper: all is well\n"


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(EVERY)  # two halves of a pair beside each other are one character in JSON
    echo_json({text: text})
    [line] = capsys.readouterr().out.split("\n")[:-1]
    assert json.loads(line) == {text: text}
    assert not any(one_line(character) != character for character in set(line))


def test_streams_escape_what_others_print(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    with escaped_streams():
        print("a\x9b\u202e", "\x1b[2J", sep="\n")
        sys.stdout.writelines(["b\x7f\n"])
    assert written.getvalue() == "a\\u009b\\u202e\n\\u001b[2J\nb\\u007f\n"
    assert sys.stdout is written
