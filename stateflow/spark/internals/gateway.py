"""The connection from this process to the driver's JVM, and what goes wrong in there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from stateflow.internals import internal
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_ERRORS = (Py4JJavaError, CapturedException)
"""The errors that a call into the JVM raises. PySpark translates some of Java's exceptions."""


@internal("pyspark.SparkContext._active_spark_context")
def context_runs() -> bool:
    """Whether this process has a Spark context."""
    return SparkContext._active_spark_context is not None


@internal("pyspark.SparkContext._gateway")
def started_by_spark_submit() -> bool:
    """Whether spark-submit has started a JVM, to which this process has not connected yet."""
    return SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" in os.environ


@internal("pyspark.SparkContext._ensure_initialized(instance, gateway, conf)")
def connect(conf: Mapping[str, str] | None = None) -> None:
    """Starts a JVM, or connects to that of spark-submit, before a session is built."""
    settings = None if conf is None else SparkConf(loadDefaults=False).setAll(list(conf.items()))
    SparkContext._ensure_initialized(conf=settings)


@internal(
    "sun.misc.Signal.handle(Signal, SignalHandler)",
    "sun.misc.SignalHandler.SIG_IGN",
    where_missing="the JVM ends at SIGTERM, and the batch fails that runs",
)
def ignore_sigterm(spark: SparkSession) -> None:
    """Makes the JVM ignore SIGTERM. It reads this process's standard input, and ends when this process does.

    Container runtimes, shells and `timeout` send SIGTERM to a whole process group. This process then finishes its batch,
    for which it needs the JVM. PySpark protects the JVM from SIGINT in the same way.
    """
    with suppress(Exception):
        misc = java_names(spark).sun.misc
        misc.Signal.handle(misc.Signal("TERM"), misc.SignalHandler.SIG_IGN)


@internal("pyspark.SparkContext._gateway", where_missing="nobody learns how a lost JVM ended")
def process_of_jvm() -> subprocess.Popen[bytes] | None:
    """The JVM that this process has started, and that ends when its standard input closes."""
    return getattr(getattr(SparkContext, "_gateway", None), "proc", None)


@internal("py4j.java_gateway.JavaClass", where_missing="the class counts as not there")
def has_class(spark: SparkSession, name: str) -> bool:
    """Whether the driver's JVM finds a class."""
    try:
        java_names(spark).java.lang.Class.forName(name, False, class_loader(spark))
    except Py4JJavaError:
        return False
    return True


@internal("pyspark.SparkContext._jsc")
def hadoop_setting(spark: SparkSession, name: str) -> str:
    """A setting of Hadoop's, as the application has it; empty for none."""
    context: Any = spark.sparkContext
    return str(context._jsc.hadoopConfiguration().get(name) or "")


@internal("py4j.java_gateway.JavaGateway.new_array(java_class, dimensions)", "pyspark.SparkContext._gateway")
def java_array(spark: SparkSession, kind: Any, *items: Any) -> Any:
    """An array of objects, which Py4J makes of no list."""
    context: Any = spark.sparkContext
    array = context._gateway.new_array(kind, len(items))
    for at, item in enumerate(items):
        array[at] = item
    return array


def class_loader(spark: SparkSession) -> Any:
    """The loader that finds the jars of `spark.jars`, too."""
    return java_names(spark).java.lang.Thread.currentThread().getContextClassLoader()


@internal(
    "org.codehaus.janino.SimpleCompiler.cook(String)", "org.codehaus.janino.SimpleCompiler.getBytecodes()"
)
def compiled(spark: SparkSession, source: str, loader: Any = None) -> Any:
    """Java compiled by Spark's own compiler, so that no jar has to be shipped."""
    compiler = java_names(spark).org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader or class_loader(spark))
    compiler.cook(source)
    return compiler


@internal("java.lang.ClassLoader.defineClass(String, byte[], int, int)")
def define_classes(spark: SparkSession, source: Path, name: str, beside: str) -> None:
    """Gives the classes that a file of Java has to the loader of the class `beside`, so that every thread finds them by their names. `name` is
    one of them."""
    lang = java_names(spark).java.lang
    loader = lang.Class.forName(beside, False, class_loader(spark)).getClassLoader()
    # A session before this one may have left them here.
    with suppress(Exception):
        loader.loadClass(name)
        return
    text, code = lang.Class.forName("java.lang.String"), lang.Class.forName("[B")
    kinds = java_array(spark, lang.Class, text, code, lang.Integer.TYPE, lang.Integer.TYPE)
    define = lang.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", kinds)
    define.setAccessible(True)
    for each, code in dict(
        compiled(spark, source.read_text(encoding="utf-8"), loader).getBytecodes()
    ).items():
        define.invoke(loader, java_array(spark, lang.Object, each, code, 0, len(code)))


def made(spark: SparkSession, source: str, name: str, argument: Any) -> Any:
    """An object of a class that `source` has, by its only constructor."""
    names = java_names(spark)
    return _constructor(spark, source, name).newInstance(java_array(spark, names.java.lang.Object, argument))


@cache
def _constructor(spark: SparkSession, source: str, name: str) -> Any:
    return compiled(spark, source).getClassLoader().loadClass(name).getConstructors()[0]


def lost_connection(error: BaseException) -> bool:
    """Whether the JVM did not answer, in contrast to one that answered with an exception of its own."""
    return isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError)


@internal(
    "py4j.protocol.Py4JJavaError.java_exception",
    "pyspark.errors.exceptions.captured.CapturedException._origin",
    where_missing="only the classes that Python has are named, and a failure of Delta's counts as unknown",
)
def failure_classes(error: BaseException) -> list[str]:
    """Names of the classes behind an error that came out of the JVM, outermost first."""
    # Spark and Delta turn some Java exceptions into Python ones that do not keep the original.
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None and len(names) < 40:
        names.append(str(java.getClass().getName()))
        java = java.getCause()
    return names


def first_line(error: Exception) -> str:
    """The part of Spark's long messages that fits into a sentence."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [
        type(error).__name__
    ]
    if lines[0].startswith("[") and lines[0].endswith(":"):
        return " ".join(lines[:4])  # a condition of Spark's, which names below it what it speaks of
    if lines[0].startswith("An error occurred while calling ") and len(lines) > 1:
        return lines[1].removeprefix(": ")  # what Java says; the line above names an object that nobody knows
    return lines[0]


@internal("py4j.protocol.Py4JJavaError.java_exception", where_missing="the text lacks Java's own words")
def failure_text(error: BaseException) -> str:
    """All that an error that came out of the JVM says."""
    description, java = getattr(error, "desc", None), getattr(error, "java_exception", None)
    return "\n".join(str(part) for part in (error, description, java) if part)
