"""What a job remembers of a scheduler's run: where it began, and whether it has ended well.

Records name the DAG run that wrote them, but a run that finds no input writes none, and a try that comes after has to tell
whether it carries on or begins anew. Nothing here decides who owns a job.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stateflow.checkpoint.control import RunOutcome
from stateflow.errors import NotFoundError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FORMAT, Micros, decode, encode
from stateflow.storage.store import Store, create_once

KEPT = 1_000
"""Marks of so many tasks of DAG runs are kept; whoever clears an older one goes on."""


class ScheduledRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `scheduled/<hash>`: one task of one DAG run, over all of its tries."""

    format: int = FORMAT
    dag_run: str
    task: str
    began_from: int | None = None
    """The newest complete checkpoint before its first try; None when there was none."""
    at: Micros
    ended: RunOutcome | None = None
    """How the try that ended well has ended; None until there is one."""
    ended_at: Micros | None = None
    ended_by: str = ""
    """Which deed that was: a retry of it has nothing left to do, whoever cleared the task has."""
    recalled: bool = False
    """Its task was killed before the driver had claimed the job: it ends as soon as it has."""


def begin(
    store: Store, layout: JobLayout, dag_run: str, task: str, head: int | None, clock: Callable[[], int]
) -> ScheduledRun:
    """The mark of this task, made by its first try; `head` is the newest complete checkpoint now."""
    fresh = ScheduledRun(dag_run=dag_run, task=task, began_from=head, at=clock())
    path = layout.scheduled(dag_run, task)
    return decode(create_once(store, path, encode(fresh)), ScheduledRun, path)


def find(store: Store, layout: JobLayout, dag_run: str, task: str) -> ScheduledRun | None:
    path = layout.scheduled(dag_run, task)
    try:
        return decode(store.read(path), ScheduledRun, path)
    except NotFoundError:
        return None


def finish(
    store: Store,
    layout: JobLayout,
    mark: ScheduledRun,
    outcome: RunOutcome,
    deed: str,
    clock: Callable[[], int],
) -> None:
    """Notes that the task has ended well."""
    ended = msgspec.structs.replace(mark, ended=outcome, ended_at=clock(), ended_by=deed)
    store.put(layout.scheduled(mark.dag_run, mark.task), encode(ended))


def reopen(store: Store, layout: JobLayout, mark: ScheduledRun) -> ScheduledRun:
    """The same beginning, not ended: the task is run again on purpose."""
    anew = msgspec.structs.replace(mark, ended=None, ended_at=None, ended_by="")
    store.put(layout.scheduled(mark.dag_run, mark.task), encode(anew))
    return anew


def recall(store: Store, layout: JobLayout, dag_run: str, task: str, *, recalled: bool = True) -> None:
    """Tells a driver that nobody has seen claim the job to end when it does; the next launch takes that back."""
    mark = find(store, layout, dag_run, task)
    if mark is not None and mark.recalled != recalled:
        store.put(layout.scheduled(dag_run, task), encode(msgspec.structs.replace(mark, recalled=recalled)))


def sweep(store: Store, layout: JobLayout) -> int:
    """Drops the oldest marks beyond those kept; how many."""
    paths = [entry.path for entry in store.list(layout.scheduled_runs)]
    if len(paths) <= KEPT:
        return 0
    began = {path: decode(store.read(path), ScheduledRun, path).at for path in paths}
    old = sorted(paths, key=lambda path: began[path])[: len(paths) - KEPT]
    store.delete(old)
    return len(old)
