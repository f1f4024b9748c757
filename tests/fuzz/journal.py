"""What the long form has played so far, kept in a folder: a loop that was interrupted goes on where it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.fuzz.part import Part
from tests.whole_lines import whole_lines

DIGEST = 8


@dataclass
class Journal:
    folder: Path
    parts: list[Part] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    """Digests of all inputs: one that comes twice counts once."""

    @classmethod
    def open(cls, folder: Path) -> Journal:
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder)
        journal.parts = [msgspec.json.decode(line, type=Part) for line in whole_lines(journal._lines)]
        if journal._digests.exists():
            digests = journal._digests.read_bytes()
            journal.seen = {digests[at : at + DIGEST] for at in range(0, len(digests) - DIGEST + 1, DIGEST)}
        return journal

    @property
    def _lines(self) -> Path:
        return self.folder / "parts.jsonl"

    @property
    def _digests(self) -> Path:
        return self.folder / "inputs.bin"

    def add(self, part: Part, digests: list[bytes]) -> Part:
        """Keeps the figures of a part; returns them with the number of its inputs that are new."""
        new = [digest for digest in dict.fromkeys(digests) if digest not in self.seen]
        part = msgspec.structs.replace(part, new=len(new))
        # Digests first: should the loop die between the two, its next one counts too few inputs and not too many.
        with self._digests.open("ab") as out:
            out.write(b"".join(new))
        with self._lines.open("ab") as out:
            out.write(msgspec.json.encode(part) + b"\n")
        self.seen.update(new)
        self.parts.append(part)
        return part

    def new(self) -> Counter[str]:
        """How many different inputs each target has had."""
        counts: Counter[str] = Counter()
        for part in self.parts:
            counts[part.target] += part.new
        return counts

    def next_number(self, target: str) -> int:
        return 1 + max((part.number for part in self.parts if part.target == target), default=0)
