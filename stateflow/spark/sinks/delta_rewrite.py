"""An upsert into a Delta table whose few files that may hold its keys are small: one job writes them anew.

Delta's own MERGE finds out first which files it has to touch, and rebuilds the table's snapshot to learn which files there are. For a
small table both cost several times what the writing does. Here the list of files comes from the checksum of the table's version, which
is in memory after a commit, and every file that may hold a key is written again. What Delta's MERGE does better, or alone can do, is
left to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from stateflow.pipelines.changes import DELETE
from stateflow.spark.sinks.delta_log import LoggedFile, TableShape, Transaction
from stateflow.spark.sinks.fit import PHYSICAL, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BYTES = 64 << 20
"""Of the files to write again. Above that, to find out first which of them hold keys is worth its price."""
FEW_BYTES = 8 << 20
MOST_TIMES = 16
"""A batch writes again at most so many bytes, and so many times its own: what it replaces stays on the disk until VACUUM."""
MOST_BROADCAST = 500_000
"""Rows of a batch whose keys go to every task as they are."""
BYTES_OF_TASK = 4 << 20
FEATURES = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping", "timestampNtz",
        "inCommitTimestamp", "deletionVectors", "vacuumProtocolCheck", "v2Checkpoint",
    }
)  # fmt: skip
"""What a table may support. Whether it uses what needs Delta's MERGE is asked of its properties, columns and files."""
NEEDS_MERGE = (
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableRowTracking",
    "delta.rowTrackingSuspended",
)
_PLAIN = frozenset({"comment", "delta.columnMapping.id", PHYSICAL})
"""What may be said of a column. A default, a generated value, a fixed length or an invariant is Delta's to keep."""


def is_plain(shape: TableShape, columns: Sequence[str]) -> bool:
    """Whether rows of these columns replace rows of the table as they are."""
    written = {name.lower() for name in columns}
    return (
        set(shape.features) <= FEATURES
        and not any(shape.configuration.get(name) == "true" for name in NEEDS_MERGE)
        and all(
            field.name.lower() in written
            and set(field.metadata) <= _PLAIN
            # Delta leaves columns of this type out when it reads files.
            and "void" not in field.dataType.simpleString()
            for field in shape.schema.fields
        )
    )


def files_to_rewrite(files: Sequence[LoggedFile] | None, staged_bytes: int) -> list[LoggedFile] | None:
    """The files that may hold a key of a batch of so many bytes; None where Delta's MERGE is the better choice."""
    if files is None or any("deletionVector" in file.add for file in files):
        return None
    most = min(MOST_BYTES, FEW_BYTES + MOST_TIMES * staged_bytes)
    return list(files) if sum(file.size for file in files) <= most else None


def rewritten(
    txn: Transaction,
    shape: TableShape,
    files: Sequence[LoggedFile],
    staged: DataFrame,
    newest: DataFrame,
    payload: Mapping[str, Any],
    staged_bytes: int,
    staged_rows: int,
) -> list[str]:
    """Writes the rows of the files without those that the batch replaces or deletes, and the batch's; gives the actions."""
    from pyspark.sql import functions as F

    txn.rests_on_all()
    operation = payload.get("operation", "")
    rows = newest.where(F.col(quoted(operation)) != DELETE) if operation else newest
    rows = rows.select(*(F.col(quoted(name)).alias(name) for name in shape.schema.names))
    size = staged_bytes + sum(file.size for file in files)
    if files:
        keys = staged.select(*(F.col(quoted(key)) for key in payload["keys"]))
        if staged_rows <= MOST_BROADCAST:
            keys = F.broadcast(keys)
        same = [F.col(f"t.{quoted(key)}") == F.col(f"s.{quoted(key)}") for key in payload["keys"]]
        stay = txn.rows_of(files).alias("t").join(keys.alias("s"), reduce(and_, same), "left_anti")
        rows = stay.union(rows)
    if shape.partition_by:
        rows = rows.repartition(*map(quoted, shape.partition_by))
    else:
        rows = rows.coalesce(-(-size // BYTES_OF_TASK))
    return [*txn.removing(files), *txn.write(rows)]


def metrics(
    removed: Sequence[LoggedFile], added: Sequence[Mapping[str, Any]], staged_rows: int
) -> dict[str, int]:
    """What the table's history says of the operation."""
    return {
        "operationNumSourceRows": staged_rows,
        "numOutputRows": sum(int(json.loads(add.get("stats") or "{}").get("numRecords", 0)) for add in added),
        "numTargetFilesAdded": len(added),
        "numTargetFilesRemoved": len(removed),
        "numTargetBytesAdded": sum(int(add["size"]) for add in added),
        "numTargetBytesRemoved": sum(file.size for file in removed),
    }
