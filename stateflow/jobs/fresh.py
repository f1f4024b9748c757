"""A run of a job that is thrown away: from the beginning, into tables of a folder that goes with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.config.options import Options, scratch_parent
from stateflow.errors import UsageError
from stateflow.pipelines.redirected import RedirectedPipeline
from stateflow.storage.scratch import new_scratch, remove_scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.pipelines.loading import LoadedPipeline

SHOWN = 20
"""Rows of a table that are shown."""


@dataclass(frozen=True)
class SinkTable:
    """The rows that a sink was given."""

    sink: str
    of_function: bool
    """Whether the sink is a function, which was not called."""
    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    """The first ones, in their own order."""
    count: int


class FreshRun:
    """The folders of the job and of its outputs, as long as the run lasts."""

    def __init__(self, folder: Path, loaded: LoadedPipeline, parameters: Mapping[str, Any]) -> None:
        self.root = str(folder / "checkpoints")
        self._folder = folder
        self._declared = loaded.pipeline.build(parameters)
        pipeline = loaded.pipeline
        redirected = RedirectedPipeline(
            pipeline.name, pipeline.function, pipeline.versions, folder=folder / "tables"
        )
        redirected.build(parameters)  # refused before Spark starts
        self.loaded = replace(loaded, pipeline=redirected)

    def options(self, options: Options) -> Options:
        """These, except those that lead out of the folder; and the run ends by itself."""
        return replace(
            options, checkpoint_dir=self.root, cache_dir=str(self._folder / "cache"), storage_options={},
            scratch_dir=str(self._folder / "scratch"), local_fsync=False, metrics="none",
        )  # fmt: skip

    def tables(self) -> Iterator[SinkTable]:
        """The rows that each sink has got. Spark reads them, so it must still run."""
        spark = _session()
        for sink in self._declared.sinks:
            path = self._folder / "tables" / sink.uid
            of_function = sink.sink_kind.calls_function
            if spark is None or not (path / "_delta_log").exists():
                yield SinkTable(sink.uid, of_function, (), [], 0)
                continue
            frame = spark.read.format("delta").load(str(path))
            rows = frame.limit(SHOWN).toArrow().to_pylist()
            yield SinkTable(
                sink.uid, of_function, tuple(frame.columns), sorted(rows, key=_order), frame.count()
            )


@contextmanager
def fresh_run(
    loaded: LoadedPipeline, parameters: Mapping[str, Any], options: Options, master: str | None
) -> Iterator[FreshRun]:
    """Takes everything away at the end. What a killed process leaves, the next run on this host takes away."""
    if (master is not None and not master.startswith("local")) or "PYSPARK_GATEWAY_PORT" in os.environ:
        raise UsageError(
            "a fresh run keeps its tables in a folder of this host: leave out --master, and spark-submit"
        )
    folder = new_scratch(scratch_parent(options))
    before = _session()
    try:
        yield FreshRun(folder, loaded, parameters)
    finally:
        # A session that began meanwhile has files in the folder.
        if before is None and (own := _session()) is not None:
            own.stop()
        remove_scratch(folder)


def _session() -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None  # to be told so is not worth loading it
    from stateflow.spark.session.build import running_session

    return running_session()


def _order(row: Mapping[str, Any]) -> list[tuple[bool, str, Any]]:
    """Numbers by size, all else by its text; nulls first."""
    return [
        (value is not None, "", value)
        if isinstance(value, int | float)
        else (value is not None, str(value), 0)
        for value in row.values()
    ]
