"""Whether what steps made of an operator's rows is computed with them, in one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateflow.spark.session.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias")


def in_one_stage(frame: DataFrame, rows: DataFrame) -> bool:
    """Whether nothing lies between `frame` and the operator's `rows` but conditions and columns chosen, computed or renamed.

    Then the task that computes rows of `frame` has computed the operator's. With a shuffle, a cache or a second reader
    between, rows could come from another attempt of the operator's task than its acks.
    """
    own: Any = rows._jdf.queryExecution().analyzed().output().head().exprId()
    plan: Any = frame._jdf.queryExecution().withCachedData()
    while (kind := plan.nodeName()) in _ROW_BY_ROW:
        if _runs_elsewhere(frame, plan):
            return False
        plan = plan.child()
    return bool(kind == "MapInArrow" and plan.output().head().exprId().equals(own))


def _runs_elsewhere(frame: DataFrame, plan: Any) -> bool:
    """Whether an expression of this step has a query in it, or Python code, which gets rows in batches of its own."""
    catalyst: Any = java_names(frame.sparkSession).org.apache.spark.sql.catalyst
    patterns = catalyst.trees.TreePattern
    # One expression over all of them, so as to ask the JVM once and not per column.
    together = catalyst.expressions.Coalesce(plan.expressions())
    return any(together.containsPattern(p) for p in (patterns.PYTHON_UDF(), patterns.PLAN_EXPRESSION()))
