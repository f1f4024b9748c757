"""How much state tasks fetch when executors have caches of their own, the root is on S3, and one executor is killed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import (
    Measurement,
    Plot,
    Results,
    Section,
    Target,
    Workplace,
    at_most,
    median,
    seconds,
)
from bench.measurement import (
    size as bytes_,
)

SIDES = ("separate", "shared")
NAMES = {"separate": "a cache per executor", "shared": "one shared cache"}
EXECUTORS = 4
SETTLED = 0.01
"""The share of the state that a batch may fetch."""


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    rows: int
    warm_up: int
    measured: int
    after: int
    """Batches after an executor was killed."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides
    from bench.object_server import object_server

    own = side == "separate"
    count = size.warm_up + size.measured + (size.after if own else 0)
    data = dataset([BatchSpec(size.keys, size.keys, "distinct"), *[BatchSpec(size.rows, size.keys)] * count])
    # Executors take a relative folder as their own: each works in a folder of its own.
    os.chdir(workplace.folder)
    cache = "cache" if own else str(workplace.folder / "cache")
    master = f"local-cluster[{EXECUTORS},1,1200]"
    conf = {"spark.default.parallelism": str(EXECUTORS), "spark.sql.shuffle.partitions": str(EXECUTORS)}
    spark = sides.session(master, **conf)
    application = spark.sparkContext.applicationId
    victims = _executors(spark, application)
    quiet = 1 + size.warm_up + size.measured
    killed: list[int] = []

    def kill() -> None:
        os.kill(victims[0], signal.SIGKILL)
        killed.append(victims[0])

    durations: list[float] = []

    def each(report: Any) -> None:
        durations.append(report.duration)
        workplace.say(
            f"{report.duration:.2f} s, fetched {report.statistics['metrics']['fetched_bytes']:,.0f} bytes"
        )
        if own and len(durations) == quiet:
            # In the middle of the next batch.
            threading.Timer(median(durations[1 + size.warm_up :]) / 2, kill).start()

    try:
        with object_server() as (root, options):
            scratch = str(workplace.folder / "scratch")
            run_options = {
                "checkpoint_dir": root,
                "storage_options": options,
                "cache_dir": cache,
                "scratch_dir": scratch,
            }
            outcome = sides.process(spark, data, workplace.folder, each=each, options=run_options)
        sides.check_totals(workplace.folder / "output", data)
    finally:
        spark.stop()
        _remove_work(application)
    if own and not killed:
        raise AssertionError("the run ended before an executor was killed: give it more batches")
    out = []
    for report, spent in zip(outcome.reports[1:], outcome.timed.seconds[1:], strict=True):
        shards = [s for subtask in report.record.operators["totals"].shards for s in subtask]
        metrics = report.statistics["metrics"]
        out.append(
            {
                "seconds": spent,
                "fetched": metrics["fetched_bytes"],
                "misses": metrics["cache_misses"],
                "state": sum(shard.bytes for shard in shards),
                "executors": len(set(report.record.operators["totals"].hosts)),
            }
        )
    return {"batches": out}


def _executors(spark: Any, application: str) -> list[int]:
    """The executors' processes: each is the parent of the daemon that its Python workers come from."""

    def parents(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        status = Path(f"/proc/{os.getppid()}/status").read_text()
        parent = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        yield pa.record_batch([pa.array([parent], pa.int64())], names=["pid"])

    frame = spark.range(0, 400, 1, 10 * EXECUTORS).mapInArrow(parents, "pid long")
    pids = sorted({row.pid for row in frame.collect()})
    ours = [pid for pid in pids if application in Path(f"/proc/{pid}/cmdline").read_text()]
    if not ours:
        raise RuntimeError("the executors' processes were not found")
    return ours


def _remove_work(application: str) -> None:
    """Spark's own cluster leaves the executors' folders in its installation."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
    shutil.rmtree(home / "work" / application, ignore_errors=True)


def section(results: Results, size: Size) -> Section:
    def steady(trial: Any) -> list[dict[str, float]]:
        return list(trial["batches"][size.warm_up : size.warm_up + size.measured])

    def after(trial: Any) -> list[dict[str, float]]:
        return list(trial["batches"][size.warm_up + size.measured :])

    def share(batches: list[dict[str, float]]) -> list[float]:
        return [b["fetched"] / b["state"] for b in batches]

    middle = {
        side: results.median(side, lambda trial: median([b["seconds"] for b in steady(trial)]))
        for side in SIDES
    }
    fetched = max(s for trial in results.of("separate") for s in share(steady(trial)))
    rows = [
        [
            NAMES[side],
            seconds(middle[side]),
            f"{max(s for trial in results.of(side) for s in share(steady(trial))):.2%}",
        ]
        for side in SIDES
    ]
    until = max(_settled(share(after(trial))) for trial in results.of("separate"))
    settled = until < size.after
    longest = max(b["seconds"] for trial in results.of("separate") for b in after(trial))
    last = results.median(
        "separate", lambda trial: median([b["seconds"] for b in after(trial)[until:]] or [longest])
    )
    rows.append(["after a kill: the longest batch", seconds(longest), ""])
    rows.append([f"after a kill: once settled, from batch {until + 1} on", seconds(last), ""])
    targets = [
        at_most(
            "after warm-up a batch downloads at most 1 % of its state", fetched, SETTLED, lambda v: f"{v:.2%}"
        ),
        at_most(
            "and lasts at most 1.3 times as long as with one shared cache",
            middle["separate"] / middle["shared"],
            1.3,
        ),
        Target(
            "with an executor killed it recovers and settles again",
            f"settled after {until} batches; totals are right" if settled else "it did not settle",
            settled,
        ),
    ]
    trial = results.first("separate")
    state = trial["batches"][0]["state"]
    text = (
        f"{EXECUTORS} executors with one core each on this machine, the checkpoint root on an S3 server, {size.keys:,} keys "
        f"({bytes_(state)} of state), batches of {size.rows:,} rows. An executor is killed in the middle of a batch."
    )
    plot = Plot(
        "locality",
        "Share of the state that a batch downloads",
        "lines",
        list(range(1, len(trial["batches"]) + 1)),
        {"a cache per executor": [100 * s for s in share(trial["batches"])]},
        f"batch (an executor is killed in batch {1 + size.warm_up + size.measured})",
        "% of the state",
        marks={"1 %": 1.0},
    )
    return Section(text, ("side", "median batch", "largest download, of the state"), rows, targets, [plot])


def _settled(shares: list[float]) -> int:
    """The first batch from which on no batch fetches more than the bound."""
    return next((n for n in range(len(shares) + 1) if all(s <= SETTLED for s in shares[n:])), len(shares))


MEASUREMENT = Measurement(
    "locality",
    "Locality",
    SIDES,
    {"full": Size(1_000_000, 200_000, 5, 12, 12), "quick": Size(100_000, 20_000, 3, 5, 6)},
    run,
    section,
    repeats=2,
    minutes={"full": 3.5, "quick": 2.0},
)
