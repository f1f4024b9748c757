"""Kills running pipelines for a long time and checks what is left: `python -m bench.kill`.

Rounds of ten kills: each round is a job of its own with chained operators, a side output and three sinks; it is killed
at random moments and at random points of the protocol, then drained and examined. Rounds are kept in a journal, so that
an interrupted loop goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stateflow.errors import FencedError
from tests.spark.murder import Killer, Run, Stuck, moments
from tests.spark.murder_evidence import Inbox, examine, expected
from tests.spark.murder_points import POINTS
from tests.spark.murder_victim import Errand

ROOT = Path(__file__).absolute().parents[1]
PAGE = ROOT / "docs" / "kill-loop.md"
KILLS_PER_ROUND = 10
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "200ms",
}
CLUSTER = {"spark.task.maxFailures": "4", "spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1"}
KINDS = ["driver", "driver", "everything", "worker", "point", "point", "point"]


class Feed(threading.Thread):
    """Commits input while runs go on, and while none does."""

    def __init__(self, inbox: Inbox, every: float) -> None:
        super().__init__(daemon=True)
        self._inbox = inbox
        self._every = every
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._every):
            self._inbox.add(30)

    def end(self) -> None:
        self._ended.set()
        self.join()


def play(number: int, seed: int, kills: int, master: str, folder: Path) -> dict[str, Any]:
    """Plays one round; returns its figures, with everything that is wrong."""
    chance = random.Random(f"{seed}-{number}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    inbox = Inbox(folder / "orders", random.Random(f"{seed}-{number}-input"))
    for _ in range(6):
        inbox.add(30)
    clustered = master.startswith("local-cluster")
    errand = Errand(
        str(folder),
        master=master,
        upsert=number % 2 == 1,
        straggle=0.1,
        conf={**SPECULATION, **(CLUSTER if clustered else {})},
        options={"shared_filesystem": True, "retained_checkpoints": chance.randint(1, 4)},
    )
    killer = Killer(
        lambda: errand, chance, log=lambda text: print(f"  round {number}: {text}", flush=True), spread=2.5
    )
    how = moments(chance, [*KINDS, *(["executor"] * 3 if clustered else [])], list(POINTS))
    began, batches = time.monotonic(), 0
    feed = Feed(inbox, every=15)
    feed.start()
    wrong: list[str] = []
    fenced = 0
    try:
        while len(killer.kills) < kills and killer.restarts < kills * 4:
            moment = next(how)
            if chance.random() < 0.15:
                fenced += zombie(errand, chance)
                killer.restarts += 2
            killer.once(moment, patience=900)
    except Stuck as stuck:
        wrong.append(str(stuck))
    finally:
        feed.end()
    if not wrong:
        try:
            batches = len(killer.drain(1800).told("batch"))
            wrong = examine(folder, inbox.rows, upsert=errand.upsert)
        except Stuck as stuck:
            wrong.append(str(stuck))
    logs = [log.read_text(errors="replace") for log in (folder / "runs").glob("*.log")]
    return {
        "round": number,
        "master": master,
        "kills": dict(Counter(kill.partition(":")[0] for kill in killer.kills)),
        "fenced": fenced,
        "restarts": killer.restarts,
        "batches": sum(text.count('"event": "batch"') for text in logs),
        "last_batches": batches,
        "rows": len(inbox.rows),
        "rows_out": sum(expected(inbox.rows).steps.values()),
        "seconds": round(time.monotonic() - began, 1),
        "wrong": wrong,
    }


def zombie(errand: Errand, chance: random.Random) -> int:
    """Freezes a run, lets another take over, and wakes the first, which must end as fenced. Returns 1 if it came so far."""
    first = Run.start(errand)
    second: Run | None = None
    try:
        first.until(lambda run: run.told("batch") or run.ended, 900, "first batch")
        time.sleep(chance.uniform(0, 2))
        if first.ended:
            return 0
        first.freeze()
        second = Run.start(errand)
        if second.wait(1800) != 0:
            raise Stuck(f"the run that took over failed\n{second.story()}")
        first.thaw()
        code = first.wait(900)
        if code == 0 and first.told("ended"):
            return 0  # it was through when it was frozen
        if code != FencedError.exit_code:
            raise Stuck(f"a zombie ended with {code} instead of {FencedError.exit_code}\n{first.story()}")
        return 1
    finally:
        for run in (first, second):
            if run is not None:
                run.thaw()
                run.bury()


def page(rounds: list[dict[str, Any]], seed: int) -> str:
    """The figures, for people."""
    kinds: Counter[str] = Counter()
    for each in rounds:
        kinds.update(each["kills"])
    total = sum(kinds.values())
    wrong = [(each["round"], text) for each in rounds for text in each["wrong"]]
    rows = sum(each["rows"] for each in rounds)
    seconds = sum(each["seconds"] for each in rounds)
    verdict = (
        "Nothing was lost, doubled or left behind." if not wrong else f"{len(wrong)} findings, see below."
    )
    lines = [
        "# The kill loop",
        "",
        "This page shows what random kills of running pipelines have found, and how you can repeat them. `make kill-long`",
        "(`python -m bench.kill`) runs pipelines in processes of their own and kills them with SIGKILL. It kills the driver's",
        "process group, everything the driver has started, an executor, a Python worker, or the driver at a point of the",
        "protocol: before and after a decision, between two sinks, inside the user's function, while a run carries out an",
        "earlier run's record, while a run collects old checkpoints. It freezes other runs, replaces them, and wakes them",
        "up: they must end as fenced. Input arrives all the while.",
        "",
        "Every round of kills ends with a run that drains the input. Then the loop makes four checks:",
        "",
        "- All outputs equal, row for row, one pass over the input in plain Python.",
        "- That pass also knows every key's state, and the files that the last checkpoint names hold the same state.",
        "- Every file can be read, and its checksum is right.",
        "- After a collection no file is left that no record names.",
        "",
        f"{verdict}",
        "",
        "| what | how much |",
        "|---|---|",
        f"| kills | {total} |",
        *(f"| of these: {name} | {count} |" for name, count in sorted(kinds.items())),
        f"| zombies, woken and fenced | {sum(each['fenced'] for each in rounds)} |",
        f"| runs started | {sum(each['restarts'] for each in rounds)} |",
        f"| batches that ended | {sum(each['batches'] for each in rounds)} |",
        f"| input rows | {rows} |",
        f"| rows checked in three sinks and two operators' state | {sum(each['rows_out'] for each in rounds)} |",
        f"| rounds, each a job of its own | {len(rounds)} |",
        f"| time | {seconds / 60:.0f} minutes |",
        f"| masters | {', '.join(sorted({each['master'] for each in rounds}))} |",
        f"| seed | {seed} |",
        f"| machine | {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()} |",
        "",
        "Each round draws from the seed and its own number, so you can play it again. Which instruction a random kill meets",
        "depends on the machine.",
        "",
    ]
    lines += [f"- round {number}: {text.splitlines()[0]}" for number, text in wrong]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", help="only this one; by default local and local-cluster in turn")
    parser.add_argument("--minutes", type=float, default=240, help="no new round begins after so long")
    parser.add_argument("--long", action="store_true", help="what `make kill-long` runs: at least 100 kills")
    parser.add_argument("--fresh", action="store_true", help="forget the rounds of an interrupted loop")
    options = parser.parse_args()
    kills = max(options.kills, 100) if options.long else options.kills
    work = ROOT / ".cache" / "kill-loop" / f"seed-{options.seed}"
    if options.fresh:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    journal = work / "rounds.jsonl"
    rounds = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    end = time.monotonic() + options.minutes * 60
    while (
        kills_so_far := sum(sum(each["kills"].values()) for each in rounds)
    ) < kills and time.monotonic() < end:
        number = len(rounds)
        master = options.master or ("local-cluster[2,1,1500]" if number % 3 == 2 else "local[2,4]")
        print(f"round {number} on {master}, {kills_so_far} of {kills} kills so far", flush=True)
        figures = play(
            number, options.seed, min(KILLS_PER_ROUND, kills - kills_so_far), master, work / f"round-{number}"
        )
        rounds.append(figures)
        with journal.open("a") as out:
            out.write(json.dumps(figures) + "\n")
        for text in figures["wrong"]:
            print(f"WRONG in round {number}: {text}", file=sys.stderr, flush=True)
        if figures["wrong"]:
            break  # its folder stays, to be looked at
        shutil.rmtree(work / f"round-{number}", ignore_errors=True)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(rounds, options.seed), encoding="utf-8")
    print(f"{PAGE} written: {sum(sum(r['kills'].values()) for r in rounds)} kills in {len(rounds)} rounds")
    return 1 if any(each["wrong"] for each in rounds) else 0


if __name__ == "__main__":
    sys.exit(main())
