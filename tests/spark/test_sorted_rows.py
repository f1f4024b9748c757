"""Rows come in the order of their places, and those of one place in the order in which they came, from memory or from a file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from stateflow.spark.task import sorted_rows
from stateflow.spark.task.key_columns import KeyColumns
from stateflow.spark.task.sorted_rows import SortedRows

KEYS = KeyColumns("op", ("place",), (0,))
"""A key per place; `test_shared_places.py` has several."""


def batch_of(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    places, numbers = zip(*rows, strict=True) if rows else ((), ())
    texts = pa.array(["é" * (n % 5) or None for n in numbers], pa.string())
    columns = [pa.array(places, pa.int64()), pa.array(numbers, pa.int64()), texts]
    return pa.RecordBatch.from_arrays(columns, names=["place", "n", "text"])


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    rows = []
    for batch in batches:
        for place, n, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert text == ("é" * (n % 5) or None)
            rows.append((place, n))
    return rows


def cut_at_random(
    random_: random.Random, given: list[tuple[int, int]], sizes: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    begin = 0
    while begin < len(given):
        size = random_.choice(sizes)
        yield batch_of(given[begin : begin + size])
        begin += size


@pytest.fixture
def scratch(tmp_path: Path) -> Callable[[], Path]:
    def folder() -> Path:
        made = tmp_path / f"task-{len(list(tmp_path.iterdir()))}"
        made.mkdir()
        return made

    return folder


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1 << 20, 2000, 300, 1])
@pytest.mark.parametrize("block", [1 << 20, 400, 1])
def test_rows_of_any_order_come_by_place_and_then_as_they_came(
    memory: int, block: int, scratch: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", memory)
    monkeypatch.setattr(sorted_rows, "BLOCK_BYTES", block)
    spilled = 0
    for seed in range(30):
        random_ = random.Random(seed)
        count, places = random_.choice((0, 1, 30, 300)), random_.choice((1, 3, 1000))
        lowest = random_.choice((0, -5, (1 << 55) - 1))
        hot = random_.choice((0, 0.9))
        given = [
            (lowest + (0 if random_.random() < hot else random_.randrange(places)), n) for n in range(count)
        ]
        sizes = random_.choice(((1, 2), (0, 7, 40), (1000,)))

        spills: list[bool] = []
        cut = cut_at_random(random_, given, sizes)
        batches = (batch for batch in cut if spills.append(any(tmp_path.iterdir())) is None)
        found = [batch for batch, _ in SortedRows(KEYS, scratch).of(batches)]
        # Python's sort is stable, too.
        assert rows_of(iter(found)) == sorted(given, key=lambda row: row[0]), seed
        assert all(0 < batch.num_rows <= max(sizes) for batch in found)
        assert not list(tmp_path.iterdir())
        spilled += any(spills)
    assert bool(spilled) == (memory < 1 << 20)


def test_batches_come_out_as_large_as_they_came(
    scratch: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def given() -> Iterator[pa.RecordBatch]:
        return iter([batch_of([(n * 7 % 5, n) for n in range(10)]) for _ in range(7)])

    assert [batch.num_rows for batch, _ in SortedRows(KEYS, scratch).of(given())] == [10] * 7
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 1)
    monkeypatch.setattr(sorted_rows, "BLOCK_BYTES", 1)
    assert [batch.num_rows for batch, _ in SortedRows(KEYS, scratch).of(given())] == [10] * 7


def test_no_more_waits_in_memory_than_the_bound_and_a_batch(
    scratch: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 20_000)
    rows = SortedRows(KEYS, scratch)
    largest = 0

    def given() -> Iterator[pa.RecordBatch]:
        nonlocal largest
        for n in range(100):
            yield batch_of([(m * 31 % 17, 100 * n + m) for m in range(100)])
            largest = max(largest, rows._bytes)

    assert len(rows_of(batch for batch, _ in rows.of(given()))) == 10_000
    assert 10_000 < largest <= 20_000


def test_a_place_with_most_rows_is_not_gathered_when_runs_are_merged(
    scratch: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 3000)
    monkeypatch.setattr(sorted_rows, "BLOCK_BYTES", 500)
    joined, at_once = sorted_rows._joined, []

    def watched(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
        def each() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                at_once.append(batch.num_rows)
                yield batch

        return joined(each(), rows)

    monkeypatch.setattr(sorted_rows, "_joined", watched)
    given = [(9 if n % 50 else n, n) for n in range(5000)]
    batches = (batch_of(given[begin : begin + 20]) for begin in range(0, 5000, 20))
    assert rows_of(batch for batch, _ in SortedRows(KEYS, scratch).of(batches)) == sorted(
        given, key=lambda row: row[0]
    )
    assert max(at_once) < 200


def test_the_file_is_removed_when_the_rows_fail_or_nobody_reads_on(
    scratch: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", 1)
    given = [batch_of([(n * 7 % 5, n) for n in range(10)]) for _ in range(7)]

    def broken() -> Iterator[pa.RecordBatch]:
        yield from given
        assert list(tmp_path.iterdir())
        raise ConnectionError("the executor is gone")

    with pytest.raises(ConnectionError):
        next(SortedRows(KEYS, scratch).of(broken()))
    assert not list(tmp_path.iterdir())
    rows = SortedRows(KEYS, scratch).of(iter(given))
    next(rows)
    assert list(tmp_path.iterdir())
    rows.close()
    assert not list(tmp_path.iterdir())
