"""From sorted Arrow batches to whole keys: fabricated batches, no Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateflow.errors import UsageError
from stateflow.operators.context import Moment, OperatorContext
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.blocks import Blocks, Shape
from stateflow.spark.task.carried import carried, everything
from stateflow.state.cursor import Cursor
from stateflow.state.keys.codec import KeyCodec
from tests.refusals.refusal import refused

ROWS = row_type("n long")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KINDS = {
    "int": pa.int64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us", "UTC"),
    "decimal": pa.decimal128(38, 18),
}
Given = tuple[int, Any, int]
"""Key group, key, row."""


def blocks_of(batches: Iterator[Any], shape: Shape, remember: int = 0) -> Blocks:
    """Of rows that all fit into the memory."""

    def scratch() -> Path:
        raise AssertionError("a folder for what the memory does not hold")

    return Blocks(batches, shape, remember, scratch)


def batch(
    given: Sequence[Given], kinds: tuple[str, ...] = ("int",), late: Sequence[bool] = ()
) -> pa.RecordBatch:
    keys = [g[1] if isinstance(g[1], tuple) else (g[1],) for g in given]
    columns = [pa.array([g[0] for g in given], pa.int32())]
    columns += [pa.array([k[i] for k in keys], KINDS[kind]) for i, kind in enumerate(kinds)]
    columns.append(pa.array(late or [False] * len(given), pa.bool_()))
    columns.append(pa.array([g[2] for g in given], pa.int64()))
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])


def context() -> OperatorContext:
    return OperatorContext(Cursor(1, 0), Moment(1, 0, 0, None), 0, {})


def shape(kinds: tuple[str, ...] = ("int",), inputs: int = 1) -> Shape:
    names = tuple(f"k{i}" for i in range(len(kinds)))
    rows = (ROWS,) * inputs
    carry = carried([names] * inputs, kinds, rows, late=True, place=False) if inputs > 1 else None
    return Shape("op", KeyCodec(kinds, names if len(kinds) > 1 else ()), names, rows, carry)


def keys_of(
    batches: Sequence[pa.RecordBatch],
    kinds: tuple[str, ...] = ("int",),
    cuts: Sequence[int] = (0,),
    inputs: int = 1,
) -> list[tuple[int, Any, tuple[list[Any], ...]]]:
    """`(shard, key, rows per input)` of everything, read to the end; checks full keys on the way."""
    out = []
    codec = KeyCodec(kinds)
    blocks = blocks_of(iter(batches), shape(kinds, inputs))
    for shard, chunk in blocks.chunks(context(), cuts):
        for i, key in enumerate(chunk.keys):
            rows = tuple([row.n for row in side] for side in chunk.rows(i))
            if chunk.cuts is not None:
                held, starts, ends = chunk.cuts
                assert [row.n for row in held[starts[i] : ends[i]]] == rows[0]
            full = chunk.base[i]
            assert full[2:4] == b"\0\0"
            assert full[4:] == codec.encode(key) + b"\0"
            assert chunk.keys_for(7)[i] == full[:2] + b"\0\7" + full[4:]
            out.append((shard, key, rows))
    assert blocks.rows_in == sum(b.num_rows for b in batches)
    return out


def test_keys_of_one_batch_come_with_their_rows() -> None:
    assert keys_of([batch([(0, 5, 1), (0, 5, 2), (0, 6, 3), (1, 4, 4)])]) == [
        (0, 5, ([1, 2],)),
        (0, 6, ([3],)),
        (0, 4, ([4],)),
    ]


@pytest.mark.parametrize(
    "sizes", [[12], [1] * 12, [2] * 6, [3, 9], [5, 1, 1, 5], [4, 0, 4, 0, 4], [11, 1], [1, 11], [6, 6]]
)
def test_however_rows_are_cut_into_batches_every_key_is_whole(sizes: list[int]) -> None:
    given = [(0, 1, 0), (0, 1, 1), (0, 2, 2), (1, 3, 3), (1, 3, 4), (1, 3, 5), (1, 3, 6), (1, 3, 7), (2, 4, 8),
             (2, 5, 9), (2, 5, 10), (2, 6, 11)]  # fmt: skip
    batches, begin = [], 0
    for size in sizes:
        batches.append(batch(given[begin : begin + size]))
        begin += size
    assert keys_of(batches) == [
        (0, 1, ([0, 1],)),
        (0, 2, ([2],)),
        (0, 3, ([3, 4, 5, 6, 7],)),
        (0, 4, ([8],)),
        (0, 5, ([9, 10],)),
        (0, 6, ([11],)),
    ]


KEYS: dict[str, list[Any]] = {
    "int": [3, 3, -1, 7],
    "str": ["a", "a", "", "b"],
    "bytes": [b"\0", b"\0", b"", b"b"],
    "bool": [True, True, False, False],
    "date": [date(2026, 1, 1), date(2026, 1, 1), date(1969, 1, 1), date(2027, 1, 1)],
    "datetime": [NOON, NOON, NOON.replace(year=1960), NOON.replace(microsecond=5)],
    "decimal": [Decimal("1.5"), Decimal("1.5"), Decimal("-2"), Decimal("0")],
}
SPARK = {"int": "bigint", "str": "string", "bytes": "binary", "bool": "boolean", "datetime": "timestamp", "date": "date",
         "decimal": "decimal(38,18)"}  # fmt: skip


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KEYS), ("int", "datetime"), ("str", "bool")])
@pytest.mark.parametrize("late", [True, False])
def test_keys_that_fields_repeat_need_no_columns_of_their_own(kinds: tuple[str, ...], late: bool) -> None:
    names = tuple(f"k{i}" for i in range(len(kinds)))
    columns = ", ".join(f"{name} {SPARK[kind]}" for name, kind in zip(names, kinds, strict=True))
    rows = row_type(f"n bigint, {columns}")
    keys = [pa.array(KEYS[kind], KINDS[kind]) for kind in kinds]
    groups, flags = pa.array([0, 0, 0, 1], pa.int32()), pa.array([False, late, False, late])
    fields = [pa.array([1, 2, 3, 4], pa.int64()), *keys]
    lean = carried([names], kinds, (rows,), late=late)
    assert lean.own_keys == 0
    places = pa.array([5, 5, (1 << 48) - 1, 1 << 48], pa.int64())
    whole = [groups, *keys, flags, *fields]
    needed = [places, *([flags] if late else []), *fields]
    results = []
    for carry, arrays in ((everything(len(kinds)), whole), (lean, needed)):
        codec = KeyCodec(kinds, names if len(kinds) > 1 else ())
        given = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
        found: list[Any] = []
        at = context()
        for batches in ([given], [given.slice(0, 1), given.slice(1, 3)]):
            blocks = blocks_of(iter(batches), Shape("op", codec, names, (rows,), carry))
            for shard, chunk in blocks.chunks(at, [0, 1]):
                for i, key in enumerate(chunk.keys):
                    (of_key,) = chunk.rows(i)
                    found.append((shard, key, chunk.base[i], [(tuple(row), at.late) for row in of_key]))
        results.append(found)
    assert results[0] == results[1]
    assert sum(len(of_key) for _, _, _, of_key in results[1]) == 8


def test_a_field_of_another_type_than_the_key_does_not_stand_for_it() -> None:
    rows = row_type("user int, text string, at timestamp_ntz")
    assert carried([("user", "text")], ("int", "str"), (rows,), late=False).keys == (None, 1)
    assert carried([("at",)], ("datetime",), (rows,), late=False).keys == (None,)
    assert carried([("user", "text", "text")], ("int", "str", "str"), (rows,), late=False).keys == (
        None,
        1,
        1,
    )
    whole_tables = carried([("text",)], ("str",), (rows,), late=False, place=False)
    assert (whole_tables.key_indices, whole_tables.place, whole_tables.mixed) == ((2,), False, False)
    lean = carried([("user", "text")], ("int", "str"), (rows,), late=True)
    assert (lean.key_indices, lean.late_index, lean.fields_index) == ((1, 4), 2, 3)


def test_inputs_share_the_columns_of_a_type() -> None:
    """A row is of one input, and every column costs something for every row."""
    bids = row_type("auction long, price long, channel string, bidder long, at timestamp")
    lots = row_type("seller long, id long, text string, ended timestamp, city string")
    carry = carried([("auction",), ("id",)], ("int",), (bids, lots), late=True)
    assert carry.keys == (None,)
    assert carry.shared == ("bigint", "string", "bigint", "timestamp", "string")
    at = carry.shared_index
    assert at == 4, "behind the place, the key, the flag and the side"
    assert carry.sides == ((1, at, at + 1, at + 2, at + 3), (at, 1, at + 1, at + 3, at + 4))
    twice = carried([("auction", "auction"), ("id", "id")], ("int", "int"), (bids, lots), late=False)
    assert (twice.keys, twice.sides[0][0], twice.sides[1][1]) == ((None, None), 1, 1)


def test_no_rows_are_no_keys() -> None:
    assert keys_of([]) == []
    assert keys_of([batch([]), batch([])]) == []


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_chunks_end_where_shards_do(cut: int) -> None:
    given = [(0, 1, 0), (3, 2, 1), (4, 3, 2), (4, 4, 3), (9, 5, 4)]
    found = keys_of([batch(given[:cut]), batch(given[cut:])], cuts=[0, 4, 8])
    assert [(shard, key) for shard, key, _ in found] == [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5)]


def test_shards_need_not_begin_at_the_first_key_group() -> None:
    found = keys_of([batch([(64, 1, 0), (95, 2, 1), (96, 3, 2), (127, 4, 3)])], cuts=[64, 96])
    assert [shard for shard, _, _ in found] == [0, 0, 1, 1]


def test_a_key_that_spans_batches_is_in_the_shard_of_its_group() -> None:
    given = [(9, 1, n) for n in range(6)]
    found = keys_of([batch([(2, 7, 0), *given[:2]]), batch(given[2:5]), batch(given[5:])], cuts=[0, 4, 8])
    assert found == [(0, 7, ([0],)), (2, 1, ([0, 1, 2, 3, 4, 5],))]


def test_rows_that_user_code_leaves_unread_are_passed_over() -> None:
    given = [(0, 1, n) for n in range(6)]
    blocks = blocks_of(iter([batch(given[:2]), batch(given[2:4]), batch([*given[4:], (0, 2, 9)])]), shape())
    seen = []
    for _, chunk in blocks.chunks(context(), [0]):
        for i, key in enumerate(chunk.keys):
            (rows,) = chunk.rows(i)
            seen.append((key, next(rows).n))
    assert seen == [(1, 0), (2, 9)]


def test_a_spanning_key_is_pulled_from_spark_as_it_is_read() -> None:
    pulled: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(5):
            pulled.append(n)
            yield batch([(0, 1, n)])

    blocks = blocks_of(batches(), shape())
    for _, chunk in blocks.chunks(context(), [0]):
        (rows,) = chunk.rows(0)
        next(rows)
        assert len(pulled) == 2
        assert len(list(rows)) == 4
    assert len(pulled) == 5


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        (("str",), ["", "a", "é"]),
        (("bytes",), [b"", b"\0", b"a"]),
        (("bool",), [False, True]),
        (("date",), [date(1969, 1, 1), date(2026, 1, 1)]),
        (("datetime",), [NOON, NOON.replace(microsecond=5)]),
        (("decimal",), [Decimal("-1.5"), Decimal("3.25")]),
        (("int", "str"), [(1, "a"), (1, "b"), (2, "a")]),
        (("str", "date", "bool"), [("a", date(2026, 1, 1), False), ("a", date(2026, 1, 1), True)]),
    ],
)
def test_keys_of_every_type_whole_and_spanning(kinds: tuple[str, ...], keys: list[Any]) -> None:
    given = [(0, key, n) for key in keys for n in range(3)]
    expected = [(0, key, ([0, 1, 2],)) for key in keys]
    assert keys_of([batch(given, kinds)], kinds) == expected
    assert keys_of([batch([one], kinds) for one in given], kinds) == expected


def test_a_composite_key_is_a_named_tuple() -> None:
    blocks = blocks_of(iter([batch([(0, (1, "a"), 0)], ("int", "str"))]), shape(("int", "str")))
    _, chunk = next(blocks.chunks(context(), [0]))
    assert (chunk.keys[0].k0, chunk.keys[0].k1) == (1, "a")


@pytest.mark.parametrize("keys", [[(0, None, 1)], [(0, 1, 1), (0, None, 2)]])
def test_a_null_key_is_refused_with_its_operator_and_column(keys: list[Given]) -> None:
    with refused(UsageError, "operator 'op'", "1 row", "key column 'k0'", "leave such rows out"):
        keys_of([batch(keys)])


# ---- two inputs ----


def sides(given: Sequence[tuple[Any, int, int]], late: Sequence[bool] = ()) -> pa.RecordBatch:
    """`(key, side, row)`."""
    columns = [
        pa.array([0] * len(given), pa.int32()),
        pa.array([g[0] for g in given], pa.int64()),
        pa.array(late or [False] * len(given), pa.bool_()),
        pa.array([g[1] for g in given], pa.int8()),
        pa.array([g[2] for g in given], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(5)])


GIVEN = [(1, 0, 10), (1, 0, 11), (1, 1, 12), (2, 1, 20), (3, 0, 30), (4, 0, 40), (4, 1, 41), (4, 1, 42)]
WANTED = [(0, 1, ([10, 11], [12])), (0, 2, ([], [20])), (0, 3, ([30], [])), (0, 4, ([40], [41, 42]))]


@pytest.mark.parametrize("sizes", [[8], [1] * 8, [2] * 4, [3, 5], [7, 1], [1, 7]])
def test_two_inputs_come_side_by_side_however_they_are_cut(sizes: list[int]) -> None:
    batches, begin = [], 0
    for size in sizes:
        batches.append(sides(GIVEN[begin : begin + size]))
        begin += size
    assert keys_of(batches, inputs=2) == WANTED


def test_a_spanning_key_whose_left_rows_are_not_read_still_gives_its_right_ones() -> None:
    blocks = blocks_of(iter([sides([one]) for one in GIVEN[:3]]), shape(inputs=2))
    _, chunk = next(blocks.chunks(context(), [0]))
    _, right = chunk.rows(0)
    assert [row.n for row in right] == [12]


# ---- lateness ----


def lateness(blocks: Blocks, ctx: OperatorContext) -> list[tuple[Any, int, bool]]:
    found = []
    for _, chunk in blocks.chunks(ctx, [0]):
        for i, key in enumerate(chunk.keys):
            for side in chunk.rows(i):
                found += [(key, row.n, ctx.late) for row in side]
    return found


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_every_row_says_whether_it_was_late(cut: int) -> None:
    given, late = [(0, 1, 0), (0, 1, 1), (0, 2, 2), (0, 2, 3), (0, 3, 4)], [False, True, True, False, True]
    batches = [batch(given[:cut], late=late[:cut]), batch(given[cut:], late=late[cut:])]
    found = lateness(blocks_of(iter(batches), shape()), context())
    assert found == [(key, row, flag) for (_, key, row), flag in zip(given, late, strict=True)]


@pytest.mark.parametrize("cut", [1, 2, 3, 8])
def test_lateness_of_two_inputs_is_told_per_row(cut: int) -> None:
    late = [n in (11, 12, 20, 42) for _, _, n in GIVEN]
    batches = [b for b in (sides(GIVEN[:cut], late[:cut]), sides(GIVEN[cut:], late[cut:])) if b.num_rows]
    found = lateness(blocks_of(iter(batches), shape(inputs=2)), context())
    assert [(row, flag) for _, row, flag in found] == [
        (n, flag) for (_, _, n), flag in zip(GIVEN, late, strict=True)
    ]


# ---- asked again, for dead letters ----


def test_a_spanning_key_is_remembered_up_to_a_limit_and_counted_beyond() -> None:
    blocks = blocks_of(iter([batch([(0, 1, n)]) for n in range(6)]), shape(), remember=2)
    _, chunk = next(blocks.chunks(context(), [0]))
    (rows,) = chunk.rows(0)
    read = [next(rows).n for _ in range(4)]
    assert read == [0, 1, 2, 3]
    (again,) = chunk.rows(0)
    assert [row and row.n for row in again] == [0, 1, None, None, 4, 5]


def test_a_whole_key_is_given_again_from_its_beginning() -> None:
    blocks = blocks_of(iter([batch([(0, 1, 0), (0, 1, 1)])]), shape(), remember=2)
    _, chunk = next(blocks.chunks(context(), [0]))
    next(chunk.rows(0)[0])
    assert [row.n for row in chunk.rows(0)[0]] == [0, 1]


def test_both_inputs_of_a_spanning_key_are_remembered() -> None:
    blocks = blocks_of(iter([sides([one]) for one in GIVEN[:3]]), shape(inputs=2), remember=10)
    _, chunk = next(blocks.chunks(context(), [0]))
    left, right = chunk.rows(0)
    assert [row.n for row in left] == [10, 11]
    assert [row.n for row in right] == [12]
    assert sorted(row.n for side in chunk.rows(0) for row in side) == [10, 11, 12]


def test_between_the_inputs_of_a_key_nothing_is_late_and_the_next_row_says_so_itself() -> None:
    """The first right row of a spanning key is read to see that the left ones have ended."""
    given, late = [(7, 0, 1), (7, 1, 2), (7, 1, 3)], [False, True, False]
    ctx = context()
    blocks = blocks_of(iter([sides(given[:1], late[:1]), sides(given[1:], late[1:])]), shape(inputs=2))
    for _, chunk in blocks.chunks(ctx, (0,)):
        left, right = chunk.rows(0)
        assert [(row.n, ctx.late) for row in left] == [(1, False)]
        assert ctx.late is False
        assert [(row.n, ctx.late) for row in right] == [(2, True), (3, False)]
