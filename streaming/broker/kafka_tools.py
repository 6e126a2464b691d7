"""Kafka's own programs: how the broker and its command-line tools are run from the locked jars."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from streaming.errors import BrokerError
from streaming.runtime.jars import classpath
from streaming.runtime.java import CONSOLE_LOG, find_java

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
"""Shows and changes consumer groups: their offsets and their lag."""

_HERE = Path(__file__).parent
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
_SHOWN_CHARACTERS = 2000


def run_kafka_tool(class_name: str, *arguments: str, timeout_seconds: float = 60.0) -> str:
    """Run one of Kafka's command-line tools against whichever broker the arguments name.

    Args:
        class_name: the tool's class, such as `CONSUMER_GROUPS`.
        arguments: what the tool takes, such as `--bootstrap-server`, `--describe`, `--group`.
        timeout_seconds: how long the tool may take.

    Returns:
        What the tool printed to standard output.

    Raises:
        BrokerError: the tool failed, or took too long; the message carries what it printed.
    """
    command = java_command(class_name, *arguments, jvm_options=_QUICK_START, log_config=CONSOLE_LOG)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(f"{class_name} took longer than {timeout_seconds} s; is the broker up?") from error
    if done.returncode != 0:
        printed = (done.stdout + done.stderr).strip()[-_SHOWN_CHARACTERS:]
        raise BrokerError(f"{class_name} {' '.join(arguments)} ended with {done.returncode}: {printed}")
    return done.stdout


def java_command(class_name: str, *arguments: str, jvm_options: Sequence[str], log_config: Path) -> list[str]:
    """Return the command line that runs a class of the broker's jars."""
    jars = os.pathsep.join(str(path) for path in classpath("broker"))
    logging = f"-Dlog4j2.configurationFile={log_config}"
    return [str(find_java()), *jvm_options, logging, "-cp", jars, class_name, *arguments]


def format_command(properties: Path, cluster_id: str) -> list[str]:
    """Return the command line that prepares a new broker's storage, and leaves an existing one as it is."""
    arguments = ["format", "--ignore-formatted", "-t", cluster_id, "-c", str(properties)]
    return java_command("kafka.tools.StorageTool", *arguments, jvm_options=_QUICK_START, log_config=CONSOLE_LOG)


def server_command(properties: Path, jvm_options: Sequence[str], log: Path) -> list[str]:
    """Return the command line that runs a broker, logging to the file `log`."""
    options = [*jvm_options, f"-Dlockkeeper.log={log}"]
    log_config = _HERE / "log4j2-broker.properties"
    return java_command("kafka.Kafka", str(properties), jvm_options=options, log_config=log_config)
