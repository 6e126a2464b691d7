"""Java classes of the job's own, in Spark's JVM, compiled by the compiler that Spark brings for code it generates."""

import functools
from pathlib import Path
from typing import Any


@functools.cache
def constructor(gateway: Any, source: Path) -> Any:
    """The constructor of the class that a source file is named after.

    In one JVM each is compiled once: py4j takes classes of one name for the same.
    """
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(source.read_text(encoding="utf-8"))
    [found] = compiler.getClassLoader().loadClass(source.stem).getConstructors()
    return found


def new_instance(gateway: Any, source: Path, *arguments: Any) -> Any:
    """An instance of that class. Raises Py4JJavaError when its constructor does."""
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for number, argument in enumerate(arguments):
        array[number] = argument
    return constructor(gateway, source).newInstance(array)
