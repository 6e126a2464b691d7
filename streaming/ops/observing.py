"""All that looks at a job, set up from the settings and taken down again."""

import contextlib
from collections.abc import Iterator

import structlog

from streaming.ops.health import serving
from streaming.ops.tracing import open_tracing
from streaming.ops.watch import Watch
from streaming.settings import Settings

log = structlog.get_logger()


@contextlib.contextmanager
def observing(settings: Settings) -> Iterator[Watch]:
    """Yield what `streaming.enforcer.job.run` reports its progress to; its endpoint is open as long as the context.

    Raises SettingsError when the endpoint's address is taken, or tracing is on and not installed.
    """
    tracing = open_tracing(settings.tracing, settings.job_name)
    with contextlib.closing(tracing) if tracing else contextlib.nullcontext():
        watch = Watch(settings, tracing)
        with serving(settings.metrics, watch.metrics.registry, watch.health), _telling_the_end():
            yield watch


@contextlib.contextmanager
def _telling_the_end() -> Iterator[None]:
    """The log alone must say why the job ended, such as `Fenced`."""
    try:
        yield
    except Exception as failure:
        log.error("the job ended", reason=type(failure).__name__, why=str(failure))
        raise
    log.info("the job ended", reason="asked to stop")
