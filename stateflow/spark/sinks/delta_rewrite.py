"""An upsert into a Delta table of few files: one job writes anew those that may hold a key of the batch.

Delta's own MERGE finds out by a join which files it has to touch, and rebuilds the table's snapshot to learn which files there are. Both cost
several times what the writing of a few files does. Here the list of files comes from the checksum of the table's version, which is in
memory after a commit, with the least and the greatest key of each. A table with a change feed gets the files of the feed, too
(`change_files.py`). What Delta's MERGE does better, or alone can do, is left to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import accumulate
from operator import and_
from typing import TYPE_CHECKING, Any

from stateflow.pipelines.changes import DELETE
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.delta_log import CHANGE_FEED, LoggedFile, TableShape, Transaction
from stateflow.spark.sinks.change_files import as_no_change, changes, same_keys
from stateflow.spark.sinks.delta_table import counted_rows
from stateflow.spark.sinks.fit import PHYSICAL
from stateflow.spark.sinks.key_ranges import (
    Bound,
    KeyRange,
    keys_to_come_again,
    may_hold,
    ranges_of,
    share_outside,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST_BYTES = 64 << 20
"""Bytes of files to write again. Above that it pays to find out first which of them hold keys."""
FEW_BYTES = 8 << 20
MOST_TIMES = 16
"""A batch writes again at most so many bytes, and so many times its own: what it replaces stays on the disk until VACUUM."""
MOST_BROADCAST = 500_000
"""Up to so many rows, every task gets all keys of the batch."""
BYTES_OF_TASK = 4 << 20
APART = 1 << 20
"""From so many bytes on, rows that stay and lie outside the bounds of the batch get files of their own. Else the file with the batch's rows
would begin where they do, and where keys grow, each batch would touch it, and write all again that came before."""
FROM_BYTES = 4 << 20
"""From so large a batch on, the keys that may come again get a file of their own. The next batch then leaves the rest alone, which it
would write again otherwise, as rows outside of its bounds."""
SMALL = BYTES_OF_TASK // 2
MOST_SMALL = 8
"""Small files that stay when no key of a batch can be in them. One more, and all of them are written again, with the batch. The files
that come of it are large, or one small one is left: so eight batches pay for less than SMALL bytes of what was written again before,
and each row is written again once as its file becomes large."""
MANY_FILES = 40
LARGE = 32 << 20
"""Delta lists up to 50 files in a checksum. With more, its MERGE does the work until somebody runs OPTIMIZE. Of a table that comes near,
the smallest files become few large ones, eight or more at a time: each row is written once more."""
FEATURES = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping", "timestampNtz",
        "inCommitTimestamp", "deletionVectors", "vacuumProtocolCheck", "v2Checkpoint",
    }
)  # fmt: skip
"""The features that a table may have. Its properties, columns and files say whether it uses one that needs Delta's MERGE."""
NEEDS_MERGE = (
    "delta.enableDeletionVectors",
    "delta.enableRowTracking",
    "delta.rowTrackingSuspended",
)
_PLAIN = frozenset({"comment", "delta.columnMapping.id", PHYSICAL})
"""The metadata that a column may have. A default, a generated value, a fixed length or an invariant is Delta's to keep."""


def is_plain(shape: TableShape, columns: Sequence[str]) -> bool:
    """True if rows with these columns replace rows of the table unchanged."""
    written = {name.lower() for name in columns}
    return (
        set(shape.features) <= FEATURES
        and not any(map(shape.is_on, NEEDS_MERGE))
        and all(
            field.name.lower() in written
            and set(field.metadata) <= _PLAIN
            # Delta leaves columns of this type out when it reads files.
            and "void" not in field.dataType.simpleString()
            for field in shape.schema.fields
        )
    )


