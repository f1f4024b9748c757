"""Aggregates and windows that cannot be are refused when the pipeline is built, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.compatibility.flows import compare
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.streams import KeyedStream
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused


@dataclass
class Order:
    user: int
    sku: str
    amount: float
    tags: list[str]
    paid: bool
    ts: datetime


@dataclass
class Total:
    user: int
    n: int


@dataclass
class PerWindow:
    user: int
    window_start: datetime
    n: int


@dataclass
class Wide(Total):
    extra: str


@dataclass
class Texts:
    user: int
    n: str


def every(**given: Any) -> Any:
    code: dict[str, Any] = {
        "create": list,
        "add": lambda s, v: [*s, v],
        "merge": lambda a, b: a + b,
        "state": list[int],
    }
    return sf.aggregate("user", **{**code, **given})


def flow_of(
    declare: Callable[[KeyedStream], Any], source: dict[str, Any] | None = None, **key: Any
) -> sf.Flow:
    time = {"event_time": "ts", "watermark": "1 minute"} if source is None else source

    @sf.pipeline("ready")
    def ready(flow: sf.Flow) -> None:
        rows = time.pop("rows", Order)
        declare(flow.source("in", sf.delta("/in"), rows, **time).key_by("user", **key))

    return ready.build()


MINUTE = sf.tumbling("1 minute")

REFUSED: list[tuple[Callable[[KeyedStream], Any], dict[str, Any] | None, tuple[str, ...]]] = [
    (lambda k: k.aggregate("op", Total), None, ("operator 'op' aggregates nothing", "such as n=sf.count()")),
    (lambda k: k.aggregate("op", Total, n=1), None, ("operator 'op'", "n=1 is not an aggregate", "such as sf.count()")),
    (lambda k: k.aggregate("op", Total, n=sf.sum("amuont")), None,
     ("operator 'op'", "'n' needs column 'amuont'", "it has user, sku, amount, tags, paid, ts")),
    (lambda k: k.aggregate("op", Total, n=sf.sum("sku")), None,
     ("operator 'op'", "'n' is the sum of column 'sku' (string)", "takes a number", "cast the column")),
    (lambda k: k.aggregate("op", Total, n=sf.count(where="amount > 'x'")), None,
     ("operator 'op', 'n'", "\"amount > 'x'\"", "number and string")),
    (lambda k: k.aggregate("op", Total, n=sf.count(where="amuont > 1")), None,
     ("operator 'op', 'n'", "'amuont > 1'", "column 'amuont'", "it has user, sku, amount, tags, paid, ts")),
    (lambda k: k.aggregate("op", Total, n=sf.count(where="upper(sku) = 'A'")), None,
     ("operator 'op', 'n'", "calls 'upper'", "compute a boolean column with transform()")),
    (lambda k: k.aggregate("op", Total, n=sf.count(where="amount > 1 AND")), None,
     ("operator 'op', 'n'", "'amount > 1 AND'", "'its end'", "compute a boolean column with transform()")),
    (lambda k: k.aggregate("op", Total, n=sf.collect("sku", 3)), None,
     ("operator 'op'", "'n' is the collect", "no order", "key_by(..., order_by=...)")),
    (lambda k: k.aggregate("op", Total, n=sf.quantile("amount", 95)), None, ("quantile('amount', 95)", "from 0 to 1", "0.95")),
    (lambda k: k.aggregate("op", Total, n=sf.quantile("amount", 0.5, accuracy=2)), None,
     ("quantile('amount', accuracy=2)", "at least 0.0001, or 0 for exact")),
    (lambda k: k.aggregate("op", Total, n=sf.top_values("sku", 0)), None, ("top_values: 0 values", "at least 1")),
    (lambda k: k.aggregate("op", Total, n=sf.top_values("amount", 3)), None,
     ("operator 'op'", "'n' counts the values", "'amount' (double)", "a whole number, a decimal, a string", "cast the column")),
    (lambda k: k.aggregate("op", Total, n=sf.max("tags")), None,
     ("operator 'op'", "'n' is the max", "'tags' (array<string>)", "a number, a string", "cast the column")),
    (lambda k: k.aggregate("op", Total, n=sf.count(where="sku")), None,
     ("operator 'op'", "the condition of 'n'", "'sku' (string)", "no boolean", '"sku > 0"')),
    (lambda k: k.aggregate("op", Total, n=sf.last("sku")), None,
     ("operator 'op'", "'n' is the last", "no order", "key_by(..., order_by=...)")),
    (lambda k: k.aggregate("op", Total, n=sf.sum("amount")), None,
     ("operator 'op' puts double", "Total.n, which is bigint", "change the type of the field")),
    (lambda k: k.aggregate("op", Texts, n=sf.count()), None,
     ("operator 'op' puts bigint", "Texts.n, which is string", "change the type of the field")),
    (lambda k: k.aggregate("op", Total, n=every(result=len)), None,
     ("operator 'op' puts array<bigint>", "Total.n, which is bigint", "sf.aggregate(..., output=)", "the type of the field")),
    (lambda k: k.aggregate("op", Total, n=every()), None,
     ("operator 'op' puts array<bigint>", "Total.n, which is bigint: change the type")),
    (lambda k: k.aggregate("op", Total, m=sf.count()), None, ("operator 'op'", "Total has no field for 'm'", "it has user, n")),
    (lambda k: k.aggregate("op", "n long", n=sf.count()), None, ("operator 'op'", "Row has no field for 'user'", "it has n")),
    (lambda k: k.aggregate("op", Wide, n=sf.count()), None, ("operator 'op'", "Wide.extra", "it has user, n")),
    (lambda k: k.aggregate("op", Total, user=sf.count()), None,
     ("operator 'op'", "'user' is an aggregate and a key column", "rename the aggregate")),
    (lambda k: k.aggregate("op", "user long, n double, n_sum double", n=sf.mean("amount"), n_sum=sf.sum("amount")), None,
     ("operator 'op'", "two aggregates", "rename 'n_sum'")),
    (lambda k: k.aggregate("op", Total, n=sf.count()), {"rows": None},
     ("operator 'op'", "the types of its columns", "flow.source(..., type)", "transform(..., type=...)")),
    (lambda k: k.aggregate("op", Total, n=sf.count()).append("out", sf.delta("/out")), None,
     ("sink 'out' (append)", "operator 'op'", "replace each other by user", ".upsert()", ".changes_as_rows(op='op')")),
    (lambda k: k.aggregate("op", Total, n=sf.count()).key_by("n"), None,
     ("key_by: ", "operator 'op'", "replace each other by user", ".upsert()", ".changes_as_rows(op='op')")),
    (lambda k: k.window(MINUTE).aggregate("op", PerWindow, n=sf.count()), {},
     ("operator 'op' needs event time", "event_time= and watermark=")),
    (lambda k: k.window(MINUTE, time="sku").aggregate("op", PerWindow, n=sf.count()), None,
     ("operator 'op'", "the event time, column 'sku' (string)", "no datetime")),
    (lambda k: k.window(MINUTE, time="at").aggregate("op", PerWindow, n=sf.count()), None,
     ("operator 'op'", "no column 'at'", "it has user, sku, amount, tags, paid, ts", "time='ts'")),
    (lambda k: k.window(MINUTE).aggregate("op", PerWindow, emit="eager", n=sf.count()), None,
     ("operator 'op'", "'final', 'changes' or 'on_time'", "'eager'")),
    (lambda k: k.window(MINUTE).aggregate("op", Total, emit="changes", n=sf.count()), None,
     ("operator 'op'", "emit='changes'", "Total", "the field window_start or window_end")),
    (lambda k: k.window(sf.cumulative("1 hour", "1 minute")).aggregate("op", PerWindow, emit="on_time", n=sf.count()), None,
     ("operator 'op'", "emit='on_time'", "PerWindow", "the field window_end")),
    (lambda k: k.aggregate("op", Total, n=sf.count_distinct("amount")), None,
     ("operator 'op'", "'n' counts the distinct values", "'amount' (double)", "a whole number, a decimal, a string", "cast the column")),
    (lambda k: k.window(sf.session("1 minute")).aggregate("op", PerWindow, n=sf.count_distinct("sku")), None,
     ("operator 'op'", "session windows", "'n'", "approximate=True")),
    (lambda k: k.window(sf.session("1 minute")).aggregate("op", PerWindow, emit="changes", n=sf.count()), None,
     ("operator 'op'", "session windows", "emit='final'")),
    (lambda k: k.window(MINUTE).aggregate("op", PerWindow, n=sf.count()).key_by("user").window(sf.tumbling("1 hour"))
     .aggregate("hours", PerWindow, n=sf.count()), None,
     ("operator 'hours'", "PerWindow has no column 'ts'", "it has user, window_start, n", "time='window_start'")),
    (lambda k: k.window("1 minute"), None, ("window: '1 minute' is not a window", "sf.tumbling('1 minute')")),
    (lambda k: k.window(MINUTE, lateness="-1 minutes"), None, ("window: lateness is '-1 minutes'", "such as '5 minutes'")),
    (lambda k: sf.session("-5 minutes"), None, ("session: gap is '-5 minutes'", "such as '1 minute'")),
    (lambda k: sf.hopping("1 minute", "2 minutes"), None, ("hopping('1 minute', every='2 minutes')", "`every` at most `size`")),
    (lambda k: sf.cumulative("1 hour", "7 minutes"), None,
     ("cumulative('1 hour', every='7 minutes')", "no multiple", "cumulative('1 day', every='1 hour')")),
    (lambda k: sf.tumbling(60), None, ("tumbling: size is 60", "'10 minutes'", "a timedelta")),
]  # fmt: skip


@pytest.mark.parametrize(("declare", "source", "named"), REFUSED, ids=[" ".join(n)[:60] for *_, n in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(
    declare: Callable[[KeyedStream], Any], source: dict[str, Any] | None, named: tuple[str, ...]
) -> None:
    with refused(sf.UsageError, *named) as caught:
        flow_of(declare, None if source is None else dict(source))
    assert "\n" not in str(caught.value)


MINUTES = "room long, ts timestamp, window_end timestamp, window_start timestamp"


def cut(keyed: KeyedStream, way: str) -> Any:
    """The rows of a key in windows, in one of the ways that take the bounds along."""
    name = keyed.columns[0]
    if way == "process":

        class PerBound(sf.WindowProcess[datetime, Any, Any]):
            def process(self, key: Any, window: Any, rows: Any, ctx: Any) -> Any:
                return [{"n": len(rows)}]

        return keyed.window(HOUR).process("hours", PerBound, output="n long")
    if way == "join":
        return keyed.window(HOUR).join("hours", keyed, f"{name} timestamp, left_room long")
    other = "window_end" if name.endswith("window_start") else "window_start"
    output = f"{name} timestamp, {other} timestamp, n long"
    return keyed.window(HOUR).aggregate("hours", output, emit=way, n=sf.count())


HOUR = sf.tumbling("1 hour")


@pytest.mark.parametrize("bound", ["window_start", "window_end"])
@pytest.mark.parametrize("way", ["final", "changes", "process", "join"])
def test_no_key_is_called_as_a_bound_of_its_windows(bound: str, way: str) -> None:
    def declare(flow: sf.Flow, name: str) -> None:
        rows = flow.source("in", sf.delta("/in"), MINUTES, event_time="ts", watermark="1 minute")
        if name != bound:
            other = MINUTES.replace(bound, name)
            rows = rows.transform(lambda frame: frame.withColumnRenamed(bound, name), type=other)
        cut(rows.key_by(name), way)

    with refused(sf.UsageError, "'hours'", repr(bound), f"withColumnRenamed({bound!r}, 'of_{bound}')"):
        declare(sf.Flow("flow"), bound)
    declare(sf.Flow("flow"), f"of_{bound}")


@pytest.mark.parametrize("columns", [("user", "user"), ("sku", "user", "sku"), ("user", "USER")])
def test_a_key_has_each_column_once(columns: tuple[str, ...]) -> None:
    with refused(sf.UsageError, "key_by", repr(columns[0]), "named twice"):
        flow_of(lambda keyed: keyed.stream.key_by(*columns))


@pytest.mark.parametrize(
    "declare",
    [
        lambda rows: rows.key_by("_sf_row"),
        lambda rows: rows.key_by("room", order_by="-_SF_row"),
        lambda rows: rows.deduplicate("once", by="room"),
        lambda rows: rows.key_by("room").aggregate("op", "room long, n long", n=sf.sum("_sf_row")),
    ],
)
def test_no_column_is_called_as_those_that_the_library_adds(declare: Callable[[sf.Stream], Any]) -> None:
    def rows(flow: sf.Flow) -> sf.Stream:
        return flow.source("in", sf.delta("/in"), "room long, _sf_row long")

    with refused(sf.UsageError, "column", "_sf_'", "withColumnRenamed(", "'row')"):
        declare(rows(sf.Flow("flow")))
    renamed = rows(sf.Flow("flow")).transform(
        lambda frame: frame.withColumnRenamed("_sf_row", "row"), type="room long, row long"
    )
    renamed.key_by("room").aggregate("op", "room long, n long", n=sf.sum("row"))


def test_nor_is_an_aggregate() -> None:
    with refused(sf.UsageError, "operator 'op'", "'_sf_row'"):
        flow_of(
            lambda k: k.window(sf.session("1 minute")).aggregate(
                "op", "user long, _sf_row long", _sf_row=sf.count()
            )
        )


@pytest.mark.parametrize("name", ["until", "time_of_row"])
def test_a_key_may_be_called_as_what_a_deduplication_keeps(name: str) -> None:
    flow = sf.Flow("flow")
    rows = flow.source(
        "in", sf.delta("/in"), f"{name} long, ts timestamp, v long", event_time="ts", watermark="1 minute"
    )
    rows.deduplicate("once", by=name, within="1 hour", keep="last").append("out", sf.delta("/out"))
    harness, noon = ColumnarHarness.of(flow, "once"), datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert harness.rows({name: 7, "ts": noon, "v": 1}) == []
    assert harness.advance(noon + timedelta(minutes=1)) == []
    assert harness.advance(noon + timedelta(hours=2)) == [{name: 7, "ts": noon, "v": 1}]


@pytest.mark.parametrize(
    ("arguments", "source", "named"),
    [
        ({"by": "id"}, None, ("key_by", "Order has no column 'id'", "it has user, sku, amount, tags, paid, ts")),
        ({"by": "sku", "keep": "all"}, None, ("operator 'once'", "keep is 'first' or 'last'", "'all'")),
        ({"by": "sku", "within": "-7 days"}, None, ("within is '-7 days'", "such as '5 minutes'")),
        ({"by": "sku", "ttl": "7 days"}, None, ("operator 'once'", "no ttl=", "within='7 days'")),
        ({"by": "sku", "within": "7 days"}, {}, ("operator 'once'", "within= needs event time", "event_time= and watermark=")),
        ({"by": "sku", "keep": "last"}, {}, ("operator 'once'", "keep='last' needs event time", "event_time= and watermark=")),
        ({"by": "ts"}, None, ("operator 'once'", "column 'ts' is the event time", "alike")),
        ({"by": "sku"}, None, ("operator 'once'", "'tags' (array<string>)", "make a string of it, with transform()")),
    ],
)  # fmt: skip
def test_a_deduplication_that_cannot_be_is_refused_in_one_sentence(
    arguments: dict[str, Any], source: dict[str, Any] | None, named: tuple[str, ...]
) -> None:
    with refused(sf.UsageError, *named) as caught:
        flow_of(
            lambda keyed: keyed.stream.deduplicate("once", **arguments),
            None if source is None else dict(source),
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("within", "count"), [("7 days", 0), (None, 1)])
def test_a_deduplication_without_an_end_is_warned_of(within: str | None, count: int) -> None:
    flow = flow_of(
        lambda keyed: (
            keyed.stream.transform(lambda f: f, type="user long, ts timestamp")
            .deduplicate("once", by="user", within=within)
            .append("out", sf.delta("/out"))
        )
    )
    warnings = compare(flow, "job", None).warnings
    assert len(warnings) == count
    assert all("remembers every key for ever" in warning for warning in warnings)


def test_an_upsert_of_aggregates_knows_its_keys() -> None:
    flow = flow_of(lambda k: k.aggregate("op", Total, n=sf.count()).upsert("out", sf.delta("/out")))
    assert flow.sinks[0].options["keys"] == ("user",)
    flow = flow_of(
        lambda k: k.window(MINUTE).aggregate("op", PerWindow, emit="changes", n=sf.count()).upsert(
            "out", sf.delta("/out")
        )
    )  # fmt: skip
    assert flow.sinks[0].options["keys"] == ("user", "window_start")


def test_final_windows_are_rows() -> None:
    flow = flow_of(
        lambda k: k.window(sf.tumbling(timedelta(minutes=1))).aggregate("op", PerWindow, n=sf.count()).append(
            "out", sf.delta("/out")
        )
    )  # fmt: skip
    assert [sink.mode for sink in flow.sinks] == ["append"]


def test_changes_become_rows_with_a_column_that_says_so() -> None:
    def declare(keyed: KeyedStream) -> None:
        rows = keyed.aggregate("op", Total, n=sf.count()).changes_as_rows(op="what")
        assert rows.rows is not None
        assert rows.rows.ddl == "`user` bigint, `n` bigint, `what` string"
        rows.append("out", sf.delta("/out"))
        with pytest.raises(sf.UsageError, match="are no changes already: leave it out"):
            rows.changes_as_rows(op="op")

    flow_of(declare)


@dataclass
class Sums:
    user: int
    n: int
    skus: int
    total: float
    newest: datetime


SUMS = {
    "n": sf.count(), "skus": sf.count("sku"), "total": sf.sum("amount"), "newest": sf.max("ts"),
}  # fmt: skip


@pytest.mark.parametrize("order", ["total", "skus", "newest", "-n", ["total", "n"], ["-newest", "n"]])
def test_a_list_of_sums_is_ordered_by_the_count_of_their_rows(order: str | list[str]) -> None:
    falls = order if isinstance(order, str) else order[0]
    with refused(
        sf.UsageError, "operator 'best'", repr(falls), "add n=sf.count()", "key_by(..., order_by='n')"
    ):
        flow_of(
            lambda k: (
                k.aggregate("op", Sums, **SUMS)
                .changes_as_rows(op="what")
                .key_by("what", order_by=order)
                .top("best", 3, by="-total", per="user")
            )
        )


@pytest.mark.parametrize("order", ["n", ["newest", "n"], ["what", "n"]])
def test_a_list_of_sums_may_be_ordered_by_more_than_their_count(order: str | list[str]) -> None:
    flow_of(
        lambda k: (
            k.aggregate("op", Sums, **SUMS)
            .changes_as_rows(op="what")
            .key_by("user", order_by=order)
            .top("best", 3, by="-total", per="what")
            .upsert("best", sf.delta("/best"))
        )
    )


@pytest.mark.parametrize("order", ["n", ["newest", "n"], ["what", "-n"]])
def test_nor_by_a_count_that_begins_anew_after_a_ttl(order: str | list[str]) -> None:
    """The two ways that the refusal names hold."""

    def ranked(rows: sf.Stream, order: str | list[str]) -> None:
        best = rows.key_by("user", order_by=order).top("best", 3, by="-total", per="skus")
        best.upsert("best", sf.delta("/best"))

    with refused(
        sf.UsageError, "operator 'best'", "begins anew", "leave that ttl= out", ".window(...).aggregate("
    ):
        flow_of(
            lambda k: ranked(k.aggregate("op", Sums, ttl="30 days", **SUMS).changes_as_rows(op="what"), order)
        )
    flow_of(lambda k: ranked(k.aggregate("op", Sums, **SUMS).changes_as_rows(op="what"), "n"))
    flow_of(lambda k: ranked(k.window(MINUTE).aggregate("op", Sums, **SUMS), ()))


@pytest.mark.parametrize(("over", "of"), [(sf.max, "n"), (sf.max, "newest"), (sf.min, "oldest")])
def test_nor_is_an_extreme_of_what_begins_anew_after_a_ttl_the_same(over: Any, of: str) -> None:
    named = {"n": sf.count(), "newest": sf.max("ts"), "oldest": sf.min("ts")}
    output = "user long, n long, newest timestamp, oldest timestamp"

    def declare(keyed: KeyedStream, **ttl: str) -> None:
        rows = keyed.aggregate("op", output, **named, **ttl).changes_as_rows(op="what")
        kind = "long" if of == "n" else "timestamp"
        found = rows.key_by("what").aggregate("all", f"what string, found {kind}", found=over(of))
        found.upsert("out", sf.delta("/out"))

    with refused(sf.UsageError, "operator 'all'", "'found'", "would keep what has been replaced"):
        flow_of(lambda k: declare(k, ttl="30 days"))
    flow_of(declare)


def test_what_a_transform_makes_of_sums_is_not_judged() -> None:
    flow_of(
        lambda k: (
            k.aggregate("op", Sums, **SUMS)
            .changes_as_rows(op="what")
            .transform(lambda frame: frame, "user long, total double, what string")
            .key_by("what", order_by="total")
            .top("best", 3, by="-total", per="user")
            .upsert("best", sf.delta("/best"))
        )
    )


def test_a_list_of_rows_that_were_changes_has_to_know_which_row_is_newer() -> None:
    def sums(keyed: KeyedStream) -> sf.Stream:
        return keyed.aggregate("op", Total, n=sf.count()).changes_as_rows(op="what")

    named = "operator 'best'", "by user before .changes_as_rows()", "key_by(..., order_by=...)", "with per="
    for order, per in (((), "user"), ("n", ()), ((), ())):
        with refused(sf.UsageError, *named):
            flow_of(
                lambda k, o=order, p=per: sums(k).key_by("what", order_by=o).top("best", 3, by="-n", per=p)
            )  # type: ignore[misc]
    with refused(sf.UsageError, "a value that has fallen"):
        flow_of(
            lambda k: (
                sums(k)
                .transform(lambda frame: frame, "user long, n long, what string")
                .union(k.stream.transform(lambda frame: frame, "user long, n long, what string"))
                .key_by("what")
                .top("best", 3, by="-n", per="user")
            )
        )
    flow_of(
        lambda k: (
            sums(k)
            .key_by("what", order_by="n")
            .top("best", 3, by="-n", per="user")
            .upsert("o", sf.delta("/o"))
        )
    )


@dataclass
class Revenue:
    user: int
    sku: str
    revenue: float
    n: int


def test_a_running_sum_that_has_fallen_leaves_the_list() -> None:
    """As the page of the recipe says it."""

    def declare(keyed: KeyedStream) -> None:
        sums = keyed.stream.key_by("user", "sku").aggregate(
            "sums", Revenue, revenue=sf.sum("amount"), n=sf.count()
        )
        rows = sums.changes_as_rows(op="op").key_by("user", order_by="n")
        rows.top("best", 1, by="-revenue", per="sku").upsert("out", sf.delta("/out"))

    flow = flow_of(declare)
    sums, best = ColumnarHarness.of(flow, "sums"), ColumnarHarness.of(flow, "best")

    def batch(*sales: tuple[str, float]) -> list[tuple[Any, ...]]:
        rows = [Order(1, sku, amount, [], True, datetime(2026, 1, 1, tzinfo=UTC)) for sku, amount in sales]
        changes = [{**vars(each), "op": "upsert"} for each in sums.rows(*rows)]
        return [(each["_op"], each["sku"], each["revenue"]) for each in best.rows(*changes)]

    assert batch(("tea", 9.0), ("jam", 5.0)) == [("upsert", "tea", 9.0)]
    refund = ("tea", -6.0)
    assert batch(refund) == [("delete", "tea", 9.0), ("upsert", "jam", 5.0)]


def test_a_list_takes_no_rows_that_say_what_is_gone() -> None:
    with refused(sf.UsageError, "operator 'best'", "a row is gone", "without .changes_as_rows()"):
        flow_of(
            lambda k: (
                k.stream.transform(lambda frame: frame, "user long, sku string, amount double, ts timestamp")
                .key_by("user")
                .top("first", 3, by="-amount", per="sku")
                .changes_as_rows(op="what")
                .key_by("what", order_by="ts")
                .top("best", 3, by="-amount", per="sku")
            )
        )


def test_late_rows_are_a_side_output_with_all_columns() -> None:
    def declare(keyed: KeyedStream) -> None:
        windows = keyed.window(MINUTE).aggregate("op", PerWindow, n=sf.count())
        late = windows.side("late")
        assert late.rows is not None
        assert late.rows.names == ("user", "sku", "amount", "tags", "paid", "ts")

    flow = flow_of(declare)
    node = flow.operators[0]
    assert isinstance(node, KeyedNode)
    # Nobody reads them here, so that only these two go through the exchange.
    assert node.columnar is not None
    assert node.columnar.needed(frozenset({""})).names == ("user", "ts")  # type: ignore[attr-defined]
    assert node.columnar.needed(frozenset({"", "late"})).names[1:3] == ("sku", "amount")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"create": 0}, ("sf.aggregate('user'): create is 0", "a function of no value", "not async")),
        ({"add": len}, ("sf.aggregate('user'): add is <built-in", "a function of two values", "not async")),
        ({"merge": 7}, ("sf.aggregate('user'): merge is 7", "a function of two values", "not async")),
        ({"result": "n"}, ("sf.aggregate('user'): result is 'n'", "a function of one value", "not async")),
        ({"state": object, "output": int}, ("operator 'op', state of 'n'", "object cannot be kept in state")),
    ],
)
def test_code_of_ones_own_that_cannot_be_called_is_refused(given: Any, named: tuple[str, ...]) -> None:
    with refused(sf.UsageError, *named):
        flow_of(lambda k: k.aggregate("op", Total, n=every(**given)))


def test_code_of_ones_own_is_not_async() -> None:
    async def add(state: Any, value: Any) -> Any:
        return [*state, value]

    with refused(sf.UsageError, "add is <function", "two values", "not async"):
        every(add=add)


def test_the_type_of_a_result_may_be_said() -> None:
    flow_of(lambda k: k.aggregate("op", Total, n=every(result=len, output=int)))
    counts = every(create=dict, result=dict, state=dict[str, int])
    flow_of(lambda k: k.aggregate("op", "user long, n map<string, long>", n=counts))


def test_an_aggregate_may_have_the_type_of_a_wider_field() -> None:
    flow_of(lambda k: k.aggregate("op", "user long, n long", n=sf.max("user")), {"rows": "user int"})
    with pytest.raises(sf.UsageError, match=r"puts bigint into Row\.n, which is int"):
        flow_of(lambda k: k.aggregate("op", "user int, n int", n=sf.sum("user")), {"rows": "user int"})
