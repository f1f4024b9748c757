"""A source of a package in a run, and every sentence that says what one got wrong."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.connectors import Position, Source
from stateflow.errors import DisagreementError, IncompatibleError, StateflowError, UsageError
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.pipelines.inputs.source import DeclaredSource
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark import runner
from stateflow.spark.inputs import connected
from tests.refusals.refusal import refused
from tests.spark.conftest import bench  # noqa: F401
from tests.spark.pipelines import ORDER, Order, Workbench, at
from tests.spark.sink_places import contents
from tests.spark.test_api_time import Clock


@dataclass
class Bought:
    id: int
    item: str
    at: datetime | None = None


@dataclass(frozen=True)
class Shop(Source):
    """A table of SQLite whose ids grow."""

    file: str
    per_batch: int = 100

    @property
    def place(self) -> str:
        return f"shop:{self.file}"

    def __str__(self) -> str:
        return "the shop"

    def position(self, start: Position | None) -> Position:
        if start is None:
            return {"id": 0}
        with closing(sqlite3.connect(self.file)) as db:
            return {"id": db.execute("SELECT coalesce(max(id), 0) FROM bought").fetchone()[0]}

    def cut(self, start: Position, end: Position) -> Position:
        return {"id": min(start["id"] + self.per_batch, end["id"])}

    def plan(self, start: Position, end: Position) -> list[Any]:
        return [[id, min(id + 2, end["id"])] for id in range(start["id"], end["id"], 2)]

    def read(self, part: Any) -> Iterator[Any]:
        with closing(sqlite3.connect(self.file)) as db:
            for id, item in db.execute("SELECT id, item FROM bought WHERE id > ? AND id <= ?", part):
                yield {"id": id, "item": item, "more": 1}


def sell(file: Path, *items: str) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS bought (id INTEGER PRIMARY KEY, item)")
        db.executemany("INSERT INTO bought (item) VALUES (?)", [(item,) for item in items])


def at_id(id: int) -> str:
    return f'{{"id": {id}}}'


def shop_of(bench: Workbench, source: Any) -> sf.Pipeline:  # noqa: F811
    @sf.pipeline("shop")
    def shop(flow: sf.Flow) -> None:
        bought = flow.source("bought", source, Bought)
        bought.append("out", sf.delta(str(bench.folder / "out")))

    return shop


@pytest.fixture(autouse=True)
def _shipped() -> None:
    import sys

    from stateflow.spark.session.shipping import by_value

    by_value([sys.modules[__name__]])


needs_4_2 = pytest.mark.skipif(
    connected.SupportsTriggerAvailableNow is None, reason="before Spark 4.2 no source of a package is read"
)


@dataclass
class Misspelt:
    id: int
    iteem: str | None = None
    parcel: str | None = None


@dataclass(frozen=True)
class Named(Shop):
    """A source that knows more columns than it reads."""

    def read(self, part: Any) -> Iterator[Any]:
        for row in super().read(part):
            yield {"id": row["id"]}

    def columns(self, part: Any) -> list[str]:
        return ["id", "item", "parcels"]


@needs_4_2
@pytest.mark.parametrize(
    ("kind", "alike"), [(Shop, {"iteem": "item"}), (Named, {"iteem": "item", "parcel": "parcels"})]
)
def test_a_field_that_is_none_in_every_row_is_told_with_the_name_that_is_like_it(
    bench: Workbench,  # noqa: F811
    kind: type[Shop],
    alike: dict[str, str],
) -> None:
    sell(bench.folder / "shop.db", "a", "b", "c")
    source = kind(str(bench.folder / "shop.db"))

    @sf.pipeline("shop")
    def shop(flow: sf.Flow) -> None:
        flow.source("bought", source, Misspelt).append("out", sf.delta(str(bench.folder / "out")))

    for rows in (3, 1):
        warnings = bench.run(shop).warnings
        assert len(warnings) == len(alike)
        for warning, (name, other) in zip(sorted(warnings), sorted(alike.items()), strict=True):
            assert f"{rows} rows have no {name!r} at all" in warning
            assert f"they have {other!r}, which Misspelt lacks" in warning
        sell(bench.folder / "shop.db", "d")


def test_an_older_spark_is_refused_with_the_version_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connected, "SupportsTriggerAvailableNow", None)
    with refused(UsageError, "source 'bought'", "needs Spark 4.2"):
        connected.stream_of(None, Shop("nowhere").declared("bought", row_type(Bought)))  # type: ignore[arg-type]


@pytest.mark.slow
@needs_4_2
def test_a_run_reads_each_row_once_over_batches_runs_and_restores(
    spark: SparkSession,
    bench: Workbench,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = bench.folder / "shop.db"
    sell(file, *"abcdefg")
    shop = shop_of(bench, Shop(str(file), per_batch=3))
    bench.run(shop, retained_checkpoints=10)
    assert [report.rows for report in bench.reports] == [3, 3, 1]
    records = bench.records("shop")
    assert [record.sources["bought"].lines for record in records][-3:] == [
        (at_id(3),), (at_id(6),), (at_id(7),),
    ]  # fmt: skip
    sell(file, *"hi")
    bench.run(shop, retained_checkpoints=10)
    bench.run(shop, retained_checkpoints=10)
    assert Counter(contents(spark, bench.folder / "out", "item")) == Counter("abcdefghi")
    # A table that was put back is refused by the run, and nothing is written.
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DELETE FROM bought WHERE id > 4")
    with refused(DisagreementError, "source 'bought'", "position() of the shop", "'id' is 4 and was 9"):
        bench.run(shop)
    # Outputs are not taken back to where no run could go on, and a source that does not answer is told.
    slots = {record.sources["bought"].lines[0]: record.slot for record in records if record.sources}
    job = bench.job("shop")
    with refused(DisagreementError, "source 'bought'", "'id' is 4 and was 6"):
        job.restore(f"checkpoint:{slots[at_id(6)]}", shop, options=bench.options(), rewind_sinks=True).apply()
    assert len(contents(spark, bench.folder / "out", "item")) == 9
    file.unlink()
    job.restore(f"checkpoint:{slots[at_id(3)]}", shop, options=bench.options(), rewind_sinks=True).apply()
    assert len(contents(spark, bench.folder / "out", "item")) == 3
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("source 'bought' cannot be asked from here")


@dataclass(frozen=True)
class Broken(Shop):
    def read(self, part: Any) -> Iterator[Any]:
        yield {"id": part[1], "item": 5}


@needs_4_2
def test_what_does_not_fit_fails_in_the_task_with_its_sentence(
    spark: SparkSession,
    bench: Workbench,  # noqa: F811
) -> None:
    file = bench.folder / "shop.db"
    sell(file, "a")
    with refused(IncompatibleError, "source 'bought'", "column 'item'", "Bought", "does not fit"):
        bench.run(shop_of(bench, Broken(str(file))))
    assert contents(spark, bench.folder / "out", "item") == []


CANCELLED = "-"


@dataclass(frozen=True)
class Timed(Shop):
    """What was bought in the minute that its item says."""

    def read(self, part: Any) -> Iterator[Any]:
        for row in super().read(part):
            if row["item"] != CANCELLED:
                yield {**row, "at": at(float(row["item"]))}


@dataclass(frozen=True)
class AllAtOnce(Timed):
    """A batch of it has all that there is."""

    cut = Source.cut


@pytest.mark.slow
@needs_4_2
@pytest.mark.parametrize(("kind", "waits", "late"), [(Timed, True, []), (AllAtOnce, False, [at(5)])])
def test_a_position_that_moved_without_rows_is_silence_unless_the_batch_may_have_been_cut(
    kind: type[Timed],
    waits: bool,
    late: list[datetime],
    bench: Workbench,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An hour after its last row the source moves on though it has none there. One of minute 5 waits behind it, or comes later."""
    clock = Clock()
    monkeypatch.setattr(runner, "_micros", clock)
    file, found = bench.folder / "shop.db", sf.memory("bought-late")
    found.clear()

    @sf.pipeline("pair")
    def pair(flow: sf.Flow) -> None:
        timed = flow.source("a", bench.source("a", ORDER), Order, event_time="ts", watermark="1 minute")
        timed.collect("out-a", sf.memory("bought-a"))
        side = sf.output("late", Bought)
        bought = flow.source(
            "b", kind(str(file), 1), Bought, event_time="at", watermark="1 minute", late=side
        )
        bought.collect("out-b", sf.memory("bought-b"))
        bought.side(side).collect("late", found)

    sell(file, "3")
    bench.rows("a", [Order(1, "a", 1.0, at(30))])
    bench.run(pair)
    sell(file, CANCELLED)
    clock.now += 3_600_000_000
    for minute in (60, 90):
        bench.rows("a", [Order(1, "a", 1.0, at(minute))])
    if waits:
        sell(file, "5")
    bench.run(pair)
    if not waits:
        sell(file, "5")
        bench.run(pair)
    assert [row["at"] for row in found.rows] == late


