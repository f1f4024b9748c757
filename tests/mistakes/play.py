"""A mistake, and what came of it: refused, told, harmless, or wrong without a word."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.mistakes.case import Case, Row, Tables
from tests.mistakes.scene import Scene, agrees, lines

Outcome = Literal["refused by check", "refused by the run", "told", "right", "SILENT"]


def plainly(scene: Scene) -> None:
    """The case as it is meant: a check, and a run per file, the last one final."""
    files_in_turn(scene, lambda scene, run: None)


def files_in_turn(
    scene: Scene,
    before: Callable[[Scene, int], None],
    text: Callable[[str, int, str], str | bytes] = lambda folder, run, text: text,
) -> None:
    """`before` is what happens before a run, and `text` what a file holds instead."""
    case = scene.case
    for run in range(case.runs):
        for folder, files in case.files.items():
            scene.write(folder, text(folder, run, lines(case, files[run])))
        before(scene, run)
        scene.check()
        scene.run(final=run == case.runs - 1)


@dataclass(frozen=True)
class Mistake:
    """One thing that is slightly wrong."""

    kind: str
    """As in the table of docs/checks.md."""
    what: str
    """In a few words: the place and what stands there."""
    case: Case
    text: str
    """The pipeline's file."""
    play: Callable[[Scene], None] = plainly
    meant: Tables | None = None
    """The rows that are really there, where they are others than the case's."""

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.case.recipe}: {self.what}"


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    said: str
    """What the user read."""
    tables: Mapping[str, list[dict[str, object]]]


def judged(mistake: Mistake, folder: Path) -> Verdict:
    """Plays the mistake and compares what it left with what is right."""
    scene = Scene(folder, mistake.case, mistake.text)
    mistake.play(scene)
    if scene.over:
        return Verdict(
            f"refused by {'check' if scene.seen.by == 'check' else 'the run'}", scene.seen.refused, {}
        )  # type: ignore[arg-type]
    truth = _truth(mistake)
    tables = {name: scene.table(name) for name in mistake.case.outputs}
    beside = [
        f"{len(rows)} rows in {name}"
        for name, rows in tables.items()
        if name not in (truth or {"output": []}) and rows
    ]
    if truth is not None and all(agrees(tables[name], rows) for name, rows in truth.items()):
        return Verdict("right", "; ".join(scene.seen.words), tables)
    if scene.seen.words or beside:
        return Verdict("told", "; ".join([*scene.seen.words, *beside]), tables)
    return Verdict("SILENT", "", tables)


def _truth(mistake: Mistake) -> dict[str, list[Row]] | None:
    """None where no computation can tell, such as when a null stands for the time of a row: then the user has to be told."""
    try:
        return mistake.case.truth(mistake.meant or mistake.case.rows())
    except TypeError:
        return None
