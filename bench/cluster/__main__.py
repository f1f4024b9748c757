"""A cluster for a long while: `python -m bench.cluster --minutes 90`. A second time it goes on where it was.

Spark's own cluster with four executors, Kafka in, four sinks out, the root in an object store. An executor, a Python worker,
the driver, the broker or the store's server is killed every few minutes.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys

from bench.cluster.journal import Journal
from bench.cluster.page import GOAL, PAGE, write
from bench.cluster.servers import servers
from bench.cluster.sitting import sit
from bench.kill.journal import ROOT, commit


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=GOAL)
    parser.add_argument("--between", type=float, default=2.5, help="minutes from kill to kill, on average")
    parser.add_argument("--rate", type=int, default=40, help="rows a second")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier sittings have left")
    options = parser.parse_args()
    folder = ROOT / ".cache" / "bench" / "cluster"
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder)
    # Whoever ends it wants its servers ended, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with servers(folder) as around:
        done = sit(around, journal, options.minutes, options.between, options.rate, commit())
    for each in done.wrong:
        print(f"WRONG: {each}", file=sys.stderr)
    write(journal)
    print(
        f"{PAGE} written: {journal.minutes:.0f} minutes, {journal.kills().total()} kills, {done.rows:,} rows"
    )
    return 1 if done.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