def declared(**methods: Any) -> DeclaredSource:
    kind = type("Odd", (Shop,), {name: staticmethod(method) for name, method in methods.items()})
    return kind("nowhere").declared("bought", row_type(Bought))  # type: ignore[no-any-return]


SCHEMA = arrow_schema_of(row_type(Bought))
AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("found", "kind", "said"),
    [
        ([1], UsageError, r"position\(\) of the shop gave \[1\], which is no position"),
        ({"id": 1.5}, UsageError, "which is no position"),
        ({3: 1}, UsageError, "which is no position"),
        ({"id": None}, UsageError, "which is no position"),
        ({"id": 4}, DisagreementError, "went back, 'id' is 4 and was 5"),
        ({"other": 7}, DisagreementError, "went back, 'id' is gone"),
        ({"id": "7"}, DisagreementError, "went back, 'id' is '7' and was 5"),
    ],
)
def test_a_position_that_is_none_or_goes_back_is_refused(
    found: Any, kind: type[Exception], said: str
) -> None:
    odd = declared(position=lambda start: found)
    with pytest.raises(kind, match=f"source 'bought': .*{said}"):
        odd.newest({"id": 5})


@pytest.mark.parametrize("start", [{"offset": 7, "timestamp": 1}, {}, 5])
def test_a_position_of_another_source_is_told_where_no_record_says_its_kind(start: Any) -> None:
    odd = declared(position=lambda start: {"id": start["id"] if start is not None else 0})
    with refused(IncompatibleError, "source 'bought': the shop cannot go on", "another source", "a new uid"):
        odd.newest(start)
    broken = declared(position=lambda start: {"id": 0} if start is None else {}["no"])
    with refused(StateflowError, "the shop failed", "KeyError"):
        broken.newest({"id": 3})


