"""All changes of a replay as a file: a line or a row for each row, and for each key of a state, that is gone, new or different."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.errors import UsageError
from stateflow.replay.rows import RowChanges
from stateflow.replay.states import StateChanges
from stateflow.state.values.plain import jsonable
from stateflow.storage.whole_files import whole_file

_SCHEMA = pa.schema(
    [
        ("sink", pa.string()),
        ("operator", pa.string()),
        ("state", pa.string()),
        ("slot", pa.int64()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)


class TakeChanges(Protocol):
    def __call__(self, uid: str, slot: int, found: RowChanges | StateChanges) -> None: ...


def refuse_other_names(path: Path) -> None:
    if path.suffix not in (".jsonl", ".parquet"):
        raise UsageError(f"{path} says no form: call it changes.jsonl or changes.parquet")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {path.absolute().parent}: make it, or choose another place")


@contextmanager
def listing(path: Path | None) -> Iterator[TakeChanges]:
    """Writes the changes as they are found, with keys, rows and values of states as JSON; None: nowhere. A block that fails leaves a file of that name
    as it was."""
    if path is None:
        yield lambda uid, slot, found: None
        return
    with whole_file(path) as file, _written(file, path.suffix) as take:
        yield take


@contextmanager
def _written(file: BinaryIO, suffix: str) -> Iterator[TakeChanges]:
    if suffix == ".jsonl":

        def line(uid: str, slot: int, found: RowChanges | StateChanges) -> None:
            file.writelines(f"{json.dumps(row, default=str)}\n".encode() for row in _rows(uid, slot, found))

        yield line
    else:
        with pq.ParquetWriter(file, _SCHEMA) as writer:

            def rows(uid: str, slot: int, found: RowChanges | StateChanges) -> None:
                texts = ("key", "before", "after")
                made = [
                    {
                        **row,
                        **{
                            name: json.dumps(row[name], default=str)
                            for name in texts
                            if row[name] is not None
                        },
                    }
                    for row in _rows(uid, slot, found)
                ]
                writer.write_table(pa.Table.from_pylist(made, schema=_SCHEMA))

            yield rows


def _rows(uid: str, slot: int, found: RowChanges | StateChanges) -> Iterator[dict[str, Any]]:
    """A row is of a sink, or of a state of an operator; what it is not of is null."""
    is_state = isinstance(found, StateChanges)
    for change in found.changes:
        yield {
            "sink": None if is_state else uid,
            "operator": uid if is_state else None,
            "state": found.state if isinstance(found, StateChanges) else None,
            "slot": slot,
            "kind": change.kind,
            "key": jsonable(change.key),
            "before": jsonable(change.before),
            "after": jsonable(change.after),
        }
