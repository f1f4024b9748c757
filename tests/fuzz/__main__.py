"""The long form, `make fuzz`: 100,000 different inputs, in parts. What was played is kept, so that it can take several evenings.

A part begins with a seed of its own, so no two parts play the same; inputs that come twice all the same count once. A
process that dies is a finding: the input that it died of is reported like one that was answered wrongly.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import msgspec

from tests.fuzz.amount import LONG, SHARES, inputs
from tests.fuzz.decoders import DECODERS
from tests.fuzz.journal import Journal
from tests.fuzz.part import Part, begin, play

ROOT = Path(__file__).absolute().parents[2]
DECODED_AT_ONCE, DONE_AT_ONCE = 1_000, 100
"""Inputs of a part: what a decoder takes is quick, a verb is not."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=LONG, help="different ones, over all targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=240, help="no new part begins after so long")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="forget what was played with this seed")
    options = parser.parse_args()
    folder = ROOT / ".cache" / "fuzz" / f"seed-{options.seed}"
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    journal = Journal.open(folder)
    end = time.monotonic() + options.minutes * 60
    wrong: list[Part] = []
    while time.monotonic() < end and (
        crashed := _round(journal, options, end, {each.target for each in wrong}, wrong)
    ):
        wrong += crashed
    print(told(journal, options.inputs))
    return 1 if wrong else 0


def _round(
    journal: Journal, options: argparse.Namespace, end: float, left_out: set[str], wrong: list[Part]
) -> list[Part]:
    """Plays parts until there are enough inputs, or no time is left; what crashed the processes, which then begin anew."""
    playing = journal.folder / "playing"
    shutil.rmtree(playing, ignore_errors=True)
    playing.mkdir()
    commit = _commit()
    running: dict[Future[tuple[Part, list[bytes]]], Part] = {}
    numbers = Counter({target: journal.next_number(target) for target in SHARES})
    with ProcessPoolExecutor(
        options.workers, multiprocessing.get_context("spawn"), begin, (str(playing),)
    ) as pool:
        while True:
            left_out |= {part.target for part in wrong}
            while len(running) < options.workers and time.monotonic() < end:
                target = _next(journal, options.inputs, left_out | {part.target for part in running.values()})
                if target is None:
                    break
                size = _size(journal, target, options.inputs)
                part = Part(target, numbers[target], options.seed, commit, size)
                numbers[target] += 1
                running[pool.submit(play, part)] = part
            if not running:
                return []
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            try:
                for future in done:
                    figures, digests = future.result()
                    del running[future]
                    figures = journal.add(figures, digests)
                    _tell(journal, figures)
                    if figures.wrong:
                        wrong.append(figures)
            except BrokenProcessPool:
                cases = "\n".join(path.read_text() for path in playing.glob("*.json"))
                crashed = [
                    msgspec.structs.replace(
                        part, inputs=0, wrong=f"a process died with one of these inputs:\n{cases}"
                    )
                    for part in running.values()
                ]
                for each in crashed:
                    _tell(journal, journal.add(each, []))
                return crashed


def _next(journal: Journal, total: int, left_out: set[str]) -> str | None:
    """The target that lacks the largest share of its inputs."""
    new = journal.new()
    open_ = {name: new[name] / inputs(name, total) for name in SHARES if name not in left_out}
    lacking = {name: share for name, share in open_.items() if share < 1}
    return min(lacking, key=lambda name: lacking[name], default=None)


def _size(journal: Journal, target: str, total: int) -> int:
    """Of the next part: a few more than are lacking, since some will not be new."""
    most = DECODED_AT_ONCE if target in DECODERS else DONE_AT_ONCE
    lacking = inputs(target, total) - journal.new()[target]
    return min(most, lacking + lacking // 4 + 5)


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "stateflow", "plugins")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def _tell(journal: Journal, part: Part) -> None:
    print(
        f"{sum(journal.new().values()):7,} inputs so far: {part.target} part {part.number}, {part.inputs} inputs, {part.new} new,"
        f" {part.cpu:.0f} s of the processor, {part.seconds:.0f} s",
        flush=True,
    )
    if part.wrong:
        print(
            f"WRONG in {part.target} part {part.number} at {part.commit}: {part.wrong}",
            file=sys.stderr,
            flush=True,
        )


def told(journal: Journal, total: int) -> str:
    """The figures, as a table."""
    new = journal.new()
    lines = [
        "| target | different inputs | answered | refused with an error | processor | found |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in SHARES:
        parts = [part for part in journal.parts if part.target == name]
        outcomes: Counter[str] = Counter()
        for part in parts:
            outcomes.update(part.outcomes)
        answered = outcomes.pop("answer", 0)
        lines.append(
            f"| {name} | {new[name]:,} | {answered:,} | {outcomes.total():,} | {sum(part.cpu for part in parts):.0f} s"
            f" | {sum(bool(part.wrong) for part in parts)} |"
        )
    seconds, cpu = sum(part.seconds for part in journal.parts), sum(part.cpu for part in journal.parts)
    commits = ", ".join(dict.fromkeys(part.commit for part in journal.parts))
    lines.append(
        f"\n{sum(new.values()):,} of {total:,} different inputs in {len(journal.parts)} parts;"
        f" {cpu / 60:.0f} minutes of the processor, {seconds / 60:.0f} minutes by the clock; commits {commits}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
