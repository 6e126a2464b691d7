"""`make soak MINUTES=30`: a policy change each second under load, and what the job takes of the machine meanwhile.

    python -m tests.chaos.soak --minutes N [--output FILE]

A line of JSON every ten seconds (`Sample`), and a last one with what `verify` found. Exit code 1 when a check failed or
something grew that is not `KNOWN` to: when its last quarter is larger than the one before by more than a tenth.
"""

import argparse
import csv
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tests.chaos.processes import Job
from tests.chaos.run import Cluster, Row, Run, evaluator, new_row, write_line

EVERY_SECONDS = 10.0
GROWTH = 1.1
MIB = 1 << 20
FEW_MIB = 5.0  # by so much a measure may differ whatever it is, where `SLACK` has no other number
KNOWN = {"descriptors": "Spark 4.2.0 leaves one open for each task of the monitor (SPARK-58932)"}
SLACK = {"files": 20.0, "descriptors": 20.0, "blocks": 1.0, "checkpoint": 1.0, "monitor": 1.0}
JOB_FOLDER = re.compile(r"-Djava\.io\.tmpdir=(\S+?)[\"\s]")


class Sample(msgspec.Struct):
    """What the job takes. Sizes in MiB; `heap` and `blocks` (broadcasts among them) by Spark's own metrics.

    `files`: temporary ones of Spark. `monitor`: the monitor's checkpoint.
    """

    seconds: float
    changes: int
    requests: int
    driver: float
    java: float
    heap: float
    workers: float
    blocks: float
    checkpoint: float
    monitor: float
    descriptors: int
    files: int


MEASURES = tuple(Sample.__struct_fields__[3:])


def main(arguments: list[str]) -> int:
    """Run, and print samples; returns the exit code."""
    parser = argparse.ArgumentParser("soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--output", type=Path, help="write the lines to this file, too")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="lockkeeper-soak-"))
    samples: list[Sample] = []
    try:
        row = _soak(folder, options.minutes, samples, options.output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    grown = {name: f"{name} grew from {before:.1f} to {after:.1f}" for name, before, after in growing(samples)}
    for name, text in grown.items():
        print(f"{text}; known: {KNOWN[name]}" if name in KNOWN else text, file=sys.stderr)
    return 0 if row.ok and grown.keys() <= KNOWN.keys() else 1


def _soak(folder: Path, minutes: float, samples: list[Sample], output: Path | None) -> Row:
    metrics = folder / "metrics"
    metrics.mkdir()
    cluster = Cluster(folder, spark=_metrics_to(metrics))
    try:
        run = Run(cluster.world, 0, cluster)
        run.sample = 0.1

        def soak(run: Run) -> None:
            run.begin()
            for sample in _samples(run, metrics, 60 * minutes):
                samples.append(sample)
                write_line(sample, output)

        row = evaluator(run, soak, new_row("soak", f"a policy change each second for {minutes:g} minutes", 0))
        write_line(row, output)
        return row
    finally:
        cluster.close()


def _metrics_to(folder: Path) -> dict[str, str]:
    """Settings that let Spark write its metrics to files, and delete what it no longer needs soon enough to be seen."""
    sink = "spark.metrics.conf.*.sink.csv"
    return {
        f"{sink}.class": "org.apache.spark.metrics.sink.CsvSink",
        f"{sink}.period": "5",
        f"{sink}.unit": "seconds",
        f"{sink}.directory": str(folder),
        "spark.metrics.conf.driver.source.jvm.class": "org.apache.spark.metrics.source.JvmSource",
        # Spark deletes blocks and files once the heap is collected; by default it asks for that every half an hour.
        "spark.cleaner.periodicGC.interval": "1min",
    }


def _samples(run: Run, metrics: Path, seconds: float) -> Iterator[Sample]:
    begun = time.monotonic()
    for number in range(int(seconds / EVERY_SECONDS)):
        time.sleep(max(0.0, begun + (number + 1) * EVERY_SECONDS - time.monotonic()))
        yield sample(run, metrics, time.monotonic() - begun)


def sample(run: Run, metrics: Path, seconds: float) -> Sample:
    """What the job takes now."""
    job, sent, checkpoint = run.job, run.traffic.sent, run.settings.checkpoint
    return Sample(
        round(seconds, 1),
        sent.changes,
        sent.requests,
        driver=_memory({job.pid}),
        java=_memory(job.java()),
        heap=_metric(metrics, "jvm.heap.used") / MIB,
        workers=_memory(job.workers()),
        blocks=_metric(metrics, "BlockManager.memory.memUsed_MB"),
        checkpoint=_size(Path(checkpoint)),
        monitor=_size(Path(f"{checkpoint}-monitor")),
        descriptors=sum(_descriptors(pid) for pid in job.everything()),
        files=sum(1 for folder in _job_folders(job) for _ in _files(folder)),
    )


def growing(samples: list[Sample]) -> Iterator[tuple[str, float, float]]:
    """Measures whose last quarter is larger than the one before, with the medians of both.

    In the first half Java compiles, and checkpoints fill up; the monitor remembers a quarter of an hour.
    """
    quarter = len(samples) // 4
    if not quarter:
        return
    for name in MEASURES:
        values = [float(getattr(sample, name)) for sample in samples]
        before, after = statistics.median(values[-2 * quarter : -quarter]), statistics.median(values[-quarter:])
        if after > before * GROWTH + SLACK.get(name, FEW_MIB):
            yield name, before, after


def _memory(pids: Iterable[int]) -> float:
    """The proportional set size of processes, MiB: what forked workers share is counted once."""
    found = 0
    for pid in pids:
        for line in _lines(Path(f"/proc/{pid}/smaps_rollup")):
            if line.startswith("Pss:"):
                found += int(line.split()[1])
    return round(found / 1024, 1)


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it has ended
        return 0


def _job_folders(job: Job) -> Iterator[Path]:
    for pid in job.java():
        command = " ".join(_lines(Path(f"/proc/{pid}/cmdline"))).replace("\0", " ")
        if found := JOB_FOLDER.search(command):
            yield Path(found[1])


def _files(folder: Path) -> Iterator[Path]:
    for above, _, names in os.walk(folder):
        yield from (Path(above, name) for name in names)


def _size(folder: Path) -> float:
    found = 0
    for file in _files(folder):
        try:
            found += file.stat().st_size
        except FileNotFoundError:  # Spark has just deleted it
            continue
    return round(found / MIB, 3)


def _metric(folder: Path, name: str) -> float:
    """The last value of a metric; 0 before there is one."""
    for file in folder.glob(f"*.driver.{name}.csv"):
        rows = list(csv.reader(_lines(file)))
        if len(rows) > 1 and len(rows[-1]) == 2:
            return round(float(rows[-1][1]), 1)
    return 0.0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:  # the process has ended
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
