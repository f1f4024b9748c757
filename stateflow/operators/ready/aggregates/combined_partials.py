"""From the columns of combined rows to the partials of an aggregate: the other side of `operators/combining`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.operators.combined import part_name
from stateflow.operators.ready.aggregates.kept_columns import kept
from stateflow.operators.ready.aggregates.partials import Parts
from stateflow.operators.ready.grouping.failed_groups import OverflowedSum
from stateflow.operators.ready.grouping.groups import whole
from stateflow.pipelines.ready.aggregates import Aggregated


def given_parts(each: Aggregated, rows: pa.Table) -> Parts:
    """The partials of an aggregate, one of each row."""
    names = [name for part in range(2) if (name := part_name(each.name, part)) in rows.column_names]
    columns = [whole(rows[name]) for name in names]
    match each.aggregate.kind:
        case "sum" if len(columns) == 2:
            return [_of_halves(*columns)]
        case "mean":
            sums, counts = columns
            if each.scale is None:
                return [pc.fill_null(sums, 0.0), counts]
            return [kept(sums), counts]
    return [kept(column) for column in columns]


def _of_halves(low: Any, high: Any) -> Any:
    """A sum of 64 bits from the sums of the lower and of the upper 32 bits."""
    valid = low.is_valid().to_numpy(zero_copy_only=False)
    lower, upper = (pc.fill_null(part, 0).to_numpy() for part in (low, high))
    upper = upper + (lower >> 32)
    beyond = (upper < -(1 << 31)) | (upper >= 1 << 31)
    if bool(beyond.any()):
        raise OverflowedSum(np.flatnonzero(beyond).tolist())
    return pa.array((upper << 32) | (lower & ((1 << 32) - 1)), mask=~valid)
