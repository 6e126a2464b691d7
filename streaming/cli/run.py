"""`lockkeeper run`: the job, until it is asked to stop."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streaming.cli.app import app, checkpoint_app
from streaming.cli.cluster import connect
from streaming.cli.common_options import Config, Json, KafkaOptions
from streaming.cli.failure import Failure
from streaming.cli.output import echo, echo_err, echo_json
from streaming.cli.signals import give_up, stop_on_signals

if TYPE_CHECKING:
    from streaming.monitor.query import MonitorStep
    from streaming.ops.metrics import Step


Master = Annotated[
    str | None, typer.Option("--master", help="Spark's, such as spark://HOST:7077; takes precedence over the settings.")
]


@app.command("run")
def run(kafka: KafkaOptions, master: Master = None) -> None:
    """Decide requests until SIGTERM or Ctrl-C: then the batch under way is finished, if that takes no more than 5 s.

    It ends within 10 s with exit code 0; a second signal ends it at once. What was not committed is decided by the next
    start. While Kafka is unavailable it waits, and continues automatically; only at the start Kafka must be available.

    Every setting can also be given as an environment variable: `topics.decisions` is
    LOCKKEEPER_TOPICS_DECISIONS. Topics whose settings would break a promise are refused, with the command that fixes
    them. A second instance with the same job_name takes over, and the first ends with exit code 3: a supervisor must
    not start it again.

    The setting metrics.port (9464 is usual; 0, the default, is off) serves /metrics for Prometheus and /healthz and
    /readyz for Kubernetes at metrics.address. log.level says what is logged, tracing.endpoint where traces are sent
    to. Spark's own pages are switched on by `spark: {spark.ui.enabled: "true", spark.ui.port: "4040"}`.

    \b
    Examples:
      lockkeeper run --config lockkeeper.yaml
      LOCKKEEPER_BOOTSTRAP_SERVERS=kafka:9092 lockkeeper run
      lockkeeper run --config lockkeeper.yaml --master spark://spark-master:7077
    """
    from streaming.ops.logs import configure_logs
    from streaming.ops.watch import observing

    settings = kafka.settings(master)
    connect(settings)
    configure_logs(settings, sys.stderr)
    with observing(settings) as watch, stop_on_signals(give_up) as stop:
        from streaming.application import run as run_job

        topics = ", ".join(settings.topics.asking)
        echo_err(f"starting Spark for requests of {topics} at {settings.bootstrap_servers}: it takes 15 to 60 s")
        run_job(settings, stop, _Ready(f"ready: deciding requests of {topics}"), watch)
    echo_err("stopped")


@app.command("monitor")
def monitor(kafka: KafkaOptions) -> None:
    """Run the monitor as an application of its own, until SIGTERM or Ctrl-C.

    It compares audit events with decisions and raises alerts. By default `lockkeeper run` does so, too, on the same
    cores. With the setting `monitor.mode: separate`, which both commands need, `lockkeeper run` leaves it to this one.

    It ends within 10 s with exit code 0, and has the exit codes, the metrics endpoint and the log of `lockkeeper run`,
    but a consumer group, a transactional id and a checkpoint of its own: those of the job with the suffix -monitor. On
    the same machine it needs another metrics.port.

    \b
    Examples:
      lockkeeper monitor --config lockkeeper.yaml
      LOCKKEEPER_MONITOR_MODE=separate LOCKKEEPER_METRICS_PORT=9465 lockkeeper monitor
    """
    from streaming.ops.logs import configure_logs
    from streaming.ops.watch import observing_monitor
    from streaming.settings import check_separate_monitor

    settings = kafka.settings()
    check_separate_monitor(settings)
    topics = settings.topics
    connect(settings, described=(topics.decisions, topics.verdicts, topics.alerts, topics.facts))
    configure_logs(settings, sys.stderr)
    with observing_monitor(settings) as watch, stop_on_signals(give_up) as stop:
        from streaming.application import run_monitor

        echo_err(f"starting Spark for the monitor of {topics.decisions} at {settings.bootstrap_servers}")
        run_monitor(settings, stop, watch)
    echo_err("stopped")


class _Ready:
    """Prints a line when the first batch is committed."""

    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __call__(self, step: "Step | MonitorStep", _batch: int) -> None:
        if step == "committed" and self._text is not None:
            echo_err(self._text)
            self._text = None


@checkpoint_app.command("archive")
def archive_command(
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(metavar="CHECKPOINT", help="By default those of the job and of its monitor."),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Move checkpoints away, to CHECKPOINT.archived-TIME beside them, so that the job starts without them.

    It then starts from the offsets that its consumer group has committed, where no request is lost or decided twice;
    on another Kafka cluster, from the first offsets. Without its checkpoint the monitor may repeat or miss alerts.

    Exit code 1: a job uses one of them, or one is not on a local disk: then nothing is moved, and the error says how
    to move it.

    \b
    Examples:
      lockkeeper checkpoint archive --config lockkeeper.yaml
      lockkeeper checkpoint archive ./checkpoint-monitor
    """
    from streaming.runtime.checkpoints import CheckpointInUse, archive, archived_name, checkpoints_of, local_path

    locations = checkpoints or list(checkpoints_of(KafkaOptions(config).settings()))
    folders = [folder for folder in map(local_path, locations) if folder is not None]
    if len(folders) < len(locations):
        moves = "; ".join(f"hadoop fs -mv {location} {archived_name(location)}" for location in locations)
        raise Failure(
            f"{', '.join(locations)}: on another file system than the local disk. Stop the job, and move them with a "
            f"client of that file system, such as: {moves}"
        )
    try:
        moved = archive(folders)
    except CheckpointInUse as error:
        raise Failure(f"{error}; nothing was moved") from None
    except OSError as error:
        raise Failure(f"{error.filename}: cannot be moved: {error.strerror}") from error
    _show({str(folder): str(to) for folder, to in moved.items()}, locations, as_json)


def _show(moved: dict[str, str], locations: list[str], as_json: bool) -> None:
    if as_json:
        echo_json(moved)
        return
    for folder, to in moved.items():
        echo(f"{folder} -> {to}")
    if not moved:
        echo_err(f"nothing to move: there is no {' and no '.join(locations)}")
