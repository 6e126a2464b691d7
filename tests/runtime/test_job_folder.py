"""Temporary files lie in a folder of the process; what a killed one left is removed, what lives is not."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streaming.runtime.spark import PREFIX, _temporary_folder, make_folder

MAKE = """
import sys
from pathlib import Path
from streaming.runtime.spark import make_folder
print(make_folder(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process, with its folder."""
    command = [sys.executable, "-c", MAKE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_what_a_killed_process_left_is_removed_by_the_next_start(
    other: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    process, folder = other
    (folder / "spark-x").mkdir()
    (folder / "spark-x" / "file").touch()
    mine = make_folder(tmp_path)
    assert folder.is_dir(), "its process lives"
    process.kill()
    process.wait(30)
    make_folder(tmp_path)
    assert not folder.exists()
    assert mine.is_dir()


def test_nobody_else_may_look_into_it(tmp_path: Path) -> None:
    assert make_folder(tmp_path).stat().st_mode & 0o777 == 0o700


def test_other_folders_files_and_links_stay(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(kept)
    make_folder(tmp_path)
    assert kept.is_dir()
    assert (tmp_path / f"{PREFIX}file").exists()
    assert (tmp_path / f"{PREFIX}link").is_symlink()


@pytest.mark.parametrize(("folder", "used"), [("/tmp/x", "/tmp/x"), ("/var/" + "x" * 50, "/tmp")])
def test_a_sockets_path_is_short_enough(monkeypatch: pytest.MonkeyPatch, folder: str, used: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", folder)
    assert _temporary_folder() == Path(used)
