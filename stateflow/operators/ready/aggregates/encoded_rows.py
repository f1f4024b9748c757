"""Whole rows as the partial of an aggregate: the encoded rows of a group, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.operators.ready.aggregates.partials import CountedRows, Parts
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.operators.ready.grouping.packed import bytes_of, of_bytes


class EncodedRows:
    """Keeps rows: each as its length in four bytes, and the row. Rows that come together have their columns before them, in the
    same form: code of a later release may have others."""

    def __init__(self, columns: bytes) -> None:
        self._columns = pa.scalar(columns, pa.binary())

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        order = np.argsort(values.ids, kind="stable")
        lengths, raw = bytes_of(values.column.take(pa.array(order)))
        sums = np.zeros(groups.size, dtype=np.int64)
        np.add.at(sums, values.ids[order], lengths)
        rows = of_bytes(raw, sums, groups.counts(values.ids) > 0)
        return [pc.binary_join_element_wise(self._columns, rows, b"")]

    def merge(self, one: Parts, other: Parts) -> Parts:
        return [pc.binary_join_element_wise(one[0], other[0], b"", null_handling="skip")]

    def result(self, parts: Parts) -> Any:
        return parts[0]
