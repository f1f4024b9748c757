"""Keys that share a place come whole: fabricated batches in any order, beside a plain model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest

from stateflow.errors import UsageError
from stateflow.operators.context import Moment, OperatorContext
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task import sorted_rows
from stateflow.spark.task.blocks import Blocks, Shape
from stateflow.spark.task.carried import GROUP_AT, carried
from stateflow.spark.task.sorted_rows import SortedRows
from stateflow.state.cursor import Cursor
from stateflow.state.keys.codec import KeyCodec
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KINDS: dict[str, tuple[str, Any, Callable[[int], Any]]] = {
    "int": ("bigint", pa.int64(), lambda n: (n - 4) << GROUP_AT | 5),
    "str": ("string", pa.string(), lambda n: "é" * n),
    "bytes": ("binary", pa.binary(), lambda n: b"\0" * n),
    "bool": ("boolean", pa.bool_(), lambda n: n % 2 == 0),
    "date": ("date", pa.date32(), lambda n: date(1 + 999 * n, 1, 1)),
    "datetime": ("timestamp", pa.timestamp("us", "UTC"), lambda n: NOON.replace(year=1 + 999 * n)),
    "decimal": ("decimal(38,18)", pa.decimal128(38, 18), lambda n: Decimal(n - 4) / 4),
}
"""Spark's type, Arrow's, and a few values."""
Given = tuple[int, tuple[Any, ...], int]
"""Place, key, row."""
Got = list[tuple[int, Any, list[tuple[int, bool]]]]
"""Shard, key, and its rows with whether they were late."""


class Cut:
    """Rows as a task gets them, cut into batches."""

    def __init__(self, kinds: tuple[str, ...], scratch: Path, *, late: bool = False) -> None:
        self.kinds, self.late, self.scratch = kinds, late, scratch
        names = tuple(f"k{i}" for i in range(len(kinds)))
        columns = ", ".join(f"{name} {KINDS[kind][0]}" for name, kind in zip(names, kinds, strict=True))
        rows = row_type(f"n bigint, {columns}, nested array<string>")
        carry = carried([names], kinds, (rows,), late=late)
        assert carry.mixed
        self.shape = Shape("op", KeyCodec(kinds, names if len(kinds) > 1 else ()), names, (rows,), carry)
        self.folders: list[Path] = []

    def folder(self) -> Path:
        self.folders.append(self.scratch / f"task-{len(self.folders)}")
        self.folders[-1].mkdir()
        return self.folders[-1]

    def batch(self, given: Sequence[Given]) -> pa.RecordBatch:
        columns = [pa.array([place for place, _, _ in given], pa.int64())]
        if self.late:
            columns.append(pa.array([n % 3 == 0 for _, _, n in given], pa.bool_()))
        columns.append(pa.array([n for _, _, n in given], pa.int64()))
        for i, kind in enumerate(self.kinds):
            columns.append(pa.array([key[i] for _, key, _ in given], KINDS[kind][1]))
        columns.append(pa.array([[str(n)] * (n % 3) for _, _, n in given], pa.list_(pa.string())))
        return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])

    def blocks(self, batches: Iterator[pa.RecordBatch]) -> Blocks:
        return Blocks(batches, self.shape, 0, self.folder)

    def read(
        self, batches: Iterator[pa.RecordBatch], cuts: Sequence[int] = (0,), at_most: int = 1 << 60
    ) -> Got:
        context = OperatorContext(Cursor(1, 0), Moment(1, 0, 0, None), 0, {})
        found: Got = []
        blocks = self.blocks(batches)
        for shard, chunk in blocks.chunks(context, cuts):
            for i, key in enumerate(chunk.keys):
                (rows,) = chunk.rows(i)
                context.late = False
                mine: list[tuple[int, bool]] = []
                for row in rows:
                    assert row.nested == [str(row.n)] * (row.n % 3)
                    mine.append((row.n, context.late))
                    if len(mine) == at_most:
                        break
                full = self.shape.codec.encode(key)
                assert chunk.base[i][4:] == full + b"\0"
                found.append((shard, tuple(key) if len(self.kinds) > 1 else key, mine))
        blocks.close()
        assert not list(self.scratch.iterdir())
        return found


def rows_at_random(random_: random.Random, kinds: tuple[str, ...]) -> list[Given]:
    """A few keys at fewer places, which they share by chance; most rows may be of one place."""
    count, keys, places = random_.choice((1, 5, 40, 200)), random_.randint(1, 9), random_.randint(1, 9)
    hot = random_.choice((0, 0.5, 0.95))
    given = []
    for n in range(count):
        number = 0 if random_.random() < hot else random_.randrange(keys)
        # The second part of a key alone tells two keys of one place apart.
        key = tuple(KINDS[kind][2](number if i == len(kinds) - 1 else 3) for i, kind in enumerate(kinds))
        place = crc32(repr(key).encode()) % places
        given.append(((place % 3 << GROUP_AT) | place, key, n))
    return given


def cut_at_random(random_: random.Random, given: list[Given], cut: Cut) -> Iterator[pa.RecordBatch]:
    largest = random_.choice((1, 2, 5, 30, 1000))
    begin = 0
    while begin < len(given):
        size = random_.randint(0, largest)
        yield cut.batch(given[begin : begin + size])
        begin += size


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", [*((kind,) for kind in KINDS), ("int", "datetime"), ("str", "bool", "bytes")]
)
@pytest.mark.parametrize("memory", [1 << 20, 100, 1])
def test_keys_that_share_places_come_whole_and_in_order(
    kinds: tuple[str, ...], memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", memory)
    spilled = 0
    for seed in range(12):
        random_ = random.Random(f"{kinds} {seed}")
        monkeypatch.setattr(sorted_rows, "BLOCK_BYTES", random_.choice((1, 200, 1 << 20)))
        late = random_.random() < 0.3
        at_most = random_.choice((1, 2, 1000, 1000))
        cut = Cut(kinds, tmp_path, late=late)
        given = rows_at_random(random_, kinds)
        cuts = random_.choice(((0,), (0, 1, 3)))
        expected: dict[Any, Any] = {}
        for place, key, n in given:
            shard = sum(first <= place >> GROUP_AT for first in cuts) - 1
            _, _, mine = expected.setdefault(key, (shard, key if len(kinds) > 1 else key[0], []))
            mine.append((n, late and n % 3 == 0))
        found = cut.read(cut_at_random(random_, given, cut), cuts, at_most)
        assert [shard for shard, _, _ in found] == sorted(shard for shard, _, _ in found)
        assert sorted(found) == sorted((s, key, rows[:at_most]) for s, key, rows in expected.values()), seed
        spilled += bool(cut.folders)
    assert bool(spilled) == (memory < 1 << 20)


def hot(cut: Cut, rows: int) -> Iterator[pa.RecordBatch]:
    """Two keys that take turns at one place, and a third one behind them."""
    for n in range(rows):
        yield cut.batch([(9, ("a",), 2 * n), (9, ("b",), 2 * n + 1)])
    yield cut.batch([(10, ("c",), -1)])


def test_most_rows_at_one_place_are_never_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 1000)
    monkeypatch.setattr(sorted_rows, "BLOCK_BYTES", 300)
    cut, joined, at_once = Cut(("str",), tmp_path), sorted_rows._joined, []

    def watched(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
        return joined((batch for batch in batches if at_once.append(batch.num_rows) is None), rows)

    monkeypatch.setattr(sorted_rows, "_joined", watched)
    found = cut.read(hot(cut, 500))
    assert {key: [n for n, _ in rows] for _, key, rows in found} == {
        "a": list(range(0, 1000, 2)),
        "b": list(range(1, 1000, 2)),
        "c": [-1],
    }
    assert max(at_once) < 50


@pytest.mark.parametrize("memory", [1 << 20, 100])
def test_keys_may_be_null_where_the_operator_takes_them(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", memory)
    cut = Cut(("str", "datetime"), tmp_path)
    values = [(None, NOON), ("b", None), ("a", NOON), (None, None), ("b", NOON)]
    given = [cut.batch([(n % 2, values[n % 5], n) for n in range(k, k + 7)]) for k in range(0, 70, 7)]
    found: list[tuple[int, Any, int]] = []
    for batch, starts in SortedRows(cut.shape.keys, cut.folder).of(iter(given)):
        columns = [batch.column(i).to_pylist() for i in (0, *cut.shape.keys.indices, 1)]
        rows = list(zip(*columns, strict=True))
        assert starts.tolist() == [k for k, row in enumerate(rows) if not k or row[1:3] != rows[k - 1][1:3]]
        found += [(row[0], row[1:3], row[3]) for row in rows]
    order = {None: 2, "a": 0, "b": 1, NOON: 0}
    expected = [(n % 2, values[n % 5], n) for n in range(70)]
    assert found == sorted(expected, key=lambda row: (row[0], order[row[1][0]], order[row[1][1]]))


def test_the_file_is_removed_when_the_rows_fail_or_user_code_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 100)
    cut = Cut(("str",), tmp_path)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from list(hot(cut, 10))[:-1]
        assert cut.folders[0].exists()
        raise ConnectionError("the executor is gone")

    context = OperatorContext(Cursor(1, 0), Moment(1, 0, 0, None), 0, {})
    with pytest.raises(ConnectionError, match="the executor is gone"):
        cut.read(broken())
    assert not cut.folders[0].exists()
    blocks = cut.blocks(hot(cut, 10))
    for _, chunk in blocks.chunks(context, (0,)):
        (rows,) = chunk.rows(0)
        assert len([row for row, _ in zip(rows, range(5), strict=False)]) == 5
        break
    assert cut.folders[1].exists()
    blocks.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", [1, 2])
def test_a_null_key_is_refused_before_keys_are_compared(place: int, tmp_path: Path) -> None:
    cut = Cut(("int", "str"), tmp_path)
    with refused(UsageError, "operator 'op'", "1 row", "key column 'k1'"):
        cut.read(iter([cut.batch([(1, (1, "a"), 0), (place, (1, None), 1)])]))
