"""What `Pipeline.build` refuses, and `stateflow check` with it: whatever shows before Spark is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from tests.refusals.refusal import refused


@dataclass
class Total:
    user: int
    total: float


class Sum(sf.KeyedProcess[int, Total, Total]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...


class Stateless(sf.KeyedProcess[int, Total, Total]):
    def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...


SOURCE = sf.delta("/somewhere")
TABLE = sf.delta("/nowhere")


def built(declare: Callable[[Flow], Any]) -> Flow:
    return Pipeline("test", declare).build()


def unbuilt(declare: Callable[[Flow], Any], *named: str) -> None:
    with refused(sf.UsageError, *named) as caught:
        built(declare)
    assert "\n" not in str(caught.value)


def rows(flow: Flow) -> sf.Stream:
    return flow.source("in", SOURCE, Total)


# ---- sinks ----


def test_an_option_that_a_sink_does_not_know_is_refused() -> None:
    unbuilt(lambda f: rows(f).append("out", TABLE, colour="red"), "'out' (append)", "does not take colour")
    unbuilt(lambda f: rows(f).append("out", TABLE, keys=["user"]), "'out' (append)", "does not take keys")
    unbuilt(
        lambda f: rows(f).upsert("out", TABLE, keys="user", mode="x"), "does not take mode", "leave it out"
    )
    unbuilt(lambda f: rows(f).for_each_batch("out", print, order_by="x"), "does not take order_by")


def test_a_target_of_another_kind_is_refused_with_what_to_write() -> None:
    path: Any = Path("/data/t")
    unbuilt(lambda f: rows(f).append("out", "/data/t"), "cannot write to '/data/t'", "sf.delta('/data/t')")
    unbuilt(lambda f: rows(f).upsert("out", path, keys="user"), "here sf.delta('/data/t')")
    unbuilt(lambda f: rows(f).append("out", sf.memory("x")), "give it delta(path)")
    unbuilt(lambda f: rows(f).collect("out", "x"), "memory(name)", "here sf.memory('x')")
    unbuilt(lambda f: rows(f).collect("out", TABLE), "give it memory(name)")
    wrong: Any = "/data/t"
    unbuilt(lambda f: rows(f).for_each_batch("out", wrong), "a function of (frame, delivery)")

    async def later(frame: Any, delivery: Any) -> None: ...

    def in_parts(frame: Any, delivery: Any) -> Any:
        yield frame

    class Later:
        async def __call__(self, frame: Any, delivery: Any) -> None: ...

    for idle in (later, in_parts, Later(), partial(later)):
        unbuilt(lambda f, idle=idle: rows(f).for_each_batch("out", idle), "does nothing")
    one: Any = lambda frame: None  # noqa: E731
    unbuilt(lambda f: rows(f).for_each_batch("out", one), "a function of (frame, delivery)")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(("/data/t", second) for second in ("/data/t", "/data/t/", "file:/data/t", "file:///data/t", "/data/./x/../t")),
        ("t", "./t/"),
        ("s3a://b/t", "s3a://b/t/"),
        ("s3a://b/t", "s3://b//x/../t"),
    ],
)  # fmt: skip
def test_two_sinks_of_one_table_are_refused(first: str, second: str) -> None:
    def declare(flow: Flow) -> None:
        orders = rows(flow)
        orders.append("all", sf.delta(first))
        orders.upsert("newest", sf.delta(second), keys="user")

    unbuilt(declare, "sinks 'all' and 'newest'", "give each one of its own, or union()")


@pytest.mark.parametrize(
    ("first", "second", "outer"),
    [("/data/t", "/data/t/changes", "all"), ("s3a://b/t/in/changes", "s3://b/t/", "newest"), ("t/changes", "./t", "newest")],
)  # fmt: skip
def test_a_table_in_the_folder_of_another_one_is_refused(first: str, second: str, outer: str) -> None:
    def declare(flow: Flow) -> None:
        orders = rows(flow)
        orders.append("all", sf.delta(first))
        orders.upsert("newest", sf.delta(second), keys="user")

    unbuilt(declare, f"VACUUM of the table of sink '{outer}'")


def test_tables_beside_each_other_and_sinks_of_other_kinds_are_no_reason_to_refuse() -> None:
    def declare(flow: Flow) -> None:
        orders = rows(flow)
        orders.append("all", sf.delta("/data/t"))
        orders.append("other", sf.delta("/data/t2"))
        orders.append("relative", sf.delta("data/t"))
        orders.for_each_batch("told", lambda frame, checkpoint: None)

    assert len(built(declare).sinks) == 4


@pytest.mark.parametrize(
    ("columns", "what"),
    [({"keys": "usr"}, "keys"), ({"keys": ["user", "usr"]}, "keys"), ({"keys": "user", "order_by": "usr"}, "order_by")],
)  # fmt: skip
def test_columns_of_an_upsert_that_the_row_type_lacks_are_refused(columns: Any, what: str) -> None:
    named = ("sink 'out' (upsert)", f"Total has no column 'usr' for {what}", "it has user, total")
    unbuilt(lambda f: rows(f).upsert("out", TABLE, **columns), *named)
    unbuilt(lambda f: rows(f).key_by("user").process("sum", Sum).upsert("out", TABLE, **columns), *named)


def test_a_partition_column_that_the_row_type_lacks_is_refused() -> None:
    table = sf.delta("/nowhere", partition_by=["day"])
    unbuilt(lambda f: rows(f).append("out", table), "Total", "no column 'day' for partition_by")


def test_columns_are_not_judged_where_only_spark_knows_them() -> None:
    built(lambda f: f.source("in", SOURCE).upsert("out", TABLE, keys="usr", order_by="when"))
    built(lambda f: rows(f).transform(lambda frame: frame).upsert("out", TABLE, keys="usr"))
    built(lambda f: rows(f).upsert("out", TABLE, keys="USER", order_by=None))


def test_a_condition_of_an_upsert_is_checked_against_the_row_type() -> None:
    def upsert(condition: Any) -> Callable[[Flow], Any]:
        return lambda f: rows(f).upsert("out", TABLE, keys="user", delete_when=condition)

    where = "sink 'out' (upsert), delete_when: "
    unbuilt(upsert("op = 'delete'"), where, "needs column 'op', but Total has none", "it has user, total")
    unbuilt(upsert("total = 'x'"), where, "= in the condition", "number and string")
    unbuilt(upsert("total"), where, "'total' is a number", "compare it with something")
    unbuilt(upsert("upper(total) = 1"), where, "'upper'")
    unbuilt(upsert(""), where, "''", "'its end'")
    unbuilt(upsert(True), "sink 'out' (upsert)", "delete_when is True", "a condition in SQL")
    unbuilt(
        lambda f: rows(f).append("out", TABLE, delete_when="x"), "does not take delete_when", "leave it out"
    )
    built(lambda f: f.source("in", SOURCE).upsert("out", TABLE, keys="user", delete_when="op = 'delete'"))
    assert built(upsert("total < 0")).sinks[0].options["delete_when"] == "total < 0"


def newest(flow: Flow) -> sf.Stream:
    return rows(flow).key_by("user", order_by="total").latest("newest")


def kept(frame: Any) -> Any:
    return frame.withColumn("total", frame.total * 2).filter("total > 0")


def test_a_filter_of_changes_before_an_upsert_is_refused() -> None:
    def named(word: str) -> tuple[str, ...]:
        steps = ".upsert(..., delete_when=...)", "filter before the rows become changes"
        return ("transform-2", f"a filter ({word})", "sink 'out'", *steps)

    unbuilt(
        lambda f: newest(f).transform(lambda frame: frame.where("total > 0"), Total).upsert("out", TABLE),
        *named("where"),
    )
    unbuilt(
        lambda f: newest(f).transform(kept).transform(lambda frame: frame, Total).upsert("out", TABLE),
        *named("filter"),
    )
    unbuilt(
        lambda f: newest(f).transform(kept).union(newest_of_others(f)).upsert("out", TABLE), *named("filter")
    )


def newest_of_others(flow: Flow) -> sf.Stream:
    others = flow.source("others", SOURCE, Total)
    return others.key_by("user", order_by="total").latest("newest-of-others")


def test_what_leaves_no_row_in_a_table_may_filter() -> None:
    built(lambda f: rows(f).transform(kept).upsert("out", TABLE, keys="user"))
    built(lambda f: newest(f).transform(kept).for_each_batch("out", lambda frame, slot: None))
    built(lambda f: newest(f).changes_as_rows(op="op").transform(kept).append("out", TABLE))
    built(lambda f: newest(f).transform(lambda frame: frame.select("user")).upsert("out", TABLE))


def test_an_upsert_without_keys_is_refused() -> None:
    unbuilt(lambda f: rows(f).upsert("out", TABLE, keys=[]), "'out' (upsert)", "no key columns")


# ---- sources and steps ----


def test_a_source_of_another_kind_is_refused_with_what_to_write() -> None:
    path = Path("/data/in")
    unbuilt(
        lambda f: f.source("in", "/data/in", Total), "'in' cannot read '/data/in'", "say sf.delta('/data/in')"
    )
    unbuilt(lambda f: f.source("in", path), "say sf.delta('/data/in')")
    unbuilt(lambda f: f.source("in", 5), "'in' cannot read 5", "a function from SparkSession")
    unbuilt(lambda f: f.source("in", lambda: None), "a function from SparkSession")


def test_rows_that_nobody_takes_are_refused() -> None:
    def unread_source(flow: Flow) -> None:
        flow.source("more", SOURCE, Total)
        rows(flow).append("out", TABLE)

    def unread_step(flow: Flow) -> None:
        source = rows(flow)
        source.transform(lambda frame: frame)
        source.append("out", TABLE)

    unbuilt(
        unread_source,
        "pipeline 'test'",
        "does nothing with the rows of 'more'",
        "add a sink",
        "or leave the step out",
    )
    unbuilt(unread_step, "nothing with the rows of 'transform-1'")
    unbuilt(
        lambda f: rows(f).key_by("user").process("x", Stateless), "nothing with the rows of 'x'", "add a sink"
    )


def test_an_operator_with_state_needs_no_sink_since_its_state_can_be_read() -> None:
    built(lambda f: rows(f).key_by("user").process("sum", Sum))


# ---- aggregations ----


def summed(frame: Any) -> Any:
    kept = frame.where("total > 0")
    if kept is None:
        return frame
    return frame.where("total > 0").groupBy("user").sum("total")


def test_an_aggregation_that_the_text_of_a_transform_shows_is_refused() -> None:
    unbuilt(lambda f: rows(f).transform(lambda frame: frame.groupBy("user").count()).append("out", TABLE),
            "transform-1", "an aggregation (groupBy)", "the state of a keyed operator")  # fmt: skip
    unbuilt(
        lambda f: rows(f).transform(lambda frame: frame.dropDuplicates(["user"])).append("out", TABLE),
        "transform-1",
        "(dropDuplicates)",
    )
    unbuilt(lambda f: rows(f).transform(summed).append("out", TABLE), "an aggregation (groupBy)")


def pruned(frame: Any) -> Any:
    days = frame.select("user").distinct().collect()
    return frame.where(frame.user.isin(days))


def replaced(frame: Any) -> Any:
    frame = built(frame)
    return frame.distinct()


def test_an_aggregation_beside_the_rows_is_no_reason_to_refuse() -> None:
    rates: Any = None
    built(
        lambda f: (
            rows(f)
            .transform(lambda frame: frame.join(rates.groupBy("user").agg("x"), "user"))
            .append("out", TABLE)
        )
    )
    built(lambda f: rows(f).transform(pruned).transform(replaced).append("out", TABLE))


def test_a_transform_that_is_no_function_of_a_frame_is_refused() -> None:
    text: Any = "x"
    unbuilt(lambda f: rows(f).transform(text), "transform-1 cannot call 'x'", "a function of one DataFrame")
    unbuilt(lambda f: rows(f).transform(lambda: None), "a function of one DataFrame")


@dataclass
class Timed:
    user: int
    v: int
    ts: datetime


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (lambda s: s.key_by(["user", "v"]), ("key_by", "not ['user', 'v']", "say key_by('user', 'sku'")),
        (lambda s: s.key_by(lambda row: row.user), ("key_by", "names of columns", "not <function")),
        (lambda s: s.key_by("user", order_by=[1]), ("key_by", "names of columns", "not 1")),
        (lambda s: s.key_by("user").aggregate("op", "user long, n long", n=sf.count(where=True)), ("operator 'op'", "where= of 'n' is True")),
        (lambda s: s.key_by("user").aggregate("op", "user long, n long", n=sf.count(), queryable="yes"), ("operator 'op'", "queryable is 'yes'")),
        (lambda s: s.key_by("user").latest("op", queryable=True), ("operator 'op'", "queryable is True", "give latest the name")),
        (lambda s: s.key_by("user").join_asof("op", s.key_by("user"), "user long", keep="1 day", wait="no"), ("join 'op'", "wait is 'no'")),
    ],
)  # fmt: skip
def test_options_of_a_wrong_type_are_told(step: Callable[[Any], Any], named: tuple[str, ...]) -> None:
    def declare(flow: Flow) -> None:
        step(flow.source("in", SOURCE, Timed, event_time="ts", watermark="1 minute"))

    unbuilt(declare, *named)
