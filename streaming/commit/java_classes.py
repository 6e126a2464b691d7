"""The Java classes of this folder and of the enforcer, compiled when Spark runs.

The compiler is the one that Spark brings for the code it generates.

Executors load them from a jar that the driver serves them, as they load any that is added to a session; the driver and
its tasks in local mode load them from the same file by one class loader, so that both see one set of producers.
"""

import functools
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from streaming.runtime.spark import job_folder

PACKAGE = "lockkeeper"
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "enforcer" / "java")
SOURCES = tuple(source for folder in FOLDERS for source in sorted(folder.glob("*.java")))
CLASS_VERSION = 8  # which Janino writes and any Java of Spark's reads

_served: set[str] = set()
"""The applications whose executors have the jar."""


def java_classes(spark: SparkSession) -> Any:
    """The view of the package, in Java; from now on executors have its classes, too."""
    context: Any = spark.sparkContext
    jar = compile_java(context._gateway, SOURCES)
    if context.applicationId not in _served:
        context._jsc.sc().addJar(str(jar))
        _served.add(context.applicationId)
    return getattr(context._gateway.jvm, PACKAGE)


@functools.cache
def compile_java(gateway: Any, sources: tuple[Path, ...]) -> Path:
    """The jar of classes of the package, once in a JVM: its class loader knows it from then on."""
    jvm = gateway.jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    folder = Path(tempfile.mkdtemp(prefix="classes-", dir=job_folder()))
    compiler = jvm.org.codehaus.janino.Compiler()
    compiler.setIClassLoader(jvm.org.codehaus.janino.ClassLoaderIClassLoader(loader))
    compiler.setDestinationDirectory(jvm.java.io.File(str(folder)), False)
    compiler.setTargetVersion(CLASS_VERSION)
    files = gateway.new_array(jvm.java.io.File, len(sources))
    for number, source in enumerate(sources):
        files[number] = jvm.java.io.File(str(source))
    compiler.compile(files)
    jar = folder / f"{PACKAGE}.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for path in sorted(folder.rglob("*.class")):
            archive.write(path, path.relative_to(folder).as_posix())
    loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    return jar
