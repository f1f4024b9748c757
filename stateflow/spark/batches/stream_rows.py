"""The rows of one batch that each stream of the flow has, as frames: those of sources, of steps, and of operators that have run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stateflow.errors import UsageError, without_exit
from stateflow.pipelines.graph import (
    KeyedNode,
    Node,
    NodeRows,
    SourceNode,
    TransformNode,
    UnionNode,
    declared_columns,
)
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.rows.row_type import RowType, untyped_rows
from stateflow.spark.batches.batch_attempt import BatchAttempt
from stateflow.spark.inputs.open_inputs import SourceFrames, unioned, with_lateness
from stateflow.spark.internals.lending import has_foreign_cache
from stateflow.spark.session import lent
from stateflow.spark.shuffle.exchange import LATE, KeyedInput, field_sql
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.task.columns import RowReader

BROADCAST_LIMIT = 100_000
_JUDGED = "_judged"
"""Beside a source's outputs: its rows on time and late together."""


@dataclass
class StreamRows:
    attempt: BatchAttempt
    sources: SourceFrames
    warnings: dict[str, str] = field(default_factory=dict)
    """By the matter."""
    _frames: dict[tuple[int, str], DataFrame] = field(default_factory=dict)
    _persisted: list[DataFrame] = field(default_factory=list)
    _broadcast: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    """By operator, which may be planned more than once. Whoever collects rows again counts them again."""

    def put(self, operator: KeyedNode, output: str, frame: DataFrame) -> None:
        """What an operator puts out. The streams behind it have rows from then on."""
        self._frames[id(operator), output] = frame

    def forget(self, nodes: Iterable[Node]) -> None:
        """Drops the main output of these nodes."""
        for node in nodes:
            self._frames.pop((id(node), MAIN), None)

    def release(self) -> None:
        for persisted in self._persisted:
            persisted.unpersist()
        self.sources.release()

    def of(self, stream: NodeRows) -> DataFrame:
        """The rows of a stream; a flag says which are late, where a row can be."""
        key = (id(stream.node), stream.output)
        if key not in self._frames:
            frame = self._evaluated(stream)
            node = stream.node
            # Of a source whose late rows are an output of their own, `_judged` has stored both.
            splits = isinstance(node, SourceNode) and node.late is not None
            if not splits and len(self.attempt.settings.flow.consumers(node)) > 1:
                frame = self._shared(node, frame)
            self._frames[key] = frame
        return self._frames[key]

    def without_flags(self, stream: NodeRows) -> DataFrame:
        """The rows as users see them."""
        frame = self.of(stream)
        return frame.drop(LATE) if LATE in frame.columns else frame

    def keyed(self, node: KeyedNode, types: Sequence[RowType | None]) -> list[KeyedInput]:
        """The rows that an operator takes. `types`: the columns that it needs of each input."""
        return [
            KeyedInput(
                frame := self.of(k.stream), k.columns, k.order_by, rows or _untyped(node.uid, frame), declared
            )
            for k, rows, declared in zip(node.keyed, types, node.rows, strict=True)
        ]

    def broadcast(self, node: KeyedNode) -> dict[str, tuple[Any, ...]]:
        """The rows of the operator's broadcast streams."""
        if node.uid not in self._broadcast:
            self._broadcast[node.uid] = {
                name: self._collected(node, stream) for name, stream in node.broadcast.items()
            }
        return self._broadcast[node.uid]

    def _collected(self, node: KeyedNode, stream: NodeRows) -> tuple[Any, ...]:
        frame = self.without_flags(stream)
        rows = stream.rows or _untyped(node.uid, frame)
        given = KeyedInput(frame, (), (), rows)
        columns = (field_sql(node.uid, given, f.name, f.type) for f in rows.fields)
        table = frame.selectExpr(*columns).limit(BROADCAST_LIMIT + 1).toArrow()
        if table.num_rows > BROADCAST_LIMIT:
            raise UsageError(
                f"a broadcast stream had more than {BROADCAST_LIMIT} rows in one batch: it is for small, slow-changing data"
            )
        return tuple(RowReader(rows, range(len(rows.fields))).read(table.columns))

    def _evaluated(self, stream: NodeRows) -> DataFrame:
        node = stream.node
        if isinstance(node, SourceNode):
            frame = self._judged(node)
            if node.late is None:
                return frame
            return frame.where(~F.col(LATE)) if stream.output == MAIN else frame.where(F.col(LATE)).drop(LATE)
        if isinstance(node, TransformNode):
            rows = self.of(node.inputs[0])
            with without_exit(node.uid):
                frame = node.function(rows)
            if not isinstance(frame, DataFrame):
                raise UsageError(
                    f"{node.uid}: a transform must return a DataFrame, not {type(frame).__name__}"
                )
            if lent.on_host() and has_foreign_cache(frame):
                self.warnings[f"cache {node.uid}"] = (
                    f"{node.uid} reads what another run of the host {lent.name_of_host()!r} has cached, as it was when that run read it: let that "
                    "run not cache it, or run one of the two with a Spark of its own (--host '')"
                )
            return frame
        if isinstance(node, UnionNode):
            return unioned([self.of(each) for each in node.inputs], declared_columns(node))
        raise UsageError(f"{node.named} puts out no rows called {stream.output!r}")

    def _judged(self, node: SourceNode) -> DataFrame:
        """A source's rows before the late ones are split off. Both branches read one copy: each would otherwise read
        the source, and count its rows, again."""
        key = (id(node), _JUDGED)
        if key not in self._frames:
            frame = with_lateness(node, self.sources[node.uid], self.attempt.moment.watermark)
            if node.late is not None and len(self.attempt.settings.flow.consumers(node)) > 1:
                frame = self._shared(node, frame)
            self._frames[key] = frame
        return self._frames[key]

    def _shared(self, node: Node, frame: DataFrame) -> DataFrame:
        """The frame, stored for its several readers.

        Otherwise each reader would read the source again, and see other rows from a nondeterministic step. Spark
        recomputes cached blocks when their executor dies, so on a cluster the frame goes to files.
        """
        if self.attempt.settings.shared_scratch:
            frame = frame.persist()
            self._persisted.append(frame)
            return frame
        settings = self.attempt.settings
        slot, epoch = self.attempt.moment.slot, self.attempt.storage.epoch
        at = SinkSlot(settings.job_uuid, settings.job, node.uid, slot, epoch)
        files = settings.stager.write(frame, at).files
        return settings.stager.read(self.attempt.spark, files, frame.schema)


def _untyped(uid: str, frame: DataFrame) -> RowType:
    columns = [(name, kind) for name, kind in frame.dtypes if not name.startswith("_sf_")]
    return untyped_rows(f"operator {uid!r}", columns)
