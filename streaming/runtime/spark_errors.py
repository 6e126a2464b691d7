"""What ended a query, a task or Java itself, in a few lines: Spark's own messages hold its plan and every stack."""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pickle import PickleError
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql.streaming.query import StreamingQuery

from streaming.errors import JobStopped
from streaming.runtime.checkpoints import checkpoints_of, local_path
from streaming.runtime.spark import java_has_ended, job_folder
from streaming.settings import Settings

DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
# Of Spark's conditions those of a batch that another query has proposed. The second one is but a cause, where the other
# wrote between Spark's look at its log and the rename (HDFSMetadataLog): that error names "multiple streaming queries".
CONCURRENT_LOG_UPDATE = ("CONCURRENT_STREAM_LOG_UPDATE", "FAILED_RENAME_PATH")
NOT_LOADED = "java.lang.UnsatisfiedLinkError: "
FULL_BELOW = 1 << 20  # bytes that are free
TASK_FAILED = re.compile(r"Task (\d+) in stage \S+ failed (\d+) times")
STACK = re.compile(r"\s*(at |\.\.\. \d+ more|Driver stacktrace:|=== Streaming Query ===)")
SHOWN_CHARACTERS = 1000
NOTHING_LOST = "What was decided is committed in Kafka, and nothing is lost: started again, the job goes on from there"


def causes(exception: Any) -> Iterator[str]:
    """The messages of Java's exception and of what caused it, each in a line, without stacks and plans."""
    seen = None
    while exception is not None:
        message = without_stack(str(exception.toString()))
        if seen is None or message not in seen:
            yield message
        seen, exception = message, exception.getCause()


def without_stack(text: str) -> str:
    """The lines before the first of a stack or a plan, as one."""
    lines = []
    for line in text.splitlines():
        if STACK.match(line):
            break
        lines.append(line.strip())
    return " ".join(filter(None, lines))[:SHOWN_CHARACTERS]


def failure_messages(query: StreamingQuery) -> list[str]:
    """The messages of what a query ended by, from the outermost to its first cause."""
    exception = query._jsq.exception()
    return list(causes(exception.get())) if exception.isDefined() else ["Spark gives no reason"]


def is_concurrent_log_update(messages: Iterable[str]) -> bool:
    """Whether a query with these messages ended because another one wrote to its checkpoint."""
    return any(condition in message for message in messages for condition in CONCURRENT_LOG_UPDATE)


def why_ended(query: StreamingQuery, settings: Settings) -> str:
    """Why a query ended by itself, and what fixes it."""
    messages = failure_messages(query)
    return machine_error(messages, settings) or f"the query ended: {messages[-1]}. {NOTHING_LOST}"


def machine_error(messages: Iterable[str], settings: Settings) -> str | None:
    """What to say when one of these messages is of the machine, and how to fix it; None: none of them is."""
    texts = list(messages)
    return disk_full(texts, settings) or library_not_loaded(texts)


def library_not_loaded(messages: Iterable[str]) -> str | None:
    """What to say when one of these messages is that Java may not load a library; None: none of them is."""
    for text in messages:
        _, error, file = text.partition(NOT_LOADED)
        if error:
            return (
                f"Java cannot load a library: {error}{file}. If its folder is mounted noexec, as /tmp often is, set "
                "the variable TMPDIR to another folder, and start the job again"
            )
    return None


def disk_full(messages: Iterable[str], settings: Settings) -> str | None:
    """What to say when one of these messages is that a disk is full; None: none of them is."""
    matching = [text for text in messages if any(words in text for words in DISK_FULL)]
    if not matching:
        return None
    locations = [*checkpoints_of(settings), str(job_folder())]
    full = [location for location in locations if _is_full(location)]
    if not full and not settings.master.startswith("local"):
        return (
            f"the disk of an executor, or of the file system of {locations[0]}, is full: {matching[-1]}. Free space "
            "there, or give executors another folder by spark.local.dir (with YARN and Kubernetes, by their own "
            f"settings), and start the job again. {NOTHING_LOST}"
        )
    return (
        f"the disk of {' and '.join(full or locations[:1])} is full: {matching[-1]}. Free space there, or move it to "
        "another disk (by the settings `checkpoint` and `monitor.checkpoint`, or the variable TMPDIR for Spark's "
        f"temporary files), and start the job again. {NOTHING_LOST}"
    )


def _is_full(location: str) -> bool:
    folder = local_path(location)
    with contextlib.suppress(OSError):
        if folder is not None:
            status = os.statvfs(folder)
            return status.f_bavail * status.f_frsize < FULL_BELOW
    return False


NAMED_PARTITIONS = 8
Starts = Sequence[tuple[tuple[str, int], int | None]]
"""Partitions, and from which offset each is to be decided; None: nothing of it is committed."""


def task_failure(error: Exception, starts: Sequence[Starts]) -> JobStopped | None:
    """What to raise in place of an error of Spark's: a task failed as often as it is tried; None: it is another error.

    `starts`: of each task, in order, the input partitions whose records it had to evaluate, and from which offsets. The
    message names some of them.
    """
    failed = TASK_FAILED.search(str(error))
    if failed is None:
        return None
    text = str(error)[failed.start() :]
    cause = without_stack(text.partition("Lost task")[2].partition(": ")[2] or text).partition(". Consider setting")[0]
    return JobStopped(
        f"a task failed {failed[2]} times, over {_records(starts, int(failed[1]))}: {cause}. If a Python worker was "
        "killed, it may have lacked memory: give it more, or set `max_records` lower. If it fails again over the same "
        "records, one of them may be the cause: report it"
    )


def _records(starts: Sequence[Starts], task: int) -> str:
    """The records of a task, by partition and offset."""
    if task >= len(starts):
        return f"the records of its partition {task}"
    named = [f"{topic}-{number} from offset {start or 0}" for (topic, number), start in starts[task][:NAMED_PARTITIONS]]
    left = len(starts[task]) - len(named)
    return f"the records of {', '.join(named)}{f' and of {left} more partitions' if left else ''}"


@contextlib.contextmanager
def explained(settings: Settings) -> Iterator[None]:
    """Raise JobStopped in place of what Java raises when it ends, or when the machine is the cause."""
    try:
        yield
    except (OSError, Py4JError, PickleError) as error:
        if isinstance(error, Py4JJavaError):
            messages = [*causes(error.java_exception)]
        elif isinstance(error, Py4JError | ConnectionError) and java_has_ended():
            raise JobStopped(
                f"Spark's Java has ended ({error or type(error).__name__}). If it was killed, it may have lacked "
                f"memory: set spark.driver.memory, or the container's, higher. {NOTHING_LOST}"
            ) from error
        else:
            messages = [str(error)]  # PySpark writes broadcasts to files, and so names a full disk
        message = machine_error(messages, settings)
        if message is None:
            raise
        raise JobStopped(message) from error
