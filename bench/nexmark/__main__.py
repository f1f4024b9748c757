"""python -m bench.nexmark q5 --events 1000000: makes the events, runs the query to their end, compares with DuckDB."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from bench.nexmark.events import write
from bench.nexmark.expected import comparable, differences, expected
from bench.nexmark.queries import QUERIES


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.nexmark", description=__doc__)
    parser.add_argument("query", choices=sorted(QUERIES))
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--per-second", type=int, default=1000, help="events of one second of event time")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="nexmark-") as folder:
        return measured(given.query, Path(folder), given.events, given.batches, given.per_second)


def measured(query: str, folder: Path, events: int, batches: int, per_second: int) -> int:
    """Runs one query and says how fast it was, and whether its table is right; gives the exit code."""
    import pyarrow.parquet as pq

    ends = [events * number // batches for number in range(batches + 1)]
    write(folder / "in", [end - begin for begin, end in pairwise(ends)], per_second=per_second)
    began = time.perf_counter()
    rows = ran(query, folder)
    took = time.perf_counter() - began
    too_many, missing = differences(comparable(query, rows), expected(query, folder / "in"))
    read = sum(pq.read_metadata(file).num_rows for file in (folder / "in").rglob("*.parquet"))
    verdict = "as DuckDB has it" if not too_many and not missing else "WRONG"
    print(f"{query}: {read:,} events, {len(rows):,} rows, {verdict}; {took:.1f} s with the start of Spark")
    for what, texts in (("too many", too_many), ("missing", missing)):
        if texts:
            print(f"  {len(texts)} {what}, such as {texts[0]}")
    return 1 if too_many or missing else 0


def ran(query: str, folder: Path) -> list[dict[str, object]]:
    """The rows of the query's table after a run over all events, which closes all windows."""
    from pyspark.sql import SparkSession

    from stateflow.config.options import load
    from stateflow.spark.runner import RunRequest, run

    options = {
        "checkpoint_dir": str(folder / "root"),
        "cache_dir": str(folder / "cache"),
        "local_fsync": False,
    }
    parameters = {"input": str(folder / "in"), "output": str(folder / "out")}
    run(RunRequest(QUERIES[query], load(code=options, env={}, folder=folder), parameters, drain=True))
    spark = SparkSession.getActiveSession()
    assert spark is not None, "the run has one"
    return list(spark.read.format("delta").load(str(folder / "out")).toArrow().to_pylist())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
