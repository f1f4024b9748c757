"""Windows beside the Python engines Pathway and Bytewax, each with a worker per core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from bench.generate import FIRST_TIME, BatchSpec, Dataset, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_least, median, seconds

TIMES = {"pathway": 5.0, "bytewax": 10.0}
KEYS = (500, 5000)
NAMES = {"ours": "Stateflow", "pathway": "Pathway", "bytewax": "Bytewax"}
SIDES = tuple(f"{engine}-{keys}" for keys in KEYS for engine in NAMES)
WORKERS = 2
SHARE = {"bytewax": 10}
"""Who gets only a tenth of the rows, and ten times the time: all of them took it more than five minutes."""


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    """Of a batch; the peers get one such batch."""
    warm_up: int
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    engine, keys = side.split("-")
    if engine == "ours":
        return _ours(int(keys), size, workplace.folder)
    return _peer(engine, int(keys), size, workplace.folder)


def _ours(keys: int, size: Size, work: Path) -> dict[str, Any]:
    from bench import ready, sides

    data = _data(keys, size, size.warm_up + size.measured)
    parameters = {"input": str(data.path), "output": str(work / "output"), "count": 0}
    outcome = sides.stateflow_run(sides.session(), ready.windows, parameters, work)
    return {"batch": median(outcome.timed.seconds[size.warm_up :])}


def _data(keys: int, size: Size, batches: int) -> Dataset:
    return dataset([BatchSpec(size.rows, keys)] * batches, with_time=True)


def _peer(engine: str, keys: int, size: Size, work: Path) -> dict[str, Any]:
    from bench.peers.environments import asked

    share = SHARE.get(engine, 1)
    size = replace(size, rows=size.rows // share)
    rows = lanes(_data(keys, size, 1), work / "input")
    output = work / "output"
    request = {"input": str(work / "input"), "output": str(output), "threads": WORKERS}
    took = asked("python", f"{engine}_windows.py", request, work)["seconds"]
    found = READ[engine](output)
    if (found, rows) != (size.rows, size.rows):
        raise AssertionError(f"{engine} counts {found} rows in its windows; the input has {rows}")
    return {"batch": took * share}


def lanes(data: Dataset, folder: Path) -> int:
    """The rows as CSV, a file for each worker, each over the whole time; gives their number."""
    import pyarrow.parquet as pq

    table = pa.concat_tables(pq.read_table(file) for file in sorted(data.path.glob("*.parquet")))
    micros = table["ts"].cast(pa.int64()).to_numpy()
    plain = pa.table({"channel": table["user"], "amount": table["amount"], "at": micros // 1000})
    folder.mkdir()
    for lane in range(WORKERS):
        pyarrow.csv.write_csv(plain.take(np.arange(lane, len(plain), WORKERS)), folder / f"{lane}.csv")
    if int(micros.min()) != FIRST_TIME:
        raise AssertionError(f"the first row is of {micros.min()}, not of {FIRST_TIME}")
    return len(plain)


def _of_pathway(output: Path) -> int:
    return int(pyarrow.csv.read_csv(output)["n"].to_numpy().sum())


def _of_bytewax(output: Path) -> int:
    files = sorted(output.parent.glob(f"{output.name}-*"))
    return sum(int(line.split(",")[2]) for file in files for line in file.read_text().splitlines())


READ = {"pathway": _of_pathway, "bytewax": _of_bytewax}


def section(results: Results, size: Size) -> Section:
    rate = {side: size.rows / results.median(side, lambda trial: float(trial["batch"])) for side in SIDES}
    rows = [
        [NAMES[engine], f"{int(keys):,}", seconds(size.rows / rate[side]), f"{rate[side]:,.0f}",
         f"{rate[f'ours-{keys}'] / rate[side]:.1f}x"]
        for side in SIDES for engine, keys in [side.split("-")]
    ]  # fmt: skip
    targets = [
        at_least(
            f"{NAMES[engine]}, {keys:,} keys: {times:.0f} times as fast",
            rate[f"ours-{keys}"] / rate[f"{engine}-{keys}"],
            times,
        )
        for engine, times in TIMES.items()
        for keys in KEYS
    ]
    text = (
        f"Windows of ten seconds with a count and a sum, {size.rows:,} rows a millisecond apart, {WORKERS} workers each. Stateflow reads "
        "Delta and writes exactly once into Delta, in batches of so many rows, of which the median counts; the peers read one such batch "
        "(Bytewax a tenth of it) from two CSV files, write CSV, and promise nothing about failures. Their windows must count every row."
    )
    plot = Plot(
        "python-peers",
        "Windows beside Python engines: rows per second",
        "bars",
        [f"{keys:,} keys" for keys in KEYS],
        {NAMES[engine]: [rate[f"{engine}-{keys}"] for keys in KEYS] for engine in NAMES},
        "",
        "rows per second",
    )
    return Section(text, ("engine", "keys", "all rows", "rows/s", "we are"), rows, targets, [plot])


MEASUREMENT = Measurement(
    "python-peers",
    "Windows beside Python engines",
    SIDES,
    {"full": Size(2_000_000, 2, 3), "quick": Size(200_000, 1, 1)},
    run,
    section,
    repeats=1,
    minutes={"full": 3.0, "quick": 3.0},
    named_only=True,
)
