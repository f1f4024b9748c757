"""The rows that a join holds for a key. State has them in blocks; a look-up shows the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stateflow.format.records import OPTION_KIND, OPTION_ROWS, OperatorState
from stateflow.state.values.kept_rows import BETWEEN, KeptRow, rows_of

_SIDES = ("left", "right")


@dataclass(frozen=True)
class RowsOfJoin:
    """How the entries of one state become rows."""

    both: bool
    """Whether a block has rows of both inputs."""
    named: Mapping[str, str]
    """The names of those parts of an entry's key that a row shows."""
    timed: bool
    """Whether rows have a time."""
    single: bool
    """Whether a key has one row."""

    def of(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [row for entry in entries for row in self._of_entry(entry)]
        return sorted(rows, key=lambda row: row["at"]) if self.timed and not self.named else rows

    def _of_entry(self, entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        shown = {name: entry[part] for part, name in self.named.items() if part in entry}
        if not self.both:
            for row in rows_of(entry["layout"] or "", entry["rows"], entry["texts"]):
                yield {**shown, **self._plain(row)}
            return
        layouts = (entry["layout"] or BETWEEN).split(BETWEEN)
        for side, layout in zip(_SIDES, layouts, strict=True):
            for row in rows_of(layout, entry[f"{side}_rows"], entry[f"{side}_texts"]):
                yield {"side": side, "has_partner": row.has_partner, **self._plain(row)}

    def _plain(self, row: KeptRow) -> dict[str, Any]:
        at = {"at": row.time} if self.timed else {}
        return at | {f"row_{name}": value for name, value in row.columns.items()}


_OF_KIND: Mapping[str, Callable[[Mapping[str, str]], RowsOfJoin]] = {
    "interval join": lambda _: RowsOfJoin(both=True, named={}, timed=True, single=False),
    "as-of join": lambda _: RowsOfJoin(both=False, named={}, timed=True, single=False),
    "latest-version join": lambda options: RowsOfJoin(
        both=False, named={}, timed=options.get("event time of the right rows", "none") != "none", single=True
    ),
    "window join": lambda _: RowsOfJoin(
        both=False, named={"at": "window_end", "session_start": "session_start"}, timed=True, single=False
    ),
}


def rows_of_join(operator: OperatorState, state: str) -> RowsOfJoin | None:
    """None for a state whose entries are no blocks of rows, as the operator's options say."""
    if f"{OPTION_ROWS}{state}" not in operator.options:
        return None
    make = _OF_KIND.get(operator.options.get(OPTION_KIND, ""))
    return None if make is None else make(operator.options)
