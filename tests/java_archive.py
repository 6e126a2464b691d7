"""CDS archives of Spark's and Kafka's Java classes, with which jobs and brokers of tests start in half the time.

They are made once for a virtual environment, and lie there; a Java that they do not fit starts without them, and one
where there are none with its own.
"""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyspark
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from streaming.broker import JVM_OPTIONS, QUICK_START, EmbeddedBroker
from streaming.commit.java_classes import java_classes
from streaming.commit.java_clients import producer_settings, properties
from streaming.runtime import spark as started
from streaming.runtime.jars import classpath
from streaming.runtime.java import find_java, java_home
from streaming.runtime.spark import start_session
from streaming.settings import Settings
from tests.processes import processes_naming
from tests.waiting import wait_until

SECONDS = 240.0
JAVAS_OWN = "lib/server/classes.jsa"  # which ours is made on top of
# A Java that compiles less starts sooner.
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def cds_archive(program: str) -> Path:
    """Where the archive for `spark` or `kafka` is, or would be."""
    jars = (*classpath("spark"), *classpath("broker"))
    made_of = "\n".join(map(str, (find_java(), pyspark.__version__, *jars, Path(__file__).read_text())))
    return Path(sys.prefix) / f"{program}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jsa"


def java_options() -> str:
    """Of a job's Java that lives for one test."""
    return f"-XX:+UseSerialGC {spark_submit_options()}"


def spark_submit_options() -> str:
    """SPARK_SUBMIT_OPTS for jobs that commands start: these choose a garbage collector themselves."""
    return " ".join(("-XX:TieredStopAtLevel=1", *_archive_option("spark")))


def broker_java_options() -> tuple[str, ...]:
    """Of the Java of a broker that lives for one test."""
    return (*JVM_OPTIONS, *QUICK_START, *_archive_option("kafka"))


def _archive_option(program: str) -> tuple[str, ...]:
    """Nothing where there is none: Java would do without its own archive too, and load each of its classes again."""
    return (f"-XX:SharedArchiveFile={cds_archive(program)}",) if cds_archive(program).exists() else ()


def embedded_broker(**arguments: Any) -> EmbeddedBroker:
    """A broker that lives for one test; `arguments` as of EmbeddedBroker."""
    return EmbeddedBroker(jvm_options=broker_java_options(), **arguments)


def dump_cds_archives() -> None:
    """Write the archives where there are none; who comes meanwhile waits for them.

    Where that fails, or Java cannot, tests take longer: Java starts without an archive that is not there.
    """
    if not (java_home(find_java()) / JAVAS_OWN).exists():
        return
    with cds_archive("spark").with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cds_archive("spark").exists():
            command = (sys.executable, "-m", __name__)
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(command, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _run_spark(unfinished: Path, bootstrap_servers: str) -> None:
    """Run what jobs run, so that Java meets their classes; at its end it writes them down."""
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
    sender = java_classes(spark).Sender(properties(jvm, producer_settings(jvm, settings)))
    sender.producer().close()
    spark.stop()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    [java] = (gateway.process for gateway in started._gateways)
    assert java.stdin is not None
    java.stdin.close()
    java.wait(SECONDS)


def _use_broker(bootstrap_servers: str) -> None:
    """Create a topic, write to it in a transaction and read it in a group."""
    client = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
    admin = AdminClient(dict(client))
    admin.create_topics([NewTopic("archive")])["archive"].result(SECONDS)
    producer = Producer({**client, "transactional.id": "archive"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("archive", b"a record")
    producer.commit_transaction(SECONDS)
    consumer = Consumer({**client, "group.id": "archive", "auto.offset.reset": "earliest"})
    consumer.subscribe(["archive"])
    assert consumer.poll(SECONDS) is not None
    consumer.close()


def main() -> None:
    """Write both archives: Spark reads from the broker of which Kafka's is made."""
    unfinished = {program: cds_archive(program).with_suffix(f".{os.getpid()}") for program in ("kafka", "spark")}
    option = f"-XX:ArchiveClassesAtExit={unfinished['kafka']}"
    with (
        tempfile.TemporaryDirectory(prefix="lockkeeper-archive-") as folder,
        EmbeddedBroker(jvm_options=(*JVM_OPTIONS, *QUICK_START, option), data_dir=Path(folder)) as broker,
    ):
        _use_broker(broker.bootstrap_servers)
        _run_spark(unfinished["spark"], broker.bootstrap_servers)
        for line in processes_naming(f"{broker.folder}/server.properties"):
            os.kill(int(line.split()[0]), signal.SIGTERM)
        wait_until(lambda: broker.ended, "the broker's end", SECONDS)
    for program, path in unfinished.items():
        path.rename(cds_archive(program))


if __name__ == "__main__":
    main()
