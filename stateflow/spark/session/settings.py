"""The settings of every Spark session of this library. It imports no Spark, because launchers read it, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.errors import UsageError
from stateflow.masking import SECRET_NAME, SECRET_URL
from stateflow.spark.session.jars import jars_with, recorded_bundles, spark_home, spark_jars

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# With it a cast fails for a value that the new type cannot hold. Without it the cast makes null or another number of it.
ANSI = "spark.sql.ansi.enabled"
# Settings that can change in a running session. So they also apply to a session that another program has built.
RUNTIME = {
    "spark.sql.session.timeZone": "UTC",
    ANSI: "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
    # If part of a `transform` gives other rows when Spark computes it again, the batch fails. Spark 4.1 has it turned off,
    # Spark 4.0 does not know it.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
    # Delta's default of 50 makes each commit to a small table take seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
    # An optimised write would put a shuffle between a keyed operator and its sink. But acks must come from the stage
    # that writes.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
DRIVER_JAVA, EXECUTOR_JAVA = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
# An ORC file has times without a zone, which its reader takes for those of Java's own zone. By default that is the machine's.
IN_UTC = "-Duser.timezone=UTC"
# Logs only errors, from the first line on. The session's own log level takes effect only once the session is up.
QUIET = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
# Spark's pages show settings and plans to whoever reaches them, and have links that kill. They are for who asks for them.
GUARDED = {
    "spark.ui.enabled": "false",
    "spark.ui.killEnabled": "false",
}
# Spark hides the value of a setting whose name, or whose value, it finds this in.
REDACTION = {"spark.redaction.regex": f"{SECRET_NAME}|{SECRET_URL}"}
STATIC = {
    **REDACTION,
    **GUARDED,
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "false",
}
# A machine's own name may resolve to an address that disappears with its network.
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Whoever may talk to the driver's ports may run code in it, and on loopback that is every user of the machine. Spark makes the
# secret up and keeps it in its memory.
ONE_PROCESS = {**LOOPBACK, "spark.authenticate": "true"}


# Of a pod's memory beside Java's. It is what Spark takes for Python itself, but only where spark-submit has started the program.
PODS = {"spark.kubernetes.memoryOverheadFactor": "0.4"}

TEMPORARY = "spark.local.dir"


def one_process(master: str | None) -> bool:
    """Whether driver and executor are one process of this machine."""
    return master is None or master == "local" or master.startswith("local[")


def executors_in_utc(conf: Mapping[str, str]) -> dict[str, str]:
    """The setting with which executors have UTC for their time zone. Options of the user's own are kept, and win."""
    own = conf.get(EXECUTOR_JAVA, "")
    if "user.timezone" in own or (EXECUTOR_JAVA not in conf and EXECUTOR_JAVA in _defaults()):
        return {}
    return {EXECUTOR_JAVA: f"{IN_UTC} {own}".strip()}


def says_where(conf: Mapping[str, str]) -> bool:
    """Whether the user has chosen a folder for Spark's temporary files."""
    if TEMPORARY in conf or os.environ.get("SPARK_LOCAL_DIRS"):
        return True
    return TEMPORARY in _defaults()


def brings_s3(conf: Mapping[str, str]) -> bool:
    """Whether the user has chosen a client of S3, or Spark has one among its own jars."""
    named = " ".join(conf.get(name, "") for name in ("spark.jars", "spark.jars.packages"))
    return "hadoop-aws" in f"{named} {_defaults()}" or any(
        jar.name.startswith("hadoop-aws-") for jar in spark_jars()
    )


def in_pods(master: str | None) -> bool:
    """Whether executors are pods of Kubernetes."""
    return master is not None and master.startswith("k8s://")


def require_image(master: str | None, conf: Mapping[str, str]) -> None:
    """UsageError where executors would be pods and nobody has said of which image: Spark waits for such pods for ever."""
    if not in_pods(master):
        return
    names = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
    if not any(conf.get(name) or name in _defaults() for name in names):
        raise UsageError(
            f"on {master} executors are containers, and no image is named: give "
            f"--conf {names[0]}=IMAGE, with Spark and the library in it (docs/deploying.md, Kubernetes)"
        )


def require_ansi(conf: Mapping[str, str]) -> None:
    """UsageError where the user has turned off what columns of other types are converted with."""
    if conf.get(ANSI, "true").strip().lower() != "true":
        raise UsageError(
            f"{ANSI}={conf[ANSI]} would make nulls and other numbers of values that do not fit their type: say --conf {ANSI}=true, and use "
            "try_cast or try_divide in a transform() where a null is what you want"
        )


def _defaults() -> str:
    """Spark's own file of settings; empty without one."""
    folder = os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf"
    with suppress(OSError):
        return (Path(folder) / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    return ""


def with_own(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The settings of a user over the library's own, which keep their extension of SQL."""
    extensions = "spark.sql.extensions"
    both = {extensions: f"{own[extensions]},{given[extensions]}"} if extensions in given else {}
    return {**own, **given, **both}


def submit_conf(cache: Path | None = None) -> dict[str, str]:
    """The settings that spark-submit needs on its command line for a Delta pipeline: later is too late for them. Jars of connectors are
    among them where they have been resolved."""
    cache = cache or cache_folder()
    return {**DELTA, "spark.jars": ",".join(map(str, jars_with(cache, recorded_bundles(cache))))}
