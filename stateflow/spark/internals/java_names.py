"""Java's classes and static methods by name.

To `spark._jvm` a class that is missing is one more package, and who calls it learns no name. Here, as everywhere in Java, a name
with a small letter is a package, and any other name a class. So Py4J names the class that Java does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass

from stateflow.internals import internal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@internal(
    "pyspark.SparkContext._gateway",
    "py4j.java_gateway.JavaGateway._gateway_client",
    "py4j.java_gateway.JavaClass",
)
def java_names(spark: SparkSession) -> JavaPackageNames:
    """In place of `spark._jvm`."""
    context: Any = spark.sparkContext
    return JavaPackageNames(context._gateway._gateway_client)


@dataclass(frozen=True, slots=True)
class JavaPackageNames:
    _client: Any
    _package: str = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        whole = f"{self._package}.{name}" if self._package else name
        return JavaPackageNames(self._client, whole) if name[0].islower() else JavaClass(whole, self._client)
