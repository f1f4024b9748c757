"""State under namespaces, timers with many times, and clearing a key: as user code sees them, and as data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.encoding import prefix
from stateflow.format.keygroups import key_group
from stateflow.format.records import OperatorState
from stateflow.jobs.erasure import _Keep
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.tabular import TIMERS, StateTable, TimerTable, tables_of
from stateflow.testing import KeyedHarness
from tests.jobs import operators
from tests.jobs.queried import QueriedJob
from tests.refusals.refusal import refused

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
END = b"\xff" * 8


@dataclass
class Do:
    """`what` names a method of the process below."""

    user: str
    what: str
    month: str | None = None
    n: int = 0


class Monthly(sf.KeyedProcess[str, Do, Any]):
    total = sf.ValueState(int, default=0, namespace=str)
    baskets = sf.ValueState(list[int], default=list, namespace=tuple[int, date])
    most = sf.ReducingState(int, max, namespace=datetime)
    mean = sf.AggregatingState(
        tuple[int, int], create=lambda: (0, 0), add=lambda a, v: (a[0] + v, a[1] + 1), result=lambda a: a[0] / a[1],
        namespace=str,
    )  # fmt: skip
    log = sf.ListState(int, namespace=str)
    skus = sf.MapState(str, int, namespace=str)
    plain = sf.ValueState(int, default=0)
    closes = sf.Timer("event", namespace=str)
    soon = sf.Timer("processing", many=True)
    each = sf.Timer("event", many=True, namespace=int)

    def process(self, key: str, rows: Iterator[Do], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            yield getattr(self, row.what)(row, ctx)

    def add(self, row: Do, ctx: sf.Context) -> Any:
        month = row.month
        self.total.at(month).value += row.n
        day = (row.n, date(2026, 1, 1 + row.n))
        self.baskets.at(day).value = [*self.baskets.at(day).value, row.n]
        self.most.at(NOON + timedelta(days=row.n)).add(row.n)
        self.mean.at(month).add(row.n)
        self.log.at(month).add(row.n)
        self.skus.at(month)[f"s{row.n}"] = row.n
        self.plain.value += row.n
        self.closes.under(month).set(NOON + timedelta(days=row.n))
        self.soon.set(timedelta(minutes=row.n))
        self.each.under(row.n).set(NOON + timedelta(days=row.n))
        self.each.under(row.n).set(NOON + timedelta(days=row.n + 1))
        return self.total.at(month).value

    def names(self, row: Do, ctx: sf.Context) -> Any:
        return (
            self.total.namespaces(),
            self.log.namespaces(),
            self.skus.namespaces(),
            self.closes.namespaces(),
        )

    def drop(self, row: Do, ctx: sf.Context) -> Any:
        self.total.at(row.month).clear()
        self.log.at(row.month).clear()
        self.skus.at(row.month).clear()
        self.closes.under(row.month).clear()
        return (
            self.total.namespaces(),
            self.log.namespaces(),
            self.skus.namespaces(),
            self.closes.namespaces(),
        )

    def forget(self, row: Do, ctx: sf.Context) -> Any:
        ctx.clear_key()
        self.total.at("after").value = 7
        return self.total.at(row.month).value, self.log.at(row.month).get(), dict(self.skus.at(row.month))

    @closes.fires
    def on_close(self, key: str, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield "close", ctx.namespace, self.total.at(ctx.namespace).value
        self.total.at(ctx.namespace).clear()

    @soon.fires
    def on_soon(self, key: str, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield "soon", ctx.namespace, at

    @each.fires
    def on_each(self, key: str, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield "each", ctx.namespace, at


@pytest.fixture
def harness() -> Any:
    made = KeyedHarness(Monthly, key="user")
    made.rows(
        *(
            Do(user, "add", month, n)
            for user in ("a", "b\0")
            for n, month in enumerate(("x", "y\0", "", None))
        )
    )
    return made


def entries(harness: Any) -> dict[bytes, bytes]:
    return dict(harness._backend.scan(b"", END))


def test_each_namespace_has_a_state_of_its_own(harness: Any) -> None:
    assert harness.rows(Do("a", "add", "x", 5), Do("a", "add", "x", 1), Do("c", "add", None, 1)) == [5, 6, 1]
    seen = harness.snapshot("a")
    assert seen["total"] == {None: 3, "": 2, "x": 6, "y\0": 1}
    assert seen["log"] == {None: [3], "": [2], "x": [0, 5, 1], "y\0": [1]}
    assert seen["skus"] == {
        None: {"s3": 3},
        "": {"s2": 2},
        "x": {"s0": 0, "s1": 1, "s5": 5},
        "y\0": {"s1": 1},
    }
    assert seen["mean"]["x"] == 2
    assert seen["baskets"][0, date(2026, 1, 1)] == [0]
    assert seen["most"][NOON] == 0
    assert seen["plain"] == 12
    assert seen["closes"]["x"] == NOON + timedelta(days=1)
    assert seen["each"][5] == [NOON + timedelta(days=5), NOON + timedelta(days=6)]


def test_namespaces_are_those_that_hold_something(harness: Any) -> None:
    held = ["", "x", "y\0"]
    assert harness.rows(Do("a", "names")) == [(held, held, held, held)]
    left = ["", "x"]
    assert harness.rows(Do("a", "drop", "y\0")) == [(left, left, left, left)]
    assert harness.rows(Do("a", "names"), Do("b\0", "names")) == [
        (left, left, left, left),
        (held, held, held, held),
    ]


def test_a_timers_handler_is_told_the_namespace(harness: Any) -> None:
    day = timedelta(days=1)
    assert sorted(map(str, harness.advance(NOON + day))) == sorted(
        map(
            str,
            [
                *[("close", "x", 0), ("close", "y\0", 1), ("each", 0, NOON)] * 2,
                *[("each", 0, NOON + day), ("each", 1, NOON + day)] * 2,
            ],
        )
    )
    assert harness.snapshot("a")["total"] == {None: 3, "": 2}


def test_each_time_fires_once_and_a_time_can_be_taken_away() -> None:
    class Reminders(sf.KeyedProcess[int, tuple[int, str, int], Any]):
        remind = sf.Timer("event", many=True)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Iterator[Any]:
            for _, what, hours in rows:
                at = NOON + timedelta(hours=hours)
                match what:
                    case "set":
                        self.remind.set(at)
                    case "clear":
                        self.remind.clear(at)
                    case "clear_all":
                        self.remind.clear_all()
                yield [int((each - NOON) / timedelta(hours=1)) for each in self.remind.all()]

        @remind.fires
        def on_remind(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
            yield int((at - NOON) / timedelta(hours=1))

    harness = KeyedHarness(Reminders, key=lambda row: row[0])
    assert harness.rows((1, "set", 3), (1, "set", 1), (1, "set", 1), (1, "set", 2)) == [
        [3],
        [1, 3],
        [1, 3],
        [1, 2, 3],
    ]
    assert harness.rows((1, "clear", 2), (1, "clear", 9), (2, "set", 1)) == [[1, 3], [1, 3], [1]]
    assert harness.advance(NOON + timedelta(hours=2)) == [1, 1]
    assert harness.rows((1, "set", 8)) == [[3, 8]]
    assert harness.rows((1, "clear_all", 0)) == [[]]
    assert entries(harness) == {}
    assert harness.advance(NOON + timedelta(hours=20)) == []


def test_clearing_a_key_leaves_nothing_of_it_but_what_is_set_afterwards(harness: Any) -> None:
    others = {full: raw for full, raw in entries(harness).items() if b"b\0\xff" in full}
    assert len(entries(harness)) == 2 * len(others)
    assert harness.rows(Do("a", "forget", "x")) == [(0, [], {})]
    assert harness.snapshot("a") == {"total": {"after": 7}}
    assert len(entries(harness)) == len(others) + 1
    assert others.items() <= entries(harness).items()


def test_a_timers_handler_can_clear_its_key() -> None:
    class Session(sf.KeyedProcess[int, Any, Any]):
        seen = sf.ListState(int)
        n = sf.ValueState(int, default=0)
        end = sf.Timer("event")
        warn = sf.Timer("event", many=True)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            for _ in rows:
                self.seen.add(1)
                self.n.value += 1
                self.end.set(NOON)
                self.warn.set(NOON + timedelta(hours=1))
                self.warn.set(NOON + timedelta(hours=9))

        @end.fires
        def on_end(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
            yield key, self.n.value, len(self.seen)
            ctx.clear_key()

        @warn.fires
        def on_warn(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
            yield "never"

    harness = KeyedHarness(Session, key=lambda row: row)
    harness.rows(1, 1, 2)
    assert sorted(harness.advance(NOON + timedelta(hours=3))) == [(1, 2, 2), (2, 1, 1)]
    assert entries(harness) == {}


def test_a_view_is_of_no_use_for_another_key() -> None:
    class Holding(sf.KeyedProcess[int, int, Any]):
        total = sf.ValueState(int, default=0, namespace=str)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            if not hasattr(self, "held"):
                self.held = self.total.at("x")
            self.held.value += 1

    harness = KeyedHarness(Holding, key=lambda row: row)
    with refused(UsageError, "used for another key", "take it again"):
        harness.rows(1, 2)


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        (5, r"state 'total', key 1: as a namespace, a key is 5 \(int\) where a str was declared"),
        ("x", None),
    ],
)
def test_a_namespace_of_the_wrong_type_is_refused(namespace: Any, message: str | None) -> None:
    class Typed(sf.KeyedProcess[int, int, Any]):
        total = sf.ValueState(int, default=0, namespace=str)
        plain = sf.ValueState(int, default=0)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            self.total.at(namespace).value += 1
            self.plain.at(namespace).value += 1

    with pytest.raises(
        sf.UsageError,
        match=message
        or "'plain' has no namespaces: declare it with the type of theirs, such as namespace=str",
    ):
        KeyedHarness(Typed, key=lambda row: row).rows(1)


def test_a_float_cannot_be_a_namespace() -> None:
    class Wrong(sf.KeyedProcess[int, int, Any]):
        total = sf.ValueState(int, namespace=float)

    with refused(sf.UsageError, "operator 'op'", "state 'total'", "float cannot be a key"):
        schemas(Wrong, "op")


def test_the_harness_finds_what_was_changed_in_place_and_not_set_in_a_namespace() -> None:
    class Careless(sf.KeyedProcess[int, bool, Any]):
        held = sf.ValueState(list[int], default=list, namespace=str)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            for sets in rows:
                value = self.held.at("x").value
                value.append(1)
                if sets:
                    self.held.at("x").value = value

    harness = KeyedHarness(Careless, key=lambda row: 1)
    harness.rows(True)
    assert harness.snapshot(1) == {"held": {"x": [1]}}
    with refused(sf.UsageError, "was changed in place"):
        harness.rows(False)


def test_what_has_expired_in_a_namespace_is_hidden_and_its_namespace_too() -> None:
    class Brief(sf.KeyedProcess[int, str, Any]):
        total = sf.ValueState(int, default=0, ttl="1 hour", namespace=str)
        skus = sf.MapState(str, int, ttl="1 hour", namespace=str)
        log = sf.ListState(int, ttl="1 hour", namespace=str)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            for name in rows:
                self.total.at(name).value += 1
                self.skus.at(name)["tea"] = self.skus.at(name).get("tea", 0) + 1
                self.log.at(name).add(1)

    harness = KeyedHarness(Brief, key=lambda row: 1)
    harness.rows("x", "y")
    harness.advance(now=timedelta(minutes=40))
    harness.rows("y")
    harness.advance(now=timedelta(minutes=40))
    assert harness.snapshot(1) == {"total": {"y": 2}, "skus": {"y": {"tea": 2}}, "log": {"y": [1]}}
    assert harness.state(1).total.namespaces() == ["y"]
    harness.rows("x")
    assert harness.snapshot(1)["total"] == {"x": 1, "y": 2}


# ---- as data ----


def operator_of(harness: Any, process: Any = Monthly) -> OperatorState:
    ids = harness._spec.state_ids
    states = {name: msgspec.structs.replace(s, id=ids[name]) for name, s in schemas(process, "op").items()}
    return operators.operator_of((), key=(("user", "str"),), states=states)


def table_of(harness: Any, table: StateTable | TimerTable) -> pa.RecordBatch:
    found = [entry for begin, end in table.ranges(0, 127) for entry in harness._backend.scan(begin, end)]
    return table.decode([key for key, _ in found], [value for _, value in found])


def test_all_entries_are_in_the_tables_and_come_back_byte_for_byte(harness: Any) -> None:
    found: dict[bytes, bytes] = {}
    for table in tables_of(operator_of(harness)).values():
        batch = table_of(harness, table)
        batch.validate(full=True)
        assert batch.schema == table.schema
        table.check(batch.schema)
        found.update(zip(*table.encode(batch), strict=True))
    assert found == entries(harness)


def test_the_tables_have_a_column_of_namespaces(harness: Any) -> None:
    tables = tables_of(operator_of(harness))
    total = table_of(harness, tables["total"]).to_pylist()
    assert {(row["namespace"], row["value"]) for row in total} == {("x", 0), ("y\0", 1), ("", 2), (None, 3)}
    baskets = table_of(harness, tables["baskets"]).to_pylist()
    assert {"_1": 2, "_2": date(2026, 1, 3)} in [row["namespace"] for row in baskets]
    assert "namespace" not in tables["plain"].schema.names
    timers = {(row["timer"], row["namespace"]) for row in table_of(harness, tables[TIMERS]).to_pylist()}
    assert timers == {("closes", ns) for ns in ("x", "y\0", "", None)} | {("soon", None)} | {
        ("each", str(n)) for n in range(4)
    }


def test_a_table_without_the_column_is_of_the_empty_namespace(harness: Any) -> None:
    table = tables_of(operator_of(harness))["total"]
    keys, _ = table.encode(pa.RecordBatch.from_pydict({"user": ["a"], "value": [5]}))
    assert keys == [prefix(key_group("a", 128), 1) + KeyCodec(("str",)).encode("a") + b"\0"]
    timers = tables_of(operator_of(harness))[TIMERS]
    batch = pa.RecordBatch.from_pydict(
        {
            "user": ["a"],
            "timer": ["soon"],
            "namespace": ["x"],
            "at": pa.array([NOON], pa.timestamp("us", "UTC")),
        }
    )
    with refused(UsageError, "timer 'soon'", "a row has 'x'", "leave it null"):
        timers.encode(batch)


def test_an_erased_key_is_gone_from_all_namespaces(harness: Any) -> None:
    keep = _Keep(operator_of(harness), "a")
    left = [full for full, raw in entries(harness).items() if keep(full, raw) is not None]
    assert keep.dropped == len(left) == len(entries(harness)) // 2
    assert all(b"b\0\xff" in full for full in left)


def test_a_query_finds_a_namespace_and_the_times_of_a_timer(harness: Any, tmp_path: Path) -> None:
    job = QueriedJob(tmp_path / "root", process=Monthly, key=(("user", "str"),))
    job.checkpoint(entries(harness))
    reader = job.reader(tmp_path / "host")
    try:
        assert reader.get("balance", "total", "a", namespace="y\0") == 1
        assert (reader.get("balance", "total", "a"), reader.get("balance", "total", "a", namespace="z")) == (
            3,
            None,
        )
        assert reader.get("balance", "baskets", "a", namespace=(2, date(2026, 1, 3))) == [2]
        assert reader.get("balance", "log", "a", namespace="x") == [0]
        assert reader.get("balance", "log", "a") == [3]
        assert reader.get("balance", "skus", "a", namespace="y\0") == {"s1": 1}
        assert reader.get("balance", "skus", "a", "s1", namespace="y\0") == 1
        assert reader.get("balance", "closes", "a", namespace="x") == NOON
        assert reader.get("balance", "each", "a", namespace=1) == [
            NOON + timedelta(days=1),
            NOON + timedelta(days=2),
        ]
        assert reader.look_up("balance", "each", "a", namespace=1, limit=1).more
        assert reader.get("balance", "each", "a", namespace=9) == []
        assert len(reader.get("balance", "soon", "a")) == 3, "one was due at once"
        target = reader.target("balance", "most")
        assert target.namespace_of_text("2026-11-20T12:00:00Z") == NOON
        with refused(UsageError, "state 'plain'", "operator 'balance'", "leave the namespace out"):
            reader.get("balance", "plain", "a", namespace="x")
    finally:
        reader.close()


class Once(sf.KeyedProcess[int, Any, Any]):
    end = sf.Timer("event")
    kept = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        for hours in rows:
            self.end.set(NOON + timedelta(hours=hours))

    @end.fires
    def on_end(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield "one", key, at


class Often(sf.KeyedProcess[int, Any, Any]):
    end = sf.Timer("event", many=True, namespace=str)
    kept = sf.ValueState(int, default=0, namespace=str)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Iterator[Any]:
        for hours in rows:
            if hours < 0:
                self.end.clear(NOON - timedelta(hours=hours))
            else:
                self.end.set(NOON + timedelta(hours=hours))
        yield [each.hour for each in self.end.all()]

    @end.fires
    def on_end(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield at.hour


@pytest.mark.parametrize(
    ("rows", "times", "fired"),
    [([], [], [13]), ([3], [13, 15], [13, 15]), ([1], [13], [13]), ([-1], [], []), ([-1, 1], [13], [13])],
)
def test_what_a_timer_with_one_time_has_set_goes_on_when_it_may_have_many(
    rows: list[int], times: list[int], fired: list[int]
) -> None:
    before = KeyedHarness(Once, key=lambda row: 1)
    before.rows(1)
    after = KeyedHarness(Often, key=lambda row: 1)
    after._spec.state_ids.update(before._spec.state_ids)  # type: ignore[attr-defined]
    after._backend = after._backend_with(entries(before).items())
    if rows:
        assert after.rows(*rows) == [times]
    assert after.advance(NOON + timedelta(hours=9)) == fired
    assert entries(after) == {}


def resolved(old: type[Any], new: type[Any]) -> Any:
    from stateflow.compatibility.states import resolve_states

    def pipeline(cls: type[Any]) -> Any:
        flow = sf.Flow("job")
        stream = flow.source("events", sf.delta("/nowhere"), Do)
        stream.key_by("user").process("op", cls, output="n long")
        return flow.operators[0]

    states, next_id = resolve_states(pipeline(old), None)
    before = operators.operator_of((), key=(("user", "str"),), states=states, next_state_id=next_id)
    return resolve_states(pipeline(new), before)[0]


def test_a_timer_may_get_many_times_and_a_state_namespaces_but_not_lose_them() -> None:
    states = resolved(Once, Often)
    assert (states["end"].many, states["end"].namespace, states["kept"].namespace) == (True, "str", "str")
    with refused(IncompatibleError, "state 'kept'", "was str and is none now", "put the namespace back"):
        resolved(Often, Once)

    class Single(Once):
        pass

    class Many(sf.KeyedProcess[int, Any, Any]):
        end = sf.Timer("event", many=True)
        kept = sf.ValueState(int, default=0)

        @end.fires
        def on_end(self, key: int, at: datetime, ctx: sf.Context) -> None: ...

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...

    with refused(IncompatibleError, "state 'end'", "was many and is one now"):
        resolved(Many, Single)
    assert TIMER_IDS == 2


class Emptied(sf.KeyedProcess[int, Any, Any]):
    skus = sf.ListState(str, namespace=str)
    counts = sf.MapState(str, int, namespace=str)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        for _, what in rows:
            if what == "clear":
                self.skus.clear()
                self.counts.clear()
            if what == "fill":
                self.skus.at("a").add("tea")
                self.counts.at("a")["tea"] = 1
            # Taken, and neither read nor written.
            self.skus.at("a")
            self.counts.at("a")


@pytest.mark.parametrize("batches", [["fill", "clear"], ["fill", "clear", "look"]])
def test_clearing_a_state_leaves_the_namespaces_that_are_taken_and_not_used(batches: list[str]) -> None:
    harness = sf.testing.KeyedHarness(Emptied, key=lambda row: row[0])
    for what in batches:
        harness.rows((1, what), (2, what))
    for key in (1, 2):
        assert harness.snapshot(key) == {"skus": {"a": ["tea"]}, "counts": {"a": {"tea": 1}}}


class Living(sf.KeyedProcess[int, Any, Any]):
    """Each kind of state that can have namespaces and a ttl."""

    value = sf.ValueState(int, ttl="10 s", namespace=int)
    items = sf.ListState(int, ttl=sf.ttl("10 s", renew="read"), namespace=str)
    counts = sf.MapState(int, int, ttl="10 s", namespace=tuple[int, str])
    most = sf.ReducingState(int, max, ttl=sf.ttl("10 s", renew="read"), namespace=int)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for _, act in rows:
            yield act(self)


NAMESPACES: dict[str, list[Any]] = {
    "value": [None, 1, -5], "items": [None, "a", "a\0b"], "counts": [None, (1, "a"), (1, "b")], "most": [None, 0, 7],
}  # fmt: skip


def test_every_namespace_expires_by_itself_as_a_plain_model_says() -> None:
    """The model: per key, state and namespace what was written, and when it expires."""
    chance, clock = random.Random(5), 0
    harness = KeyedHarness(Living, key=lambda row: row[0], max_parallelism=4)
    model: dict[tuple[int, str, Any], dict[Any, tuple[int, int]]] = {}

    def live(place: tuple[int, str, Any]) -> dict[Any, int]:
        return {part: n for part, (n, until) in model.get(place, {}).items() if until > clock}

    for step in range(250):
        if chance.random() < 0.5:
            clock += (passed := chance.randrange(1, 5))
            harness.advance(now=timedelta(seconds=passed))
        key, name = chance.randrange(3), chance.choice(list(NAMESPACES))
        namespace = chance.choice(NAMESPACES[name])
        place, what = (key, name, namespace), chance.choice(["write", "write", "read", "clear", "list"])
        if what == "clear":
            harness.rows((key, partial(_clear, name, namespace)))
            model.pop(place, None)
        elif what == "list":
            (found,) = harness.rows((key, partial(_namespaces, name)))
            wanted = [each for each in NAMESPACES[name][1:] if live((key, name, each))]
            assert sorted(found) == sorted(wanted)
            if name in ("items", "most"):
                for each in wanted:
                    _renew(model, (key, name, each), clock, first=name == "items")
        elif what == "write":
            harness.rows((key, partial(_write, name, namespace, step)))
            parts = model.setdefault(place, {})
            before = live(place)
            if name == "most":
                parts[0] = (max(step, before.get(0, step)), clock + 10)
            else:
                part = {"value": 0, "items": step, "counts": step % 3}[name]
                parts[part] = (step, clock + 10)
        else:
            (found,) = harness.rows((key, partial(_read, name, namespace)))
            wanted_now = live(place)
            if name == "counts":
                assert found == wanted_now
            elif name == "items":
                assert found == list(wanted_now.values())
            else:
                assert found == wanted_now.get(0)
            if name in ("items", "most"):
                _renew(model, place, clock)
    harness.advance(now=timedelta(seconds=11))
    assert list(harness._backend.scan(b"", END)) == [], "what has expired is gone, and so is what told of it"


def _renew(model: Any, place: Any, clock: int, *, first: bool = False) -> None:
    """Reading renews; whoever only asks whether a list holds something reads its first element."""
    for part, (n, until) in model.get(place, {}).items():
        if until > clock:
            model[place][part] = (n, clock + 10)
            if first:
                return


def _write(name: str, namespace: Any, step: int, process: Any) -> None:
    state = getattr(process, name).at(namespace)
    if name == "value":
        state.value = step
    elif name == "counts":
        state[step % 3] = step
    else:
        state.add(step)


def _clear(name: str, namespace: Any, process: Any) -> None:
    getattr(process, name).at(namespace).clear()


def _namespaces(name: str, process: Any) -> Any:
    return getattr(process, name).namespaces()


def _read(name: str, namespace: Any, process: Any) -> Any:
    state = getattr(process, name).at(namespace)
    if name == "value":
        return state.value
    return dict(state) if name == "counts" else state.get()
