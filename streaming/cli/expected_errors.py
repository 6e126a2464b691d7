"""Which errors a command expects: their messages and exit codes."""

import sys
import traceback

from streaming.cli.extras import extra_of, missing_module_message
from streaming.cli.failure import FAILED, FENCED, MISUSED, Failure
from streaming.cli.output import echo_err

# Module, exception, exit code; the first that fits. By name: a module that raised one has imported it, and no other
# needs to.
_EXPECTED = (
    ("streaming.settings", "SettingsError", MISUSED),
    ("policy.systems", "SystemUnusable", MISUSED),
    ("policy.store.repository", "FilesMissing", MISUSED),
    ("policy.store.repository", "FilesRefused", FAILED),
    ("policy.testing.casefile", "CaseFileError", FAILED),
    ("streaming.kafka.publish", "PublishFailed", FAILED),
    ("streaming.errors", "Fenced", FENCED),
    ("streaming.errors", "JobStopped", FAILED),
    ("streaming.errors", "CannotWrite", FAILED),
    ("streaming.errors", "RuntimeSetupError", FAILED),
    ("streaming.records.registry", "RegistryError", FAILED),
    ("confluent_kafka", "KafkaException", FAILED),
    ("builtins", "OSError", FAILED),  # such as a full disk below standard output
)

NOT_AUTHORIZED = "_AUTHORIZATION_FAILED"  # ends Kafka's errors for a missing permission, which name no operation
PERMISSION = ". A permission is missing; `lockkeeper topics manifest --users` prints those of every user"


def echo_error(error: Exception) -> None:
    """Print why a command failed; of an unexpected error the traceback."""
    message = error_message(error)
    if message is None:
        traceback.print_exception(error)
        return
    lines = getattr(error, "lines", None) or getattr(error, "errors", None)
    first, *others = lines or message.splitlines() or [""]
    echo_err(f"lockkeeper: {first}")
    for line in others:  # of a message they are indented: it may have a name with a line break
        echo_err(line if lines else f"  {line}")


def error_message(error: Exception) -> str | None:
    """The message for `error`; None for an unexpected one: it needs its traceback."""
    if exit_code(error) is None:
        return None
    if isinstance(error, ModuleNotFoundError):
        return missing_module_message(error.name, extra_of(error))
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    inner = error.args[0] if error.args else error
    if isinstance(error, TimeoutError) and not str(error):
        return "Kafka: no answer in time"
    if not hasattr(inner, "str"):
        return str(error)
    is_refused = str(getattr(inner, "name", str)()).endswith(NOT_AUTHORIZED)
    return f"Kafka: {inner.str()}{PERMISSION if is_refused else ''}"


def exit_code(error: Exception) -> int | None:
    """The exit code for an expected error; None for another."""
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, ModuleNotFoundError):
        return MISUSED if extra_of(error) else None
    if isinstance(error, TimeoutError):
        return FAILED
    return next((code for module, name, code in _EXPECTED if _is(error, module, name)), None)


def _is(error: Exception, module: str, name: str) -> bool:
    return module in sys.modules and isinstance(error, getattr(sys.modules[module], name))
