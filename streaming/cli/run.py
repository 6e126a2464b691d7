"""`lockkeeper run`: the job, until it is asked to stop."""

import sys
from typing import TYPE_CHECKING

from streaming.cli.app import (
    DEADLINE_SECONDS,
    Bootstrap,
    Config,
    app,
    end_at_once,
    reach,
    remark,
    settings_of,
    stop_on_signals,
)

if TYPE_CHECKING:
    from streaming.monitor.query import MonitorStep
    from streaming.ops.metrics import Step


@app.command("run")
def run(config: Config = None, bootstrap: Bootstrap = None) -> None:
    """Decide requests until SIGTERM or Ctrl-C: then the batch under way is finished, if that takes no more than 5 s.

    It ends within 10 s with exit code 0; a second signal ends it at once. What was not committed is decided by the next
    start. While Kafka is unavailable it waits, and continues automatically; only at the start Kafka must be available.

    Every setting can also be given as an environment variable: `topics.decisions` is
    LOCKKEEPER_TOPICS_DECISIONS. Topics whose settings would break a promise are refused, with the command that fixes
    them. A second instance with the same job_name takes over, and the first ends with exit code 3: a supervisor must
    not start it again.

    The setting metrics.port (9464 is usual; 0, the default, is off) serves /metrics for Prometheus and /healthz and
    /readyz for Kubernetes at metrics.address. log.level says what is logged, tracing.enabled sends traces to
    tracing.endpoint. Spark's own pages are switched on by `spark: {spark.ui.enabled: "true", spark.ui.port: "4040"}`.

    \b
    Examples:
      lockkeeper run --config lockkeeper.yaml
      LOCKKEEPER_BOOTSTRAP_SERVERS=kafka:9092 lockkeeper run
    """
    from streaming.ops.logs import configure_logs
    from streaming.ops.watch import observing

    settings = settings_of(config, bootstrap)
    reach(settings)
    configure_logs(settings, sys.stderr)
    with observing(settings) as watch, stop_on_signals(_give_up) as stop:
        from streaming.application import run as run_job

        topics = ", ".join(settings.topics.requests)
        remark(f"starting Spark for requests of {topics} at {settings.bootstrap_servers}: it takes 15 to 60 s")
        run_job(settings, stop, _Ready(f"ready: deciding requests of {topics}"), watch)
    remark("stopped")


class _Ready:
    """Prints a remark when the first batch is committed."""

    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __call__(self, step: "Step | MonitorStep", _batch: int) -> None:
        if step == "committed" and self._text is not None:
            remark(self._text)
            self._text = None


def _give_up() -> None:
    """End without order, as by a kill: what was not committed is decided by the next start."""
    remark(f"stopped, after {DEADLINE_SECONDS:g} s of waiting for what was under way: the next start decides it")
    end_at_once(0)
