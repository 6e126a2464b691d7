"""What is said of Spark's errors: the cause and the fix, without stacks and plans."""

import errno
import pickle
from typing import Any

import pytest

from streaming.errors import JobStopped
from streaming.runtime.spark import start_session
from streaming.runtime.spark_errors import (
    causes,
    disk_full,
    explained,
    is_concurrent_log_update,
    library_not_loaded,
    without_stack,
)
from streaming.settings import Settings
from tests.stream.world import SHORT_LIVED

FAILED = """org.apache.spark.SparkException: Python worker exited
 unexpectedly
\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:77)
\t... 13 more
Caused by: java.io.EOFException
"""
PLAN = """No space left on device
=== Streaming Query ===
Identifier: lockkeeper
Logical Plan:
"""


def test_a_message_ends_where_its_stack_or_its_plan_begins() -> None:
    assert without_stack(FAILED) == "org.apache.spark.SparkException: Python worker exited unexpectedly"
    assert without_stack(PLAN) == "No space left on device"
    assert len(without_stack("x" * 10_000)) == 1000


def test_a_full_disk_is_reported_with_the_folder_and_the_fix() -> None:
    """Of a quota and a limit of the process, too."""
    settings = Settings(checkpoint="/no/such/folder")
    for text in ("No space left on device", "Disk quota exceeded", "File too large"):
        message = disk_full(["StreamingQueryException: failed", f"java.io.IOException: {text}"], settings)
        assert message is not None
        assert message.startswith(f"the disk of /no/such/folder is full: java.io.IOException: {text}. Free space there")
        assert "nothing is lost" in message
    assert disk_full(["java.io.IOException: Connection refused"], settings) is None


def test_a_full_disk_of_another_machine_is_not_said_to_be_one_of_the_driver() -> None:
    """It named the checkpoint's, with the settings that move that."""
    settings = Settings(checkpoint="/no/such/folder", master="spark://spark:7077")
    message = disk_full(["java.io.IOException: No space left on device"], settings)
    assert message is not None
    assert message.startswith("the disk of an executor, or of the file system of /no/such/folder, is full: java.io.IO")
    assert "spark.local.dir" in message


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        pickle.PicklingError("Could not serialize broadcast: OSError: [Errno 28] No space left on device"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_disk_that_is_full_for_python_is_reported_like_one_that_is_full_for_java(error: Exception) -> None:
    """As for a snapshot that is sent to the workers: PySpark writes it to Spark's temporary folder."""
    full = r"the disk of .* is full: .*No space left on device.*variable TMPDIR"
    with pytest.raises(JobStopped, match=full), explained(Settings(checkpoint="/no/such/folder")):
        raise error
    with pytest.raises(OSError, match="denied"), explained(Settings()):
        raise PermissionError(errno.EACCES, "denied")


def test_a_library_that_java_may_not_load_is_reported_with_the_file_and_the_fix() -> None:
    """A hardened machine mounts /tmp noexec, and so does Docker's `--tmpfs`: RocksDB's library was not loaded."""
    file = "/tmp/lockkeeper-job-1/librocksdbjni.so"
    failed = f"java.lang.UnsatisfiedLinkError: {file}: {file}: failed to map segment from shared object"
    messages = [
        "SparkException: awaitResult",
        f"SparkException: Task 0 failed 8 times: Lost task 0.7 (driver): {failed}",
    ]
    message = library_not_loaded(messages)
    assert message is not None
    assert message.startswith(f"Java cannot load a library: {failed}. If its folder is mounted noexec")
    assert "TMPDIR" in message
    assert library_not_loaded(["java.io.IOException: Connection refused"]) is None


@pytest.mark.stream
def test_a_batch_that_another_query_has_proposed_is_told_by_each_of_sparks_errors() -> None:
    """Also one that was proposed between Spark's look at the log and its rename: a cause of another error."""
    spark = start_session("shared", SHORT_LIVED, "local[1]")
    try:
        jvm: Any = spark._jvm
        errors, path = jvm.org.apache.spark.sql.errors.QueryExecutionErrors, jvm.org.apache.hadoop.fs.Path("/offsets/7")
        renamed = errors.renamePathAsExistsPathError(path, path)
        raced = errors.multiStreamingQueriesUsingPathConcurrentlyError("/offsets", renamed)
        assert "FAILED_RENAME_PATH" not in raced.toString()
        assert is_concurrent_log_update(causes(raced))
        assert is_concurrent_log_update(causes(errors.concurrentStreamLogUpdate(7)))
        assert not is_concurrent_log_update(causes(jvm.java.lang.IllegalStateException("renamed")))
    finally:
        spark.stop()
