"""SIGTERM to a command: one of them stops it in order, another one later ends it at once."""

import signal
import subprocess
import sys

START = """
import os, signal, threading, time
from streaming.cli.signals import stop_on_signals
with stop_on_signals() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    stop.wait(30)
"""
AGAIN = "    os.kill(os.getpid(), signal.SIGTERM)\n    print('again', flush=True)\n"
UNTIL_IT_ENDS = """
    for _ in range(600):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.05)
"""


def _run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_a_signal_to_a_whole_group_is_one() -> None:
    """systemd sends it to all processes; below spark-submit Java passes its own on, too."""
    done = _run(START + AGAIN + "print('stopped in order')\n")
    assert (done.returncode, done.stdout) == (0, "again\nstopped in order\n"), done.stderr


def test_one_that_comes_later_ends_the_process_at_once() -> None:
    done = _run(START + UNTIL_IT_ENDS + "print('stopped in order')\n")
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, ""), done.stderr
