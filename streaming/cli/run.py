"""`lockkeeper run`: the job, until it is told to stop."""

import sys

from streaming.cli.app import app
from streaming.cli.cluster import reach
from streaming.cli.options import Bootstrap, Config, settings_of
from streaming.cli.output import remark
from streaming.cli.signals import stop_on_signals


@app.command("run")
def run(config: Config = None, bootstrap: Bootstrap = None) -> None:
    """Decide requests until SIGTERM or Ctrl-C; the batch under way is finished first.

    Every setting can also be given as an environment variable: `topics.decisions` is
    LOCKKEEPER_TOPICS_DECISIONS. Topics whose settings would break a promise are refused, saying how to mend them.
    A second instance with the same job_name takes over, and the first ends with exit code 1.

    \b
    Examples:
      lockkeeper run --config lockkeeper.yaml
      LOCKKEEPER_BOOTSTRAP_SERVERS=kafka:9092 lockkeeper run
    """
    settings = settings_of(config, bootstrap)
    reach(settings)
    _log_to_stderr()
    with stop_on_signals() as stop:
        from streaming.application import run as run_job

        remark(f"deciding requests of {', '.join(settings.topics.requests)} at {settings.bootstrap_servers}")
        run_job(settings, stop)
    remark("stopped")


def _log_to_stderr() -> None:
    """Lines for people on a terminal, JSON elsewhere."""
    import structlog

    terminal = sys.stderr.isatty()
    renderer = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
