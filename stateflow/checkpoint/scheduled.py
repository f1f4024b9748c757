"""What a job remembers of a scheduler's run: where it began, and whether it has ended well.

Records name the DAG run that wrote them, but a run without input writes no record. The next try still has to know whether it
continues an earlier try or begins again. Nothing here decides who owns a job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stateflow.checkpoint.control import RunOutcome
from stateflow.checkpoint.log import read_if_there
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FORMAT, Micros, decode, encode
from stateflow.storage.local import in_held_root
from stateflow.storage.store import Store, create_once
from stateflow.storage.transfer import at_distance

_log = logging.getLogger(__name__)

MOST_MARKS = 1_000
"""A job keeps the marks of this many tasks of DAG runs. A task that is cleared later goes on as if it had none, or is refused."""


class ScheduledRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `scheduled/<hash>`: one task of one DAG run, over all of its tries."""

    format: int = FORMAT
    dag_run: str
    task: str
    began_from: int | None = None
    """The newest complete checkpoint before its first driver was started; None when there was none."""
    at: Micros
    ended: RunOutcome | None = None
    """The outcome of the try that ended well; None until one has."""
    ended_at: Micros | None = None
    ended_by: str = ""
    """The idempotency key of that try: a retry with the same key has nothing left to do, a cleared task has a new key."""
    since: int | None = None
    """The newest complete checkpoint before the first try with its present idempotency key. A cleared task has a newer one than
    `began_from`."""
    told: dict[str, Any] = {}
    """What the task returned when it ended well: the checkpoint, the sources' offsets and so on. Whoever returns it again later cannot
    take it from the job, which others have moved on, and whose old records are collected. Empty in marks of older versions."""
    recalled: bool = False
    """Its task was killed before the driver had claimed the job: the driver ends as soon as it has claimed the job."""


def begin(
    store: Store, layout: JobLayout, dag_run: str, task: str, head: int | None, clock: Callable[[], int]
) -> ScheduledRun:
    """The mark of this task. Its first try creates it. `head` is the newest complete checkpoint now."""
    mark = ScheduledRun(dag_run=dag_run, task=task, began_from=head, since=head, at=clock())
    path = layout.scheduled(dag_run, task)
    return decode(create_once(store, path, encode(mark)), ScheduledRun, path)


def find(store: Store, layout: JobLayout, dag_run: str, task: str) -> ScheduledRun | None:
    return read_if_there(store, layout.scheduled(dag_run, task), ScheduledRun)


def finish(
    store: Store,
    layout: JobLayout,
    mark: ScheduledRun,
    outcome: RunOutcome,
    key: str,
    clock: Callable[[], int],
    told: Mapping[str, Any] | None = None,
) -> None:
    """Notes that the task has ended well. `key` is the idempotency key of the try; `told` is what it returns."""
    mark = find(store, layout, mark.dag_run, mark.task) or mark  # what was noted since `mark` was read stays
    ended = msgspec.structs.replace(
        mark, ended=outcome, ended_at=clock(), ended_by=key, told=dict(told or {})
    )
    store.put(layout.scheduled(mark.dag_run, mark.task), encode(ended))


def reopen(
    store: Store, layout: JobLayout, mark: ScheduledRun, head: int | None, began_from: int | None
) -> ScheduledRun:
    """Clears the end of the mark, for a task that somebody runs again on purpose. `began_from`: the checkpoint that it begins from now."""
    reopened = msgspec.structs.replace(
        mark, ended=None, ended_at=None, ended_by="", told={}, since=head, began_from=began_from
    )
    store.put(layout.scheduled(mark.dag_run, mark.task), encode(reopened))
    return reopened


def begin_from(store: Store, layout: JobLayout, mark: ScheduledRun, head: int) -> None:
    """Notes that the task begins from this checkpoint: while it gave way, others have brought the job there."""
    moved = msgspec.structs.replace(mark, began_from=head)
    store.put(layout.scheduled(mark.dag_run, mark.task), encode(moved))


def recall(store: Store, layout: JobLayout, dag_run: str, task: str, *, recalled: bool = True) -> None:
    """Tells a driver that has not claimed the job yet to end when it does. The next launch withdraws that (`recalled=False`)."""
    mark = find(store, layout, dag_run, task)
    if mark is not None and mark.recalled != recalled:
        store.put(layout.scheduled(dag_run, task), encode(msgspec.structs.replace(mark, recalled=recalled)))


def sweep(store: Store, layout: JobLayout) -> int:
    """Deletes the oldest marks beyond `MOST_MARKS`, once there are some more. Returns how many. One that cannot be read stays: whoever
    looks for it tells. No clean-up fails for marks that stay: they do no harm."""
    try:
        return _sweep(store, layout)
    except StateflowError as error:
        _log.warning("the oldest marks of DAG runs of job %s stay: %s", layout.job, error)
        return 0


@in_held_root
def _sweep(store: Store, layout: JobLayout) -> int:
    paths = [entry.path for entry in store.list(layout.scheduled_runs)]
    # Only the marks say when they were made. So all are read once in so many runs, instead of behind each run.
    if len(paths) <= MOST_MARKS + MOST_MARKS // 10:
        return 0

    def began(path: str) -> Micros | None:
        try:
            return decode(store.read(path), ScheduledRun, path).at
        except (NotFoundError, CorruptError, IncompatibleError):  # not there: another sweep is at work
            return None

    times = zip(at_distance(store, began, paths), paths, strict=True)
    old = sorted((at, path) for at, path in times if at is not None)[:-MOST_MARKS]
    store.delete([path for _, path in old])
    return len(old)
