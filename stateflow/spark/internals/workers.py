"""The process that Spark forks its Python workers from."""

from __future__ import annotations

from pyspark import daemon

from stateflow.internals import internal

WORKER = "pyspark.worker"
"""The module that a worker runs."""


@internal("pyspark.daemon.manager()", "pyspark.worker.main(infile, outfile)")
def fork_workers() -> None:
    """Does what Spark's own module for `spark.python.daemon.module` does."""
    daemon.manager()
