"""The folder for temporary files of Spark's JVM and the sockets of its Python workers: one for each process.

Nobody else may look into it (mode 0700). It is locked while the process lives: what a killed one left is removed by the
next start.
"""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "lockkeeper-job-"
_SHORT = "/tmp"
_LONGEST = 60
"""Of a folder for sockets, in bytes: with a socket's name of 42 below the 104 that macOS allows."""


@functools.cache
def job_folder() -> Path:
    """The folder of this process, which is removed when the process ends."""
    folder = make_folder(_temporary_folder())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def make_folder(parent: Path) -> Path:
    """A new folder, locked until this process ends, once those of dead processes of this user are removed."""
    for left in parent.glob(f"{PREFIX}*"):
        _remove_if_left(left)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # stays open
        with contextlib.suppress(OSError):  # another start may have removed it just before it was locked
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), folder.stat()):
                return folder
        os.close(lock)


def _temporary_folder() -> Path:
    usual = tempfile.gettempdir()
    return Path(usual if len(os.fsencode(usual)) + len(PREFIX) + 9 <= _LONGEST else _SHORT)


def _remove_if_left(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # of another user, no folder, or gone
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(opened).st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its process lives
        pass
    finally:
        os.close(opened)
