"""Spark's plans of a frame: what is in them, and the frames that a plan is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.internals import internal
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst"
_EXECUTION = "pyspark.sql.DataFrame._jdf", "org.apache.spark.sql.classic.Dataset.queryExecution()"
_ANALYZED = *_EXECUTION, "org.apache.spark.sql.execution.QueryExecution.analyzed()"
_ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias")
_UNION = "org.apache.spark.rdd.UnionRDD"
_WRAPPER = "org.apache.spark.sql.execution.SQLExecutionRDD"
"""Around the RDD of a whole plan."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a plan; equal to another as Spark tells it."""

    _java: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanNode) and bool(self._java.equals(other._java))

    __hash__ = None  # type: ignore[assignment]

    @property
    def kind(self) -> str:
        """The name of its class, without the package."""
        return str(self._java.getClass().getSimpleName())

    @property
    def name(self) -> str:
        """As Spark shows it to people."""
        return str(self._java.nodeName())

    @property
    def streams(self) -> bool:
        return bool(self._java.isStreaming())

    @property
    def children(self) -> list[PlanNode]:
        found = self._java.children()
        return [PlanNode(found.apply(position)) for position in range(found.size())]

    @property
    def join(self) -> str:
        """How a join joins, such as LEFT SEMI."""
        return str(self._java.joinType().sql())

    def walk(self) -> Iterator[PlanNode]:
        """From the top down and from left to right, as Spark numbers its sources."""
        yield self
        for child in self.children:
            yield from child.walk()


_CUTS_OFF = {
    "spark.sql.optimizer.excludedRules": f"{_CATALYST}.optimizer.PropagateEmptyRelation",
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
}
"""By option the rule of the optimiser that it switches off."""


@internal(
    f"{_CATALYST}.optimizer.PropagateEmptyRelation$.ruleName()",
    "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation$.ruleName()",
    where_missing="Spark takes no notice of the name, and a batch without rows fails, since acknowledgements of its tasks are missing",
)
def keep_empty_tasks(spark: SparkSession) -> None:
    """Keeps Spark's optimiser from cutting an operator's tasks off when their input is empty.

    Without the tasks no timer fires.
    """
    for name, rule in _CUTS_OFF.items():
        excluded = [r for r in (spark.conf.get(name, "") or "").split(",") if r]
        if rule not in excluded:
            spark.conf.set(name, ",".join([*excluded, rule]))


@internal(
    *_ANALYZED,
    f"{_CATALYST}.plans.logical.LogicalPlan.isStreaming()",
    f"{_CATALYST}.plans.logical.LogicalPlan.nodeName()",
    f"{_CATALYST}.plans.logical.LogicalPlan.children()",
    f"{_CATALYST}.plans.logical.Join.joinType()",
    f"{_CATALYST}.plans.JoinType.sql()",
)
def plan_of(frame: DataFrame) -> PlanNode:
    """The plan as the user wrote it, with its names looked up, and before Spark changes it."""
    return PlanNode(_analyzed(frame))


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


@internal(
    *_ANALYZED,
    "org.apache.spark.sql.execution.QueryExecution.withCachedData()",
    f"{_CATALYST}.plans.logical.MapInArrow.output()",
    f"{_CATALYST}.expressions.NamedExpression.exprId()",
    f"{_CATALYST}.expressions.Coalesce(Seq)",
    f"{_CATALYST}.trees.TreeNode.containsPattern(Enumeration$Value)",
    f"{_CATALYST}.trees.TreePattern.PYTHON_UDF()",
    f"{_CATALYST}.trees.TreePattern.PLAN_EXPRESSION()",
    where_missing="the rows are written to files first, from which the sink reads",
    otherwise=lambda: False,
)
def in_one_stage(frame: DataFrame, rows: DataFrame) -> bool:
    """True if only conditions, and columns that are chosen, computed or renamed, lie between `frame` and the operator's `rows`.
    Then the task that computes rows of `frame` has computed the operator's rows. With a shuffle, a cache or a second reader
    between, rows could come from another attempt of the operator's task than its acks.
    """
    own: Any = _analyzed(rows).output().head().exprId()
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


@internal(
    *_ANALYZED,
    f"{_CATALYST}.trees.TreeNode.containsPattern(Enumeration$Value)",
    f"{_CATALYST}.trees.TreePattern.PYTHON_UDF()",
    f"{_CATALYST}.trees.TreePattern.GENERATE()",
    where_missing="Arrow batches are measured",
    otherwise=lambda: True,
)
def calls_python(frame: DataFrame) -> bool:
    """Whether a step of the frame calls Python. A table function of Python is not marked as such: so any table function counts."""
    pattern: Any = java_names(frame.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    plan = _analyzed(frame)
    return any(plan.containsPattern(kind) for kind in (pattern.PYTHON_UDF(), pattern.GENERATE()))


@internal(
    *_EXECUTION,
    "org.apache.spark.sql.execution.QueryExecution.logical()",
    "org.apache.spark.sql.execution.LogicalRDD.rdd()",
    "org.apache.spark.sql.execution.LogicalRDD$.fromDataset(RDD, Dataset, boolean)",
    "org.apache.spark.sql.execution.SQLExecutionRDD.dependencies()",
    "org.apache.spark.rdd.UnionRDD.rdds()",
    "org.apache.spark.sql.classic.Dataset.ofRows(SparkSession, LogicalPlan)",
    where_missing="the batch is kept in memory and split by a column",
    otherwise=list,
)
def parts_of_union(batch: DataFrame) -> list[DataFrame]:
    """The parts of a batch that Spark has planned as a union: each with all columns, in the order of the union; nothing where there is
    none.

    A batch's frame is an RDD to Spark's optimiser, which cannot look into it. But the RDD itself tells which RDDs it unites, so that
    one of them can be read without the others.
    """
    from pyspark.sql import DataFrame

    spark = batch.sparkSession
    sql: Any = java_names(spark).org.apache.spark.sql
    rdd = _union_of(batch._jdf.queryExecution().logical())
    if rdd is None:
        return []
    logical, dataset = (
        getattr(getattr(package, name), "MODULE$")
        for package, name in ((sql.execution, "LogicalRDD$"), (sql.classic, "Dataset$"))
    )
    parts = []
    rdds = rdd.rdds()
    for index in range(rdds.size()):
        plan = logical.fromDataset(rdds.apply(index), batch._jdf, False)
        parts.append(DataFrame(dataset.ofRows(batch._jdf.sparkSession(), plan), spark))
    return parts


def _union_of(plan: Any) -> Any:
    """The union that a frame is; None where it is anything else."""
    if plan.getClass().getSimpleName() != "LogicalRDD":
        return None
    rdd = plan.rdd()
    if rdd.getClass().getName() == _WRAPPER:
        rdd = rdd.dependencies().head().rdd()
    return rdd if rdd.getClass().getName() == _UNION else None