def files_to_rewrite(
    files: Sequence[LoggedFile] | None, staged_bytes: int, ranges: Sequence[KeyRange] = ()
) -> list[LoggedFile] | None:
    """Those of the table's files that may hold a key of a batch of so many bytes, and small ones that have piled up; None where Delta's
    MERGE is the better choice."""
    if files is None or any("deletionVector" in file.add for file in files):
        return None
    touched = [file for file in files if may_hold(file.add, ranges)]
    most = min(MOST_BYTES, FEW_BYTES + MOST_TIMES * staged_bytes)
    size = sum(file.size for file in touched)
    if size > most:
        return None
    taken = {id(file) for file in touched}
    others = [file for file in files if id(file) not in taken]
    return [*touched, *_piled_up(others, MOST_BYTES - size)]


def bytes_per_file(files: Sequence[LoggedFile]) -> int:
    """How large files become, in a table that has these."""
    return LARGE if len(files) > MANY_FILES else BYTES_OF_TASK


def _piled_up(files: Sequence[LoggedFile], room: int) -> list[LoggedFile]:
    """Files that a batch need not touch, and that are better written together with it, of at most `room` bytes."""
    partitions: dict[tuple[tuple[str, Any], ...], list[LoggedFile]] = {}
    for file in sorted(files, key=lambda file: file.size):
        values = file.add.get("partitionValues") or {}
        partitions.setdefault(tuple(sorted(values.items())), []).append(file)
    small = [[file for file in each if file.size < SMALL] for each in partitions.values()]
    # Files of different partitions never become one.
    if sum(len(each) - 1 for each in small if each) >= MOST_SMALL:
        return _fitting([file for each in small if len(each) > 1 for file in each], room)
    if len(files) > MANY_FILES:
        fitting = _fitting(max(partitions.values(), key=len), room)
        return fitting if len(fitting) >= MOST_SMALL else []
    return []


def _fitting(files: Sequence[LoggedFile], room: int) -> list[LoggedFile]:
    """As many of these as fit, the first first."""
    sizes = accumulate(file.size for file in files)
    return [file for file, size in zip(files, sizes, strict=True) if size <= room]


