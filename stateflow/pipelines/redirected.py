"""A pipeline whose sinks write tables of one folder in place of their own targets: for runs that change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import SinkNode, SourceNode
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.sink_kinds import DELTA_APPEND, DELTA_UPSERT


@dataclass(frozen=True)
class RedirectedPipeline(Pipeline):
    """The same sources and operators; each sink is a Delta table in `folder`, called as the sink is."""

    folder: Path = Path()

    def build(self, parameters: Mapping[str, Any] | None = None) -> Flow:
        flow = super().build(parameters)
        for source in flow.sources:
            refuse_tidying(source)
        flow.nodes[:] = [
            self._redirected(node) if isinstance(node, SinkNode) else node for node in flow.nodes
        ]
        return flow

    def _redirected(self, sink: SinkNode) -> SinkNode:
        path = str(self.folder / sink.uid)
        if isinstance(sink.target, DeltaTable):
            return replace(sink, target=sink.target.at(path))
        if sink.sink_kind.changes == "replace":
            known = DELTA_UPSERT.options | {"operation"}
            options = {name: value for name, value in sink.options.items() if name in known}
            return replace(sink, sink_kind=DELTA_UPSERT, target=DeltaTable(path), options=options)
        # A function of the user's would act on the outside, and a list in memory takes few rows.
        return replace(sink, sink_kind=DELTA_APPEND, target=DeltaTable(path), options={})


def refuse_tidying(source: SourceNode) -> None:
    if not isinstance(source.factory, Files):
        return
    for name, value in source.factory.options.items():
        if name.lower() == "cleansource" and str(value).lower() != "off":
            raise UsageError(
                f"source {source.uid!r} deletes or moves the files that it has read ({name}={value}), so a run would not leave "
                "them as they are: let a parameter of the pipeline say whether it does"
            )
