"""Where PySpark is installed."""

from importlib.util import find_spec
from pathlib import Path


def pyspark_folder() -> Path:
    """Return PySpark's folder, which holds its jars and scripts, without the cost of importing it.

    Raises:
        ModuleNotFoundError: PySpark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("pyspark is not installed in this environment", name="pyspark")
    return Path(spec.origin).parent
