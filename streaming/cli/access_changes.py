"""`lockkeeper access-changes`: whose access changes, until it is asked to stop."""

import sys
from typing import TYPE_CHECKING

from streaming.cli.app import app
from streaming.cli.cluster import connect
from streaming.cli.common_options import KafkaOptions
from streaming.cli.failure import Failure
from streaming.cli.output import echo_err
from streaming.cli.signals import give_up, stop_on_signals

if TYPE_CHECKING:
    from streaming.settings import Settings


@app.command("access-changes")
def access_changes(kafka: KafkaOptions) -> None:
    """Report whose access a change of policies or facts turns, until SIGTERM or Ctrl-C.

    It remembers what was decided within the last access_changes.hours, at most access_changes.questions, and writes a
    record to the topic of access changes when one of these would now be decided otherwise: by a change, or because
    something that is bound in time begins or ends. Sessions can be ended and caches refreshed by it.

    It needs neither Spark nor Java, and no decision waits for it. Its consumer group and transactional id are the job's
    name with the suffix -access-changes: a second one fences the first, which exits with 3. What it writes is written
    once, also when it is killed. The first start begins with changes from then on. metrics.port serves /metrics,
    /healthz and /readyz, as for `run`.

    \b
    Examples:
      lockkeeper access-changes --config lockkeeper.yaml
      LOCKKEEPER_METRICS_PORT=9466 lockkeeper access-changes --bootstrap kafka:9092
    """
    from streaming.access_changes.running import run
    from streaming.ops.logs import configure_logs

    settings = kafka.settings()
    check_access(settings)
    configure_logs(settings, sys.stderr)
    topic = settings.topics.access_changes
    with stop_on_signals(give_up) as stop:
        echo_err(f"reading policies and decisions from {settings.bootstrap_servers}")
        run(settings, stop, lambda: echo_err(f"ready: access changes go to {topic}"))
    echo_err("stopped")


def check_access(settings: "Settings") -> None:
    """Raise Failure where the topics that it follows cannot be read, or its own would not keep what is written."""
    from streaming.kafka.permissions import Permission
    from streaming.kafka.topics import check_topics, explained_problems
    from streaming.settings import access_changes_settings
    from streaming.topics import ACCESS_CHANGES

    topics, own = settings.topics, access_changes_settings(settings)
    changes = topics.access_changes
    needed = [
        Permission("topic", changes, "DescribeConfigs"),
        Permission("group", own.job_name, "Read"),
        Permission("transactionalId", own.job_name, "Write"),
    ]
    read = (topics.decisions, *topics.asking)
    admin = connect(own, *read, documents=topics.documents, written=(changes,), permissions=needed)
    problems = check_topics(admin, topics, settings.limits, ACCESS_CHANGES)
    if refused := explained_problems(problems, refused=True):
        raise Failure("\n".join(refused))
