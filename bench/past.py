"""The past of a job: what changed between two neighbouring checkpoints of a large state, the history of a key in many, and large
batches run again beside their live run."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.made_state import JOB, OPERATOR, STATE, go_on, make
from bench.measurement import Measurement, Results, Section, Workplace, at_least, at_most, median, seconds
from bench.measurement import size as bytes_
from bench.slow_objects import slow_objects
from stateflow.spark.session.sent_modules import SentModules

if TYPE_CHECKING:
    from stateflow.config.options import Options

SIDES = ("diff", "history", "replay", "replay_windows")
REPLAYED = {"replay": "keyed operator", "replay_windows": "windows"}
SHARDS, DELAY = 8, 0.02
KEY = 7
"""Gets another value in every tenth checkpoint."""


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    changed: int
    """Keys that differ between the two checkpoints."""
    checkpoints: int
    """Of the history, whose state has `small` keys."""
    small: int
    rows: int
    """Of a batch that is run again."""
    again: int
    """Such batches."""
    pairs: int
    """Of a live run and its replay, after one that warms up."""


@dataclass
class Clock:
    """Seconds and CPU seconds of a block."""

    wall: float = 0.0
    cpu: float = 0.0

    def __enter__(self) -> Clock:
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu

    @property
    def figures(self) -> list[float]:
        return [self.wall, self.cpu]


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    root, chance = workplace.folder / "root", random.Random(1)
    if side in REPLAYED:
        return replayed(side, size, workplace)
    if side == "diff":
        workplace.say(f"making {size.keys:,} keys")
        make(root, size.keys, shards=SHARDS)
        go_on(root, [(chance.sample(range(size.keys), size.changed), -number) for number in (1.0, 2.0)])
        return differing(root, size, workplace)
    workplace.say(f"making {size.checkpoints:,} checkpoints")
    make(root, size.small, shards=2)
    go_on(
        root,
        (
            (
                list({*chance.sample(range(size.small), 50), *([KEY] if number % 10 == 0 else [])}),
                -float(number),
            )
            for number in range(1, size.checkpoints)
        ),
    )
    return remembered(root, size, workplace)


def differing(root: Path, size: Size, workplace: Workplace) -> dict[str, Any]:
    """The two newest checkpoints, on a host with all files and on one that has none; and a scan of everything."""
    from stateflow.format.references import references
    from stateflow.jobs.job import Job
    from stateflow.reading.files.shard_files import identity

    job = Job(str(root), JOB)
    before, after = [record for record in job.log().chain if record.kind == "checkpoint"][-2:]
    here = _options(str(root), workplace.folder / "here", {})

    def changes(whose: Job, options: Options) -> tuple[Counter[str], int]:
        with whose.diff(str(before.slot), str(after.slot), options=options) as found:
            kinds = Counter(change.kind for change in found.changes())
            return kinds, sum(each.context.cache.bytes_fetched for each in (found.before, found.after))

    changes(job, here)
    workplace.say("comparing")
    with Clock() as warm:
        kinds, _ = changes(job, here)
    if kinds != {"changed": size.changed}:
        raise AssertionError(f"the changes are {kinds}")
    one, other = (
        {identity(ref): ref.size for ref in references(each) if ref.path} for each in (before, after)
    )
    own = sum((one | other)[each] for each in one.keys() ^ other.keys())
    with slow_objects(root, workplace.folder / "server", DELAY) as (url, storage):
        away = Job(url, JOB, storage_options=storage)
        with Clock() as cold:
            written, fetched = changes(away, _options(url, workplace.folder / "away", storage))
    if written != {"written": size.changed}:
        raise AssertionError(f"on a host that has nothing the changes are {written}")
    workplace.say("scanning")
    with Clock() as scan:
        from stateflow.reading.snapshots import reader_context

        reader = reader_context(here, str(root), job.clock).reader(after)
        entries = sum(state.entries for state in reader.sizes())
        reader.close()
    if entries != size.keys:
        raise AssertionError(f"the scan found {entries} entries")
    return {
        "warm": warm.figures,
        "cold": cold.figures,
        "scan": scan.figures,
        "fetched": fetched,
        "differing": own,
        "state": sum(shard.bytes for subtask in after.operators[OPERATOR].shards for shard in subtask),
    }


def remembered(root: Path, size: Size, workplace: Workplace) -> dict[str, Any]:
    """The history of a key: from a store over a network on a host that has nothing, then again; and with a local root."""
    from stateflow.jobs.job import Job

    def history(whose: Job, options: Options) -> list[float]:
        with Clock() as clock:
            found = whose.history_of(OPERATOR, STATE, str(KEY), options=options)
        if (found.checkpoints, len(found.versions)) < (size.checkpoints, size.checkpoints // 10):
            raise AssertionError(f"{len(found.versions)} versions in {found.checkpoints} checkpoints")
        return clock.figures

    workplace.say("remembering")
    with slow_objects(root, workplace.folder / "server", DELAY) as (url, storage):
        away, options = (
            Job(url, JOB, storage_options=storage),
            _options(url, workplace.folder / "away", storage),
        )
        figures = {"cold": history(away, options), "again": history(away, options)}
    here = _options(str(root), workplace.folder / "here", {})
    history(Job(str(root), JOB), here)
    return {**figures, "warm": history(Job(str(root), JOB), here)}


def replayed(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    """Live runs and replays of their last batches in turn, all in one session; each pair is a job of its own."""
    from bench import everyday, sides
    from bench.clock import cpu_of_tree
    from bench.generate import BatchSpec, dataset
    from stateflow.jobs.job import Job

    pipeline, users = (everyday.balances, size.rows // 10) if side == "replay" else (everyday.windows, 1_000)
    data = dataset([BatchSpec(size.rows, users)] * (size.again + 1), with_time=True)
    spark, pairs, fork = sides.session(), [], 0
    for number in range(size.pairs + 1):
        work = workplace.folder / str(number)
        parameters = {"input": str(data.path), "output": str(work / "output")}
        kept = {"retained_checkpoints": size.again + 2}
        live = sides.stateflow_run(spark, pipeline, parameters, work, options=kept).timed
        job = Job(str(work / "root"), pipeline.name)
        slots = [record.slot for record in job.log().checkpoints if record.statistics.get("processed_rows")]
        figures = {
            "live": {"wall": sum(live.seconds[-size.again :]), "cpu": sum(live.cpu[-size.again + 1 :])}
        }
        for what in ("replay", "compare"):
            spent: list[float] = []
            report = job.replay(
                pipeline, slots[-size.again], slots[-1], options=_options(job.root, work, {}), sent_modules=SentModules((str(sides.ROOT),)),
                compare=what == "compare", listener=lambda done, of, spent=spent: spent.append(cpu_of_tree(os.getpid())),
            )  # fmt: skip
            if (report.batches, report.rows) != (size.again, size.again * size.rows) or (
                report.compared and not report.is_same
            ):
                raise AssertionError(f"the replay differs: {report.document()}")
            figures[what] = {"wall": report.seconds, "cpu": spent[-1] - spent[0]}
            fork = max(fork, report.fork_bytes)
        workplace.say(
            f"pair {number}: " + ", ".join(f"{name} {each['wall']:.1f} s" for name, each in figures.items())
        )
        if number:
            pairs.append(figures)
    return {"pairs": pairs, "fork": fork}


def _options(root: str, host: Path, storage: dict[str, str]) -> Options:
    from stateflow.config.options import load

    given = {
        "checkpoint_dir": root,
        "cache_dir": str(host / "cache"),
        "scratch_dir": str(host / "scratch"),
        "storage_options": storage,
    }
    return load(code=given, env={}, folder=host)


def section(results: Results, size: Size) -> Section:
    def middle(side: str, name: str, which: int = 0) -> float:
        return results.median(side, lambda trial: trial[name][which])

    first = results.first("diff")
    of_scan = middle("diff", "warm", 1) / middle("diff", "scan", 1)
    over = first["fetched"] / max(1, first["differing"])
    diff, history = f"{size.keys:,} keys, {size.changed:,} changed", f"{size.checkpoints:,} checkpoints"
    rows = [
        [
            f"diff, {diff}",
            seconds(middle("diff", "warm")),
            seconds(middle("diff", "warm", 1)),
            f"{of_scan:.1%} of a scan",
        ],
        [
            "diff on a host that has nothing",
            seconds(middle("diff", "cold")),
            seconds(middle("diff", "cold", 1)),
            f"{bytes_(first['fetched'])} of {bytes_(first['state'])} fetched",
        ],
        [
            "scan of the whole state",
            seconds(middle("diff", "scan")),
            seconds(middle("diff", "scan", 1)),
            "",
        ],
        [
            f"history of a key, {history}",
            seconds(middle("history", "warm")),
            seconds(middle("history", "warm", 1)),
            "",
        ],
        [
            "history on a host that has nothing",
            seconds(middle("history", "cold")),
            seconds(middle("history", "cold", 1)),
            "",
        ],
        ["history again", seconds(middle("history", "again")), seconds(middle("history", "again", 1)), ""],
    ]
    speed: dict[tuple[str, str, str], list[float]] = {
        (side, what, unit): [
            pair["live"][unit] / pair[what][unit] for trial in results.of(side) for pair in trial["pairs"]
        ]
        for side in REPLAYED
        for what in ("replay", "compare")
        for unit in ("wall", "cpu")
    }
    for side, name in REPLAYED.items():
        for what, words in (("replay", ""), ("compare", ", compared")):
            wall, cpu = speed[side, what, "wall"], speed[side, what, "cpu"]
            took = [pair[what] for trial in results.of(side) for pair in trial["pairs"]]
            rows.append(
                [
                    f"{size.again} batches of {size.rows:,} rows again, {name}{words}",
                    seconds(median([each["wall"] for each in took])),
                    f"{seconds(median([each['cpu'] for each in took]))} without the first",
                    f"{median(wall):.2f} times the live speed ({min(wall):.2f} to {max(wall):.2f}), by CPU {median(cpu):.2f}",
                ]
            )
    fork = max(trial["fork"] for side in REPLAYED for trial in results.of(side))
    text = (
        "Two neighbouring checkpoints are compared, and the history of one key is read from "
        f"all checkpoints of a job. Batches are run again in the session of their live run, in turn with it. A host that has nothing reads from an S3 server that takes {DELAY * 1000:.0f} ms for each request."
    )
    targets = [
        at_most("a diff takes less than 2 s", middle("diff", "warm"), 2.0, seconds),
        at_most("a host that has nothing fetches only the differing files", over, 1.0),
        at_most("a history takes less than 2 s", middle("history", "warm"), 2.0, seconds),
        at_most(
            "a history on a host that has nothing takes less than 30 s",
            middle("history", "cold"),
            30.0,
            seconds,
        ),
        *(
            at_least(
                f"a replay has 0.9 times the live speed, {name}", median(speed[side, "replay", "wall"]), 0.9
            )
            for side, name in REPLAYED.items()
        ),
        at_most("a fork adds less than 256 KiB", fork, 256 * 1024, bytes_),
    ]
    return Section(text, ("what", "seconds", "CPU", "beside"), rows, targets)


MEASUREMENT = Measurement(
    "past",
    "Diff, history and replay",
    SIDES,
    {
        "full": Size(20_000_000, 20_000, 1_000, 100_000, 1_000_000, 4, 4),
        "quick": Size(1_000_000, 20_000, 50, 20_000, 50_000, 2, 1),
    },
    run,
    section,
    repeats=1,
    named_only=True,
    minutes={"full": 8, "quick": 1.5},
)
