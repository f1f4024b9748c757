"""Java's classes by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError

from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_methods_constructors_and_scalas_modules_are_found(spark: SparkSession) -> None:
    names = java_names(spark)
    assert names.java.lang.Math.max(2, 3) == 3
    assert names.java.lang.Integer.MAX_VALUE == 2**31 - 1
    kept = names.java.util.ArrayList()
    kept.add("a")
    assert list(kept) == ["a"]
    nothing = getattr(getattr(names.scala, "None$"), "MODULE$")
    assert nothing.isEmpty()


def test_what_is_not_there_is_an_error_at_every_use(spark: SparkSession) -> None:
    names = java_names(spark)
    for _ in range(2):
        with pytest.raises(Py4JError, match="nothing"):
            names.java.lang.Math.nothing()
        with pytest.raises(Py4JError):
            names.java.lang.Nothing()