@pytest.mark.slow
@needs_4_2
def test_a_record_says_that_a_package_s_source_was_read(bench: Workbench, tmp_path: Path) -> None:  # noqa: F811
    sell(file := tmp_path / "shop", "a")
    bench.run(shop_of(bench, Shop(str(file))))
    assert bench.records("shop")[-1].sources["bought"].kind == "package"
    with refused(IncompatibleError, "'bought' is now a delta source", "a position of a package's source"):
        bench.run(shop_of(bench, sf.delta(str(tmp_path))))
    sell(file, "b")
    assert bench.run(shop_of(bench, Shop(str(file)))).rows == 1


def test_positions_within_positions_go_forward_too() -> None:
    odd = declared(position=lambda start: {"parts": {"a": 2, "b": 3}, "time": "2026"})
    assert odd.newest({"parts": {"a": 2}, "time": "2025"})["parts"] == {"a": 2, "b": 3}
    with pytest.raises(DisagreementError, match=r"went back, 'parts.a' is 2 and was 3"):
        odd.newest({"parts": {"a": 3}, "time": "2025"})


def test_a_batch_ends_behind_its_beginning_and_not_beyond_what_there_is() -> None:
    assert Shop("nowhere", 3).declared("x", row_type(Bought)).end({"id": 1}, {"id": 9}) == {"id": 4}
    with refused(UsageError, "cut() of the shop", "where it begins"):
        declared(cut=lambda start, end: start).end({"id": 1}, {"id": 9})
    with pytest.raises(UsageError, match=r"cut\(\) of the shop ends a batch beyond"):
        declared(cut=lambda start, end: {"id": 10}).end({"id": 1}, {"id": 9})


