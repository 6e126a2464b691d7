"""Spark's checkpoint as the job sees it: which query it belongs to, and which range each batch has.

Read by Spark's own classes, so that every file system works on which a checkpoint can be.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from streaming.commit.java_classes import java_classes
from streaming.errors import CannotStart
from streaming.kafka.clients import Partition, PartitionOffsets
from streaming.runtime.checkpoints import ARCHIVE

CLUSTER_FILE, LAG_FILE = "kafka-cluster", "lag-assumed-until"  # beside Spark's own files
LOCAL_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def is_local(location: str) -> bool:
    """Whether a checkpoint is on a local disk, where Spark's plainer file manager is several times faster."""
    return "://" not in location or location.startswith("file:")


def write_plainly(session: SparkSession, location: str) -> None:
    """Have the session write a checkpoint on a local disk as files alone.

    Hadoop's usual file system adds to each a file with its checksum, and starts a process for each of both to set its
    mode: twelve milliseconds of a small batch. Other sessions keep it, for some of Hadoop's parts insist on it.
    """
    if is_local(location):
        session.conf.set("fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
        session.conf.set("fs.file.impl.disable.cache", "true")  # all sessions share the cache


class Checkpoint:
    """The checkpoint at `location`, a path or URI; it may not exist yet.

    `plainly`: whether the session is set to write it plainly; Spark's state stores cannot be written so.
    """

    def __init__(self, spark: SparkSession, location: str, plainly: bool = True) -> None:
        if plainly:
            write_plainly(spark, location)
        self._jvm: Any = spark.sparkContext._jvm
        self._session: Any = spark._jsparkSession
        self._location = location
        self._offset_log: Any = None
        self._end_of = java_classes(spark).OffsetLog.end
        self._query_id: str | None = None
        self._newest: tuple[int | None, PartitionOffsets | None] = (
            None,
            None,
        )  # the last batch looked up, and where it ends

    def query_id(self) -> str | None:
        """The id of the query that the checkpoint belongs to, read once; None: there is no checkpoint yet."""
        if self._query_id is None:
            self._query_id = self._read_query_id()
        return self._query_id

    def _read_query_id(self) -> str | None:
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def check_cluster(self, cluster_id: str) -> None:
        """Raise CannotStart when the checkpoint belongs to another Kafka cluster than this one.

        One without a cluster id, as of lockkeeper 0.1.0, may belong to any.
        """
        other = self._cluster_id()
        if other not in (None, cluster_id):
            raise CannotStart(
                f"the checkpoint {self._location} belongs to another Kafka cluster: to the one with cluster id "
                f"{other}, and bootstrap_servers is the one with cluster id {cluster_id}, where its offsets mean other "
                "records. If this is the wrong cluster, correct bootstrap_servers. If the cluster was replaced, such "
                f"as by a broker started without its data, run `{ARCHIVE}` with the settings of the job: it moves the "
                "checkpoints of the job and of its monitor away, and the job starts from the offsets committed here"
            )

    def write_cluster(self, cluster_id: str) -> None:
        """Note to which Kafka cluster the checkpoint belongs, once it is known that it does."""
        if self._cluster_id() != cluster_id:
            self._write(CLUSTER_FILE, {"id": cluster_id})

    def _cluster_id(self) -> str | None:
        """None: it is not known, also where a job was killed while it wrote it."""
        with contextlib.suppress(ValueError, LookupError, TypeError):
            return str(json.loads(self._read(CLUSTER_FILE) or "")["id"])
        return None

    def lag_assumed_until(self) -> int:
        """Until when (ms) this checkpoint's monitor may not know of answered records that are left; -1: it does."""
        return int(json.loads(self._read(LAG_FILE) or "-1"))

    def write_lag_assumed_until(self, until: int) -> None:
        """Note that before the first batch: the state of the checkpoint before is lost, and a restart must know it."""
        self._write(LAG_FILE, until)

    def _write(self, name: str, value: Any) -> None:
        path, files = self._find(name)
        stream = files.create(path, True)
        try:
            stream.write(json.dumps(value).encode())
        finally:
            stream.close()

    def _read(self, name: str) -> str | None:
        """The text of a part of the checkpoint; None: it is not there."""
        path, files = self._find(name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def check_readable(self) -> None:
        """Raise CannotStart when Spark cannot read its own logs: a newer one wrote them, or they are damaged."""
        try:
            for log in (self._offsets(), self._commits()):
                log.getLatest()
        except Py4JJavaError as error:
            raise CannotStart(
                f"Spark cannot read the checkpoint {self._location}: {error.java_exception.getMessage()} If a newer "
                "lockkeeper wrote it, start that one. Else move the checkpoint away with "
                f"`{ARCHIVE} {self._location}`: the job will start from the committed offsets, where nothing is lost "
                "or decided twice"
            ) from error

    def clear_unfinished(self) -> None:
        """Remove what a job left that was killed while it wrote the range of its first batch.

        It is never read, but Spark starts no first batch while it exists.
        """
        folder, files = self._find("offsets")
        if self._offsets().getLatestBatchId().isDefined() or not files.exists(folder):
            return
        for path in [status.getPath() for status in files.listStatus(folder)]:
            if path.getName().startswith(".") and path.getName().endswith((".tmp", ".tmp.crc")):
                files.delete(path, False)

    def _find(self, name: str) -> tuple[Any, Any]:
        """The path of a part of the checkpoint, and the file system on which it is."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._location}/{name}")
        return path, path.getFileSystem(self._session.sessionState().newHadoopConf())

    def completed(self) -> int:
        """The newest batch in Spark's commit log; -1: no batch was completed from this checkpoint."""
        latest = self._commits().getLatestBatchId()
        return int(latest.get()) if latest.isDefined() else -1

    def proposed(self) -> int:
        """The newest batch in Spark's offset log, also where it is not completed; -1: there is none."""
        latest = self._offsets().getLatestBatchId()
        return int(latest.get()) if latest.isDefined() else -1

    def range_of(self, batch: int) -> tuple[PartitionOffsets, PartitionOffsets]:
        """Where a batch starts and ends, by partition; the first batch of a checkpoint has no start on record."""
        before, starts = self._newest
        if before != batch - 1:
            starts = self._ends(batch - 1)
        self._newest = batch, self._ends(batch)
        return starts or {}, self._newest[1] or {}

    def watermark_of(self, batch: int) -> int:
        """The watermark (ms) with which a batch of a stateful query runs."""
        return int(self._offsets().get(batch).get().metadataOpt().get().batchWatermarkMs())

    def _ends(self, batch: int) -> PartitionOffsets | None:
        text = self._end_of(self._offsets(), batch)
        return None if text is None else parse_offsets(text or "{}")

    def _offsets(self) -> Any:
        if self._offset_log is None:
            self._offset_log = self._classes().OffsetSeqLog(self._session, f"{self._location}/offsets", True)
        return self._offset_log

    def _commits(self) -> Any:
        return self._classes().CommitLog(self._session, f"{self._location}/commits", True)

    def _classes(self) -> Any:
        return self._jvm.org.apache.spark.sql.execution.streaming.checkpointing


def parse_offsets(text: str) -> PartitionOffsets:
    """Spark's form of Kafka offsets, `{"topic": {"0": 17}}`, by partition."""
    return {
        (topic, int(number)): int(offset)
        for topic, partitions in json.loads(text).items()
        for number, offset in partitions.items()
    }


def format_offsets(offsets: Mapping[Partition, int]) -> str:
    """The reverse of `parse_offsets`, for `startingOffsets`."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        nested.setdefault(topic, {})[str(number)] = offset
    return json.dumps(nested)
