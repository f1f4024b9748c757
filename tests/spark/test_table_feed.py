"""A columnar operator's tables hold whole keys, also when the rows do not fit into memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stateflow.errors import UsageError
from stateflow.format.records import Shard
from stateflow.spark.task import sorted_rows
from stateflow.spark.task.carried import Carried
from stateflow.spark.task.key_columns import KeyColumns
from stateflow.spark.task.table_feed import TableFeed
from tests.refusals.refusal import refused

SHARDS = (Shard(first=0, last=3, backend="memory"), Shard(first=4, last=9, backend="memory"))
Row = tuple[int, str | None, int]
"""Group, key, row."""


def feed(batches: list[list[Row]], limit: int, scratch: Path, *, null_keys: bool = True) -> TableFeed:
    def folder() -> Path:
        made = scratch / "task"
        made.mkdir()
        return made

    keys = KeyColumns("op", ["k"], Carried((0,), late=False, place=False).key_indices)
    types = pa.schema([("_sf_group", pa.int32()), ("k", pa.string()), ("n", pa.int64())])
    given = (
        pa.record_batch([list(c) for c in zip(*rows, strict=True)] or [[], [], []], schema=types)
        for rows in batches
    )
    return TableFeed(given, keys, limit, folder, null_keys=null_keys)


@pytest.mark.parametrize("memory", [1 << 20, 200])
def test_every_key_is_in_one_table(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows, "BYTES_IN_MEMORY", memory)
    for seed in range(60):
        random_ = random.Random(seed)
        keys, limit = random_.randint(1, 30), random_.choice((1, 3, 10, 40, 1000))
        hot = random_.choice((0, 0.9))
        rows: list[Row] = []
        for n in range(random_.choice((0, 1, 50, 200))):
            key = 0 if random_.random() < hot else random_.randrange(keys)
            rows.append((key % 10, None if key == 3 else f"k{key}", n))
        cuts = sorted(random_.sample(range(len(rows) + 1), min(len(rows), 7)))
        batches = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        made = feed(batches, limit, tmp_path)
        found: list[tuple[int, list[Row]]] = [
            (shard, list(zip(*(column.to_pylist() for column in table.columns), strict=True)))
            for shard, table in made.tables(SHARDS)
        ]
        made.close()
        assert not list(tmp_path.iterdir())
        assert made.rows_in == len(rows)
        assert sorted(row for _, table in found for row in table if row[1]) == sorted(
            row for row in rows if row[1]
        )
        assert [shard for shard, _ in found] == sorted(shard for shard, _ in found)
        seen: set[Any] = set()
        for shard, table in found:
            assert table
            assert all(SHARDS[shard].first <= group <= SHARDS[shard].last for group, _, _ in table)
            here = {row[:2] for row in table}
            assert not here & seen, seed
            seen |= here
            assert len(table) <= limit or len(here) == 1
            for key in here:
                mine = [row[2] for row in table if row[:2] == key]
                assert mine == [row[2] for row in rows if row[:2] == key]
        assert seen == {row[:2] for row in rows}


def test_a_null_key_is_refused_where_the_operator_takes_none(tmp_path: Path) -> None:
    with refused(UsageError, "a null in key column 'k'"):
        list(feed([[(0, "a", 0)], [(0, None, 1)]], 1, tmp_path, null_keys=False).tables(SHARDS))
