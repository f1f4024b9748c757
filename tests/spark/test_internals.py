"""What is used without a public name: each name is held against the versions that are installed, each function does what it says."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from scripts import internals_page
from stateflow.internals import owner_of
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ENTRIES = [
    entry
    for module, found in internals_page.entries().items()
    for entry in found
    if module.startswith("stateflow.spark.")  # tests/serve/test_internals.py has the others
]
NAMES = {name: entry for entry in ENTRIES for name in entry.names}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_installed_version_has_the_name(spark: SparkSession, name: str) -> None:
    if owner_of(name) in ("PySpark", "Py4J", "uvicorn"):
        assert not _lacks_python(spark, name)
    else:
        assert not Java(spark).lacks(name)


def _lacks_python(spark: SparkSession, name: str) -> str:
    path, _, parameters = name.partition("(")
    owner, _, member = path.rpartition(".")
    at: Any = _live(spark).get(owner)
    if at is None:
        at = _resolved(owner)
    if not hasattr(at, member):
        return f"{owner} has {sorted(each for each in dir(at) if each.startswith('_'))}"
    if parameters:
        own = list(inspect.signature(getattr(at, member)).parameters)
        wanted = [each for each in parameters.rstrip(")").split(", ") if each]
        return "" if set(wanted) <= set(own) else f"{path} takes {own}"
    return ""


def _resolved(path: str) -> Any:
    for at in range(path.count(".") + 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(path.split(".")[:at]))
        except ImportError:
            continue
        for part in path.split(".")[at:]:
            found = getattr(found, part)
        return found
    raise AssertionError(path)


def _live(spark: SparkSession) -> dict[str, Any]:
    """Of classes whose attributes only their objects have."""
    context: Any = spark.sparkContext
    return {
        "pyspark.sql.DataFrame": spark.range(1),
        "pyspark.sql.SparkSession": spark,
        "pyspark.SparkContext": context,
        "py4j.java_gateway.JavaGateway": context._gateway,
        "py4j.protocol.Py4JJavaError": _raised(lambda: java_names(spark).java.lang.Class.forName("Nothing")),
        "pyspark.errors.exceptions.captured.CapturedException": _raised(lambda: spark.sql("select")),
    }


def _raised(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError(call)


class Java:
    """What the classes of the driver's JVM have."""

    def __init__(self, spark: SparkSession) -> None:
        self._names = java_names(spark)

    def lacks(self, name: str) -> str:
        """Empty if there is a method, constructor or field of this name, with these types of parameters."""
        path, parenthesis, parameters = name.partition("(")
        owner, _, member = path.rpartition(".")
        if parenthesis and (members := _members(self._names, path)):
            owner, member = path, path.rpartition(".")[2]
        else:
            members = _members(self._names, owner)
        if not members:
            return f"there is no class {owner}"
        if parenthesis and f"{member}({parameters}" in members:
            return ""
        if not parenthesis and member in members:
            return ""
        alike = sorted(each for each in members if each.partition("(")[0] == member)
        return f"{owner} has {alike or sorted(members)}"


@cache
def _members(names: Any, name: str) -> frozenset[str]:
    """Methods and constructors as `name(Type, Type)`, and fields; nothing where there is no such class."""
    lang = names.java.lang
    try:
        found = lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception:
        return frozenset()
    members: set[str] = set()
    kinds = ("getMethods", "getDeclaredMethods", "getDeclaredConstructors", "getDeclaredFields")
    while found is not None:
        for kind in kinds:
            text = str(names.scala.runtime.ScalaRunTime.stringOf(getattr(found, kind)())).removeprefix(
                "Array"
            )
            if kind == "getDeclaredFields":
                members |= set(re.findall(r"([\w$]+)(?=[,)])", text))
            else:
                for method, types in re.findall(r"([\w$]+)\(([^)]*)\)", text):
                    short = [each.rpartition(".")[2] for each in types.split(",") if each]
                    members.add(f"{method}({', '.join(short)})")
        found = found.getSuperclass()
    return frozenset(members)


def test_a_name_that_is_not_there_would_be_noticed(spark: SparkSession) -> None:
    java = Java(spark)
    assert java.lacks("org.apache.spark.sql.classic.Dataset.ofRow(SparkSession, LogicalPlan)")
    assert "ofRows(SparkSession, LogicalPlan)" in java.lacks(
        "org.apache.spark.sql.classic.Dataset.ofRows(LogicalPlan)"
    )
    assert (
        java.lacks("org.apache.spark.sql.Nothing.ofRows()")
        == "there is no class org.apache.spark.sql.Nothing"
    )
    assert _lacks_python(spark, "pyspark.sql.DataFrame._java")
    assert _lacks_python(spark, "pyspark.sql.pandas.types.to_arrow_schema(zone)")
