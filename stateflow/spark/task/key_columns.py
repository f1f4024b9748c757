"""The key columns of an Arrow batch: where keys begin, and that no key is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.pipelines.rows.row_type import without_nulls


@dataclass(frozen=True)
class KeyColumns:
    """The columns of an operator's Arrow batches that are its key."""

    uid: str
    names: Sequence[str]
    indices: Sequence[int]

    def of(self, batch: Any) -> list[Any]:
        return [batch.column(i) for i in self.indices]

    def check(self, batch: Any) -> None:
        for name, column in zip(self.names, self.of(batch), strict=True):
            if column.null_count:
                rows = "1 row has" if column.null_count == 1 else f"{column.null_count} rows have"
                raise UsageError(
                    f"operator {self.uid!r}: {rows} a null in key column {name!r}: {without_nulls(name)}"
                )


def key_starts(columns: Sequence[Any]) -> Any:
    """The first index of each key."""
    changed: Any = None
    for column in columns:
        if column.null_count:
            column = column.dictionary_encode(null_encoding="encode").indices
        if pa.types.is_integer(column.type):
            values = column.to_numpy()
            differs = values[1:] != values[:-1]
        else:
            differs = pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        changed = differs if changed is None else changed | differs
    return np.concatenate(([0], np.flatnonzero(changed) + 1))
