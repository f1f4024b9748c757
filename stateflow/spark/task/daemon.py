"""A process that Spark forks Python workers from, with everything imported that each of them needs.

Spark's own, `pyspark.daemon`, imports little. It serves drivers whose workers stay. A host's workers end with each task, and
would import pandas, pyarrow, numpy and this library for each: executors of a cluster start this module by Spark's setting
`spark.python.daemon.module`, and on one machine the host forks such processes itself.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from stateflow.spark.internals.workers import WORKER, fork_workers

# PyArrow imports pandas, where it is installed, with the first array that it makes of Python's values.
IMPORTED = (
    "pandas",
    "pyarrow",
    "stateflow.spark.task.row_work",
    "stateflow.spark.task.table_work",
    "stateflow.state.backends.rocksdb",
    WORKER,
)


def import_all() -> None:
    """A module that cannot be imported here fails in the worker that needs it, with an error that reaches the driver."""
    for name in IMPORTED:
        with suppress(Exception):
            import_module(name)


if __name__ == "__main__":
    import_all()
    fork_workers()
