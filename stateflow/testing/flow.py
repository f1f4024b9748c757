"""A whole pipeline in a test: the runs that production has, on this machine, over rows that the test gives."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.rows.row_type import RowType
from stateflow.spark.session.sent_modules import SentModules

if TYPE_CHECKING:
    from stateflow.spark.runner import RunReport

_FIRST_TIME = 1_750_000_000
"""The time of the first added file, in seconds since 1970. Each file is a second newer than the one before, and so read after
it."""

_OF_LINES = ("csv", "json", "text")


class FlowHarness:
    """Runs a pipeline as it is: sources, transforms, operators and sinks, through Spark, with checkpoints.

    `folder` is an empty one, such as pytest's `tmp_path`. Parameters that the pipeline needs and that are not given are paths in it.

    What it costs: the first call of a process starts Spark, which takes ten seconds and a gigabyte of memory; each later run takes
    two or three. Have a few of these for how the parts fit together, and try each operator with a harness of its own, in milliseconds.
    """

    def __init__(self, pipeline: Pipeline, folder: str | Path, /, **parameters: Any) -> None:
        self._folder = Path(folder).absolute()
        self._given = parameters
        self._added = 0
        self._take(pipeline)

    def release(self, pipeline: Pipeline) -> None:
        """Goes on with the next release of the code: with the job's state and tables, or refused as a run would be."""
        if pipeline.name != self._pipeline.name:
            raise UsageError(
                f"pipeline {pipeline.name!r} is another job than {self._pipeline.name!r}: give the release the same name"
            )
        self._take(pipeline)

    def _take(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._parameters = {**_paths(pipeline, self._folder), **self._given}
        self.flow = pipeline.build(self._parameters)

    def add(self, source: str, *rows: Any) -> None:
        """New rows for a source: objects of its row class, or dicts. They are a file of a folder, written as the source's options
        read it, or a commit of a Delta table. A text is a line of the file as it is, such as one that cannot be read."""
        target, declared = self._source(source)
        lines = [row for row in rows if isinstance(row, str)]
        if lines and (isinstance(target, DeltaTable) or target.format not in _OF_LINES):
            raise UsageError(
                f"source {source!r} has no lines of text: give it rows of {declared.name}, or dicts"
            )
        frame = self._frame(source, declared, [row for row in rows if not isinstance(row, str)])
        if isinstance(target, DeltaTable):
            frame.coalesce(1).write.format("delta").mode("append").save(target.path)
        else:
            self._add_files(source, target, frame, lines)

    def _frame(self, source: str, declared: RowType, rows: list[Any]) -> Any:
        from stateflow.spark.inputs.given_rows import frame_of

        values = [_values(row, declared) for row in rows]
        try:
            return frame_of(self._spark(), values, declared.ddl)
        except UsageError as error:
            raise UsageError(
                f"source {source!r}: a row does not fit {declared.name} ({error}): give it values of the declared "
                "types, or the line of the file as a text"
            ) from None

    def run(self, *, final: bool = False, options: Mapping[str, Any] | None = None) -> RunReport:
        """A run until all that was added is read. `final` closes what is open, as `stateflow run --final` does; `options` are
        those of `stateflow.toml`, such as `{"source_idle_timeout": "5 minutes"}`."""
        from stateflow.config.options import load
        from stateflow.spark.runner import RunRequest, run
        from stateflow.spark.session.shipping import by_value

        for sink in self.flow.sinks:
            if isinstance(sink.target, DeltaTable):
                self._inside(f"sink {sink.uid!r} writes to", sink.target)
        for source in self.flow.sources:
            self._make_empty(source.uid)
        # A worker cannot import a test by its name, and finds what the test imports where the test does.
        module = sys.modules.get(self._pipeline.function.__module__)
        if module is not None:
            by_value([module])
        given = {
            **(options or {}),
            "checkpoint_dir": str(self._folder / "checkpoints"),
            "cache_dir": str(self._folder / "cache"),
            "scratch_dir": str(self._folder / "scratch"),
            "local_fsync": False,
        }
        return run(
            RunRequest(
                self._pipeline,
                load(code=given, env={}, folder=self._folder),
                self._parameters,
                master="local[2]",
                drain=final,
                sent_modules=SentModules.of(self._pipeline.own_files, *filter(None, sys.path)),
            )
        )

    def table(self, sink: str) -> list[dict[str, Any]]:
        """The rows in the table of a sink now, in no order; times are in UTC. Empty before the first rows."""
        nodes = [node for node in self.flow.sinks if node.uid == sink]
        if not nodes:
            known = ", ".join(repr(node.uid) for node in self.flow.sinks) or "none"
            raise UsageError(f"pipeline {self._pipeline.name!r} has no sink {sink!r}; it has {known}")
        target = nodes[0].target
        if nodes[0].sink_kind.keeps_rows:
            return [dict(row) for row in target.rows]
        if not isinstance(target, DeltaTable):
            raise UsageError(
                f"sink {sink!r} calls a function, and has no table: look at what the function did"
                if nodes[0].sink_kind.calls_function
                else f"sink {sink!r} writes to {nodes[0].output}, which is not in the test's folder: look there"
            )
        self._inside(f"sink {sink!r} writes to", target)
        if not (Path(target.path) / "_delta_log").exists():
            return []
        read: list[dict[str, Any]] = (
            self._spark().read.format("delta").load(target.path).toArrow().to_pylist()
        )
        return read

    def _source(self, uid: str) -> tuple[Files | DeltaTable, RowType]:
        nodes = [node for node in self.flow.sources if node.uid == uid]
        if not nodes:
            known = ", ".join(repr(node.uid) for node in self.flow.sources)
            raise UsageError(f"pipeline {self._pipeline.name!r} has no source {uid!r}; it has {known}")
        target, rows = nodes[0].factory, nodes[0].rows
        if not isinstance(target, Files | DeltaTable):
            raise UsageError(
                f"source {uid!r} is a function or a topic, which a test cannot add rows to: let a parameter choose sf.files(...) or sf.delta(...) "
                "in tests"
            )
        if rows is None:
            raise UsageError(
                f"source {uid!r} declares no row class: give it one, as in flow.source({uid!r}, ..., Order)"
            )
        self._inside(f"source {uid!r} reads", target)
        return target, rows

    def _inside(self, what: str, target: Files | DeltaTable) -> None:
        if isinstance(target, DeltaTable) and target.name:
            raise UsageError(
                f"{what} {target.name}, which a catalog names, and a harness has no catalog: let a parameter of the pipeline choose between "
                "sf.table(name) and sf.delta(path)"
            )
        path = target.path
        if self._folder not in Path(path).parents or ".." in Path(path).parts:
            raise UsageError(
                f"{what} {path}, which is not in the test's folder {self._folder}: make its path a parameter of the pipeline"
            )

    def _make_empty(self, uid: str) -> None:
        """A source without rows is there all the same."""
        target, rows = self._source(uid)
        if isinstance(target, Files):
            Path(target.path).mkdir(parents=True, exist_ok=True)
        elif not (Path(target.path) / "_delta_log").exists():
            empty = self._spark().createDataFrame([], rows.ddl)
            empty.write.format("delta").save(target.path)

    def _add_files(self, source: str, target: Files, frame: Any, lines: list[str]) -> None:
        """Written aside, and moved when all are whole."""
        from stateflow.testing.given_files import GivenFiles

        aside, folder = self._folder / "adding", Path(target.path)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        written = list(GivenFiles(source, target).write(self._spark(), frame, lines, aside, self._added + 1))
        folder.mkdir(parents=True, exist_ok=True)
        for file in written:
            self._added += 1
            at = _FIRST_TIME + self._added
            os.utime(file, (at, at))
            file.rename(folder / file.name)
        shutil.rmtree(aside)

    def _spark(self) -> Any:
        from stateflow.spark.session.build import build_session

        return build_session(f"tests of {self._pipeline.name}", master="local[2]")


def _paths(pipeline: Pipeline, folder: Path) -> Mapping[str, str]:
    signature = inspect.signature(pipeline.function, eval_str=True)
    return {
        name: str(folder / name)
        for name, parameter in signature.parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
        and parameter.default is parameter.empty
        and parameter.annotation in (str, parameter.empty)
    }


def _values(row: Any, declared: RowType) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        unknown = sorted(set(row) - set(declared.names))
        if unknown:
            raise UsageError(
                f"{declared.name} has no column {unknown[0]!r}; it has {', '.join(declared.names)}"
            )
        return tuple(row.get(name) for name in declared.names)
    return tuple(getattr(row, name) for name in declared.names)
