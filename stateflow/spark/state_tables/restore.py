"""Loads a canonical savepoint into shards of the backend, parallelism and max parallelism of this restore."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options
from stateflow.format.records import OperatorState, Savepoint
from stateflow.spark.state_tables.load import canonical_frames, load_state
from stateflow.spark.task.storage import task_storage
from stateflow.state.backends.choice import open_backend


def load_canonical(
    spark: SparkSession,
    savepoint: Savepoint,
    url: str,
    operators: Mapping[str, OperatorState],
    *,
    job: JobHandle,
    writer: Writer,
    options: Options,
    parallelism: int = 0,
    max_parallelism: int = 0,
) -> dict[str, OperatorState]:
    """The operators with fresh shards. 0 leaves parallelism or max parallelism as it was."""
    frames = canonical_frames(spark, savepoint, url, options)
    storage = task_storage(options, job.root, job.name, writer.epoch, writer.next_slot)
    return {
        uid: load_state(
            frames.get(uid, {}),
            operator,
            storage=storage,
            backend=options.backend,
            parallelism=operator.parallelism
            or parallelism
            or min(len(operator.assignment), max_parallelism or operator.max_parallelism),
            max_parallelism=max_parallelism or operator.max_parallelism,
            open_shard=open_backend(options),
            uid=uid,
        )
        for uid, operator in operators.items()
    }
