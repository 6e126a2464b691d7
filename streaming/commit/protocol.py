"""Which transaction protocol the brokers speak, and what the older one does not promise."""

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from streaming.commit.java_clients import admin_settings
from streaming.runtime.jars import classpath
from streaming.runtime.java import find_java, pyspark_folder
from streaming.settings import Settings

FEATURE = "transaction.version"
FENCES_EACH_TRANSACTION = 2
"""Since this version each transaction has an epoch of its own (KIP-890): a late request does not touch the next one."""

REQUEST_TIMEOUT_MS = 30_000.0  # the default of Kafka's producer


def request_timeout_ms(settings: Settings) -> float:
    """After so long without an answer Kafka's producer repeats a request."""
    return float(settings.source.get("kafka.request.timeout.ms", REQUEST_TIMEOUT_MS))


UNSUPPORTED = "org.apache.kafka.common.errors.UnsupportedVersionException"


def transaction_version(jvm: Any, settings: Settings) -> int:
    """The version that the cluster has finalized; 0: it does not know the feature, as Kafka before 3.9, and Redpanda.

    Raises Py4JJavaError when the cluster does not answer.
    """
    from py4j.protocol import Py4JJavaError

    admin = jvm.org.apache.kafka.clients.admin.Admin.create(admin_settings(jvm, settings))
    try:
        features = admin.describeFeatures().featureMetadata().get().finalizedFeatures()
    except Py4JJavaError as error:
        if UNSUPPORTED in str(error.java_exception):
            return 0
        raise
    finally:
        admin.close(jvm.java.time.Duration.ZERO)
    finalized = features.get(FEATURE)
    return 0 if finalized is None else int(finalized.maxVersionLevel())


def explain_version(version: int) -> str:
    """What is not promised by brokers with this version, and how to change that; empty: nothing."""
    if version >= FENCES_EACH_TRANSACTION:
        return ""
    return (
        f"the brokers end transactions by an older protocol ({FEATURE} {version}): after a fault of the network, a "
        "delayed request can end a later transaction, and a batch becomes visible in part (KIP-890). Upgrade the "
        "brokers to Kafka 4.0 or newer, then run kafka-features.sh --bootstrap-server HOST:PORT upgrade --feature "
        f"{FEATURE}={FENCES_EACH_TRANSACTION}"
    )


def cluster_transaction_version(settings: Settings) -> int | None:
    """The same, asked with a Java of its own, for librdkafka does not show features; None: nobody can ask or answer."""
    from py4j.protocol import Py4JError

    with java_with(classpath("spark")) as jvm:
        try:
            return transaction_version(jvm, settings)
        except Py4JError:
            return None


@contextlib.contextmanager
def java_with(jars: Iterable[Path]) -> Iterator[Any]:
    """The view of a Java that runs beside no Spark, with these jars before PySpark's, and ends with the context."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    pyspark_jars = pyspark_folder() / "jars"
    port, token, process = launch_gateway(
        jarpath=str(next(pyspark_jars.glob("py4j-*.jar"))),
        classpath=os.pathsep.join([*map(str, jars), f"{pyspark_jars}/*"]),
        # What JAVA_TOOL_OPTIONS may have it log on standard output would be taken for the port.
        javaopts=["-Xlog:disable", "-Xlog:all=warning:stderr"],
        java_path=str(find_java()),
        die_on_exit=True,
        enable_auth=True,  # else any user of this machine could run code here
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()  # its main thread reads it until the end, and ends then
        process.wait()
