"""Records that are decided, which processes carry out slot by slot: what those for tables have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DecidedRows:
    """An append has new ids in each slot; an upsert the ids of two slots, so that each replaces half of the one before."""

    root: Path
    kind: str
    slots: int
    rows: int

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """The rows that a batch computation has."""
        found: dict[int, int] = {}
        for slot in range(1, self.slots + 1):
            found |= dict.fromkeys(self.ids(slot), slot)
        return sorted(found.items())

    def ids(self, slot: int) -> range:
        step = self.rows // 2 if self.kind.endswith("_upsert") else self.rows
        return range(slot * step, slot * step + self.rows)

    @property
    def finished(self) -> int:
        """The last slot that a process has seen committed."""
        return max((int(path.stem) for path in self.root.glob("*.done")), default=0)
