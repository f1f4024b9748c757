"""What every Spark session of ours is set to. Imports no Spark: whoever submits to a cluster reads it, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import local_jars, spark_home

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# What may be changed while a session lives, and so applies to one that somebody else has built, too.
RUNTIME = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "false",
    # Delta's default of 50 makes each commit to a small table take seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
    # It would put a shuffle between a keyed operator and its sink: acks must come from the stage that writes.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
# Only errors, from the first line on: the log level can be set no earlier than when the session is up.
QUIET = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}"
STATIC = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "4g",
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "false",
}
# A machine's own name may resolve to an address that goes away with its network.
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


TEMPORARY = "spark.local.dir"


def says_where(conf: Mapping[str, str]) -> bool:
    """Whether somebody has chosen a place for Spark's temporary files."""
    if TEMPORARY in conf or os.environ.get("SPARK_LOCAL_DIRS"):
        return True
    folder = os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf"
    with suppress(OSError):
        return TEMPORARY in (Path(folder) / "spark-defaults.conf").read_text(
            encoding="utf-8", errors="replace"
        )
    return False


def submit_conf(cache: Path | None = None) -> dict[str, str]:
    """What a Delta pipeline under spark-submit needs on the command line: set later, it comes too late."""
    return {**DELTA, "spark.jars": ",".join(map(str, local_jars(cache or cache_folder())))}
