"""What each mechanism for speed gains on everyday work: it is switched off, and on, and off, in pairs of CPU seconds."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.clock import cpu_of_tree
from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Results, Section, Workplace, median
from bench.start import PIPELINE, cost

ROOT = Path(__file__).resolve().parents[1]
PAYS = 1.05
"""How many times the CPU seconds a workload takes at least without a mechanism that pays."""
IN_BATCHES = ("unmeasured", "key_index")
"""Mechanisms that any batch may use."""
SIDES: Mapping[str, tuple[str, ...]] = {
    "batches": (*IN_BATCHES, "sorted_rows", "packed_instants", "carried"),
    "large": ("unmeasured", "sorted_rows", "packed_instants", "carried", "cycle collector"),
    "windows": (*IN_BATCHES, "combiner", "combiner_choice", "packed_instants", "carried"),
    "upserts": (
        *IN_BATCHES,
        "own_merge",
        "key_ranges",
        "same_task",
        "combiner",
        "combiner_choice",
        "carried",
    ),
    "growing": ("own_merge", "key_ranges"),
    "last_rows": ("packed_rows", "packed_instants"),
    "two_sources": ("parts_of_union",),
    "two_tables": ("driver_written",),
    "next_run": ("compiling", "class_data", "local_files", "unmeasured"),
    "sessions": ("local_files", "compiling"),
}
"""Of each side the mechanisms that it can use."""
NAMES = {
    "batches": "10,000 rows of a keyed operator to a Delta append",
    "large": "a million rows of a keyed operator to a Delta append",
    "windows": "a million rows of windows",
    "upserts": "an upsert of 100,000 keys of 400,000",
    "growing": "an upsert of 100,000 keys that grow",
    "last_rows": "the last rows of 100,000 keys of 400,000, which have a text",
    "two_sources": "10,000 rows of each of two sources",
    "two_tables": "10,000 rows of a keyed operator to a Delta append, and its state's changes to another",
    "next_run": "the next run of a small job",
    "sessions": "10,000 rows of a keyed operator, a session for each figure",
}


@dataclass(frozen=True, slots=True)
class Size:
    pairs: Mapping[str, int]
    rows: int
    """Of a small batch."""
    keys: int
    large_rows: int
    """Of a batch of windows, and of a large one."""
    upserted: int
    upsert_keys: int
    warm_up: int
    in_session: int
    """Batches of a session that has a mechanism switched off from its start."""


def turns(names: Sequence[str], pairs: int) -> list[str | None]:
    """What is off in each batch: in every pair the same mechanism once, first and second by turns; None: nothing is off."""
    out: list[str | None] = []
    for pair in range(pairs):
        for name in names:
            out += [None, name] if pair % 2 == 0 else [name, None]
    return out


def paired(off: Sequence[str | None], spent: Sequence[float]) -> dict[str, list[tuple[float, float]]]:
    """By mechanism the pairs of what its batches took, with it and without."""
    out: dict[str, list[tuple[float, float]]] = {}
    for at in range(0, len(off), 2):
        first, second = spent[at : at + 2]
        name = off[at] or off[at + 1]
        assert name is not None
        out.setdefault(name, []).append((first, second) if off[at] is None else (second, first))
    return out


def spread(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which ratios the true median lies with nine chances in ten, by how many pairs lie on either side of it. Of fewer
    than five pairs nothing can be said with such confidence: it is all of them."""
    ordered, count = sorted(ratios), len(ratios)
    left_out = 0
    while 2 * sum(math.comb(count, k) for k in range(left_out + 1)) / 2**count <= 0.1:
        left_out += 1
    cut = max(0, left_out - 1)
    return ordered[cut], ordered[count - 1 - cut]


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    runs: dict[str, Callable[..., Any]] = {"next_run": next_runs, "sessions": sessions}
    pairs = runs.get(side, partial(in_one_session, side))(SIDES[side], size, workplace)
    return {"pairs": pairs}


def specs_of(side: str, size: Size, count: int) -> list[BatchSpec]:
    """The batches of a side: the first makes the state that the others find."""
    if side == "windows":
        return [BatchSpec(size.large_rows, 1_000)] * (count + 1)
    if side == "large":
        first = BatchSpec(size.keys, size.keys, "distinct")
        return [first] + [BatchSpec(size.large_rows, size.keys)] * count
    if side in ("upserts", "last_rows"):
        first = BatchSpec(size.upsert_keys, size.upsert_keys, "distinct")
        return [first] + [BatchSpec(size.upserted, size.upsert_keys, "distinct")] * count
    if side == "growing":
        return [BatchSpec(size.upserted, 1_000)] * (count + 1)
    return [BatchSpec(size.keys, size.keys, "distinct")] + [BatchSpec(size.rows, size.keys)] * count


