"""The process that Spark forks its Python workers from."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark import daemon

from stateflow.internals import internal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER = "pyspark.worker"
"""The module that a worker runs."""


class _Answering(io.TextIOWrapper):
    """Standard output whose first asker, who answers Spark, gets another file."""

    def __init__(self, answer: int) -> None:
        super().__init__(open(1, "wb", closefd=False), encoding="utf-8", line_buffering=True)  # noqa: SIM115
        self._answers = [answer]

    def fileno(self) -> int:
        return self._answers.pop() if self._answers else 1


@internal("pyspark.daemon.manager()", "pyspark.worker.main(infile, outfile)")
def fork_workers(answer: int | None = None, module: str = "") -> None:
    """Does what Spark's own module for `spark.python.daemon.module` does.

    `answer`: the file through which Spark hears where to ask for workers; standard output, if None. Workers print elsewhere then.
    `module`: what the workers run; if empty, what the command line of this process says, as Spark has given it.
    """
    if answer is not None:
        sys.stdout = _Answering(answer)
    if module:
        sys.argv[1:] = [module]
        if hasattr(daemon, "worker_main"):  # Spark 4.0 looks when it is imported
            daemon.worker_main = import_module(module).main
    daemon.manager()


_SEED = "PYTHONHASHSEED"


@internal("pyspark.SparkContext.environment")
@contextmanager
def other_hash_seed(spark: SparkSession) -> Iterator[None]:
    """Inside the block Python workers are others, which put texts into sets and dictionaries by another order.

    Spark gives all workers one seed, and has processes of their own for each environment.
    """
    environment = spark.sparkContext.environment
    before = environment.get(_SEED)
    environment[_SEED] = "4242"
    try:
        yield
    finally:
        if before is None:
            del environment[_SEED]
        else:
            environment[_SEED] = before
