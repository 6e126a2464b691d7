"""Records given to Java's table of known answers as a task does, with a worker for the others; without Kafka."""

import itertools
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from policy import Snapshot
from policy.evaluation import Lookup
from streaming.commit.java_classes import PACKAGE, SOURCES, compile_java, java_classes
from streaming.enforcer.evaluator import EvaluationContext, Evaluator, Source
from streaming.enforcer.known_task import Versions, encode_task
from streaming.enforcer.ranges import Budget
from streaming.enforcer.source import Records
from streaming.enforcer.worker import Outputs, Task
from streaming.records.formats import JSON, Formats, Header
from streaming.records.packing import DECISIONS, Outgoing
from streaming.settings import DEFAULT_TRUST, Limits
from streaming.snapshots.broadcasts import Facts
from tests.stream.arrow import AT

TOPIC, PLACE = "requests", 0
LINE = f"{TOPIC}\t{PLACE}\t"  # before the committed offset
TRIAL = Path(__file__).parent / "KnownTrial.java"
POLICY_OFFSETS = {"policies": {"0": 41}}
ENOUGH = Budget(2**60, 3.0)

_instances = itertools.count()


def mutant_source(file: str, right: str, wrong: str) -> str:
    """The source of a class with something in it replaced, which has to stand there once."""
    (text,) = (source.read_text() for source in SOURCES if source.name == file)
    assert text.count(right) == 1, f"{right!r} in {file}"
    return text.replace(right, wrong)


def compile_mutant(spark: SparkSession, package: str, folder: Path, file: str, right: str, wrong: str) -> None:
    """Compile the classes as another package, with something in a file replaced."""
    sources = []
    for source in (*SOURCES, TRIAL):
        text = mutant_source(file, right, wrong) if source.name == file else source.read_text()
        sources.append(folder / source.name)
        sources[-1].write_text(text.replace(f"package {PACKAGE};", f"package {package};"))
    gateway: Any = spark.sparkContext._gateway
    compile_java(gateway, tuple(sources))


class Made(NamedTuple):
    """What Java made of a record: its decision; or what it does not know of it (9: not handed over)."""

    missing: int | None
    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[Header] | None = None


class Table:
    """The tables of one instance of a job, by trust, in Spark's Java. `package`: of its classes."""

    def __init__(self, spark: SparkSession, package: str = PACKAGE) -> None:
        gateway: Any = spark.sparkContext._gateway
        if package == PACKAGE:
            java_classes(spark)
            compile_java(gateway, (TRIAL,))
        self._java = getattr(gateway.jvm, package).KnownTrial
        self._instance, self._versions = f"trial {next(_instances)}", Versions()

    def follow(self, snapshot: Snapshot, changed: Iterable[tuple[str, Lookup]] = ()) -> None:
        """As the driver does before a batch."""
        self._versions.follow(snapshot, changed)

    def task(self, **more: Any) -> bytes:
        """What tasks of a batch by the versions of now get."""
        encoded = encode_task(task_of(**more), "v", self._versions, [(TOPIC, PLACE)])
        assert encoded is not None
        return encoded

    def decide(
        self, batch: pa.RecordBatch, task: bytes, committed: int = -1, newer: bytes = b""
    ) -> tuple[list[Made], Any]:
        """What Java makes of records with the offsets from 0 on; and the side output, if any.

        ``newer``: a task that begins before the first of them.
        """
        pairs = zip(batch.column("value").to_pylist(), batch.column("beside").to_pylist(), strict=True)
        rows = b"".join(_text(text) for pair in pairs for text in pair)
        line, texts = f"{LINE}{committed}", map(bytearray, (rows, newer))
        return _read(self._java.decide(self._instance, bytearray(task), line, *texts), batch.num_rows)

    def failures(self) -> int:
        """How often Java has failed, which costs time alone."""
        return int(self._java.failures())

    def learn(self, lessons: bytes, task: bytes, newer: bytes = b"") -> None:
        """Teach it. ``newer``: a task that has begun meanwhile."""
        if lessons:
            self._java.learn(self._instance, bytearray(task), f"{LINE}-1", *map(bytearray, (lessons, newer)))


def task_of(
    trust: frozenset[str] = DEFAULT_TRUST,
    now: int = AT,
    limits: Limits | None = None,
    budget: Budget = ENOUGH,
    **more: Any,
) -> Task:
    """A task of a batch that has records of one partition."""
    return Task(
        **{
            "topics": ("decisions", "verdicts", "dead"),
            "committed": {},
            "budgets": {(TOPIC, PLACE): budget},
            "topic_ids": {TOPIC: "topic-id"},
            "trust": {TOPIC: trust},
            "outputs": {TOPIC: Outputs(2)},
            "read": {},
            "policy_offsets": POLICY_OFFSETS,
            "facts_offset": 7,
            "snapshots": ((0, None, 0),),
            "facts": Facts(0, (), 0, ()),
            "now": now,
            "limits": limits or Limits(),
            "formats": Formats(),
            "enforced": True,
            **more,
        }
    )


def source_of(trust: frozenset[str] = DEFAULT_TRUST) -> Source:
    """Of the same partition."""
    return Source(TOPIC, PLACE, "topic-id", trust, 2)


def context_of(now: int = AT) -> EvaluationContext:
    """Of the same batch."""
    return EvaluationContext("v", POLICY_OFFSETS, 7, {}, now)


def teach(evaluator: Evaluator, batch: pa.RecordBatch, made: Sequence[Made], source: Source, now: int = AT) -> bytes:
    """The lessons of a worker that decides what Java does not know."""
    partition = evaluator.for_partition(source, context_of(now))
    records = Records(batch)
    records.missing = records.missing.copy()
    records.missing[:] = [one.missing or 0 for one in made]
    partition.decide_all(records)
    return partition.lessons.encode()


def _text(text: bytes | None) -> bytes:
    return struct.pack(">i", -1) if text is None else struct.pack(">i", len(text)) + text


def _read(found: bytes, count: int) -> tuple[list[Made], Any]:
    made, place = list[Made](), 0

    def text() -> bytes | None:
        nonlocal place
        (size,) = struct.unpack_from(">i", found, place)
        place += 4 + max(size, 0)
        return None if size < 0 else found[place - size : place]

    def headers() -> list[Header]:
        nonlocal place
        (number,) = struct.unpack_from(">i", found, place)
        place += 4
        return [((text() or b"").decode(), text() or b"") for _ in range(number)]

    for _ in range(count):
        missing = found[place]
        place += 1
        made.append(Made(None, text(), text(), headers()) if missing == 255 else Made(missing))
    side = text()
    return made, msgspec.json.decode(side) if side else None


def same(made: Made, careful: Outgoing) -> bool:
    """Whether Java has made of a record what a worker that keeps nothing makes of it."""
    number, key, value, headers = careful
    return (number, key, value, list(headers or [JSON])) == (DECISIONS, made.key, made.value, made.headers)
