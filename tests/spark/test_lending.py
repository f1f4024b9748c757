"""A JVM that is lent: what a borrower that dies has left in it is taken back, and what is everybody's stays."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from stateflow.spark.internals.lending import Lent, stop_workers

BORROWER = """
import json, os, sys, time
from stateflow.spark.internals.lending import Loan, borrow

spark = borrow(Loan(**json.loads(sys.argv[1])))
context = spark.sparkContext
frame = spark.range(1000).cache()
frame.count()
frame.createOrReplaceTempView("known")
spark.conf.set("spark.sql.shuffle.partitions", "77")
shared = context.broadcast(list(range(100_000)))
total = context.accumulator(0)
context.parallelize(range(10), 2).foreach(lambda n: total.add(shared.value[n]))
query = spark.readStream.format("rate").load().writeStream.format("noop").start()
while not query.recentProgress:
    time.sleep(0.05)
print(json.dumps({"total": total.value, "query": str(query.id)}), flush=True)
context.parallelize(range(2), 2).foreach(lambda n: time.sleep(600))
"""


def java(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # type: ignore[attr-defined]


def cached(spark: SparkSession) -> set[int]:
    """Which frames it keeps. How many there are says nothing: Spark lets go of those of earlier tests when Java collects them."""
    base: Any = spark
    return {int(number) for number in base.sparkContext._jsc.getPersistentRDDs()}


def busy(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def until(happened: Any, what: str) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def sockets(spark: SparkSession) -> set[str]:
    """Those that the JVM has open, but for its connections with this process: a thread of this one opens its own."""
    jvm = int(java(spark).java.lang.ProcessHandle.current().pid())
    with_us = {(each.raddr[-1], each.laddr[-1]) for each in connections(os.getpid())}
    found = set()
    for descriptor in Path(f"/proc/{jvm}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if (name := str(descriptor.readlink())).startswith("socket:"):
                found.add((int(descriptor.name), name))
    ours = {each.fd for each in connections(jvm) if (each.laddr[-1], each.raddr[-1]) in with_us}
    return {name for number, name in found if number not in ours}


def connections(pid: int) -> list[Any]:
    return [each for each in psutil.Process(pid).net_connections("tcp") if each.raddr]


def listeners(spark: SparkSession) -> int:
    """How many hear of each event of Spark."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().listenerBus().listeners().size())


def test_what_a_killed_borrower_has_left_is_taken_back(spark: SparkSession, tmp_path: Path) -> None:
    earlier = cached(spark)
    mine = spark.range(7).cache()
    mine.count()
    mine.createOrReplaceTempView("of_the_host")
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    before, open_before, heard_by = cached(spark), sockets(spark), listeners(spark)
    lent = Lent(spark, "killed", "default", str(tmp_path))
    session = lent._session
    child = subprocess.Popen(
        [sys.executable, "-c", BORROWER, json.dumps(asdict(lent.loan))],
        stdout=subprocess.PIPE, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        said = json.loads(child.stdout.readline())
        assert said["total"] == sum(range(10))
        assert len(cached(spark) - before) == 1
        until(lambda: busy(spark), "its last job runs")
        assert not spark.catalog.tableExists("known"), "its views are its own"
        assert spark.conf.get("spark.sql.shuffle.partitions") == partitions
    finally:
        child.kill()
        child.communicate()
    port = lent.loan.port
    lent.take_back()
    assert not cached(spark) - before, "what it has cached is gone"
    assert before - earlier <= cached(spark), "what others have cached stays"
    assert listeners(spark) == heard_by, "nobody hears of events for it any more"
    assert not list(session.streams().active()), "its queries have ended"
    until(lambda: not busy(spark), "its jobs are cancelled")
    stop_workers(spark, Path(str(spark.sparkContext.pythonExec)))
    until(lambda: not sockets(spark) - open_before, "its connections are closed")
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), 10)
    assert spark.catalog.tableExists("of_the_host")
    mine.unpersist()
    spark.catalog.dropTempView("of_the_host")