def rewritten(
    txn: Transaction,
    shape: TableShape,
    files: Sequence[LoggedFile],
    staged: DataFrame,
    newest: DataFrame,
    payload: Mapping[str, Any],
    staged_bytes: int,
    staged_rows: int,
    ranges: Sequence[KeyRange],
    bytes_per_file: int,
) -> list[str]:
    """Writes the rows of the files without those that the batch replaces or deletes, and the batch's; gives the actions."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    txn.rests_on_all()
    operation = payload.get("operation", "")
    rows = newest.where(F.col(quoted(operation)) != DELETE) if operation else newest
    rows = rows.select(*(F.col(quoted(name)).alias(name) for name in shape.schema.names))
    size = staged_bytes + sum(file.size for file in files)
    outside = sum(int(file.size * share_outside(file.add, ranges)) for file in files)
    frames = []
    if files and ranges and outside >= APART:
        frames.append(
            _gathered(txn.rows_of(files).where(~_inside(ranges)), shape, -(-outside // bytes_per_file))
        )
        size -= outside
        files_inside = [file for file in files if may_hold(file.add, ranges)]
        there = txn.rows_of(files_inside).where(_inside(ranges)) if files_inside else None
    else:
        there = txn.rows_of(files) if files else None
    before = ranges_of([file.add for file in files], ranges)
    again = None
    if staged_bytes >= FROM_BYTES and not shape.partition_by:
        again = keys_to_come_again(ranges, before)
    comes_again = None
    if again is not None:
        # The table has none of these keys: its own end before them.
        comes_again = rows.where(_inside([again]))
        rows = rows.where(~_inside([again]))
    replaced = None
    if there is not None:
        # Most keys of a batch are not among what was there where keys grow.
        keys = staged.where(_inside(before)) if before else staged
        keys = keys.select(*(F.col(quoted(key)) for key in payload["keys"]))
        if staged_rows <= MOST_BROADCAST:
            keys = F.broadcast(keys)
        by_key = same_keys(payload["keys"])
        replaced = there.alias("t").join(keys.alias("s"), by_key, "left_semi")
        rows = there.alias("t").join(keys.alias("s"), by_key, "left_anti").union(rows)
    frames.append(_gathered(rows, shape, -(-size // bytes_per_file)))
    if comes_again is not None:
        frames.append(_gathered(comes_again, shape, 1))
    if len(frames) > 1:
        # Spark makes one task, and one file, of the only tasks of two frames. It does not where a third has none.
        nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields)
        frames.append(rows.sparkSession.range(0).select(*nothing))
    actions = [*txn.removing(files), *txn.write(reduce(DataFrame.union, frames))]
    if not files or not shape.is_on(CHANGE_FEED):
        # What only adds files is its own feed.
        return actions
    if replaced is None:
        spark = staged.sparkSession
        replaced = spark.createDataFrame(spark.sparkContext.emptyRDD(), shape.schema)
    return _with_changes(txn, shape, actions, replaced, newest, payload, staged_bytes)


def _with_changes(
    txn: Transaction,
    shape: TableShape,
    actions: Sequence[str],
    replaced: DataFrame,
    newest: DataFrame,
    payload: Mapping[str, Any],
    staged_bytes: int,
) -> list[str]:
    """The actions, and those that add the files of the table's change feed."""
    kept = replaced.persist()
    try:
        fed = changes(kept, newest, shape.schema.names, payload["keys"], payload.get("operation", ""))
        # A row as it was, and as it is.
        files = txn.write(_gathered(fed, shape, -(-2 * staged_bytes // BYTES_OF_TASK)))
    finally:
        kept.unpersist()
    # Without a file of the feed its readers would take the rows of the files for deleted, and for inserted.
    return [*actions, *files] if files else [as_no_change(action) for action in actions]


def _inside(ranges: Sequence[KeyRange]) -> Column:
    """Whether a row's key lies between the bounds of the batch. A null does not."""
    from pyspark.sql import functions as F

    between = []
    for key in ranges:
        column = F.col(quoted(key.name))
        # An array lies beside the code that Spark makes of a plan: with the bounds as they are, Java would compile code for each batch.
        first, last = (
            F.get(F.array(_literal(key.type, end), F.lit(None)), F.isnull(column).cast("int"))
            for end in (key.least, key.greatest)
        )
        between.append(column.between(first, last))
    return F.coalesce(reduce(and_, between), F.expr("false"))


def _literal(kind: str, value: Bound) -> Column:
    from pyspark.sql import functions as F

    if kind == "date":
        return F.expr(f"date_from_unix_date({value})")
    if kind == "timestamp":
        return F.expr(f"timestamp_micros({value}L)")
    if kind == "timestamp_ntz":
        return F.expr(f"timestampadd(MICROSECOND, {value}L, TIMESTAMP_NTZ'1970-01-01 00:00:00')")
    return F.lit(value)


def _gathered(frame: DataFrame, shape: TableShape, files: int) -> DataFrame:
    if shape.partition_by:
        return frame.repartition(*map(quoted, shape.partition_by))
    return frame.coalesce(max(1, files))


def metrics(removed: Sequence[LoggedFile], actions: Sequence[str], staged_rows: int) -> dict[str, int]:
    """The figures for the table's history."""
    parsed = [json.loads(action) for action in actions]
    added = [action["add"] for action in parsed if "add" in action]
    changed = [action["cdc"] for action in parsed if "cdc" in action]
    rows = counted_rows(actions)
    return {
        "operationNumSourceRows": staged_rows,
        **({} if rows is None else {"numOutputRows": rows}),
        "numTargetFilesAdded": len(added),
        "numTargetFilesRemoved": len(removed),
        "numTargetBytesAdded": sum(int(add["size"]) for add in added),
        "numTargetBytesRemoved": sum(file.size for file in removed),
        "numTargetChangeFilesAdded": len(changed),
        "numTargetChangeFileBytes": sum(int(file["size"]) for file in changed),
    }