def in_one_session(
    side: str,
    names: Sequence[str],
    size: Size,
    workplace: Workplace,
    off: str | None = None,
    batches: int = 0,
) -> Any:
    """Pairs of neighbouring batches of one run. With `batches`: what so many of them take while `off` is off in all."""
    from bench import everyday, sides
    from bench.switches import Switches

    plan = [off] * batches if batches else turns(names, size.pairs[side])
    warm_up = 1 + size.warm_up
    specs = specs_of(side, size, size.warm_up + len(plan))
    data, work = dataset(specs, with_time=True), workplace.folder
    parameters = {"input": str(data.path), "output": str(work / "output")}
    if side == "two_sources":
        parameters["other"] = str(dataset(specs, with_time=True, seed=2).path)
    pipeline = getattr(everyday, {"batches": "balances", "large": "balances"}.get(side, side))
    switches, spent, ends = Switches(), [], [0.0]
    switches.off(off)

    def each(report: Any) -> None:
        now = cpu_of_tree(os.getpid())
        spent.append(now - ends[-1])
        ends.append(now)
        following = len(spent) - warm_up
        if not batches:
            switches.off(plan[following] if 0 <= following < len(plan) else None)
        if len(spent) % 10 == 0:
            workplace.say(f"{len(spent)} of {len(specs)} batches")

    sides.stateflow_run(sides.session(), pipeline, parameters, work, each=each)
    if len(spent) < len(specs):
        raise AssertionError(f"{side} ran {len(spent)} batches of {len(specs)}")
    if pipeline is everyday.balances:
        sides.check_totals(work / "output", data)
    measured = spent[warm_up : warm_up + len(plan)]
    return measured if batches else paired(plan, measured)


def next_runs(names: Sequence[str], size: Size, workplace: Workplace) -> Any:
    """Pairs of runs of one job, each in a process of its own, with new rows before each."""
    from demo.table import Orders, compared
    from stateflow.config.options import cache_folder
    from stateflow.spark.session import class_data

    class_data.make(cache_folder())
    folder = workplace.folder
    orders = Orders(folder / "orders")
    arguments = [
        "run", PIPELINE, "-p", f"input={folder / 'orders'}", "-p", f"output={folder / 'totals'}",
        "--master", "local[2]", "--checkpoint-dir", str(folder / "root"),
    ]  # fmt: skip
    plan = [None, *turns(names, size.pairs["next_run"])]
    spent = []
    for off in plan:
        orders.add(1, 2_000)
        spent.append(cost([sys.executable, "-m", "bench.switches", off or "as_is", *arguments]).cpu)
        workplace.say(f"without {off}: {spent[-1]:.1f} CPU s")
    if not compared(folder / "orders", folder / "totals").right:
        raise AssertionError("the totals are not those of the orders")
    return paired(plan[1:], spent[1:])


def sessions(names: Sequence[str], size: Size, workplace: Workplace) -> Any:
    """Pairs of sessions, each of which runs the same small batches, of whose CPU seconds the median counts."""
    import json

    plan = turns(names, size.pairs["sessions"])
    spent = []
    for number, off in enumerate(plan):
        folder = workplace.folder / str(number)
        folder.mkdir()
        result = folder / "spent.json"
        cost(
            [
                sys.executable,
                "-m",
                "bench.tricks",
                off or "as_is",
                str(size.in_session),
                str(folder),
                str(result),
            ]
        )
        spent.append(median(json.loads(result.read_text())))
        workplace.say(f"without {off}: {spent[-1]:.3f} CPU s")
    return paired(plan, spent)


def one_session(name: str, batches: str, folder: str, result: str) -> None:
    import json

    size = MEASUREMENT.sizes["full"]
    spent = in_one_session(
        "batches",
        (),
        size,
        Workplace(Path(folder)),
        off=None if name == "as_is" else name,
        batches=int(batches),
    )
    Path(result).write_text(json.dumps(spent))


def ratios_of(results: Results, side: str) -> dict[str, list[float]]:
    """By mechanism how many times the CPU seconds each of its pairs took without it."""
    out: dict[str, list[float]] = {}
    for trial in results.of(side):
        for name, pairs in trial["pairs"].items():
            out.setdefault(name, []).extend(without / with_it for with_it, without in pairs)
    return out


def verdict(lowest: float, highest: float) -> str:
    if lowest >= PAYS:
        return "pays"
    return "does not pay" if highest < PAYS else "cannot be told"


def section(results: Results, size: Size) -> Section:
    rows = []
    for side in (side for side in SIDES if side in results.by_side):
        for name, ratios in ratios_of(results, side).items():
            lowest, highest = spread(ratios)
            took = median([pair[0] for trial in results.of(side) for pair in trial["pairs"][name]])
            rows.append(
                [
                    name, NAMES[side], f"{took:.2f} s", f"{median(ratios):.2f}x", f"{lowest:.2f} to {highest:.2f}",
                    str(len(ratios)), verdict(lowest, highest),
                ]
            )  # fmt: skip
    text = (
        "CPU seconds of Python, its JVM and its workers, beside those of the neighbouring batch or run that has everything: so many "
        "times as much is taken without the mechanism. One lies below 5 % where its whole spread does. [Architecture](architecture.md) says what "
        "became of each."
    )
    header = ("without", "on", "with everything", "median", "spread", "pairs", "")
    return Section(text, header, sorted(rows), [])


FULL = {
    "batches": 10, "large": 5, "windows": 5, "upserts": 5, "growing": 5, "last_rows": 5, "two_sources": 10, "two_tables": 10, "next_run": 5, "sessions": 5,
}  # fmt: skip
MEASUREMENT = Measurement(
    "tricks",
    "What each mechanism for speed gains",
    tuple(SIDES),
    {
        "full": Size(FULL, 10_000, 100_000, 1_000_000, 100_000, 400_000, 20, 40),
        "quick": Size(dict.fromkeys(FULL, 1), 1_000, 5_000, 20_000, 2_000, 8_000, 1, 3),
    },
    run,
    section,
    repeats=1,
    minutes={"full": 40.0, "quick": 6.0},
    named_only=True,
    whole=False,
    patience=40,
)

if __name__ == "__main__":
    one_session(*sys.argv[1:])
