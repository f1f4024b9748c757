"""Few staged rows become a data file of a Delta table without a Spark job: the driver writes it.

A second table of a batch costs a job of Spark's, which takes longer to plan and to start than the file takes to write. Rows that lie
in staged files as they are, without a step in between, can be read and written here. Whatever a table asks of its files
beyond columns and rows, Spark's writer does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.format.records import FileRef
from stateflow.spark.internals.delta_log import TableShape, Transaction
from stateflow.spark.sinks.key_ranges import bounds_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

MOST_BYTES = 8 << 20
"""Of staged files. More of them the tasks write faster, each its part."""
MOST_IN_MEMORY = 128 << 20
"""Bytes of rows, which repeat themselves where their files are small."""
FEATURES = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz", "inCommitTimestamp", "v2Checkpoint"}
    | {"deletionVectors", "vacuumProtocolCheck"}
)  # fmt: skip
"""The features that a table may have. Its properties and columns say whether it uses one that its files must show."""
PROPERTIES = frozenset(
    {"delta.appendOnly", "delta.checkpointInterval", "delta.enableChangeDataFeed", "delta.logRetentionDuration"}
    | {"delta.deletedFileRetentionDuration", "delta.minReaderVersion", "delta.minWriterVersion"}
    | {"delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite", "delta.enableInCommitTimestamps"}
)  # fmt: skip
"""Delta's properties that say nothing about data files."""
FIRST_YEAR = 1900
"""Of earlier times, calendars and time zones differ between readers."""
MOST_CHARACTERS = 32
MOST_COLUMNS = 32
"""As many as Delta describes, so that its log stays small."""
_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1)


def is_written_by_driver(shape: TableShape, schema: StructType) -> bool:
    """True if a file with just these columns is a data file of the table."""
    columns = {field.name: field for field in shape.schema.fields}
    own = (name for name in shape.configuration if name.startswith("delta."))
    return (
        set(shape.features) <= FEATURES
        and set(own) <= PROPERTIES
        and not shape.partition_by
        and set(schema.names) == set(columns)
        and all(
            columns[field.name].dataType == field.dataType
            and columns[field.name].nullable
            and set(columns[field.name].metadata) <= {"comment"}
            for field in schema.fields
        )
    )


def written_by_driver(
    txn: Transaction, shape: TableShape, schema: StructType, refs: Sequence[FileRef], stager: Stager
) -> list[str] | None:
    """The actions that add the rows of staged files to the table; None where Spark has to write them."""
    if not refs:
        return []
    if sum(ref.size for ref in refs) > MOST_BYTES or not is_written_by_driver(shape, schema):
        return None
    if not txn.log.writes_plain_parquet():
        return None
    import pyarrow as pa

    batches, room = [], MOST_IN_MEMORY
    for batch in stager.batches(refs):
        batches.append(batch)
        room -= batch.nbytes
        if room < 0:
            return None
    rows = pa.Table.from_batches(batches)
    stats = statistics(rows)
    if stats is None:
        return None
    with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
        file = Path(folder) / f"part-00000-{stager.new_id()}-c000.snappy.parquet"
        write(rows, file)
        size = file.stat().st_size
        txn.log.put(file)
    add = {
        "path": file.name,
        "partitionValues": {},
        "size": size,
        "modificationTime": txn.log.now(),
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return [json.dumps({"add": add})]


def write(rows: pa.Table, file: Path) -> None:
    """Floats get neither bounds nor a dictionary in the file: Spark, which skips rows by these, would miss NaN, which it takes for the
    greatest, and 0 where it is -0."""
    import pyarrow.parquet as pq
    import pyarrow.types as of

    ordered = [f.name for f in rows.schema if not (of.is_floating(f.type) or of.is_nested(f.type))]
    pq.write_table(
        rows, file, compression="snappy", store_schema=False, write_statistics=ordered, use_dictionary=ordered
    )


def statistics(rows: pa.Table) -> dict[str, Any] | None:
    """What Delta keeps of a data file with these rows; None if the rows have times that only Spark can write.

    A column without bounds makes no reader skip the file. So there are bounds only where all readers order values alike: none of
    floats, and no greatest one of long texts.
    """
    import pyarrow.types as of

    flat = {
        name: place
        for place, name in enumerate(rows.column_names)
        if not of.is_nested(rows.schema.field(place).type)
    }
    least, greatest = {}, {}
    for name, pair in bounds_of(rows, flat).items():
        if pair is None:
            continue
        try:
            least[name], greatest[name] = _texts(rows.schema.field(name).type, *pair)
        except OverflowError:
            return None
    shown = list(flat)[:MOST_COLUMNS]
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: least[name] for name in shown if name in least},
        "maxValues": {name: greatest[name] for name in shown if greatest.get(name) is not None},
        "nullCount": {name: rows.column(flat[name]).null_count for name in shown},
    }


def _texts(kind: pa.DataType, least: Any, greatest: Any) -> tuple[Any, Any]:
    """The bounds of a column as Delta writes them; OverflowError beyond the years that all readers agree on."""
    import pyarrow.types as of

    if of.is_date(kind):
        return _instant(least * _DAY)[:10], _instant(greatest * _DAY)[:10]
    if of.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        # Delta's have milliseconds: the greatest one is the next.
        return _instant(least) + zone, _instant(greatest + 999) + zone
    if isinstance(least, str):
        return least[:MOST_CHARACTERS], greatest if len(greatest) <= MOST_CHARACTERS else None
    return least, greatest


def _instant(micros: int) -> str:
    """In whole milliseconds."""
    found = _EPOCH + timedelta(microseconds=micros)
    if found.year < FIRST_YEAR:
        raise OverflowError(f"{found} is before {FIRST_YEAR}")
    return found.isoformat(timespec="milliseconds")
