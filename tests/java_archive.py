"""An archive of Java's classes as Spark needs them, with which the jobs of tests start in half the time.

It is made once for a virtual environment, and lies there; a Java that it does not fit starts without it.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyspark

from streaming.commit.java_classes import java_classes
from streaming.commit.java_clients import producer_settings, properties
from streaming.runtime import spark as started
from streaming.runtime.jars import classpath
from streaming.runtime.java import find_java, java_home
from streaming.runtime.spark import start_session
from streaming.settings import Settings

SECONDS = 240.0
JAVAS_OWN = "lib/server/classes.jsa"  # which ours is made on top of
# A Java that compiles less starts sooner.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def archive() -> Path:
    """Where the archive is, or would be."""
    made_of = "\n".join(map(str, (find_java(), pyspark.__version__, *classpath("spark"), Path(__file__).read_text())))
    return Path(sys.prefix) / f"spark-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jsa"


def java_options() -> str:
    """Of a Java that lives for one test."""
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={archive()}"


def make_archive(bootstrap_servers: str) -> None:
    """Make the archive where there is none; who comes meanwhile waits for it. Some Javas cannot, and do without."""
    if not (java_home(find_java()) / JAVAS_OWN).exists():
        return
    with archive().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive().exists():
            command = (sys.executable, "-m", __name__, bootstrap_servers)
            subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main(bootstrap_servers: str) -> None:
    """Run what jobs run, so that Java meets their classes; at its end it writes them down."""
    unfinished = archive().with_suffix(f".{os.getpid()}")
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={unfinished}"
    spark = start_session("archive", {"spark.driver.extraJavaOptions": options})
    rates = spark.readStream.format("rate").option("rowsPerSecond", "100").load().select("value")
    query = rates.writeStream.foreachBatch(lambda rows, _: rows.mapInArrow(_same, "value long").toArrow()).start()
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    kafka.option("subscribePattern", "nothing-is-called-so.*").load().mapInArrow(_same, "value binary").toArrow()
    while query.lastProgress is None or query.lastProgress["batchId"] < 1:
        query.awaitTermination(0.1)
    query.stop()
    settings, jvm = Settings(job_name="archive", bootstrap_servers=bootstrap_servers), cast(Any, spark._jvm)
    java_classes(spark).Sender(properties(jvm, producer_settings(jvm, settings))).producer().close()
    spark.stop()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    [java] = (gateway.process for gateway in started._gateways)
    assert java.stdin is not None
    java.stdin.close()
    java.wait(SECONDS)
    unfinished.rename(archive())


if __name__ == "__main__":
    main(*sys.argv[1:])
