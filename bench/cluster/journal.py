"""What the sittings have seen so far, a line for each thing, so that the next one goes on where this one ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from tests.whole_lines import whole_lines


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """What the processes and the store hold, so many minutes after the first sitting began. Time between sittings does not count."""

    minute: float
    memory: dict[str, int]
    """Bytes of the driver's Python and JVM, and of an executor, by the largest."""
    open_files: int
    """Of the driver's Python and JVM."""
    objects: int
    objects_bytes: int
    rows: int
    """In the topic."""


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    minute: float
    rows: int
    seconds: float


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    minute: float
    victim: str


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Another driver started, because the one before had ended so."""

    minute: float
    why: str


class Sitting(msgspec.Struct, frozen=True, tag="sitting"):
    """The end of one, after which all was examined."""

    minutes: float
    commit: str
    rows: int
    seconds_to_drain: float
    wrong: list[str]


Line = Sample | Batch | Kill | Start | Sitting


class Journal:
    def __init__(self, folder: Path) -> None:
        self._file = folder / "journal.jsonl"
        decoder = msgspec.json.Decoder(Line)
        self.lines: list[Line] = [decoder.decode(line) for line in whole_lines(self._file)]

    @property
    def minutes(self) -> float:
        return sum(each.minutes for each in self.lines if isinstance(each, Sitting))

    def add(self, line: Line) -> None:
        self.lines.append(line)
        with self._file.open("ab") as out:
            out.write(msgspec.json.encode(line) + b"\n")

    def kills(self) -> Counter[str]:
        return Counter(each.victim for each in self.lines if isinstance(each, Kill))
