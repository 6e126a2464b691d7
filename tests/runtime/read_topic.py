"""A small Spark job run by test_spark.py: reads a topic through Python workers, prints what it saw, waits."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from streaming.runtime.spark import start_session


def _describe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a worker: each value with the worker's own interpreter and hash seed."""
    import os
    import sys

    for batch in batches:
        values = [value.decode() for value in batch.column("value").to_pylist()]
        rows = [json.dumps([value, sys.executable, os.environ["PYTHONHASHSEED"]]) for value in values]
        yield pa.RecordBatch.from_pydict({"row": rows})


def main(bootstrap_servers: str, topic: str) -> None:
    """Print one line of JSON, then wait for the end of standard input."""
    settings = {"spark.sql.session.timeZone": "UTC", "spark.python.unix.domain.socket.enabled": "true"}
    spark = start_session("read-topic", settings, "local[1]")
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    rows = source.option("subscribe", topic).load().mapInArrow(_describe, "row string").collect()
    assert spark.sparkContext._jvm is not None
    values, interpreters, seeds = zip(*(json.loads(row.row) for row in rows), strict=True)
    seen = {
        "values": values,
        "interpreter": interpreters[0],
        "seed": seeds[0],
        "java_home": spark.sparkContext._jvm.System.getProperty("java.home"),
        "tmpdir": spark.sparkContext._jvm.System.getProperty("java.io.tmpdir"),
        "setting": spark.conf.get("spark.sql.session.timeZone"),
    }
    jvm: Any = spark.sparkContext._jvm
    jvm.org.slf4j.LoggerFactory.getLogger("test").error("it failed", jvm.java.lang.IllegalStateException("the cause"))
    print(json.dumps(seen), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
