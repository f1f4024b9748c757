"""The Parquet files of a canonical savepoint: whole key groups in order, in row groups of moderate size.

A row group ends where a key group ends. The index in the savepoint's `_metadata` has the lowest and highest key group
of each row group, so a reader finds a key's rows. Only a key group that is too large for one row group spans several.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.format.records import TableFile
from stateflow.state.tabular import StateTable, TimerTable
from stateflow.storage.files import digests

CHUNK_ROWS, CHUNK_BYTES = 16_384, 32 << 20
"""How much to decode at once: little enough for the processor's cache, which two workers share."""
GROUP_ROWS, GROUP_BYTES = 256 * 1024, 64 << 20
"""A row group of this size ends with its key group."""
MOST_ROWS, MOST_BYTES = 1 << 20, 256 << 20
"""A row group of this size ends at once."""
FEW_ROWS, FEW_BYTES = 64 * 1024, 8 << 20
"""How much of one table may stay in memory while others are written."""
_AHEAD = 4_096
"""How many entries to take from a scan before counting their bytes."""
COMPRESSION = "zstd"
LEVEL = 1

Codec = StateTable | TimerTable
Entries = Iterable[tuple[bytes, bytes]]


class TableFileWriter:
    """Writes one file of one table, key group by key group, in ascending order."""

    def __init__(self, codec: Codec, local: Path, metadata: Mapping[str, str]) -> None:
        self.rows = 0
        self.first: int | None = None
        """The lowest key group that has rows."""
        self._codec = codec
        self.local = local
        self._metadata = metadata
        self._parquet: Any = None
        self._groups: list[tuple[int, int]] = []
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._pending_bytes = 0
        """Bytes in `_keys` and `_values`."""
        self._batches: list[pa.RecordBatch] = []
        self._batch_rows = 0
        self._batch_bytes = 0
        self._low = self._high = 0
        self._ahead = 64

    def write(self, group: int, entries: Entries) -> None:
        """Writes all entries of one key group. They come in the order of their keys."""
        pending, split = iter(entries), False
        while chunk := list(islice(pending, self._ahead)):
            if not self._keys and not self._batches:
                self._low = group
            if self.first is None:
                self.first = group
            self._high = group
            keys, values = zip(*chunk, strict=True)
            self._keys += keys
            self._values += values
            self._pending_bytes += sum(map(len, keys)) + sum(map(len, values))
            # Takes at most a chunk at once, judging by the average size so far.
            average = max(1, self._pending_bytes // len(self._keys))
            self._ahead = max(1, min(_AHEAD, CHUNK_BYTES // average))
            if len(self._keys) >= CHUNK_ROWS or self._pending_bytes >= CHUNK_BYTES:
                self._decode()
                if self._batch_rows >= MOST_ROWS or self._batch_bytes >= MOST_BYTES:
                    self._end_row_group()
                    split = True
        large = (
            self._batch_rows + len(self._keys) >= GROUP_ROWS
            or self._batch_bytes + self._pending_bytes >= GROUP_BYTES
        )
        if large or split:
            self._end_row_group()

    def pause(self) -> None:
        """Frees most of the memory before other tables are written."""
        if (
            self._batch_rows + len(self._keys) >= FEW_ROWS
            or self._batch_bytes + self._pending_bytes >= FEW_BYTES
        ):
            self._end_row_group()

    def close(self) -> TableFile | None:
        """The finished file, still without its path; None when there were no entries."""
        self._end_row_group()
        if self._parquet is None:
            return None
        self._parquet.close()
        self._parquet = None
        return _table_file(self.local, self.rows, tuple(self._groups))

    def discard(self) -> None:
        """After a failure: removes the file."""
        if self._parquet is not None:
            self._parquet.close()
            self._parquet = None
        self.local.unlink(missing_ok=True)

    def _decode(self) -> None:
        if not self._keys:
            return
        batch = self._codec.decode(self._keys, self._values)
        self._keys, self._values, self._pending_bytes = [], [], 0
        self._batches.append(batch)
        self._batch_rows += batch.num_rows
        self._batch_bytes += batch.nbytes

    def _end_row_group(self) -> None:
        self._decode()
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, schema=self._codec.schema)
        if self._parquet is None:
            self._parquet = parquet_writer(self._codec.schema, self.local, self._metadata)
        self._parquet.write_table(table, row_group_size=table.num_rows)
        self._groups.append((self._low, self._high))
        self.rows += table.num_rows
        self._batches, self._batch_rows, self._batch_bytes = [], 0, 0


def empty_file(codec: Codec, local: Path, metadata: Mapping[str, str]) -> TableFile:
    """Writes a table without rows, so that other programs find its columns."""
    parquet_writer(codec.schema, local, metadata).close()
    return _table_file(local, rows=0)


def _table_file(local: Path, rows: int, groups: tuple[tuple[int, int], ...] = ()) -> TableFile:
    checksums = digests(local)
    return TableFile(
        path="", size=checksums.size, xxh3=checksums.xxh3, rows=rows, groups=groups, sha256=checksums.sha256
    )


def parquet_writer(schema: pa.Schema, local: Path, metadata: Mapping[str, str]) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        local,
        schema.with_metadata({f"stateflow.{name}": value for name, value in metadata.items()}),
        compression=COMPRESSION,
        compression_level=LEVEL,
        # The keys of a table are all different: Parquet would build a dictionary of them and throw it away.
        use_dictionary=[name for name in schema.names if name in _REPEATED],
        write_statistics=True,
        sorting_columns=[pq.SortingColumn(0)],
    )


_REPEATED = ("key_group", "timer", "slot")
