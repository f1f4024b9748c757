"""The questions of Nexmark beside Spark's own streaming and Flink's SQL, as far as they can answer them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.generate import CACHE
from bench.measurement import (
    Measurement,
    Plot,
    Results,
    Section,
    Target,
    Workplace,
    at_least,
    seconds,
)
from bench.measurement import size as bytes_text
from bench.nexmark import flink, spark
from bench.nexmark.queries import QUERIES

PEERS = {"spark": spark.SQL, "flink": flink.SQL}
NAMES = {"ours": "Stateflow", "spark": "Spark", "flink": "Flink"}
SIDES = tuple(
    f"{engine}-{query}"
    for query in QUERIES
    for engine in ("ours", *(name for name, asked in PEERS.items() if query in asked))
)
AHEAD_OF_FLINK = 10
LIGHT = {"q3", "q5", "q8", "q11", "q12", "q15", "q17"}
"""A million events take less than half of the time between two checkpoints of Flink: with a batch of so many we would make far more
checkpoints than it does."""
FEW = 6000
"""Events over which the answers of the peers are compared with DuckDB's before the clock is read."""


@dataclass(frozen=True, slots=True)
class Size:
    """Many small batches first: it takes Java's compiler more turns of the driver's code than rows until a batch is as fast as
    it is for the rest of a run."""

    events: int
    """Of a measured batch."""
    light: int
    """Of a measured batch of a query that is among `LIGHT`."""
    measured: int
    few: int
    """Events of a batch before."""
    warm_up: int

    def of(self, query: str) -> int:
        return self.light if query in LIGHT else self.events

    def batches(self, query: str) -> list[int]:
        return [self.few] * self.warm_up + [self.of(query)] * self.measured


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench.witness import watched

    engine, query = side.split("-")
    events, work = made(size.batches(query)), workplace.folder
    with watched(work / "checkpoints") as seen:
        answer = ENGINES[engine](query, size, events, work)
    return {**answer, "events": size.of(query), "peak": seen.peak, "written": seen.written}


def made(sizes: Sequence[int]) -> Path:
    """The events, which stay for the other sides."""
    from bench.nexmark.events import write

    name = "-".join(f"{len(list(alike))}x{size}" for size, alike in groupby(sizes))
    return _kept(CACHE / "data" / f"nexmark-{name}", lambda part: write(part, sizes))


