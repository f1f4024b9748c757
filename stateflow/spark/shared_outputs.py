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

_PREFIX = "stateflow/"


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


def check_other_writers(
    spark: SparkSession,
    flow: Flow,
    sinks: Mapping[str, Sink],
    log: Log | None,
    jobs: Callable[[], Mapping[str, str]],
    *,
    shared: bool,
    warn: Callable[[str, str], None],
) -> None:
    """UsageError for a new job that would write where another one, of whatever root, has rows, unless outputs may be `shared`. One that a
    restore has just begun is new, too; where the snapshot's job has written, the restore's plan has told it. Any other job that begins in
    such an output is warned.

    `sinks` are the open ones by uid, and `jobs` gives the names of all jobs of the root by their ids.
    """
    newest = log.decided if log is not None else None
    continued = continued_job(newest)
    is_new = newest is None or continued != ""
    own = log.identity.uuid if log is not None and log.identity is not None else ""
    begun = written_places(log) if log is not None else {}
    for node in flow.sinks:
        if node.uid in begun or not (
            others := other_writers(sinks[node.uid].writers(spark), own, jobs, continued)
        ):
            continue
        if is_new and not shared:
            raise UsageError(_sentence(node, others))
        warn(
            f"other writers of {node.uid}",
            f"{node.target} has rows of another job ({', '.join(others)}), and this job adds its own: if both read the same input, rows are there "
            "twice or take turns; give this job another output, or carry the other one on with its name and checkpoint root",
        )


def other_writers(
    writers: Mapping[str, str], job: str, jobs: Callable[[], Mapping[str, str]], continued: str = ""
) -> list[str]:
    """The sinks of other jobs among `Sink.writers`, in words; none once `job`, an id, has written there, too. What is no name of a
    sink's is left out: a Delta table tells all applications that have written to it, and no job's name, which `jobs` may know. So
    is the deleted job that this one carries on: its rows are this one's past."""
    written = {
        (parts[0], parts[1]): job_name
        for name, job_name in writers.items()
        if len(parts := name.removeprefix(_PREFIX).split("/", 1)) == 2
        and name.startswith(_PREFIX)
        and parts[0] != continued
    }
    if any(other == job for other, _ in written):
        return []
    known = {} if all(written.values()) else jobs()
    names = {key: name or known.get(key[0], "") for key, name in sorted(written.items())}
    return [
        f"sink {sink!r} of the job {f'{name!r} ' if name else ''}with id {other}"
        for (other, sink), name in names.items()
    ]


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
