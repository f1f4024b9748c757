"""What the loop has played so far, by commit and seed: a loop that was interrupted goes on where it was."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.whole_lines import whole_lines

ROOT = Path(__file__).absolute().parents[2]


class Round(msgspec.Struct, frozen=True):
    """A line of the journal: one job, from its first run to the examination."""

    number: int
    scene: str
    kills: dict[str, int] = {}
    """By victim."""
    points: dict[str, int] = {}
    """Of the kills at a point of the protocol: by point."""
    ends: dict[str, int] = {}
    """How runs ended that somebody else's death or a full disk has hit."""
    fenced: int = 0
    """Frozen runs that woke up and ended as fenced."""
    runs: int = 0
    batches: int = 0
    rows: int = 0
    lies: dict[str, int] = {}
    jumps: int = 0
    """Of the clock."""
    seconds: float = 0
    wrong: list[str] = []

    @property
    def killed(self) -> int:
        return sum(self.kills.values())


@dataclass
class Journal:
    folder: Path
    rounds: list[Round] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path) -> Journal:
        folder.mkdir(parents=True, exist_ok=True)
        journal = cls(folder)
        journal.rounds = [msgspec.json.decode(line, type=Round) for line in whole_lines(journal._lines)]
        return journal

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Journal:
        """What several loops have played, to be read."""
        return cls(Path(), [each for folder in folders for each in cls.open(folder).rounds])

    @property
    def _lines(self) -> Path:
        return self.folder / "rounds.jsonl"

    @property
    def kills(self) -> int:
        return sum(each.killed for each in self.rounds)

    @property
    def next_number(self) -> int:
        return 1 + max((each.number for each in self.rounds), default=-1)

    def add(self, round_: Round) -> None:
        with self._lines.open("ab") as out:
            out.write(msgspec.json.encode(round_) + b"\n")
        self.rounds.append(round_)

    def total(self, figures: str) -> Counter[str]:
        """The sum of one of the rounds' tables."""
        counts: Counter[str] = Counter()
        for each in self.rounds:
            counts.update(getattr(each, figures))
        return counts


def commit() -> str:
    """The last commit that changed the library; with a `+` when it is not as it was committed. Other commits change nothing."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words, "--", "stateflow"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("log", "-1", "--format=%h") or "unknown") + ("+" if changed else "")
