"""Columnar operators in the harness: several states, what is due, side outputs, two inputs, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.format.keygroups import key_group
from stateflow.state.columns import state as state_module
from stateflow.state.columns.state import ColumnState
from stateflow.testing import ColumnarHarness
from tests.operators.columnar_operators import LATE, Click, Minute, PerMinute, matched
from tests.refusals.refusal import refused
from tests.state.conftest import BACKENDS, Shelf

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


@dataclass
class Name:
    id: int
    name: str


@dataclass
class Named:
    page: str
    name: str | None


def per_minute() -> ColumnarHarness:
    return ColumnarHarness(PerMinute(), Click, key="user", output=Minute, outputs=[LATE], event_time="ts")


def test_what_is_due_comes_out_when_the_watermark_has_reached_it() -> None:
    harness = per_minute()
    assert harness.rows(Click(1, "a", at(0.5)), Click(1, "a", at(0.6)), Click(2, "b", at(1.5))) == []
    assert harness.advance(at(0.9)) == []
    assert harness.rows(Click(1, "a", at(0.95))) == []
    assert harness.advance(at(1)) == [Minute(1, "a", at(1), 3)]
    assert harness.advance(at(1)) == []
    assert harness.advance(at(9)) == [Minute(2, "b", at(2), 1)]
    assert harness.state("open").next_due() is None
    assert harness.state("ever").get(pa.array([1, 2, 3]))["clicks"].to_pylist() == [3, 1, None]
    assert harness.metrics == {"tables": 2}


def test_what_nobody_sees_to_is_never_due() -> None:
    """Else a run that drains its input would take batches without rows for ever."""

    def stored(table: pa.Table, state: Any, ctx: sf.ColumnarContext) -> None:
        state.put(table["user"], pa.table({"n": table["user"]}), at=table["ts"])

    def nothing(state: Any, ctx: sf.ColumnarContext) -> None: ...

    layout = sf.columns({"n": int}, timed=True)
    for on_due, due in ((None, None), (nothing, 1_767_225_630_000_000)):
        harness = ColumnarHarness(
            stored, Click, key="user", event_time="ts", output=Click, state=layout, on_due=on_due
        )
        harness.rows(Click(1, "a", at(0.5)))
        assert harness._earliest == due


def test_entries_of_a_state_that_is_declared_again_come_out_when_they_are_due() -> None:
    """A release without it knew only of what the other state has, which is due later."""
    minutes = {"soon": 5, "later": 300}

    def put(table: pa.Table, states: Any, ctx: sf.ColumnarContext) -> None:
        for name, state in states.items():
            state.put(table["user"], pa.table({"n": table["user"]}), at=at(minutes[name]))

    def come_out(states: Any, ctx: sf.ColumnarContext) -> Any:
        if ctx.watermark is not None:
            for name, state in states.items():
                for due in list(state.due(ctx.watermark)):
                    yield pa.table({"name": [name] * due.num_rows, "n": due["n"]})
                state.delete_due(ctx.watermark)

    def release(*names: str, after: ColumnarHarness | None = None) -> ColumnarHarness:
        states = {name: sf.columns({"n": int}, timed=True) for name in names}
        return ColumnarHarness(
            put, Click, key="user", state=states, on_due=come_out, output="name string, n long", after=after
        )

    first = release("later", "soon")
    first.rows(Click(1, "a", at(0)))
    without = release("later", after=first)
    assert without.advance(at(1)) == []
    again = release("later", "soon", after=without)
    assert again.advance(at(10)) == [{"name": "soon", "n": 1}]
    assert again.advance(at(301)) == [{"name": "later", "n": 1}]


def test_late_rows_are_told_and_go_to_the_side() -> None:
    harness = per_minute()
    harness.advance(at(5))
    harness.rows(Click(1, "a", at(5)), Click(1, "a", at(5.1)))
    assert harness.side(LATE) == [Click(1, "a", at(5))]
    assert harness.advance(at(6)) == [Minute(1, "a", at(6), 1)]


def test_two_inputs_come_as_two_tables() -> None:
    harness = ColumnarHarness(
        matched, Click, Name, key="user", right_key="id", state={"name": str}, output=Named
    )
    assert harness.both([Click(1, "a", at(0))], [Name(2, "Bo")]) == [Named("a", None)]
    assert harness.both([Click(2, "b", at(0))], [Name(1, "Al")]) == [Named("b", "Bo")]
    assert harness.both([Click(1, "c", at(0))]) == [Named("c", "Al")]


@dataclass
class Sale:
    user: str = "nobody"
    channel: str = "web"
    amount: Decimal = Decimal("1.5")
    tags: list[str] = field(default_factory=lambda: ["new"])
    note: str | None = "none given"


def as_they_came(table: pa.Table, state: Any, ctx: sf.ColumnarContext) -> pa.Table:
    return table


def test_a_null_is_the_default_of_its_field_where_the_type_allows_no_none() -> None:
    harness = ColumnarHarness(as_they_came, Sale, key="user", state={"n": int}, output=Sale)
    bare = Sale("al", "web", Decimal("1.5"), ["new"], None)
    assert harness.rows({"user": "al"}) == [bare]
    table = pa.table({"user": ["al", "bo"], "channel": ["app", None], "amount": [None, Decimal(2)]})
    table = table.append_column("tags", pa.array([["a"], None])).append_column("note", pa.array(["x", None]))
    assert harness.rows(table) == [
        Sale("al", "app", Decimal("1.5"), ["a"], "x"),
        Sale("bo", "web", Decimal(2), ["new"], None),
    ]


def test_none_in_a_column_that_is_declared_as_not_null_is_refused() -> None:
    def passed_on(table: pa.Table, state: Any, ctx: sf.ColumnarContext) -> pa.Table:
        return table

    columns = "user long, sku string not null"
    tea, nothing = {"user": 1, "sku": "tea"}, {"user": 2, "sku": None}
    harness = ColumnarHarness(
        passed_on, "user long, sku string", key="user", state={"n": int}, output=columns
    )
    assert len(harness.rows(tea)) == 1
    with refused(sf.UsageError, "put out None in column 'sku'", "declares as not null"):
        harness.rows(tea, nothing)

    @sf.pipeline("newest")
    def newest(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), "user long, sku string").key_by("user")
        rows.aggregate("newest", columns, sku=sf.max("sku")).upsert("out", sf.delta("/out"))

    with refused(sf.UsageError, "operator 'newest'", "None in column 'sku'"):
        ColumnarHarness.of(newest.build(), "newest").rows(nothing)


def test_a_default_is_no_key() -> None:
    harness = ColumnarHarness(as_they_came, Sale, key="user", state={"n": int}, output=Sale)
    with pytest.raises(sf.UsageError, match="a row has no 'user', which is its key"):
        harness.rows({"channel": "app"})


def test_a_ready_made_operator_sees_defaults_too() -> None:
    harness = ColumnarHarness.of(by_channel.build(), "sums")
    assert harness.rows({"user": "al"}, {"user": "al", "channel": "app"}) == [
        {"user": "al", "n": 2, "web": 1}
    ]


@sf.pipeline("by-channel")
def by_channel(flow: sf.Flow) -> None:
    keyed = flow.source("in", sf.files("/nowhere", "json"), Sale).key_by("user")
    web = sf.count("channel", where="channel = 'web'")
    keyed.aggregate("sums", "user string, n long, web long", n=sf.count(), web=web).collect(
        "out", sf.memory("by-channel")
    )


@dataclass
class Mistaken:
    user: str
    amount: int = "many"  # type: ignore[assignment]


def test_a_default_that_its_column_cannot_hold_is_named() -> None:
    harness = ColumnarHarness(as_they_came, Mistaken, key="user", state={"n": int}, output=Mistaken)
    assert harness.rows(Mistaken("al", 1)) == [Mistaken("al", 1)]
    with refused(sf.UsageError, "operator 'as_they_came'", "field 'amount'", "'many'", "int64"):
        harness.rows({"user": "al"})


SALES = pa.table({"user": ["al"], "channel": ["web"], "amount": [1.5]})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Sale("al", amount=1.5), r"column 'amount' is a decimal128\(38, 18\) and was given 1.5 \(.*\): give it Decimals of 18"),  # type: ignore[arg-type]
        (Sale("al", amount=Decimal("1e-19")), r"column 'amount' .* was given Decimal\('1E-19'\) \(.*\): give it Decimals"),
        (Sale("al", channel=7), r"column 'channel' is a string and was given 7 \(.*\): give it values of that type"),  # type: ignore[arg-type]
        (SimpleNamespace(user="al"), r"the row namespace\(user='al'\) has no 'channel': give it every column of Sale, which are user, "),
        ({"user": "al", "chanel": "web"}, r"Sale has no column 'chanel'; it has user, "),
        (SALES, r"the table has no 'tags': give it every column of Sale"),
        (SALES.set_column(1, "channel", pa.array([[1]])), r"column 'channel' is a string and was given a list"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_its_type_is_named_with_the_next_step(row: Any, message: str) -> None:
    harness = ColumnarHarness(as_they_came, Sale, key="user", state={"n": int}, output=Sale)
    with pytest.raises(sf.UsageError, match=rf"^operator 'as_they_came': {message}"):
        harness.rows(row)


def test_a_batch_that_fails_changes_nothing() -> None:
    def careless(table: pa.Table, state: Any, ctx: sf.ColumnarContext) -> None:
        state.put(table["user"], pa.table({"n": [1] * table.num_rows}))
        if "bad" in table["page"].to_pylist():
            raise ValueError("a bad page")

    harness = ColumnarHarness(careless, Click, key="user", state={"n": int}, output="n long")
    harness.rows(Click(1, "good", at(0)))
    with refused(UserCodeError, "operator 'careless'", "ValueError: a bad page"):
        harness.rows(Click(2, "bad", at(0)))
    assert harness.state().get(pa.array([1, 2]))["n"].to_pylist() == [1, None]


def refusal_of(state: Any, code: Any = matched, **arguments: Any) -> str:
    with pytest.raises(sf.UsageError) as caught:
        ColumnarHarness(code, Click, key="user", state=state, output="n long", **arguments)
    return str(caught.value)


def test_layouts_that_cannot_be_are_refused_in_one_sentence() -> None:
    assert "state column 'n' is list[int]: use int, float" in refusal_of({"n": list[int]})
    assert "state has no columns" in refusal_of({})
    assert "state has up to 64 columns, not 65" in refusal_of({f"c{i}": int for i in range(65)})
    assert "'x' of `by` is <class 'float'>: use a type that keys have" in refusal_of(
        sf.columns(by={"x": float})
    )
    assert "would have two columns 'user'" in refusal_of(sf.columns({"user": int}, by={"page": str}))
    assert "'n' stands beside states of sf.columns(...)" in refusal_of(
        {"a": sf.columns({"b": int}), "n": int}
    )
    assert "say what state it has" in refusal_of(None)
    assert "PerMinute says itself what state it has" in refusal_of({"n": int}, PerMinute())
    assert "is no function of (table, state, ctx)" in refusal_of({"n": int}, 7)


def wrong(state: Any, use: Any) -> str:
    def code(table: pa.Table, states: Any, ctx: Any) -> Any:
        return use(states, table)

    harness = ColumnarHarness(code, Click, key="user", state=state, output="n long", outputs=[LATE])
    with pytest.raises(sf.UsageError) as caught:
        harness.rows(Click(1, "a", at(0)))
    return str(caught.value)


def test_wrong_use_of_state_is_told_in_one_sentence() -> None:
    one, by, timed = {"n": int}, sf.columns({"n": int}, by={"p": str}), sf.columns({"n": int}, timed=True)
    values = pa.table({"n": [1]})
    assert "an entry is one of a key and p: give `by`" in wrong(by, lambda s, t: s.get(t["user"]))
    assert "has no `by` columns" in wrong(one, lambda s, t: s.get(t["user"], by=t["page"]))
    assert "is timed: give `at`" in wrong(timed, lambda s, t: s.put(t["user"], values))
    assert "is not timed, but was given `at`" in wrong(one, lambda s, t: s.get(t["user"], at=1))
    assert "due() is of timed states" in wrong(one, lambda s, t: list(s.due(1)))
    assert "keep an index by key" in wrong(timed, lambda s, t: s.entries(t["user"]))
    assert "the key has 1 columns, but 2 were given" in wrong(
        one, lambda s, t: s.get(t.select(["user", "page"]))
    )
    assert "was given 1 keys and 2 rows of values" in wrong(
        one, lambda s, t: s.put(t["user"], pa.table({"n": [1, 2]}))
    )
    assert "does not fit the state's columns" in wrong(
        one, lambda s, t: s.put(t["user"], pa.table({"m": [1]}))
    )
    assert "which is none of its side outputs" in wrong(one, lambda s, t: ("nowhere", values))
    assert "does not fit side output 'late'" in wrong(one, lambda s, t: ("late", values))


UNFIT: list[tuple[type, Any, str]] = [
    (datetime, pa.array([datetime(2026, 1, 1)], pa.timestamp("us")), "without a time zone"),
    (datetime, pa.array([5]), "holds int64"),
    (bool, pa.array([5]), "holds int64"),
    (int, pa.array([True]), "holds bool"),
    (int, pa.array(["12"]), "holds string"),
    (int, pa.array([1.5]), "truncated"),
    (str, pa.array([12]), "holds int64"),
    (str, pa.array([b"ab"]), "holds binary"),
    (float, pa.array([Decimal("0.1")]), "holds decimal"),
]


@pytest.mark.parametrize(("kind", "column", "said"), UNFIT)
def test_a_put_of_another_type_is_refused(kind: type, column: Any, said: str) -> None:
    told = wrong({"v": kind}, lambda s, t: s.put(t["user"], pa.table({"v": column})))
    assert "does not fit the state's columns: 'v'" in told
    assert said in told


@pytest.mark.parametrize(
    ("kind", "column", "kept"),
    [
        (float, pa.array([3]), 3.0),
        (int, pa.array([3], pa.int16()), 3),
        (str, pa.array(["a"]).dictionary_encode(), "a"),
        (int, pa.nulls(1), None),
        (datetime, pa.array([START], pa.timestamp("ms", tz="UTC")), START),
    ],
)
def test_a_put_of_a_narrower_type_is_taken(kind: type, column: Any, kept: Any) -> None:
    def code(table: pa.Table, state: ColumnState, ctx: Any) -> None:
        state.put(table["user"], pa.table({"v": column}))

    harness = ColumnarHarness(code, Click, key="user", state={"v": kind}, output="n long")
    harness.rows(Click(1, "a", at(0)))
    assert harness.state().get(pa.array([1]))["v"].to_pylist() == [kept]


def test_a_put_of_an_instant_that_python_has_not_is_refused() -> None:
    far = pa.array([1 << 60], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    for columns in ({"seen": datetime}, {"seen": datetime, "page": str}):
        said = wrong(columns, lambda s, t: s.put(t["user"], pa.table({"seen": far, "page": ["a"]})))
        assert "column 'seen'" in said
        assert "the years 1 to 9999" in said


def test_a_put_of_one_entry_twice_is_refused() -> None:
    """The backend would keep one of them, whichever came last in its order."""
    by, timed = sf.columns({"n": int}, by={"p": str}), sf.columns({"n": int}, timed=True)
    twice, rows = pa.array([2, 1, 2]), pa.table({"n": [1, 2, 3]})
    pages = pa.array(["a" * 40, "b", "a" * 40])
    said = "twice in one table, and would keep one of them: give each entry once"
    assert f"put() was given the entry of 2 {said}" in wrong({"n": int}, lambda s, t: s.put(twice, rows))
    assert f"the entry of 2, '{'a' * 40}' {said}" in wrong(by, lambda s, t: s.put(twice, rows, by=pages))
    assert said in wrong(timed, lambda s, t: s.put(twice, rows, at=7))
    # Reading them together first changes nothing.
    assert said in wrong({"n": int}, lambda s, t: [s.get(twice), s.put(twice, rows)])


def test_entries_that_differ_in_anything_are_no_repetition() -> None:
    def code(table: pa.Table, states: Any, ctx: Any) -> None:
        keys, rows = pa.array([2, 1, 2]), pa.table({"n": [1, 2, 3]})
        long = "a" * 40
        states["by"].put(keys, rows, by=pa.array([long + "b", long, long]))
        states["timed"].put(keys, rows, at=pa.array([1, 1, 2]))
        states["one"].put(pa.array([1]), rows.slice(0, 1))
        states["one"].put(pa.array([1]), rows.slice(1, 1))
        assert states["one"].get(keys)["n"].to_pylist() == [None, 2, None]
        assert states["by"].entries(pa.array([1, 2]))["n"].to_pylist() == [2, 3, 1]
        done.append(True)

    done: list[bool] = []
    columns = {"n": int}
    state = {
        "by": sf.columns(columns, by={"p": str}),
        "timed": sf.columns(columns, timed=True),
        "one": sf.columns(columns),
    }
    harness = ColumnarHarness(code, Click, key="user", state=state, output="n long")
    harness.rows(Click(1, "a", at(0)))
    assert done


def test_due_entries_come_in_tables_of_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "BLOCK_BYTES", 5000)
    schema = msgspec.structs.replace(sf.columns({"text": str}, timed=True).schema(), id=3)
    state = ColumnState([("user", "int")], schema, 8, "operator 'x'")
    state.attach(Shelf(tmp_path, "memory", BACKENDS["memory"]()).open(), range(8), empty=True)
    users, texts = list(range(100)), [str(user) * 500 for user in range(100)]
    state.put(pa.array(users), pa.table({"text": texts}), at=at(0))
    tables: list[pa.Table] = []
    done: set[int] = set()
    for table, count in state.due_settled(at(1)):
        keys = table["user"].to_pylist()
        assert not done & {key_group(key, 8) for key in keys}
        done |= {key_group(key, 8) for key in keys[:count]}
        tables.append(table)
    assert max(table.num_rows for table in tables) < 20
    assert done == set(range(8))
    found = pa.concat_tables(tables).sort_by("user")
    assert (found["user"].to_pylist(), found["text"].to_pylist()) == (users, texts)


def test_a_key_of_another_shard_is_refused_by_every_call(tmp_path: Path) -> None:
    schema = msgspec.structs.replace(sf.columns({"n": int}, by={"p": str}).schema(), id=3)
    state = ColumnState([("user", "int")], schema, 8, "operator 'x'")
    key = next(k for k in range(100) if key_group(k, 8) == 5)
    backend = Shelf(tmp_path, "memory", BACKENDS["memory"]()).open()
    state.attach(backend, range(5, 6))
    given, by, row = pa.array([key]), pa.array(["a"]), pa.table({"n": [1]})
    state.put(given, row, by=by)
    calls: list[Callable[[], Any]] = [
        lambda: state.put(given, row, by=by),
        lambda: state.get(given, by=by),
        lambda: state.has(given, by=by),
        lambda: state.delete(given, by=by),
        lambda: state.delete(given),
        lambda: state.entries(given),
    ]
    assert state.entries(given).num_rows == 1
    for groups in (range(5), range(6, 8)):
        state.attach(backend, groups)
        for call in calls:
            with refused(sf.UsageError, "operator 'x'", str(key), "no key of this table's rows"):
                call()
