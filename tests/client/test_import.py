"""What importing the client brings along: a service is not to start Spark, nor to load what it does not use."""

import subprocess
import sys

HEAVY = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "matplotlib", "jinja2", "typer", "rich", "opentelemetry")


def test_importing_the_client_imports_neither_spark_nor_anything_heavy() -> None:
    told = f"import sys, streaming.client; print([name for name in {HEAVY} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
