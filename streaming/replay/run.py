"""A replay on Spark: what is read, how it is divided into tasks, and how far it is."""

import contextlib
import functools
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pickle import PickleError
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from policy import CLAIMS
from streaming.commit.evaluation import worker_output_filtered
from streaming.enforcer.source import check_security_protocols, read_range, rows_for_workers, session_settings
from streaming.errors import JobStopped
from streaming.history.ranges import Range, Topics
from streaming.history.span import Span
from streaming.kafka.clients import Partition, topic_ids
from streaming.kafka.permissions import explain_missing, principal_of_java, topic_permissions
from streaming.records.formats import Formats
from streaming.records.registry import Registry, RegistryRefused
from streaming.replay.comparison import Sides
from streaming.replay.evaluating import COLUMN, EVER, Replayer, Task
from streaming.replay.result import Totals
from streaming.runtime.executors import await_executors
from streaming.runtime.spark import start_session
from streaming.runtime.spark_errors import without_stack
from streaming.settings import Settings

RECORDS_OF_A_TASK = 25_000  # a second or so: progress is known when a task ends
MOST_TASKS = 2000
FILE_BYTES_OF_A_TASK = 8 << 20
POLL_SECONDS = 0.2
SCHEMA = StructType([StructField(COLUMN, BinaryType())])
PARQUET = ".parquet"
IGNORED = ("_", ".")  # how the names of files and folders begin that Spark leaves out of a folder
GLOB = re.compile(r"[\[\]{}*?\\]")  # what Spark takes for a pattern of paths
NOT_AUTHORIZED = re.compile(r"TopicAuthorizationException: (?:Not authorized to access topics: \[([^\]]*)\])?")

_decode = msgspec.msgpack.Decoder(Totals).decode


class Progress(msgspec.Struct, frozen=True):
    """How far a replay is: ``done`` of ``tasks``, after so many seconds. ``records``: of all; None: not known."""

    done: int
    tasks: int
    seconds: float
    records: int | None

    @property
    def fraction(self) -> float:
        """Of the work that is done."""
        return self.done / self.tasks if self.tasks else 0.0

    @property
    def rate(self) -> float | None:
        """Records a second; None: not known."""
        return None if self.records is None or not self.seconds else self.records * self.fraction / self.seconds

    @property
    def seconds_left(self) -> float | None:
        """By the time that it took so far; None: not known yet."""
        return self.seconds * (1 - self.fraction) / self.fraction if self.fraction else None


OnProgress = Callable[[Progress], None]


