"""The keyed operator's engine over a memory backend: chunks in, rows and state changes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.format.encoding import prefix
from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME
from stateflow.format.records import Shard
from stateflow.operators import firing
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.operators.context import Moment
from stateflow.operators.keyed import Chunk, KeyedEngine
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.backends.base import Backend
from stateflow.state.backends.memory import memory_backend
from stateflow.state.keys.codec import KeyCodec
from tests.refusals.refusal import refused

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIDE = sf.output("side", "n long")


class Counting:
    """A backend that tells how it was asked."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.gets = 0
        self.writes = 0
        self.batched: list[int] = []
        self.written: list[tuple[bytes, bytes | None]] = []
        self.is_afar = False
        self.expected: list[list[bytes]] = []

    def expect(self, keys: Sequence[bytes]) -> None:
        self.expected.append(list(keys))

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        return self.inner.get(key)

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self.batched.append(len(keys))
        return self.inner.get_many(keys)

    def write(self, changes: Any) -> None:
        kept = list(changes)
        self.writes += 1
        self.written += kept
        self.inner.write(kept)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(begin, end)

    def first(self, begin: bytes, end: bytes) -> bytes | None:
        return self.inner.first(begin, end)


def backend(folder: Path) -> Any:
    shard = Shard(first=0, last=127, backend="memory")
    return Counting(memory_backend()(shard, folder / "shard", lambda ref: Path(ref.path)))


def ids(cls: type[Any]) -> dict[str, int]:
    found, next_id = {}, 1
    for name, schema in schemas(cls, "op").items():
        found[name] = next_id
        next_id += TIMER_IDS if schema.kind == "timer" else 1
    return found


def engine(
    cls: type[Any], on: Any, *, on_error: str = "fail", slot: int = 1, watermark: int | None = None, now: int = 0,
    limit: int = 1000, before: int | None = None, held_back: int | None = None,
) -> KeyedEngine:  # fmt: skip
    row = row_type("n long")
    spec = OperatorSpec(
        "op", cls, cls, ("user",), ("int",), (row,), row, {"side": row}, ids(cls), on_error, limit,
        waited=held_back is not None, held_back=held_back or 0,
    )  # fmt: skip
    made = KeyedEngine(spec, Moment(slot, now, 42, watermark, watermark_before=before), 0)
    made.attach(on)
    return made


CODEC = KeyCodec(("int",))


def chunk(rows: dict[int, list[Any]], *, cuts: bool = True) -> Chunk:
    keys = list(rows)
    base = [prefix(key % 128, 0) + CODEC.encode(key) + b"\0" for key in keys]
    flat = [row for of_key in rows.values() for row in of_key]
    ends, end = [], 0
    for of_key in rows.values():
        end += len(of_key)
        ends.append(end)
    starts = [0, *ends[:-1]]
    return Chunk(
        keys,
        base,
        lambda i: (iter(rows[keys[i]]),),
        lambda state_id: [b[:2] + state_id.to_bytes(2, "big") + b[4:] for b in base],
        (flat, starts, ends) if cuts else None,
    )


