"""The file of all changes of a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stateflow.replay.listing import listing
from stateflow.replay.rows import NEW, RowChange, RowChanges

FOUND = RowChanges(changes=(RowChange(NEW, {"user": 1}, None, {"user": 1, "total": 2.0}),))


def ends_early(file: Path) -> None:
    with listing(file) as take:
        take("sums", 3, FOUND)
        raise RuntimeError("nothing could be replayed")


@pytest.mark.parametrize("name", ["changes.jsonl", "changes.parquet"])
def test_a_file_is_replaced_when_all_is_there_and_not_before(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("of an earlier replay")
    with pytest.raises(RuntimeError):
        ends_early(file)
    assert file.read_text() == "of an earlier replay"
    with listing(file) as take:
        take("sums", 3, FOUND)
    rows = (
        [json.loads(line) for line in file.read_text().splitlines()]
        if file.suffix == ".jsonl"
        else pq.read_table(file).to_pylist()
    )
    assert [(row["sink"], row["slot"], row["kind"]) for row in rows] == [("sums", 3, NEW)]
    assert list(tmp_path.iterdir()) == [file]
