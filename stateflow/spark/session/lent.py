"""The Spark session of a run on a warm host: the JVM is the host's, the session is the run's own.

A module-level loan, because a process carries out one run, and the zygote hands it over before the command line begins.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stateflow.errors import StateflowError
from stateflow.spark.session.bundles import lacking_bundles
from stateflow.spark.session.settings import RUNTIME, one_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.internals.lending import Loan

ENVIRONMENT = "environment.json"
"""The file in a place's folder with the variables of the run's Python workers."""
PLACE = "STATEFLOW_HOST_PLACE"
"""The variable that tells a worker's process the folder of its place."""
WORKING_FOLDER = "STATEFLOW_HOST_WORKING_FOLDER"
PYTHON = "python"
"""The program in a place's folder that Spark starts for its Python workers."""
_EXECUTOR = "spark.executorEnv."
_OURS = frozenset({"spark.master", "spark.app.name"})


NOTE, UNSERVED, ENDLESS, ENDED = "temporary", "unserved", "endless", "ended"
"""Files in a place's folder: PySpark's folder for temporary files of the run, why the host cannot serve it, its job if it is continuous, and that it has ended
for a reason of its own."""
UNSERVED_CODE = 120
"""The exit code of a run that has done nothing, because the host cannot serve it. A driver of its own can."""


@dataclass
class _Borrowed:
    loan: Loan
    host: str
    master: str
    place: Path
    session: SparkSession | None = None


_borrowed: _Borrowed | None = None


def accept(loan: Loan, *, host: str, master: str, place: str) -> None:
    """From here on this process is a run on a host."""
    global _borrowed
    _borrowed = _Borrowed(loan, host, master, Path(place))


def on_host() -> bool:
    """Whether this process is a run on a host."""
    return _borrowed is not None


def name_of_host() -> str:
    """The host that this process is a run on; empty outside of one."""
    return _borrowed.host if _borrowed is not None else ""


def master_of_host() -> str | None:
    """The master of the Spark application that this process runs in; None outside of a host."""
    return _borrowed.master if _borrowed is not None else None


def has_lost_spark(wait: float) -> bool:
    """Whether nobody listens any more where the host's JVM did, or will within so many seconds: one that was killed takes a moment."""
    until = time.monotonic() + wait
    while _borrowed is not None:
        try:
            socket.create_connection(("127.0.0.1", _borrowed.loan.port), timeout=wait).close()
        except OSError:
            return True
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return False


def require_fit(master: str | None, conf: Mapping[str, str]) -> None:
    """Ends this process if the run wants what only the start of an application can set, and the host has it otherwise."""
    if _borrowed is not None and (why := _unfit(_borrowed, master, conf)):
        _leave(_borrowed, why)


def _leave(borrowed: _Borrowed, why: str) -> NoReturn:
    (borrowed.place / UNSERVED).write_text(why, encoding="utf-8")
    raise SystemExit(UNSERVED_CODE)


def _unfit(borrowed: _Borrowed, master: str | None, conf: Mapping[str, str]) -> str:
    if master is not None and master != borrowed.master:
        return f"the run asks for the master {master}, and the host has {borrowed.master}: leave --master out, or name another host"
    session = _session(borrowed)
    for name, value in conf.items():
        if not _of_this_run(session, name) and session.conf.get(name, None) != value:
            memory = name == "spark.driver.memory"
            option = f"--memory {value}" if memory else f"--conf {name}=..."
            return (
                f"{name} can be set only when Spark starts, and the host has another value: give it to the host when it is started, "
                f"`stateflow host start {borrowed.host} {option}`"
            )
    return ""


def _of_this_run(session: SparkSession, name: str) -> bool:
    return (
        name in _OURS or name.startswith((_EXECUTOR, "spark.databricks.")) or session.conf.isModifiable(name)
    )


def note_endless(job: str) -> None:
    """Tells the host that the run does not end by itself, and the job that `stateflow stop` takes."""
    if _borrowed is not None:
        (_borrowed.place / ENDLESS).write_text(job, encoding="utf-8")


def note_ended() -> None:
    """Tells the host that the run has ended for a reason of its own, such as `stateflow stop`, and does not begin again where the host moves it."""
    if _borrowed is not None:
        (_borrowed.place / ENDED).touch()


def build(conf: Mapping[str, str], bundles: Sequence[str] = ()) -> SparkSession:
    """The session of the run, with its settings, and the environment of its workers. It ends this process, which has done nothing yet,
    if the host has started without jars that the run needs."""
    assert _borrowed is not None
    session = _session(_borrowed)
    if lacking := lacking_bundles(session, bundles):
        _leave(
            _borrowed,
            f"the host has started without the jars for {lacking[0]}: start it again once they are resolved",
        )
    context: Any = session.sparkContext
    for name, value in {**RUNTIME, **conf}.items():
        if name.startswith(_EXECUTOR):
            context.environment[name.removeprefix(_EXECUTOR)] = value
        elif name not in _OURS and (session.conf.isModifiable(name) or name.startswith("spark.databricks.")):
            session.conf.set(name, value)
    if one_process(_borrowed.master):
        _place_workers(_borrowed, context)
    else:
        # What executors start, as for a driver of its own.
        python = session.conf.get("spark.pyspark.python", None) or os.environ.get("PYSPARK_PYTHON")
        context.pythonExec = python or sys.executable
    return session


def _session(borrowed: _Borrowed) -> SparkSession:
    if borrowed.session is None:
        from stateflow.spark.internals.lending import borrow, end_instead_of_spark, temporary_folder

        with _own_sigint():
            borrowed.session = borrow(borrowed.loan)
        folder = temporary_folder(borrowed.session)
        (borrowed.place / NOTE).write_text(str(folder), encoding="utf-8")
        end_instead_of_spark(borrowed.loan.run, _end)
    return borrowed.session


@contextmanager
def _own_sigint() -> Iterator[None]:
    """Keeps the handler of SIGINT. PySpark's cancels the jobs of everybody on the JVM."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _place_workers(borrowed: _Borrowed, context: Any) -> None:
    """Gives Spark the same program and environment for all runs of this place: it keeps a factory for each pair for ever.

    The run's own environment lies in a file, where the process finds it that the workers are forked from.
    """
    path = filter(None, (context.environment.get("PYTHONPATH"), os.environ.get("PYTHONPATH")))
    environment = {
        **os.environ,
        **context.environment,
        "PYTHONPATH": os.pathsep.join(path),
        WORKING_FOLDER: str(Path.cwd()),
    }
    part = (borrowed.place / ENVIRONMENT).with_suffix(".part")
    with open(part, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        json.dump(environment, file)
    part.rename(borrowed.place / ENVIRONMENT)
    context.environment.clear()
    context.environment[PLACE] = str(borrowed.place)
    context.pythonExec = str(borrowed.place / PYTHON)


def worker_environment(spark: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """The environment of a place's workers: that of its run, with what Spark adds to the host's own."""
    found: dict[str, str] = json.loads((Path(spark[PLACE]) / ENVIRONMENT).read_text(encoding="utf-8"))
    added = {name: value for name, value in spark.items() if host.get(name) != value and name != "PYTHONPATH"}
    return {**found, **added}


def _end() -> None:
    """What a pipeline gets that stops Spark: its run ends, and the host goes on."""
    raise StateflowError(
        "the pipeline has stopped its Spark session, which ends the run: leave out spark.stop() and SparkContext.stop()"
    )
