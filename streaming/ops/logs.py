"""Logs: one event a line, for people on a terminal and as JSON elsewhere, each with the name of the job."""

import logging
from typing import Any, TextIO

import structlog

from streaming.settings import Settings
from streaming.terminal import escape, one_line, raw

Event = structlog.typing.EventDict


def configure_logs(settings: Settings, stream: TextIO) -> None:
    """Log to `stream` from the configured level on."""
    rendering = (
        [_escaped, structlog.dev.ConsoleRenderer()] if stream.isatty() else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Not as a variable of the context: the events come from several threads, which share none.
            lambda _logger, _method, event: {**event, "job": settings.job_name},
            structlog.processors.format_exc_info,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(raw(stream) if stream.isatty() else stream),
    )
    others = [handler for handler in logging.getLogger().handlers if not isinstance(handler, _Forwarded)]
    logging.getLogger().handlers = [*others, _Forwarded()]


class _Forwarded(logging.Handler):
    """Logs what a library has logged; what Py4J has, at debug level: it logs each error that it raises, with stacks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it, with the exception if there is one."""
        level = logging.DEBUG if "py4j" in record.pathname else record.levelno
        structlog.get_logger().log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def log_warnings_only(stream: TextIO) -> None:
    """For commands that are not the job but run parts of it: their results are not mixed with its events."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            _escaped,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )


def _escaped(_logger: Any, _method: str, event: Event) -> Event:
    """For people: no name in an event can end its line; a traceback has lines of its own."""
    return {
        name: escape(value) if name == "exception" else one_line(value) if isinstance(value, str) else value
        for name, value in event.items()
    }