class FromTopics(msgspec.Struct, frozen=True):
    """Requests of the request topics in these ranges, as far as their times are in the span."""

    ranges: Mapping[Partition, Range]
    span: Span

    @property
    def records(self) -> int:
        """How many offsets there are: markers of transactions count, too."""
        return sum(offsets.end - offsets.first for offsets in self.ranges.values())

    def trust(self, settings: Settings) -> dict[str, frozenset[str]]:
        """By topic."""
        return {topic: settings.trust_of(topic) for topic, _ in self.ranges}

    def read(self, spark: SparkSession, settings: Settings) -> DataFrame:
        """As the job reads ranges, several tasks for a partition."""
        starts = {partition: offsets.first for partition, offsets in self.ranges.items()}
        ends = {partition: offsets.end for partition, offsets in self.ranges.items()}
        tasks = max(len(ends), min(self.records // RECORDS_OF_A_TASK, MOST_TASKS))
        return rows_for_workers(spark, read_range(spark, settings, starts, ends, tasks))


class FromFiles(msgspec.Struct, frozen=True):
    """Requests of files or folders: JSON lines, or Parquet with a column `value` or with the fields of a request."""

    paths: tuple[str, ...]
    records: None = None
    span: Span = EVER

    def trust(self, settings: Settings) -> dict[str, frozenset[str]]:
        """Of all files: whoever names them trusts them."""
        return {"": CLAIMS}

    def read(self, spark: SparkSession, settings: Settings) -> DataFrame:
        """One column with a request in JSON."""
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(FILE_BYTES_OF_A_TASK))
        return functools.reduce(lambda one, other: one.union(other), (_read_file(spark, path) for path in self.paths))


def _read_file(spark: SparkSession, path: str) -> DataFrame:
    """A file, or all of a folder: by default Spark leaves out the folders in it, without a word."""
    reader, literal = spark.read.option("recursiveFileLookup", True), GLOB.sub(r"\\\g<0>", path)
    if not (path.endswith(PARQUET) or any(file.suffix == PARQUET for file in files_of(Path(path)))):
        return reader.text(literal).selectExpr("CAST(value AS BINARY) AS value")
    rows = reader.parquet(literal)
    request = "value" if "value" in rows.columns else "to_json(struct(*))"
    return rows.selectExpr(f"CAST({request} AS BINARY) AS value")


def files_of(folder: Path) -> Iterator[Path]:
    """Those that Spark reads."""
    for file in folder.rglob("*"):
        if file.is_file() and not any(name.startswith(IGNORED) for name in file.relative_to(folder).parts):
            yield file


Source = FromTopics | FromFiles


def from_topics(settings: Settings, admin: AdminClient, span: Span) -> FromTopics:
    """What the request topics hold of a time range. Raises KafkaException and TimeoutError."""
    ranges = Topics(settings, admin).ranges(settings.topics.requests, span)
    filled = {partition: offsets for partition, offsets in ranges.items() if offsets.end > offsets.first}
    return FromTopics(filled, span)


def replay(
    settings: Settings,
    admin: AdminClient | None,
    sides: Sides,
    source: Source,
    systems: Sequence[str] = (),
    on_progress: OnProgress = lambda _: None,
) -> Totals:
    """Decide the requests again. Raises SettingsError, JobStopped, RuntimeSetupError, KafkaException, TimeoutError."""
    trust = source.trust(settings)
    ids = topic_ids(admin, trust) if admin is not None and isinstance(source, FromTopics) else {}
    wanted = frozenset(map(msgspec.json.encode, systems))
    task = Task(uuid.uuid4().hex, trust, ids, wanted, time.time_ns() // 1_000_000, settings.limits, span=source.span)
    if isinstance(source, FromTopics) and not source.ranges:
        return Totals()
    with _session(settings) as spark, spark_errors_as_job_stopped(settings, sorted(trust)):
        if isinstance(source, FromTopics):
            check_security_protocols(settings, spark)
        broadcast = spark.sparkContext.broadcast(sides)

        def run(task: Task) -> Totals:
            worker = Replayer(task, broadcast, isinstance(source, FromTopics))
            rows = source.read(spark, settings).mapInArrow(worker, SCHEMA)
            return _collect(spark, rows, source.records, on_progress)

        totals = run(task)
        formats = Formats(registry=True)
        while settings.schema_registry.url and totals.schemas:
            formats = with_schemas(settings, formats, totals.schemas)
            totals = run(msgspec.structs.replace(task, schemas=formats))
        return totals


def with_schemas(settings: Settings, formats: Formats, ids: Iterable[int]) -> Formats:
    """With what the registry says of schemas that are needed. Raises RegistryDown.

    Any client may name a schema that is not there: the job made a dead letter of its record, which is not readable.
    """
    known, unusable = dict(formats.known), dict(formats.unusable)
    with contextlib.closing(Registry(settings.schema_registry)) as registry:
        for id_ in ids:
            try:
                known[id_] = registry.schema(id_)
            except RegistryRefused as refusal:
                unusable[id_] = str(refusal)
    return msgspec.structs.replace(formats, known=known, unusable=unusable)


@contextlib.contextmanager
def spark_errors_as_job_stopped(settings: Settings, topics: Sequence[str]) -> Iterator[None]:
    """Raise JobStopped in place of what Spark raises."""
    try:
        yield
    except (Py4JJavaError, PySparkException, PickleError) as error:  # by a broadcast that a disk has no room for
        raise JobStopped(
            f"the requests could not be decided again: {failure_text(str(error), settings, topics)}"
        ) from error


def failure_text(text: str, settings: Settings, topics: Sequence[str]) -> str:
    """What Spark's error says. Its readers have a login of their own: the missing permissions are those of that one.

    `topics`: that are read; Java's client names none where it may not describe one.
    """
    if (denied := NOT_AUTHORIZED.search(text)) is not None:
        principal, named = principal_of_java(settings.source, settings.kafka), denied[1]
        missing = topic_permissions("Read", named.split(", ") if named else topics)
        return explain_missing(principal, settings.bootstrap_servers, missing)
    task = text.partition("Lost task")[2].partition(": ")[2]
    return without_stack(task or text)


@contextlib.contextmanager
def _session(settings: Settings) -> Iterator[SparkSession]:
    spark = start_session(f"{settings.job_name}-replay", session_settings(settings), settings.master)
    with contextlib.ExitStack() as stack:
        stack.callback(spark.stop)
        stack.enter_context(worker_output_filtered(spark))
        await_executors(spark, threading.Event())
        yield spark


def _collect(spark: SparkSession, rows: DataFrame, records: int | None, on_progress: OnProgress) -> Totals:
    """Run the tasks, and watch them meanwhile. `records`: see `Progress`."""
    began, totals = time.monotonic(), Totals()
    with ThreadPoolExecutor(1) as pool:
        collected = pool.submit(rows.collect)
        while not collected.done():
            on_progress(_progress(spark, records, began))
            with contextlib.suppress(TimeoutError):
                collected.exception(POLL_SECONDS)
        for row in collected.result():
            totals.add(_decode(bytes(row[0])))
    on_progress(Progress(1, 1, time.monotonic() - began, totals.records))
    return totals


def _progress(spark: SparkSession, records: int | None, began: float) -> Progress:
    tracker: Any = spark.sparkContext.statusTracker()
    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_)) is not None]
    done, tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return Progress(done, tasks, time.monotonic() - began, records)
