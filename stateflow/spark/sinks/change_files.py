"""The change feed of an upsert that writes files anew: each row that it replaces or deletes as it was, and each row that it puts there.

Whoever reads a version with change files reads nothing else of it. So they hold all that the version changes, new keys, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from stateflow.pipelines.changes import DELETE
from stateflow.pipelines.inputs.tables import CHANGE_TYPE
from stateflow.pipelines.rows.row_type import quoted, unused_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def changes(
    replaced: DataFrame, newest: DataFrame, columns: Sequence[str], keys: Sequence[str], operation: str
) -> DataFrame:
    """The rows of the feed: `replaced` are those of the table whose keys the batch has, `newest` is the batch's one row per key."""
    from pyspark.sql import functions as F

    def named(frame: DataFrame) -> list[Any]:
        return [frame[quoted(name)].alias(name) for name in columns]

    mark = unused_name("_sf_replaced", columns)
    # The table may have several rows of a key. All of them go, and one comes.
    known = replaced.select(*(F.col(quoted(key)) for key in keys)).distinct().withColumn(mark, F.lit(True))
    there = F.coalesce(F.col(f"t.{mark}"), F.lit(False))
    joined = newest.alias("s").join(known.alias("t"), same_keys(keys), "left")
    after = joined.select(
        *(F.col(f"s.{quoted(name)}").alias(name) for name in columns),
        F.when(there, "update_postimage").otherwise("insert").alias(CHANGE_TYPE),
        *([F.col(f"s.{quoted(operation)}").alias(mark)] if operation else []),
    )
    if not operation:
        before = replaced.select(*named(replaced), F.lit("update_preimage").alias(CHANGE_TYPE))
        return before.unionByName(after)
    told = newest.select(*(F.col(quoted(name)) for name in (*keys, operation)))
    went = F.col(f"s.{quoted(operation)}") == DELETE
    before = (
        replaced.alias("t")
        .join(told.alias("s"), same_keys(keys))
        .select(
            *(F.col(f"t.{quoted(name)}").alias(name) for name in columns),
            F.when(went, "delete").otherwise("update_preimage").alias(CHANGE_TYPE),
        )
    )
    stays = F.col(mark) != DELETE
    return before.unionByName(after.where(stays).drop(mark))


def as_no_change(action: str) -> str:
    """An action of a commit that only moves rows to other files: readers of the table and of its feed pass over it."""
    body: dict[str, Any] = json.loads(action)
    moved: Mapping[str, Any] = {
        name: {**fields, "dataChange": False} if name in ("add", "remove") else fields
        for name, fields in body.items()
    }
    return json.dumps(moved)


def same_keys(keys: Sequence[str]) -> Any:
    """Whether a row of `t` and one of `s` have the same key."""
    from pyspark.sql import functions as F

    return reduce(and_, [F.col(f"t.{quoted(key)}") == F.col(f"s.{quoted(key)}") for key in keys])
