"""The file of all changes of a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stateflow.replay.listing import listing
from stateflow.replay.rows import GONE, NEW, RowChange, RowChanges
from stateflow.replay.states import KeyChange, StateChanges

FOUND = RowChanges(changes=(RowChange(NEW, {"user": 1}, None, {"user": 1, "total": 2.0}),))

OF_STATE = StateChanges(
    "balance", "total", changes=(KeyChange(NEW, 7, None, 2.0), KeyChange(GONE, [8, "a"], 1.0, None))
)


def ends_early(file: Path) -> None:
    with listing(file) as take:
        take("sums", 3, FOUND)
        raise RuntimeError("nothing could be replayed")


@pytest.mark.parametrize("name", ["changes.jsonl", "changes.parquet"])
def test_two_replays_at_once_each_write_a_whole_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with listing(file) as first:
        first("sums", 3, FOUND)
        with listing(file) as second:
            second("balance", 4, OF_STATE)
        of_second = file.read_bytes()
        assert b"balance" in of_second
        first("sums", 4, FOUND)
    assert file.read_bytes() not in (b"", of_second), "the last one to end stays"
    if file.suffix == ".parquet":
        assert pq.read_table(file).num_rows == 2
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["changes.jsonl", "changes.parquet"])
def test_a_file_is_replaced_when_all_is_there_and_not_before(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("of an earlier replay")
    with pytest.raises(RuntimeError):
        ends_early(file)
    assert file.read_text() == "of an earlier replay"
    with listing(file) as take:
        take("sums", 3, FOUND)
        take("balance", 4, OF_STATE)
    rows = (
        [json.loads(line) for line in file.read_text().splitlines()]
        if file.suffix == ".jsonl"
        else [
            {**row, "key": json.loads(row["key"]), "after": row["after"] and json.loads(row["after"])}
            for row in pq.read_table(file).to_pylist()
        ]
    )
    columns = ("sink", "operator", "state", "slot", "kind", "key", "after")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("sums", None, None, 3, NEW, {"user": 1}, {"user": 1, "total": 2.0}),
        (None, "balance", "total", 4, NEW, 7, 2.0),
        (None, "balance", "total", 4, GONE, [8, "a"], None),
    ]
    assert list(tmp_path.iterdir()) == [file]