def _kept(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that is made once."""
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{time.time_ns()}")
        make(part)
        part.rename(folder)
    return folder


def _ours(query: str, size: Size, events: Path, work: Path) -> dict[str, Any]:
    from bench import sides

    session = sides.session()
    parameters = {"input": str(events), "output": str(work / "out")}
    options = {"checkpoint_dir": str(work / "checkpoints")}
    outcome = sides.stateflow_run(session, QUERIES[query], parameters, work, options=options)
    return _steady(outcome.timed.seconds, query, size)


def _spark(query: str, size: Size, events: Path, work: Path) -> dict[str, Any]:
    from bench import sides

    session = sides.session()
    keys = spark.UPSERTED.get(query)

    def write(frame: Any, batch_id: int) -> None:
        spark.merged(session, keys, work / "output", frame)  # type: ignore[arg-type]

    outcome = sides.peer(
        session,
        spark.asked(session, query, events),
        work,
        sides.appended(work) if keys is None else write,
        mode="append" if keys is None else "update",
        checkpoint=work / "checkpoints",
    )
    return _steady(outcome.timed.seconds, query, size)


def _steady(batches: list[float], query: str, size: Size) -> dict[str, Any]:
    """The mean, as of Flink: some batches tidy up behind others."""
    given = len(size.batches(query))
    measured = batches[size.warm_up : given]
    if not measured:
        sys.exit(
            f"Spark told how long {len(batches)} of {given} batches took, and none behind the warm-up: run again"
        )
    return {"batch": fmean(measured), "first": batches[0]}


def _flink(query: str, size: Size, events: Path, work: Path) -> dict[str, Any]:
    from bench.peers.environments import asked, flink_jars

    few, trial = made([FEW // 3] * 3), work / "trial"
    warm_up = lanes(events, size.warm_up)
    passes = [
        flink.one_pass(lanes(few, 3), trial / "rows", "rows"),
        # As many events as the others have seen before the clock is read; then again, for the clock.
        flink.one_pass(warm_up, trial / "first", "seconds"),
        flink.one_pass(warm_up, trial / "warm", "seconds"),
        flink.one_pass(lanes(events, len(size.batches(query))), work / "checkpoints", "seconds"),
    ]
    rows, _, before, took = asked("flink", "flink_query.py", flink.request(query, passes, flink_jars()), work)
    _compare(query, rows, few)
    # A pass begins without state, and its cluster with it: what comes behind the warm-up is the difference.
    if took <= before:
        sys.exit(
            f"{query}: Flink took {took:.2f} s for all events and {before:.2f} s for the first of them: run again"
        )
    return {"batch": (took - before) / size.measured}


def lanes(events: Path, files: int) -> Path:
    """The first files of events as Flink reads them, which stay for its other questions."""
    return _kept(
        events.with_name(f"{events.name}-lanes-{files}"), lambda part: flink.lanes(events, part, files)
    )


def _compare(query: str, answer: Any, events: Path) -> None:
    from bench.nexmark.expected import comparable, differences, expected

    if query in OPEN_AT_THE_END:
        return
    names, *rows = answer
    found = [dict(zip(names, map(_value, row), strict=True)) for row in rows]
    too_many, missing = differences(comparable(query, found), expected(query, events))
    if too_many or missing:
        sys.exit(
            f"{query}: Flink has {len(too_many)} rows too many, such as {too_many[:1]}, and lacks {len(missing)}, such as {missing[:1]}"
        )


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return datetime.fromtimestamp(value["at"], UTC) if "at" in value else date.fromisoformat(value["day"])
    return value


OPEN_AT_THE_END = {"q12"}
"""Whose windows are of the machine's clock, which Flink does not close when the input ends."""
ENGINES = {"ours": _ours, "spark": _spark, "flink": _flink}


def section(results: Results, size: Size) -> Section:
    def of(side: str, what: str) -> float:
        return results.median(side, lambda trial: float(trial[what]))

    def rate(side: str) -> float:
        return of(side, "events") / of(side, "batch")

    measured = [side for side in SIDES if side in results.by_side]

    def times(query: str, engine: str) -> float | None:
        """How many times as fast as that engine we are."""
        mine, theirs = f"ours-{query}", f"{engine}-{query}"
        return rate(mine) / rate(theirs) if mine in measured and theirs in measured else None

    rows = []
    for side in measured:
        engine, query = side.split("-")
        ratio = times(query, engine)
        rows.append(
            [query, NAMES[engine], seconds(of(side, "first")) if engine != "flink" else "-", seconds(of(side, "batch")), f"{rate(side):,.0f}",
             "-" if ratio is None else f"{1 / ratio:.2f}x", bytes_text(of(side, "peak")), bytes_text(of(side, "written"))]
        )  # fmt: skip
    ahead = {
        engine: [query for query in asked if (times(query, engine) or 0) > 1]
        for engine, asked in PEERS.items()
    }
    slower = [query for query in spark.SQL if query not in ahead["spark"]]
    targets = [
        Target("ahead of Spark wherever it can answer", f"{len(ahead['spark'])} of {len(spark.SQL)}; behind: {', '.join(slower) or 'none'}", not slower),
        at_least("queries ahead of Flink's SQL, of 15", float(len(ahead["flink"])), AHEAD_OF_FLINK, ""),
    ]  # fmt: skip
    missing = [side for side in SIDES if side not in measured]
    text = (
        f"Batches of {size.events:,} events of all kinds, and of {size.light:,} for {', '.join(query for query in QUERIES if query in LIGHT)}, "
        "of which a million would be done in less than half of the five seconds between two checkpoints of Flink: with smaller batches we "
        f"would make far more checkpoints than it does. They come behind {size.warm_up} smaller ones that warm "
        "every engine up; `a batch` is the mean. Stateflow and Spark write exactly once into Delta, and merge where rows change; what "
        "the `first` batch of all takes, of a Java that has compiled nothing yet, is for them alone. Flink's rows go nowhere; it makes a "
        "checkpoint every five seconds, reads the smaller batches once to be warm, then those again, then all: what counts is the "
        "difference, without the start of its cluster. Memory is the peak of all processes, and `written` is what came into the folder "
        "of checkpoints. Spark answers no query for which it would have to change rows behind a join or to number them; Flink has no q6."
        + (f" Not measured: {', '.join(missing)}." if missing else "")
    )
    plot = Plot(
        "nexmark",
        "Nexmark: events per second",
        "bars",
        list(QUERIES),
        {
            NAMES[engine]: [
                rate(side) if (side := f"{engine}-{query}") in measured else 0.0 for query in QUERIES
            ]
            for engine in NAMES
        },
        "",
        "events per second",
    )
    header = ("query", "engine", "first", "a batch", "events/s", "of ours", "memory", "written")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "nexmark",
    "Nexmark beside Spark and Flink",
    SIDES,
    {"full": Size(1_000_000, 4_000_000, 3, 200_000, 10), "quick": Size(200_000, 200_000, 1, 25_000, 2)},
    run,
    section,
    repeats=1,
    minutes={"full": 32.0, "quick": 18.0},
    named_only=True,
    whole=False,
)
