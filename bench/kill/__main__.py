"""Kills running pipelines for a long time and checks what is left: `python -m bench.kill`.

Each round is a job of its own, which is killed a dozen times, then drained and examined. Rounds are kept in a journal, by
the library's commit and by seed, so that an interrupted loop goes on where it was.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from bench.kill.commits import Seen, keep
from bench.kill.journal import ROOT, Journal, commit
from bench.kill.jvms import Jvms
from bench.kill.page import GOAL, page
from bench.kill.play import play
from bench.kill.scenes import playable

PAGE = ROOT / "docs" / "kill-loop.md"
KILLS_PER_ROUND = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=GOAL)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scene", choices=playable(), help="only this one; by default all in turn")
    parser.add_argument("--rounds", type=int, default=10**6, help="at most so many now")
    parser.add_argument("--minutes", type=float, default=600, help="no new round begins after so long")
    parser.add_argument("--fresh", action="store_true", help="forget the rounds of this commit and seed")
    options = parser.parse_args()
    code = commit()
    work = ROOT / ".cache" / "bench" / "kill" / f"{code}-seed-{options.seed}"
    if options.fresh:
        shutil.rmtree(work, ignore_errors=True)
    journal = Journal.open(work)
    end = time.monotonic() + options.minutes * 60
    last = journal.next_number + options.rounds
    jvms = Jvms(work)
    scenes = [options.scene] if options.scene else playable()
    try:
        while journal.kills < options.kills and time.monotonic() < end and journal.next_number < last:
            number = journal.next_number
            scene = scenes[number % len(scenes)]
            print(f"round {number}, {scene}: {journal.kills} of {options.kills} kills so far", flush=True)
            # A JVM remembers tables by their paths: a round that is played again has another folder.
            folder = work / f"round-{number}-{time.time_ns()}"
            round_ = play(
                number, options.seed, scene, min(KILLS_PER_ROUND, options.kills - journal.kills), jvms, folder
            )
            journal.add(round_)
            for text in round_.wrong:
                print(f"WRONG in round {number}, {scene}: {text}", file=sys.stderr, flush=True)
            if round_.wrong:
                break  # its folder stays, to be looked at
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        jvms.end()
    folders = {
        int(each.parent.name.rpartition("-")[2]): each.parent
        for each in work.parent.glob(f"{code}-seed-*/rounds.jsonl")
    }
    played = Journal.of(folders[seed] for seed in sorted(folders))
    commits = keep(code, Seen(played.kills, sum(len(each.wrong) for each in played.rounds)))
    PAGE.write_text(page(played, code, sorted(folders), commits), encoding="utf-8")
    print(
        f"{PAGE} written: {played.kills} kills in {len(played.rounds)} rounds, {journal.kills} of them with seed {options.seed}"
    )
    return 1 if any(each.wrong for each in journal.rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
