"""Reports the inputs and outputs of a run while it runs. A scheduler's task passes them on; nothing here may fail a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import same_owner
from stateflow.checkpoint.lineage import Dataset, Endpoint, RunLineage, read_lineage, report_lineage
from stateflow.checkpoint.log import read_epochs
from stateflow.checkpoint.writer import Writer
from stateflow.errors import StateflowError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING, decode
from stateflow.pipelines.flow import Flow
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.inputs.schemas import Outline
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.sources.leaves import LeafDescription, by_source

_log = logging.getLogger(__name__)


@contextmanager
def traced(
    spark: SparkSession, flow: Flow, inputs: OpenInputs, outline: Outline, writer: Writer
) -> Iterator[None]:
    """Reports for a scheduler's task: once at the beginning, so that a run that is killed has told, and once at the end."""
    if not writer.owner.dag_run:
        yield
        return
    earlier = _earlier(writer)
    began_from = writer.parent.slot if writer.parent else 0
    began = {uid: source.lines for uid, source in writer.parent.sources.items()} if writer.parent else {}
    if earlier is not None:
        began_from, began = earlier.began_from, {endpoint.uid: endpoint.before for endpoint in earlier.inputs}

    def report(*, ended: bool) -> None:
        try:
            now = writer.parent.sources if writer.parent else {}
            lineage = RunLineage(
                epoch=writer.epoch,
                owner=writer.owner,
                began_from=began_from,
                application=str(spark.sparkContext.applicationId),
                pages=str(spark.sparkContext.uiWebUrl or ""),
                inputs=_inputs(inputs, began, now),
                outputs=_outputs(spark, flow, outline, ended=ended),
            )
            report_lineage(writer.store, writer.layout, lineage)
        except Exception as error:
            _log.warning("what the run reads and writes could not be noted: %s", error)

    report(ended=False)
    try:
        yield
    finally:
        report(ended=True)


def _earlier(writer: Writer) -> RunLineage | None:
    """What an earlier driver of this very task has noted. Collection deletes it after our first batch."""
    store, layout, owner = writer.store, writer.layout, writer.owner
    try:
        mark = scheduled.find(store, layout, owner.dag_run, owner.task)
        start = (mark.since or 0) if mark is not None else 0
        for epoch in sorted(read_epochs(store, layout), reverse=True):
            if epoch < writer.epoch and (noted := read_lineage(store, layout, epoch)) is not None:
                # A task that somebody has cleared begins anew.
                return noted if same_owner(noted.owner, owner) and noted.began_from >= start else None
    except StateflowError as error:
        _log.warning("what an earlier driver of this task has read could not be looked up: %s", error)
    return None


def _inputs(
    inputs: OpenInputs, began: Mapping[str, tuple[str, ...]], now: Mapping[str, SourceState]
) -> tuple[Endpoint, ...]:
    endpoints = []
    for uid, leaves in by_source(inputs.leaves).items():
        datasets = (dataset for leaf in leaves for dataset in read_datasets(leaf, leaf.line_in(now)))
        endpoints.append(
            Endpoint(
                uid=uid,
                datasets=tuple(datasets),
                fields=tuple(
                    (field.name, field.dataType.simpleString()) for field in inputs.frames[uid].schema
                ),
                before=began.get(uid, ()),
                after=now[uid].lines if uid in now else (),
            )
        )
    return tuple(endpoints)


def read_datasets(leaf: LeafDescription, line: str) -> list[Dataset]:
    """The tables, topics or folders behind one stream. `line`: where it is."""
    if leaf.kind == "kafka":
        # A pattern names no topic; the offsets name those that there were.
        topics = list(decode(line, "kafka").get("topics", {})) if line != NOTHING else []
        named = topics or [topic.strip() for topic in leaf.options.get("subscribe", "").split(",")]
        servers = leaf.options.get("kafka.bootstrap.servers", "")
        return [Dataset(kind="kafka", place=topic, servers=servers) for topic in sorted(named) if topic]
    if leaf.kind not in ("delta", "file"):
        return []
    return [Dataset(kind=leaf.kind, place=_absolute(leaf.target), version=_version(leaf, line))]


def _version(leaf: LeafDescription, line: str) -> int | None:
    """The newest version of a Delta table that was read, at least in part."""
    offset = decode(line, "delta") if leaf.kind == "delta" and line != NOTHING else {}
    if "version" not in offset:
        return None
    whole = offset["index"] < 0 and not offset["snapshot"]
    return int(offset["version"]) - 1 if whole else int(offset["version"])


def _outputs(spark: SparkSession, flow: Flow, outline: Outline, *, ended: bool) -> tuple[Endpoint, ...]:
    endpoints = []
    for node in flow.sinks:
        kind = node.sink_kind
        if not kind.dataset:
            continue
        place = _absolute(node.output) if kind.table else node.place
        version = (
            DeltaLog(spark, node.target.path, node.target.managed_as).version()
            if ended and kind.table
            else None
        )
        endpoints.append(
            Endpoint(
                uid=node.uid,
                datasets=(Dataset(kind=kind.dataset, place=place, version=version),),
                fields=tuple(
                    (field.name, field.dataType.simpleString())
                    for field in outline.schema(node.inputs[0])
                    if not field.name.startswith("_sf_")
                ),
            )
        )
    return tuple(endpoints)


def _absolute(place: str) -> str:
    """A path as others can name it. What has a scheme, and the name of a table in a catalog, stay as they are."""
    return str(Path(place).absolute()) if "/" in place and ":/" not in place else place
