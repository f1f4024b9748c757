"""One closing line for several runs of pytest: `12 passed, 0 failed, 1 skipped`, from what they printed.

A run that has no closing line of its own ended before its tests did, and counts as one that failed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

# `3 failed, 12 passed in 61.02s (0:01:01)`, with bars around it unless pytest is quiet.
_WORDS = "passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun"
_CLOSING = re.compile(rf"^(?:=+ )?((?:\d+ (?:{_WORDS})(?:, )?)+) in \d[\d.]*s", re.MULTILINE)
_COUNT = re.compile(rf"(\d+) ({_WORDS})")
_KINDS = {
    "passed": "passed",
    "failed": "failed",
    "error": "failed",
    "errors": "failed",
    "xpassed": "failed",  # xfail is strict here
    "skipped": "skipped",
    "xfailed": "skipped",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def closing(printed: str) -> str | None:
    """pytest's own closing line, the last one if there are several."""
    lines = [found[1] for found in _CLOSING.finditer(_COLOUR.sub("", printed))]
    return lines[-1] if lines else None


def summed(runs: Iterable[str]) -> Counter[str]:
    """What passed, failed and was skipped in runs that printed this."""
    counts: Counter[str] = Counter()
    for printed in runs:
        line = closing(printed)
        if line is None:
            counts["failed"] += 1
            continue
        for number, word in _COUNT.findall(line):
            if kind := _KINDS.get(word):
                counts[kind] += int(number)
    return counts


def failures(printed: str) -> list[str]:
    """pytest's summary of what failed, the beginning of a line each."""
    return [
        line[:300] for line in _COLOUR.sub("", printed).splitlines() if line.startswith(("FAILED ", "ERROR "))
    ]


def main(logs: list[str]) -> int:
    runs = [Path(log).read_text(encoding="utf-8", errors="replace") for log in logs]
    # Said again: what a run prints after its summary, or in a later run, hides it in a log that is cut.
    for line in [line for printed in runs for line in failures(printed)]:
        print(line)
    counts = summed(runs)
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