def test_a_plan_that_changes_or_is_no_json_is_refused() -> None:
    plans = iter([[1], [2]])
    with pytest.raises(UsageError, match=r"plan\(\) of the shop gave two plans"):
        declared(plan=lambda start, end: next(plans)).parts({"id": 1}, {"id": 2}, twice=True)
    with refused(UsageError, "plan() of the shop", "no JSON"):
        declared(plan=lambda start, end: [object()]).parts({"id": 1}, {"id": 2}, twice=False)
    with refused(StateflowError, "plan() of the shop", "OSError: no network"):
        declared(plan=_fail).parts({"id": 1}, {"id": 2}, twice=False)


def _fail(*given: Any) -> Any:
    raise OSError("no network")


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": 1}, "column 'item', .*a row has none; it has id"),
        ({"id": "one", "item": "a"}, "column 'id', .*values that are no bigint"),
        ({"id": 2**70, "item": "a"}, "column 'id', .*values that are no bigint"),
        ({"id": 1, "item": "a", "at": "noon"}, "column 'at', .*values that are no timestamp"),
        (batch(id=[1]), "column 'item', .*a record batch has none; it has id"),
        (
            batch(id=[1], item=[2], at=[AT]),
            "column 'item', .*it is int64 in a record batch, and has to be string",
        ),
    ],
)
def test_rows_that_do_not_fit_the_row_class_are_refused(given: Any, said: str) -> None:
    odd = declared(read=lambda part: [{"id": 0, "item": "z"}, given])
    with pytest.raises(IncompatibleError, match=f"source 'bought': {said}"):
        list(odd.batches(0, SCHEMA))


@dataclass
class Delivered:
    id: int
    day: date
    at: datetime
    tags: list[str]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", 1.5),
        ("id", Decimal("1.5")),
        ("day", AT),
        ("day", 20_454),
        ("at", 1_767_225_600),
        ("at", datetime(2026, 1, 1)),
        ("tags", "abc"),
        ("tags", {"a", "b"}),
    ],
)
def test_a_value_that_would_be_changed_is_refused(column: str, value: Any) -> None:
    fitting = {"id": 1.0, "day": AT.date(), "at": AT, "tags": ("a",)}
    rows = row_type(Delivered)
    odd = DeclaredSource("delivered", declared(read=lambda part: [part]).source, rows)
    [there] = odd.batches(fitting, arrow_schema_of(rows))
    assert there.to_pylist() == [{"id": 1, "day": AT.date(), "at": AT, "tags": ["a"]}]
    with refused(IncompatibleError, "source 'delivered'", f"column {column!r}"):
        list(odd.batches({**fitting, column: value}, arrow_schema_of(rows)))


def test_rows_come_as_dicts_or_as_batches_of_arrow_and_may_have_more() -> None:
    arrow = batch(more=[1], item=["b"], id=[2], at=pa.array([AT], SCHEMA.field("at").type))
    odd = declared(read=lambda part: [{"id": 1, "item": "a", "more": 1}, arrow])
    rows = [row for each in odd.batches(0, SCHEMA) for row in each.to_pylist()]
    assert sorted((row["id"], row["item"], row["at"]) for row in rows if row["at"] is None) == [
        (1, "a", None)
    ]
    assert [row["at"] for row in rows if row["id"] == 2] == [AT]
    with refused(UsageError, "read() of the shop", "a tuple", "let each row be a dict"):
        list(declared(read=lambda part: [(1, "a")]).batches(0, SCHEMA))


def test_a_flow_gives_it_a_row_class_and_no_sink_writes_where_it_reads() -> None:
    with refused(UsageError, "source 'bought'", "the shop", "a row class"):
        sf.Flow("shop").source("bought", Shop("nowhere"))
    found = Shop("nowhere").declared("bought", row_type(Bought))
    assert found.reads("shop:nowhere")
    assert not replace(found, source=Shop("elsewhere")).reads("shop:nowhere")
