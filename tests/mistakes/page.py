"""The table of `docs/checks.md` that says what becomes of each kind of mistake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.mistakes.play import Outcome

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"
BEGIN, END = "<!-- mistakes: make mistakes -->", "<!-- end of mistakes -->"
COLUMNS: tuple[Outcome, ...] = ("refused by check", "refused by the run", "told", "right")


def table(outcomes: Mapping[str, Iterable[Outcome]]) -> str:
    """A row per kind: how many were played, and how many of them ended in which way."""
    lines = [
        f"| mistake | played | {' | '.join(COLUMNS)} |",
        f"|---|{'--:|' * (len(COLUMNS) + 1)}",
    ]
    for kind, ends in outcomes.items():
        counts = Counter(ends)
        cells = [str(counts[column] or "") for column in COLUMNS]
        lines.append(f"| {kind} | {sum(counts.values())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def written(text: str, table: str) -> str:
    """The page with another table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def kinds_of(text: str) -> list[str]:
    """The kinds that the page names."""
    between = text.partition(BEGIN)[2].partition(END)[0]
    return [line.split("|")[1].strip() for line in between.splitlines()[3:] if line.startswith("| ")]