class Sum(sf.KeyedProcess[int, Any, Any]):
    total = sf.ValueState(int, default=0)
    rare = sf.ValueState(int)

    def process(self, key: int, rows: Iterator[int], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            if row == 13:
                raise ValueError("thirteen")
            self.total.value += row
            if row > 100:
                self.rare.value = row
            ctx.emit(SIDE, row)
        yield key, self.total.value


@pytest.mark.parametrize("cuts", [True, False])
def test_sums_go_on_in_the_next_task(tmp_path: Path, cuts: bool) -> None:
    on = backend(tmp_path)
    first = engine(Sum, on)
    first.run(chunk({1: [1, 2], 2: [3]}, cuts=cuts))
    first.run(chunk({3: [4]}, cuts=cuts))
    assert first.out == [(1, 3), (2, 3), (3, 4)]
    assert first.context.sides["side"] == [1, 2, 3, 4]
    assert (first.keys, first.changed) == (3, True)
    second = engine(Sum, on, slot=2)
    second.run(chunk({1: [10], 4: [1]}, cuts=cuts))
    assert second.out == [(1, 13), (4, 1)]


def test_a_state_that_nearly_every_key_reads_is_looked_up_for_all_keys_at_once(tmp_path: Path) -> None:
    on = backend(tmp_path)
    made = engine(Sum, on)
    made.run(chunk({key: [1] for key in range(10)}))
    assert (on.gets, on.batched) == (10, []), "the first chunk tells which states are read"
    made.run(chunk({key: [1] for key in range(10, 30)}))
    assert (on.gets, on.batched) == (10, [20])
    assert made.out == [(key, 1) for key in range(30)]
    assert on.expected == []


def test_where_the_state_is_afar_the_keys_of_what_may_be_read_are_said_together(tmp_path: Path) -> None:
    on = backend(tmp_path)
    on.is_afar = True
    states = ids(Sum)
    made = engine(Sum, on)
    rows = {key: [1] for key in range(10)}
    first = chunk(rows)
    made.run(first)
    assert sorted(on.expected) == sorted(first.keys_for(states[name]) for name in ("total", "rare"))
    on.expected.clear()
    made.run(chunk({key: [1] for key in range(10, 30)}))
    assert (on.expected, on.batched) == ([], [20]), "what every key reads is looked up; nothing else is read"


class Seldom(sf.KeyedProcess[int, Any, Any]):
    seldom = sf.ValueState(int, default=0)
    never = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Iterator[int], ctx: sf.Context) -> Iterator[Any]:
        if key % 10 == 0:
            yield self.seldom.value


def test_a_state_that_few_keys_read_is_expected_of_all_where_it_is_afar(tmp_path: Path) -> None:
    on = backend(tmp_path)
    on.is_afar = True
    made = engine(Seldom, on)
    made.run(chunk({key: [1] for key in range(10)}))
    on.expected.clear()
    later = chunk({key: [1] for key in range(10, 30)})
    made.run(later)
    assert (on.expected, on.batched) == ([later.keys_for(ids(Seldom)["seldom"])], [])


def test_a_shard_that_nothing_was_written_to_is_not_changed(tmp_path: Path) -> None:
    class Reader(Sum):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            yield key, self.total.value

    made = engine(Reader, on := backend(tmp_path))
    made.run(chunk({1: [1]}))
    assert (made.changed, on.written) == (False, [])


@pytest.mark.parametrize("cuts", [True, False])
def test_a_failing_key_ends_the_task_before_anything_of_its_chunk_is_written(
    tmp_path: Path, cuts: bool
) -> None:
    on = backend(tmp_path)
    made = engine(Sum, on)
    with pytest.raises(UserCodeError) as caught:
        made.run(chunk({1: [1], 2: [5, 13], 3: [1]}, cuts=cuts))
    assert str(caught.value).startswith("operator 'op' failed on key 2: ValueError: thirteen (line ")
    assert " of test_keyed.py, in process)" in str(caught.value)
    assert on.written == []


def test_a_dead_letter_leaves_the_keys_around_it_alone(tmp_path: Path) -> None:
    on = backend(tmp_path)
    made = engine(Sum, on, on_error="dead_letter")
    made.run(chunk({1: [1], 2: [5, 13, 6], 3: [1]}))
    assert made.out == [(1, 1), (3, 1)]
    assert made.context.sides["side"] == [1, 1]
    [letter] = made.context.sides[DEAD_LETTERS]
    assert letter[:3] == ("op", "2", "ValueError: thirteen")
    assert letter[4:] == ("[5,13,6]", 3, 1)
    assert made.dead_letters == 1
    again = engine(Sum, on, slot=2)
    again.run(chunk({2: [1]}))
    assert again.out == [(2, 1)]


