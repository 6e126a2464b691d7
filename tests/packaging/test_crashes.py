"""`make test` runs what failed again: a test whose process ended belongs to it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENDS_ITS_PROCESS_ONCE = """
import os, pathlib

def test_first():
    pass

def test_ends_its_process():
    done = pathlib.Path(__file__).with_name("done")
    if not done.exists():
        done.touch()
        os._exit(9)
"""


def _pytest(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    plugins = ("-p", "tests.crashes", "-p", "no:schemathesis")  # the latter takes seconds to import
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(folder), "-c", os.devnull]
    return subprocess.run([*command, *options, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_its_process_ended_at_is_run_again_though_another_process_passed_it(tmp_path: Path) -> None:
    (tmp_path / "test_ending.py").write_text(ENDS_ITS_PROCESS_ONCE)
    cache = ("-o", f"cache_dir={tmp_path / 'cache'}")
    first = _pytest(tmp_path, *cache, "-n1", "--dist", "loadfile")
    assert first.returncode == 1
    assert "crashed while running" in first.stdout
    again = _pytest(tmp_path, *cache, "-n0", "--last-failed", "--last-failed-no-failures", "none")
    assert again.returncode == 0, again.stdout
    assert "1 passed in" in again.stdout
