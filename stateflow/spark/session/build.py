"""Builds the Spark session of a run: with Delta, Arrow, UTC, the running interpreter, and jars from this machine."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyspark import SparkConf
from pyspark.sql import SparkSession

from stateflow.config.options import cache_folder
from stateflow.errors import UsageError
from stateflow.logs import waiting
from stateflow.masking import is_secret
from stateflow.spark.internals.gateway import connect, context_runs, ignore_sigterm, started_by_spark_submit
from stateflow.spark.internals.local_files import without_processes
from stateflow.spark.session import class_data, compiling, lent, workers
from stateflow.spark.session.bundles import lacking_bundles
from stateflow.spark.session.jars import bundle_of, jars_with, packages, recorded_bundles
from stateflow.spark.session.java import require_java
from stateflow.spark.session.settings import (
    DELTA,
    DRIVER_JAVA,
    IN_UTC,
    ONE_PROCESS,
    PODS,
    QUIET,
    REDACTION,
    RUNTIME,
    STATIC,
    TEMPORARY,
    brings_s3,
    executors_in_utc,
    in_pods,
    one_process,
    require_ansi,
    require_image,
    says_where,
)
from stateflow.spark.session.versions import refuse_mixed_spark
from stateflow.storage.scratch import new_scratch

_log = logging.getLogger(__name__)


def build_session(
    app: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] = {},
    scratch: Path | None = None,
    bundles: Sequence[str] = (),
) -> SparkSession:
    """A session for `app`; if one is running already, that one with the runtime settings.

    `bundles` names the jars that the flow needs beside Delta's (`Graph.jars`).

    `master` defaults to that of the Spark installation, else to all cores of this machine. Files that Spark leaves
    behind when it is killed go to a new folder in `scratch`, unless the user has chosen a folder for them.
    """
    _refuse_connect(conf)
    require_ansi(conf)
    if lent.on_host():
        return lent.build(conf, bundles)
    if context_runs():
        return _with_bundles(_adapted(SparkSession.builder.getOrCreate(), conf), bundles)
    if started_by_spark_submit():
        return _with_bundles(_submitted(app, conf), bundles)
    return _started(app, master, conf, cache_folder(), scratch, bundles)


def starts_anew() -> bool:
    """Whether a session would be of a Spark that starts for it, with the jars that it is to have."""
    return not (lent.on_host() or context_runs() or started_by_spark_submit())


def _refuse_connect(conf: Mapping[str, str]) -> None:
    """UsageError where Spark would give a session of Spark Connect, which has no JVM to commit through."""
    remote = os.environ.get("SPARK_REMOTE") or conf.get("spark.remote")
    if (
        remote
        or conf.get("spark.api.mode") == "connect"
        or os.environ.get("SPARK_CONNECT_MODE_ENABLED") == "1"
    ):
        raise UsageError(
            "a pipeline needs the driver's JVM, which Spark Connect does not have: leave out SPARK_REMOTE, "
            "SPARK_CONNECT_MODE_ENABLED, spark.remote and spark.api.mode, and name a master (docs/sparks.md)"
        )


def _with_bundles(session: SparkSession, bundles: Sequence[str]) -> SparkSession:
    """The session, which somebody else has started. UsageError if its jars are not all that the flow needs."""
    if lacking := lacking_bundles(session, bundles):
        package = bundle_of(lacking[0]).packages[0]
        raise UsageError(
            f"the pipeline needs {package}, and this Spark has started without it: resolve it where spark-submit starts, `python -m "
            f"stateflow.spark.session.jars {lacking[0]}`, after which Airflow's SparkSubmit takes it along, or say --packages {package} beside "
            f"{', '.join(packages())}"
        )
    return session


def running_session() -> SparkSession | None:
    """The session of this process, if it has one."""
    return SparkSession.builder.getOrCreate() if context_runs() else None


def _started(
    app: str,
    master: str | None,
    conf: Mapping[str, str],
    cache: Path,
    scratch: Path | None,
    bundles: Sequence[str],
) -> SparkSession:
    refuse_mixed_spark()
    master_url = master or conf.get("spark.master") or os.environ.get("MASTER")
    require_image(master_url, conf)
    java = require_java(cache)
    os.environ["JAVA_HOME"] = str(java)
    if master_url is None or master_url.startswith("local"):
        # Spark would take the first python3 on the PATH, which may lack this library.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    elif python := conf.get("spark.pyspark.python"):
        # As in spark-submit, the setting wins over the variable.
        os.environ["PYSPARK_PYTHON"] = python
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    of_master = ONE_PROCESS if one_process(master_url) else PODS if in_pods(master_url) else {}
    settings = {**DELTA, **RUNTIME, **STATIC, **of_master, **conf}
    if one_process(master_url):
        settings |= workers.search_path(conf) | workers.safe_path(conf)
    else:
        settings |= executors_in_utc(conf)
    user_options = conf.get(DRIVER_JAVA, "")
    ours = [] if "spark.log.level" in conf else [QUIET]
    ours += [] if "user.timezone" in user_options else [IN_UTC]
    ours += [class_data.options(cache, java, user_options), compiling.options(user_options)]
    if scratch is not None and one_process(master_url) and not says_where(conf):
        # It stays as long as this process, which ends before Spark does. The next one removes it.
        temporary = new_scratch(scratch)
        settings[TEMPORARY] = str(temporary)
        ours.append(f'"-Djava.io.tmpdir={temporary}"')
    if java_options := " ".join(filter(None, (*ours, user_options))):
        settings[DRIVER_JAVA] = java_options
    # A command that opens the tables of a job, such as a restore, knows no pipeline that says what they need.
    wanted = {*bundles, *({"s3"} & set(recorded_bundles(cache)))} - ({"s3"} if brings_s3(conf) else set())
    jars = [*filter(None, [conf.get("spark.jars")]), *map(str, jars_with(cache, sorted(wanted)))]
    settings["spark.jars"] = ",".join(jars)
    extensions = [DELTA["spark.sql.extensions"], *conf.get("spark.sql.extensions", "").split(",")]
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys(filter(None, extensions)))
    builder = SparkSession.builder.appName(app).master(master_url or "local[*]").config(map={**settings})
    _leave_no_empty_warehouse()
    waiting("starting Spark")
    if any(map(is_secret, settings)):
        # PySpark puts every setting on the command line of a JVM that it starts. What is set later goes through a socket.
        shown = {name: value for name, value in settings.items() if not is_secret(name)}
        shown |= {"spark.app.name": app, "spark.master": master_url or "local[*]"}
        connect(shown)
    session = builder.getOrCreate()
    ignore_sigterm(session)
    if one_process(master_url):
        without_processes(session)
    return session


def _leave_no_empty_warehouse() -> None:
    """Spark makes this folder where the process stands, for tables without a path, whether there is one or not."""
    folder = Path("spark-warehouse").absolute()
    if not folder.exists():
        atexit.register(_remove_if_empty, folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _submitted(app: str, conf: Mapping[str, str]) -> SparkSession:
    """The session when spark-submit has started the JVM: it chose master, jars and memory; the rest can still be set."""
    connect()
    submitted = dict(SparkConf().getAll())
    require_image(submitted.get("spark.master"), {**submitted, **conf})
    require_ansi({**submitted, **conf})
    ours = {**RUNTIME, **REDACTION}
    settings = {**ours, **{name: submitted[name] for name in ours if name in submitted}, **conf}
    if path := submitted.get(workers.SEARCH_PATH):
        # Executors find a package's modules by spark-submit's path. Only the driver's host has the pipeline's folder.
        settings[workers.SEARCH_PATH] = ":".join(
            dict.fromkeys(filter(None, (path, conf.get(workers.SEARCH_PATH))))
        )
    if one_process(submitted.get("spark.master")):
        settings |= workers.safe_path({**submitted, **conf})
    else:
        settings |= executors_in_utc({**submitted, **conf})
    session = SparkSession.builder.appName(app).config(map={**settings}).getOrCreate()
    if one_process(session.sparkContext.master):
        without_processes(session)
    session.sparkContext.setLogLevel(conf.get("spark.log.level", "ERROR"))
    return session


SPARKS_OWN = {"spark.locality.wait": "3000ms"}
"""What holds in a session where nobody has set it, of the settings that every run asks for."""


def _adapted(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    for name, value in {**RUNTIME, **conf}.items():
        if session.conf.isModifiable(name) or name.startswith("spark.databricks."):
            session.conf.set(name, value)
        elif session.conf.get(name, SPARKS_OWN.get(name)) != value:
            _log.warning("%s=%s was not applied: the Spark session already runs", name, value)
    return session