def test_a_value_that_the_users_own_form_cannot_read_fails_its_key_alone(tmp_path: Path) -> None:
    def read(data: bytes, version: int) -> int:
        if data == b"77":
            raise LookupError("no 77")
        return int(data)

    form = sf.CustomSerializer("count", 1, lambda n: str(n).encode(), read)

    class Formed(sf.KeyedProcess[int, Any, Any]):
        total = sf.ValueState(form, default=0)

        def process(self, key: int, rows: Iterator[int], ctx: sf.Context) -> Iterator[Any]:
            for row in rows:
                if row:
                    self.total.value = row
                else:
                    yield key, self.total.value

    on = backend(tmp_path)
    engine(Formed, on).run(chunk({key: [77 if key == 12 else key] for key in range(1, 20)}))
    made = engine(Formed, on, slot=2, on_error="dead_letter")
    made.run(chunk({key: [0] for key in range(1, 10)}))
    made.run(chunk({key: [0] for key in range(10, 20)}))
    assert on.batched[-1] == 10, "the values of the second chunk are looked up for all keys at once"
    assert made.out == [(key, key) for key in range(1, 20) if key != 12]
    [letter] = made.context.sides[DEAD_LETTERS]
    assert letter[1:3] == ("12", "LookupError: no 77")
    failing = engine(Formed, on, slot=3)
    failing.run(chunk({key: [0] for key in range(1, 10)}))
    with refused(UserCodeError, "failed on key 12", "LookupError: no 77"):
        failing.run(chunk({key: [0] for key in range(10, 20)}))


def login(password: str) -> str:
    return "refused"


def test_a_dead_letter_shows_no_password_of_the_code(tmp_path: Path) -> None:
    class Failing(sf.KeyedProcess[int, Any, Any]):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            raise KeyError(login(password="hunter2"))

    made = engine(Failing, backend(tmp_path), on_error="dead_letter")
    made.run(chunk({1: [5]}))
    [letter] = made.context.sides[DEAD_LETTERS]
    assert letter[3].endswith(" in process: raise KeyError(login(password=***))\n")
    assert "hunter2" not in "".join(map(str, letter))


def test_more_diverted_rows_than_may_be_kept_fail_the_task(tmp_path: Path) -> None:
    made = engine(Sum, backend(tmp_path), on_error="dead_letter", limit=4)
    made.run(chunk({1: [13, 1]}))
    with refused(
        sf.StateflowError, "dead_letter_limit=4", "key 2", "option dead_letter_limit", "stateflow.toml"
    ):
        made.run(chunk({2: [13, 1, 2]}))


@pytest.mark.parametrize(
    "row", [{"at": EPOCH}, {EPOCH: 1}, {1: {2, 3}}, b"\xff", object(), float("nan"), [1, (2, 3)], "\ud800"]
)
def test_any_row_can_be_a_dead_letter(tmp_path: Path, row: Any) -> None:
    class Failing(sf.KeyedProcess[int, Any, Any]):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            raise KeyError(next(rows))

    made = engine(Failing, backend(tmp_path), on_error="dead_letter")
    made.run(chunk({1: [row]}))
    [letter] = made.context.sides[DEAD_LETTERS]
    assert isinstance(letter[4], str)
    assert letter[5] == 1


def _set(process: Any) -> None:
    process.total.value = 5


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p.total.value,
        _set,
        lambda p: p.total.clear(),
        lambda p: p.skus.add("x"),
        lambda p: p.skus.get(),
        lambda p: p.seen.get("x"),
        lambda p: p.seen.update({"x": 1}),
        lambda p: p.idle.set(EPOCH),
    ],
)
@pytest.mark.parametrize("where", ["open", "close"])
def test_keyed_state_is_refused_where_there_is_no_key(tmp_path: Path, use: Any, where: str) -> None:
    class Early(sf.KeyedProcess[int, Any, Any]):
        total = sf.ValueState(int, default=0)
        skus = sf.ListState(str)
        seen = sf.MapState(str, int)
        idle = sf.Timer("event")

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            self.total.value += 1

        @idle.fires
        def on_idle(self, key: int, at: datetime, ctx: sf.Context) -> None: ...

    setattr(Early, where, lambda self, ctx=None: use(self))
    made = engine(Early, on := backend(tmp_path))
    if where == "close":
        made.run(chunk({1: [1]}))
    before = list(on.written)
    with refused(sf.UsageError, f"operator 'op', {where}", "keyed state", "use it in"):
        made.open() if where == "open" else made.close()
    assert on.written == before
    assert not made.cursor.dirty


