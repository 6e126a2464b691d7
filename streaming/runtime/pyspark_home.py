"""Where PySpark is installed."""

from importlib.util import find_spec
from pathlib import Path

from streaming.errors import RuntimeSetupError


def pyspark_folder() -> Path:
    """Return PySpark's folder, which holds its jars and scripts, without the cost of importing it.

    Raises:
        RuntimeSetupError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeSetupError("pyspark is not installed in this environment; run `make setup`")
    return Path(spec.origin).parent
