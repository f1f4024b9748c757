"""Runs in the Python peers' environment: windows of ten seconds with Pathway, a count and a sum for each channel.

The argument is JSON: `input` (a folder of CSV files: channel, amount, at in milliseconds), `output` (a CSV file), `threads`.
"""

from __future__ import annotations

import json
import os
import sys
import time

REQUEST = json.loads(sys.argv[1])
os.environ["PATHWAY_THREADS"] = str(REQUEST["threads"])  # It is read when Pathway is imported.

import pathway as pw  # noqa: E402


class Event(pw.Schema):
    channel: int
    amount: float
    at: int


def main(request: dict[str, object]) -> None:
    events = pw.io.csv.read(request["input"], schema=Event, mode="static")
    windows = events.windowby(
        events.at, window=pw.temporal.tumbling(duration=10_000), instance=events.channel
    )
    sums = windows.reduce(
        channel=pw.this._pw_instance,
        start=pw.this._pw_window_start,
        n=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.amount),
    )
    pw.io.csv.write(sums, request["output"])
    began = time.perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    print(json.dumps({"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main(REQUEST)
