"""Output rows that replace each other by a key: one per key and batch, also when a key's rows come in several tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from stateflow.operators.ready.grouping.keys import Key, has_alike, key_columns


class LatestRows:
    """Holds the rows of a key back until a table without that key has come. A key with more rows than fit into a table comes in
    several tables, one after the other. Only the last of its output rows may leave, because an upsert takes one row per key.
    """

    def __init__(self, key: Key, names: Sequence[str]) -> None:
        self._key = key
        self._names = names
        """The columns by which rows replace each other; with the key as the first of them."""
        self._held: pa.Table | None = None

    def put(self, rows: pa.Table, came: pa.Table) -> Iterator[pa.Table]:
        """Takes the output of a table of input rows, `came`. A key of that table may go on in the next one, even if it has no
        output here."""
        held = self._held
        if held is not None:
            held = held.filter(pa.array(~has_alike(held, rows, self._names)))
            names = [name for name, _ in self._key]
            keys = pa.table(dict(zip(names, key_columns(came, self._key), strict=True)))
            goes_on = has_alike(held, keys, names)
            yield held.filter(pa.array(~goes_on))
            rows = pa.concat_tables([held.filter(pa.array(goes_on)), rows])
        self._held = rows

    def rest(self) -> Iterator[pa.Table]:
        if self._held is not None:
            yield self._held
        self._held = None
