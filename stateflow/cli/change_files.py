"""Files of changes, a line or a row each: JSON lines, or Parquet with values as JSON texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stateflow.errors import UsageError
from stateflow.storage.whole_files import whole_file

if TYPE_CHECKING:
    from stateflow.reading.diff import EntryChange

Write = Callable[["EntryChange"], object]
_ROWS = 20_000


@contextmanager
def change_file(path: Path | None) -> Iterator[Write]:
    """Writes changes to the file; without one, nowhere. A block that fails leaves no file."""
    if path is None:
        yield lambda change: None
        return
    kinds = {".jsonl": _json_lines, ".parquet": _parquet}
    if path.suffix not in kinds:
        raise UsageError(
            f"--all {path} has no ending that says how to write it: end it in .parquet or .jsonl"
        )
    if not path.parent.is_dir():
        raise UsageError(f"the folder of --all {path} does not exist: make it first")
    with whole_file(path) as file, kinds[path.suffix](file) as write:
        yield write


@contextmanager
def _json_lines(file: BinaryIO) -> Iterator[Write]:
    yield lambda change: file.write(f"{json.dumps(change.json, ensure_ascii=False)}\n".encode())


@contextmanager
def _parquet(file: BinaryIO) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stateflow.reading.diff import TEXTS

    schema = pa.schema([(name, pa.string()) for name in TEXTS])
    rows: list[dict[str, Any]] = []
    with pq.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        def write(change: EntryChange) -> None:
            rows.append(change.texts)
            if len(rows) >= _ROWS:
                flush()

        yield write
        flush()