# ---- timers ----


class Timed(sf.KeyedProcess[int, Any, Any]):
    """Rows are `(timer, seconds)`; handlers put out what fired."""

    one = sf.Timer("event")
    other = sf.Timer("event")
    soon = sf.Timer("processing")
    count = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        for name, seconds in rows:
            timer = getattr(self, name)
            timer.clear() if seconds is None else timer.set(EPOCH + timedelta(seconds=seconds))

    def _fired(self, name: str, key: int, at: datetime) -> Iterator[Any]:
        self.count.value += 1
        yield name, key, (at - EPOCH).total_seconds(), self.count.value

    @one.fires
    def on_one(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield from self._fired("one", key, at)
        if key == 1 and self.count.value < 4:
            self.other.set(at + timedelta(seconds=1))
            self.one.set(at + timedelta(seconds=2))
        if key == 9:
            self.other.clear()

    @other.fires
    def on_other(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield from self._fired("other", key, at)

    @soon.fires
    def on_soon(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield from self._fired("soon", key, at)


def fired(made: KeyedEngine) -> list[Any]:
    made.out.clear()
    for _ in made.fire(range(128)):
        pass
    return [entry[:3] for entry in made.out]


def set_up(tmp_path: Path, rows: dict[int, list[Any]]) -> Any:
    on = backend(tmp_path)
    engine(Timed, on).run(chunk(rows))
    return on


def test_timers_fire_up_to_the_watermark_in_time_order_over_all_keys(tmp_path: Path) -> None:
    on = set_up(
        tmp_path, {3: [("one", 30)], 4: [("one", 10), ("other", 40)], 5: [("other", 20)], 6: [("one", -5)]}
    )
    made = engine(Timed, on, watermark=30_000_000)
    assert fired(made) == [("one", 6, -5), ("one", 4, 10), ("other", 5, 20), ("one", 3, 30)]
    assert made.timers_fired == 4
    assert made.next_timers(range(128)) == (40_000_000, None)
    assert fired(engine(Timed, on, watermark=30_000_000)) == []


class Asks(sf.KeyedProcess[int, Any, Any]):
    due = sf.Timer("event", many=True)

    def process(self, key: int, rows: Iterator[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            self.due.set(EPOCH + timedelta(seconds=row))
            yield "row", ctx.watermark

    @due.fires
    def fire(self, key: int, at: datetime, ctx: Any) -> Iterator[Any]:
        yield at, ctx.watermark


def test_behind_an_operator_rows_and_timers_go_by_the_watermark_that_is_held_back(tmp_path: Path) -> None:
    on = backend(tmp_path)
    second, held = 1_000_000, 20 * 1_000_000
    made = engine(Asks, on, watermark=60 * second, before=30 * second, held_back=held)
    for rows in ({3: [15, 40, 41]}, {4: [39]}):
        made.run(chunk(rows))
        list(made.fire(range(128)))
    of_rows, of_timers = (EPOCH + timedelta(seconds=at) for at in (10, 40))
    assert made.out == [
        ("row", of_rows), ("row", of_rows), ("row", of_rows),
        *((EPOCH + timedelta(seconds=at), of_timers) for at in (15, 40)),
        ("row", of_rows), (EPOCH + timedelta(seconds=39), of_timers),
    ]  # fmt: skip
    assert made.next_timers(range(128)) == (61 * second, None), "the batch's watermark that fires the next"
    drained = engine(Asks, on, watermark=END_OF_TIME, before=60 * second, held_back=held)
    list(drained.fire(range(128)))
    assert [at for at, _ in drained.out] == [EPOCH + timedelta(seconds=41)]


def test_code_sees_the_first_instant_for_a_watermark_before_it(tmp_path: Path) -> None:
    second = 1_000_000
    before = BEGIN_OF_TIME - 600 * second
    for watermark, held_back in ((before, None), (BEGIN_OF_TIME + second, 600 * second)):
        made = engine(Asks, backend(tmp_path), watermark=watermark, before=before, held_back=held_back)
        made.run(chunk({3: [15]}))
        assert made.out == [("row", datetime.min.replace(tzinfo=UTC))]


def test_without_a_watermark_no_event_timer_fires(tmp_path: Path) -> None:
    on = set_up(tmp_path, {3: [("one", -(10**6)), ("soon", 5)]})
    assert fired(engine(Timed, on, now=4_999_999)) == []
    made = engine(Timed, on, now=5_000_000)
    assert fired(made) == [("soon", 3, 5)]
    assert made.next_timers(range(128)) == (-(10**12), None)


def test_a_timer_set_again_or_cleared_leaves_nothing_behind(tmp_path: Path) -> None:
    on = set_up(tmp_path, {3: [("one", 10), ("one", 20)], 4: [("one", 10)]})
    engine(Timed, on, slot=2).run(chunk({3: [("one", 25)], 4: [("one", None)]}))
    assert len(list(on.scan(b"", b"\xff" * 4))) == 2, "one timer: its queue entry and its time"
    assert fired(engine(Timed, on, watermark=24_000_000)) == []
    assert fired(engine(Timed, on, watermark=25_000_000)) == [("one", 3, 25)]
    assert [value for key, value in on.scan(b"", b"\xff" * 4) if value[0] != 2] == []


def test_timers_of_other_key_groups_do_not_fire(tmp_path: Path) -> None:
    on = set_up(tmp_path, {3: [("one", 1)], 100: [("one", 2)]})
    made = engine(Timed, on, watermark=10_000_000)
    for _ in made.fire(range(64)):
        pass
    assert [entry[1] for entry in made.out] == [3]
    assert made.next_timers(range(64, 128)) == (2_000_000, None)


def test_setting_timers_looks_up_the_old_times_of_all_keys_at_once(tmp_path: Path) -> None:
    on = set_up(tmp_path, {key: [("one", 10)] for key in range(20)})
    on.gets, on.batched = 0, []
    engine(Timed, on, slot=2).run(chunk({key: [("one", 20)] for key in range(30)}))
    assert (on.gets, on.batched) == (0, [30])


def test_firing_looks_up_and_writes_the_keys_of_a_block_at_once(tmp_path: Path) -> None:
    on = set_up(tmp_path, {key: [("one", key)] for key in range(2, 1002)})
    on.gets, on.batched, on.writes = 0, [], 0
    made = engine(Timed, on, watermark=10**12)
    assert len(fired(made)) == 1000
    assert on.gets <= firing.FIRST_BLOCK * 2, "the first block tells which states the handlers read"
    assert sum(on.batched) >= 1000 - on.gets
    assert on.writes <= 4


def test_a_tuple_of_values_that_nobody_can_change_waits_for_the_end_of_the_chunk(tmp_path: Path) -> None:
    class Pair(sf.KeyedProcess[int, Any, Any]):
        pair = sf.ValueState(tuple[int, float | None], default=(0, None))
        names = sf.ValueState(tuple[list[int], int], default=lambda: ([], 0))

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            self.pair.value = (key, 1.0)
            assert self.pair not in made.cursor.dirty
            self.names.value = ([key], 1)
            assert self.names in made.cursor.dirty
            self.names.value[0].append(7)
            yield self.pair.value

    made = engine(Pair, backend(tmp_path))
    made.run(chunk({1: [1], 2: [1]}))
    made.move_to(prefix(2, 0) + CODEC.encode(2) + b"\0", 2)
    process: Any = made.process
    assert (process.pair.value, process.names.value) == ((2, 1.0), ([2, 7], 1))
