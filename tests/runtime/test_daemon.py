"""Workers load PySpark from where it is installed, not from the archive that Spark puts in front."""

import sys
from pathlib import Path

import pyspark

from streaming.runtime.daemon import without_archives

INSTALLED = Path(pyspark.__file__).parents[1]
ARCHIVES = [str(path) for path in (INSTALLED / "pyspark" / "python" / "lib").glob("*.zip")]


def test_archives_are_left_out_where_pyspark_is_installed() -> None:
    assert len(ARCHIVES) == 2
    assert without_archives(["", *ARCHIVES, *sys.path]) == ["", *(p for p in sys.path if not p.endswith(".zip"))]


def test_archives_stay_where_there_is_nothing_else() -> None:
    path = ["", *ARCHIVES, "/nowhere"]
    assert without_archives(path) == path
