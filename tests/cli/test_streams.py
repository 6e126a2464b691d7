"""Standard streams that are closed, full, or left by their reader: an exit code of the help's, and no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.documents import readers_folder, request
from tests.cli.lockkeeper import Command

ROOT = Path(__file__).parents[2]
LOCKKEEPER = f"{sys.executable} -m streaming.cli"
NAMED = "--system lenses6 --action kafka:GetTopicDetails --resource kafka:topic:prod/main/orders"


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of policies."""
    return readers_folder(tmp_path_factory.mktemp("policies") / "policies")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_an_encoding_lacks_is_escaped(policies: Path, encoding: str) -> None:
    """As JSON does, so that JSON stays what it says: also a character of two halves."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}

    def shown(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "streaming.cli", *arguments, "-p", str(policies), *NAMED.split()]
        ended = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment, cwd=ROOT)
        return ended.returncode, ended.stdout.decode(encoding), ended.stderr.decode(encoding)

    code, out, err = shown("explain", "--subject", "user:dana")
    assert (code, err) == (0, "")
    assert out.startswith("\\u2714 allow: user:dana ")
    assert "\\u2192 group:readers" in out
    code, out, err = shown("explain", "--subject", "user:漢\U0001f600", "--allow-unknown", "--json")
    assert json.loads(out)["text"].startswith("deny: user:漢\U0001f600 ")


def _shell(command: str) -> tuple[int, str]:
    """Exit code and standard error of a command in a shell that ends with the first one's code of a pipe."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    in_shell = ["bash", "-c", f"set -o pipefail; {command}"]
    ended = subprocess.run(
        in_shell, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=environment, cwd=ROOT
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("how", ["", "--json"])
def test_a_full_disk_is_an_error(policies: Path, how: str) -> None:
    code, err = _shell(f"{LOCKKEEPER} who-can -p {policies} {NAMED} {how} > /dev/full")
    assert (code, err) == (1, "lockkeeper: No space left on device\n")
    code, err = _shell(f"{LOCKKEEPER} explain -p {policies} {NAMED} --subject user:dana {how} > /dev/full")
    assert (code, err) == (1, "lockkeeper: No space left on device\n")


def test_a_reader_that_has_left_is_no_news(policies: Path) -> None:
    assert _shell(f"{LOCKKEEPER} who-can -p {policies} {NAMED} | true") == (1, "")
    many = f"yes '{json.dumps(request())}' | head -3000"
    assert _shell(f"{many} | {LOCKKEEPER} decide -p {policies} | head -1 > /dev/null") == (1, "")


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("<&-", 0)])
def test_a_closed_stream_holds_nothing(policies: Path, closed: str, code: int) -> None:
    assert _shell(f"{LOCKKEEPER} who-can -p {policies} {NAMED} {closed} > /dev/null")[0] == code
    assert _shell(f"{LOCKKEEPER} who-can -p {policies} {NAMED} {closed}") == (code, "")


def test_without_standard_input_there_are_no_requests(policies: Path) -> None:
    assert _shell(f"{LOCKKEEPER} decide -p {policies} <&-") == (0, "no requests in standard input\n")
    code, err = _shell(f"{LOCKKEEPER} explain -p {policies} --file - <&-")
    assert (code, err.startswith("lockkeeper: --file -: line 1: not JSON")) == (2, True)


def test_a_file_of_results_that_cannot_be_written_is_named(lockkeeper: Command, tmp_path: Path) -> None:
    cases = ROOT / "tests" / "cases" / "kafka-acls.yaml"
    missing = tmp_path / "missing" / "results.xml"
    failed = lockkeeper("policy", "test", str(cases), "--junit", str(missing), "--allow-unknown")
    assert (failed.code, failed.err.splitlines()[0]) == (
        1,
        f"lockkeeper: --junit {missing}: No such file or directory; name a file that can be written",
    )
