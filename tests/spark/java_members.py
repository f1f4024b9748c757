"""What the classes of a JVM have, by reflection."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.internals import spellings
from stateflow.spark.internals import gateway
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Java:
    """What the classes of the driver's JVM have."""

    def __init__(self, spark: SparkSession, jars: Iterable[str] = ()) -> None:
        """`jars`: classes beside those of the session."""
        names = java_names(spark)
        urls = [names.java.net.URI(Path(jar).as_uri()).toURL() for jar in jars]
        loader = gateway.class_loader(spark)
        if urls:
            loader = names.java.net.URLClassLoader(
                gateway.java_array(spark, names.java.net.URL, *urls), loader
            )
        self._text_of = names.scala.runtime.ScalaRunTime.stringOf
        self._loader = loader

    def lacks(self, name: str) -> str:
        """Empty if there is a class, method, constructor or field of this name, with these types of parameters."""
        said = [self._lacks(spelling) for spelling in spellings(name)]
        return min(said, key=len) and said[0]

    def _lacks(self, name: str) -> str:
        path, parenthesis, parameters = name.partition("(")
        owner, _, member = path.rpartition(".")
        if not parenthesis and _members(self._loader, self._text_of, path):
            return ""
        if parenthesis and (members := _members(self._loader, self._text_of, path)):
            owner, member = path, path.rpartition(".")[2]
        else:
            members = _members(self._loader, self._text_of, owner)
        if not members:
            return f"there is no class {owner}"
        if parenthesis and f"{member}({parameters}" in members:
            return ""
        if not parenthesis and member in members:
            return ""
        alike = sorted(each for each in members if each.partition("(")[0] == member)
        return f"{owner} has {alike or sorted(members)}"


@cache
def _members(loader: Any, text_of: Any, name: str) -> frozenset[str]:
    """Methods and constructors as `name(Type, Type)`, and fields; nothing where there is no such class."""
    try:
        found = loader.loadClass(name)
    except Exception:
        return frozenset()
    members: set[str] = set()
    kinds = ("getMethods", "getDeclaredMethods", "getDeclaredConstructors", "getDeclaredFields")
    while found is not None:
        for kind in kinds:
            text = str(text_of(getattr(found, kind)())).removeprefix("Array")
            if kind == "getDeclaredFields":
                members |= set(re.findall(r"([\w$]+)(?=[,)])", text))
            else:
                for method, types in re.findall(r"([\w$]+)\(([^)]*)\)", text):
                    short = [each.rpartition(".")[2] for each in types.split(",") if each]
                    members.add(f"{method}({', '.join(short)})")
        found = found.getSuperclass()
    return frozenset(members)
