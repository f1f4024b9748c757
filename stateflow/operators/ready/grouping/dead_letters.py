"""Dead letters of ready-made operators: rows that user code raised on, in the place of a failed batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import user_frames
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.keyed import as_json
from stateflow.operators.ready.grouping.failed_groups import FailedGroups
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.processes.operator_spec import DEAD_LETTER_SCHEMA, DEAD_LETTERS
from stateflow.pipelines.rows.row_type import row_type

Letters = Iterator[tuple[str, pa.Table]]
Produced = Iterator[pa.Table | tuple[str, pa.Table]]
"""Tables of the main output, and tables to the side with the name of their output."""


def dead_letter(
    uid: str, key: Any, what: str, error: BaseException, rows: Sequence[Any], ctx: ColumnarContext
) -> tuple[Any, ...]:
    """`what` says where the error was raised, if that is not clear by itself."""
    text = f"{type(error).__name__}: {error}"
    frames = user_frames(error)
    return (uid, repr(key), what + text, frames, as_json(list(rows)), len(rows), ctx.checkpoint_id)


def put_out(letters: Sequence[tuple[Any, ...]]) -> Letters:
    if letters:
        schema = arrow_schema_of(row_type(DEAD_LETTER_SCHEMA))
        columns = [list(column) for column in zip(*letters, strict=True)]
        yield DEAD_LETTERS, pa.table(columns, schema=schema)


def letters_of(
    uid: str, failed: FailedGroups, keys: pa.Table, rows: pa.Table, ids: Any, ctx: ColumnarContext
) -> Letters:
    """A letter for each failed group, with its rows; `keys` has a row per group, and `ids` are the groups of the rows."""
    at = np.flatnonzero(failed.among(ids))
    by_group: dict[int, list[Any]] = {}
    for group, row in zip(ids[at].tolist(), rows.take(pa.array(at)).to_pylist(), strict=True):
        by_group.setdefault(group, []).append(row)
    yield from put_out(
        [
            dead_letter(
                uid, key_of(keys, group), f"{failure.what}: ", failure.error, by_group.get(group, ()), ctx
            )
            for group, failure in failed.items()
        ]
    )


def key_of(keys: pa.Table, at: int) -> Any:
    values = tuple(column[at].as_py() for column in keys.columns)
    return values[0] if len(values) == 1 else values
