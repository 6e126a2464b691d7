"""What importing the client brings along: a service is not to start Spark, nor to load what it does not use."""

import subprocess
import sys

HEAVY = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "matplotlib", "jinja2", "typer", "rich", "opentelemetry")


def test_importing_the_client_imports_neither_spark_nor_anything_heavy() -> None:
    program = f"import sys, streaming.client; print([name for name in {HEAVY} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_importing_policy_reads_no_yaml_and_no_system() -> None:
    unused = ("yaml", "policy.store.repository", "policy.systems.cdap", "policy.importers")
    program = (
        f"import sys, policy; print([name for name in {unused} if name in sys.modules], policy.read_yaml('a: 1')[0])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().startswith("[] Part(")
