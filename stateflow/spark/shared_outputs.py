"""The outputs of a new job where another one has written. Most often it is that job, under a misspelt name or with its checkpoints
looked for in another place: it reads the whole input again, and each row would be there twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stateflow.checkpoint.log import Log, list_jobs, read_log
from stateflow.checkpoint.statistics import continued_job
from stateflow.errors import StateflowError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import SinkNode
from stateflow.pipelines.inputs.places import depends_on_folder
from stateflow.savepoints.origin import written_places
from stateflow.storage.store import Store
from stateflow.storage.transfer import at_distance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.sinks.base import Sink


def outputs_shared_in_root(flow: Flow, job: str, store: Store) -> list[str]:
    """A sentence for each sink of the new job at whose place another job of its root has written, also if nothing is there any more."""
    placed = [sink for sink in flow.sinks if sink.place]
    names = [name for name in list_jobs(store) if name != job] if placed else []
    found = at_distance(store, partial(_written, placed, store), names)
    return [
        _sentence(sink, others)
        for sink in placed
        if (others := [other for each in found for uid, other in each if uid == sink.uid])
    ]


def refuse_shared_outputs(
    spark: SparkSession,
    flow: Flow,
    sinks: Mapping[str, Sink],
    log: Log | None,
    jobs: Callable[[], Mapping[str, str]],
) -> None:
    """UsageError for a new job that would write where another one, of whatever root, has rows. One that a restore has
    just begun is new, too; where the snapshot's job has written, the restore's plan has told it."""
    # `stateflow check` imports this file, and does without Spark.
    from stateflow.spark.inputs.foreign_changes import other_writers

    newest = log.decided if log is not None else None
    continued = continued_job(newest)
    if newest is not None and not continued:
        return
    own = log.identity.uuid if log is not None and log.identity is not None else ""
    for node in flow.sinks:
        if others := other_writers(sinks[node.uid].writers(spark), own, jobs, continued):
            raise UsageError(_sentence(node, others))


def _sentence(sink: SinkNode, others: Sequence[str]) -> str:
    """Why a new job does not begin there; `others` are the sinks of other jobs, in words."""
    return (
        f"sink {sink.uid!r} of this new job would write to {sink.target}, where another job has written ({', '.join(others)}), and what both "
        "read would be there twice, or be written over: carry that one on under its name and checkpoint root (a deleted one by "
        "`stateflow restore` from a savepoint of it), give this one another output, or set the option shared_outputs=true if both shall "
        "write there"
    )


def _written(placed: Sequence[SinkNode], store: Store, name: str) -> list[tuple[str, str]]:
    """By uid of one of our sinks: the sink of job `name` that has written there, in words. None of a job that cannot be read: whatever
    runs it tells. A relative path of a table says nothing, for each job means that of its own working folder."""
    try:
        places = written_places(read_log(store, JobLayout(name)))
    except StateflowError:
        return []
    return [
        (sink.uid, f"sink {uid!r} of the job {name!r}")
        for sink in placed
        for uid, prepared in places.items()
        if not (sink.sink_kind.table and depends_on_folder(prepared.target))
        if sink.sink_kind.is_at(sink.target, prepared.target)
    ]
