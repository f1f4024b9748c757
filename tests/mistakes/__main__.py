"""`make mistakes`: plays mistakes as a user would make them, and lists those that end green, without a word, and wrong.

python -m tests.mistakes                       all of them, which takes an hour, and a new table in docs/checks.md
python -m tests.mistakes --each 3              three of every kind
python -m tests.mistakes --kind "a null"       one kind, with what the user reads
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.mistakes.kinds import by_kind, sample
from tests.mistakes.page import PAGE, table, written
from tests.mistakes.play import Mistake, Outcome, judged


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.mistakes", description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, help="of every kind only so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", help="only kinds that contain this text")
    options = parser.parse_args()
    everything = [mistake for mistakes in by_kind().values() for mistake in mistakes]
    chosen = sample(options.each, options.seed) if options.each else everything
    chosen = [mistake for mistake in chosen if not options.kind or options.kind in mistake.kind]
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    silent: list[Mistake] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stateflow-mistakes-", ignore_cleanup_errors=True) as home:
        for number, mistake in enumerate(chosen, 1):
            folder = Path(home) / str(number)
            folder.mkdir()
            verdict = judged(mistake, folder)
            outcomes[mistake.kind].append(verdict.outcome)
            if verdict.outcome == "SILENT":
                silent.append(mistake)
            if options.kind or verdict.outcome == "SILENT":
                print(
                    f"{verdict.outcome}: {mistake.name}\n    {verdict.said or dict(verdict.tables)}",
                    flush=True,
                )
            elif sys.stdout.isatty():
                print(f"\r{number} of {len(chosen)}, {len(silent)} silent", end="", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{len(chosen)} mistakes of {len(outcomes)} kinds in {(time.monotonic() - began) / 60:.0f} minutes: {len(silent)} silent"
    )
    if chosen == everything:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table(outcomes)), encoding="utf-8")
    else:
        print(table(outcomes))
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
