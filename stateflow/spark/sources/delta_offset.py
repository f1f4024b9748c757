"""Positions in a Delta table, as its streaming source writes them.

An offset names the table, a version and an index within the version. Index -1 is the very beginning of a version. So
"all of version 7 is read" is version 8 at index -1, whether version 8 exists yet or not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from stateflow.errors import IncompatibleError

BEGINNING = -1


@dataclass(frozen=True, slots=True)
class DeltaOffset:
    """The serialised form of Delta's class DeltaSourceOffset."""

    table: str
    version: int
    index: int = BEGINNING
    snapshot: bool = False
    """Inside the first snapshot, not in the changes of `version`."""

    @classmethod
    def parse(cls, line: str) -> DeltaOffset:
        try:
            offset = json.loads(line)
            return cls(
                offset["reservoirId"],
                int(offset["reservoirVersion"]),
                int(offset["index"]),
                bool(offset["isStartingVersion"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise IncompatibleError(
                f"{line!r} is no position in a Delta table: if another source had this uid, give the source of today a new one"
            ) from error

    def line(self) -> str:
        return json.dumps(
            {
                "sourceVersion": 1,
                "reservoirId": self.table,
                "reservoirVersion": self.version,
                "index": self.index,
                "isStartingVersion": self.snapshot,
            },
            separators=(",", ":"),
        )

    @property
    def inside(self) -> bool:
        """In the middle of `version`, or of the first snapshot."""
        return self.snapshot or self.index != BEGINNING

    @property
    def newest_read(self) -> int:
        """The newest version of which something is read; -1 for none."""
        if self.snapshot and self.index == BEGINNING:
            return -1
        return self.version if self.inside else self.version - 1

    @property
    def position(self) -> tuple[int, int]:
        return self.version, self.index
