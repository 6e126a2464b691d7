"""The checkpoints of a job as folders: locked while it runs, archived when it must start without them."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from streaming.errors import CannotStart
from streaming.settings import Settings, monitor_settings

ARCHIVE = "lockkeeper checkpoint archive"


class CheckpointInUse(Exception):
    """A job uses the checkpoint, or it is not known whether one does; the message names it."""


def checkpoints_of(settings: Settings) -> tuple[str, str]:
    """The checkpoints of the job and of its monitor: paths or URIs."""
    return settings.checkpoint, monitor_settings(settings).checkpoint


def local_path(location: str) -> Path | None:
    """The folder of a checkpoint; None for one on another file system. As Hadoop reads it: `%20` is no blank."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location)
    if scheme != "file":
        return None
    return Path("/" + rest.removeprefix("//").lstrip("/"))


@contextlib.contextmanager
def checkpoints_locked(settings: Settings) -> Iterator[None]:
    """Lock the checkpoints on local disks that a job uses while it runs; see `locked`."""
    with contextlib.ExitStack() as stack:
        for location in (settings.checkpoint,) if settings.monitor.mode == "separate" else checkpoints_of(settings):
            stack.enter_context(locked(location))
        yield


def locked(checkpoint: str) -> contextlib.AbstractContextManager[None]:
    """Lock a checkpoint while a job runs, if it is on a local disk.

    A second instance shares the lock, since it fences the first.

    Raises CannotStart where a folder cannot be made.
    """
    folder = local_path(checkpoint)
    return contextlib.nullcontext() if folder is None else _shared(folder)


@contextlib.contextmanager
def _shared(folder: Path) -> Iterator[None]:
    opened = _open_shared(folder)
    try:
        yield
    finally:
        os.close(opened)


def _open_shared(folder: Path) -> int:
    """The folder, opened and locked; made if need be, also when it is archived between the two."""
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise CannotStart(
                f"the checkpoint {folder.absolute()} cannot be used: {error.strerror}. Make it a folder that this user "
                "can write, or set `checkpoint` to another"
            ) from error
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(opened, fcntl.LOCK_SH)
            except OSError:  # a file system without locks: `archive` says then that it cannot know
                return opened
            if os.path.samestat(os.fstat(opened), folder.stat()):
                return opened
        os.close(opened)


def archive(folders: list[Path]) -> dict[Path, Path]:
    """Rename the folders that are there to NAME.archived-TIME, all or, where a job uses one of them, none.

    Raises CheckpointInUse, and OSError where one cannot be renamed.
    """
    there = [folder for folder in folders if folder.is_dir()]
    with contextlib.ExitStack() as stack:
        for folder in there:
            stack.enter_context(_exclusive(folder))
        return {folder: folder.rename(archived_name(str(folder))) for folder in there}


def archived_name(location: str) -> str:
    """Where a checkpoint is moved to now."""
    return f"{location.rstrip('/')}.archived-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise CheckpointInUse(f"a job uses the checkpoint {folder}. Stop it first") from None
    except OSError as error:
        os.close(opened)
        why = f"its file system has no locks ({error.strerror})"
        raise CheckpointInUse(f"whether a job uses the checkpoint {folder} cannot be known: {why}") from None
    try:
        yield
    finally:
        os.close(opened)
