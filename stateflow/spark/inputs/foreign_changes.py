"""Reports changes that others made to the inputs and outputs of a job. No row shows them, so a run reports them at its start or
with a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.format.records import SourceState
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.internals.file_systems import times_of_files
from stateflow.spark.internals.scratch_folder import log_folder, newest_files
from stateflow.spark.sinks.fit import altered
from stateflow.spark.sources import rewritten, subfolders
from stateflow.spark.sources.detours import passed_restores

Warn = Callable[[str, str], None]
"""Takes a matter and a sentence about it, as `RunWarnings.add` does."""


def tell_of_outputs(spark: SparkSession, flow: Flow, warn: Warn) -> None:
    """Reports properties that an output lacks."""
    for node in flow.sinks:
        if not isinstance(node.target, DeltaTable):
            continue
        log, table = DeltaLog(spark, node.target.path, node.target.managed_as), str(node.target)
        if node.target.properties and (
            unlike := unlike_properties(node.target.properties, log.begin().shape().configuration)
        ):
            warn(
                f"properties of {node.uid}",
                sentence_on_properties(node.uid, table, node.target.in_sql, unlike),
            )


def tell_of_files(
    spark: SparkSession,
    inputs: OpenInputs,
    recorded: Mapping[str, SourceState],
    location: Path,
    warn: Warn,
) -> None:
    """Reports files that were written again after the job had read them, and files in subfolders. `location` has the logs of
    the sources."""
    factories = {node.uid: node.factory for node in inputs.nodes}
    for leaf in inputs.leaves:
        uid, files = leaf.uid, factories[leaf.uid]
        if not isinstance(files, Files):
            continue
        if name := subfolders.unread(files.path, files.options):
            warn(f"subfolders of {uid}", subfolders.sentence(uid, files.path, name))
        if uid in recorded:
            log = log_folder(location, leaf.number)
            read = newest_files(log, leaf.line_in(recorded), rewritten.MOST_COMPARED)
            there = rewritten.local_times(read)
            if there is None:
                few = len(read) <= rewritten.MOST_LISTED
                there = times_of_files(files.listed(spark)) if few else {}
            if names := rewritten.rewritten(read, there):
                warn(f"files of {uid}", rewritten.sentence(uid, names))


def passed_sentences(
    spark: SparkSession,
    inputs: OpenInputs,
    before: Mapping[str, SourceState],
    after: Mapping[str, SourceState],
    scratch: Path,
    job: str,
) -> Iterator[tuple[str, str]]:
    """For tables that went back under a query whose options let Delta leave changes out: the matter, and a sentence about it."""
    for uid, table, version in passed_restores(spark, inputs.leaves, before, after, scratch):
        sentence = (
            f"source {uid!r}: version {version} took the Delta table {table} back (RESTORE) while this run read it, and an option "
            "of the source leaves removed rows out (skipChangeCommits, ignoreDeletes or ignoreChanges): what the run has read "
            "of the undone rows stays counted, and counts again when they are written again; go back to a checkpoint from "
            f"before this run (`stateflow show {job}` lists them), or let that stand"
        )
        yield f"source {uid}: read across {version}", sentence


def unlike_properties(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """The wanted properties that have another value in the table, or none. Delta takes names and booleans in any case."""
    values = {name.lower(): value.lower() for name, value in there.items()}
    return {name: value for name, value in wanted.items() if values.get(name.lower()) != value.lower()}


def sentence_on_properties(sink: str, table: str, in_sql: str, unlike: Mapping[str, str]) -> str:
    names = ", ".join(unlike)
    return (
        f"sink {sink!r} gives {table} properties that it does not have ({names}): they count when a sink makes the table, and this one "
        f"was there; set them with {altered(in_sql, unlike)}, or leave them out of options="
    )
