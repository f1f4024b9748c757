"""The checks that need a Spark session: does it start, and do its executors have what tasks need?"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from typing import Any

from stateflow.config.options import Options
from stateflow.errors import StateflowError
from stateflow.spark.internals.gateway import has_class
from stateflow.spark.session.build import build_session
from stateflow.spark.session.doctor import DoctorFinding
from stateflow.spark.task.failures import translated

MOST_SKEW = 1.0
"""Seconds. The protocol does not depend on clocks, but a wrong clock makes the times that people read misleading."""


def examine_spark(
    options: Options, *, master: str | None, conf: Mapping[str, str]
) -> Iterator[DoctorFinding]:
    """Starts a session, or takes the one that runs, and looks at every executor that answers."""
    began = time.perf_counter()
    try:
        spark = build_session("stateflow doctor", master=master, conf=conf)
    except StateflowError as error:
        yield DoctorFinding("spark session", "fail", str(error), "see the message")
        return
    except Exception as error:
        yield DoctorFinding(
            "spark session", "fail", str(translated(error)), "check --master and the log above"
        )
        return
    context = spark.sparkContext
    yield DoctorFinding(
        "spark session",
        "ok",
        f"{spark.version} on {context.master}, up in {time.perf_counter() - began:.1f} s",
    )
    if not has_class(spark, "org.apache.spark.sql.delta.DeltaLog"):
        yield DoctorFinding(
            "delta on the driver",
            "fail",
            "Delta's classes are not there",
            "add delta-spark's jar to spark.jars",
        )
    else:
        yield DoctorFinding("delta on the driver", "ok", "Delta's classes are there")
    try:
        answers = _answers(context, options.scratch_dir)
    except Exception as error:
        yield DoctorFinding(
            "executors", "fail", str(translated(error)), "check that Python and stateflow are on every host"
        )
        return
    yield from findings(answers)


def _answers(context: Any, scratch: str) -> list[dict[str, Any]]:
    # Nested, so that it travels by value: a worker without the library must be able to say so.
    def look(_: Any) -> Any:
        import importlib
        import os
        import platform
        import socket
        import tempfile
        import time

        def loads(module: str) -> str:
            try:
                return str(getattr(importlib.import_module(module), "__version__", "found"))
            except Exception as error:
                return f"missing: {error}"

        try:
            with tempfile.TemporaryFile(dir=scratch if scratch and os.path.isdir(scratch) else None):  # noqa: PTH112
                writable = ""
        except OSError as error:
            writable = str(error)
        yield {
            "host": socket.gethostname(),
            "executor": os.environ.get("SPARK_EXECUTOR_DIRS", ""),
            "python": platform.python_version(),
            "stateflow": loads("stateflow"),
            "rocksdict": loads("rocksdict"),
            "scratch": writable,
            "at": time.time(),
        }

    slots = max(2, 2 * context.defaultParallelism)
    before = time.time()
    answers: list[dict[str, Any]] = context.parallelize(range(slots), slots).mapPartitions(look).collect()
    after = time.time()
    for answer in answers:
        # A sound clock shows a time between the two. What lies beyond them is the clock's error.
        answer["skew"] = max(before - answer["at"], answer["at"] - after, 0.0)
    one_each: dict[tuple[str, str], dict[str, Any]] = {}
    for answer in answers:
        one_each.setdefault((answer["host"], answer["executor"]), answer)
    return list(one_each.values())


def findings(answers: list[dict[str, Any]]) -> Iterator[DoctorFinding]:
    """Findings from the executors' answers."""
    own = platform.python_version_tuple()[:2]
    for answer in answers:
        where = f"executor on {answer['host']}"
        problems = [
            f"{module} {answer[module]}"
            for module in ("stateflow", "rocksdict")
            if answer[module].startswith("missing")
        ]
        if tuple(answer["python"].split(".")[:2]) != own:
            problems.append(f"Python {answer['python']} while the driver has {platform.python_version()}")
        if answer["scratch"]:
            problems.append(f"scratch folder cannot be written to: {answer['scratch']}")
        summary = f"Python {answer['python']}, rocksdict {answer['rocksdict']}, scratch writable"
        if problems:
            yield DoctorFinding(
                where, "fail", "; ".join(problems), "install the same environment there: PYSPARK_PYTHON"
            )
        elif answer["skew"] > MOST_SKEW:
            yield DoctorFinding(
                where,
                "warn",
                f"its clock is off by {answer['skew']:.1f} s",
                "set the clock: run an NTP service",
            )
        else:
            yield DoctorFinding(where, "ok", summary)
