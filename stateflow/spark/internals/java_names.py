"""Java's classes and static methods by name, without asking the JVM for each at every use.

Py4J asks for every part of a name: whether `org` is a class, and `org.apache`. Java then searches all jars for a class that is
not there. That was every fifth call of a batch into the JVM. Here, as everywhere in Java, a name with a small letter is a package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaMember

from stateflow.internals import internal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MODULE = "MODULE$"
"""The one object of a Scala module, in a field that never changes."""


@internal(
    "pyspark.SparkContext._gateway",
    "py4j.java_gateway.JavaGateway._gateway_client",
    "py4j.java_gateway.JavaClass",
    "py4j.java_gateway.JavaMember",
)
def java_names(spark: SparkSession) -> JavaPackageNames:
    """In place of `spark._jvm`. Names that were found stay for all sessions of the JVM."""
    context: Any = spark.sparkContext
    client = context._gateway._gateway_client
    if client not in _known:
        _known[client] = JavaPackageNames(client)
    return _known[client]


class JavaPackageNames:
    """A package: a name with a small letter is a package in it, any other name a class."""

    def __init__(self, client: Any, package: str = "") -> None:
        self._client = client
        self._package = package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        whole = f"{self._package}.{name}" if self._package else name
        packages = name[0].islower()
        found = (
            JavaPackageNames(self._client, whole) if packages else JavaStatics(JavaClass(whole, self._client))
        )
        setattr(self, name, found)
        return found


class JavaStatics:
    """A class: call it to make an object, or take its static methods. Other static fields are read anew each time."""

    def __init__(self, of: JavaClass) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._of, name)
        if isinstance(found, JavaMember) or name == _MODULE:
            setattr(self, name, found)
        return found

    def __call__(self, *arguments: Any) -> Any:
        return self._of(*arguments)


_known: WeakKeyDictionary[Any, JavaPackageNames] = WeakKeyDictionary()
