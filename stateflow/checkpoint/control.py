"""What passes between a run and the programs beside it: stop requests, heartbeats, progress.

Nothing here decides who owns a job. It tells a run to end, and a second run whether to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from stateflow.checkpoint.log import read_epochs
from stateflow.errors import BusyError, NotFoundError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FORMAT, Micros, Owner, decode, encode
from stateflow.storage.store import Store


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `control/stop-<epoch>`: the run of that epoch ends after its batch."""

    format: int = FORMAT
    epoch: int
    by: Owner
    reason: str = ""
    drain: bool = False
    at: Micros = 0


INPUT_DRAINED = "the input was drained"
BOUND_REACHED = "the bound was reached"
JOB_DRAINED = "the job was drained"
INTERRUPTED = "a stop was requested"
"""Of the process itself, by a signal: no request in the store stands behind it, and its host may be shutting down."""
KILLED = "its task was killed"
"""The reason of a stop request that a retry need not heed: it starts another driver."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended, for whoever started it and cannot ask its process any more."""

    exit_code: int = 0
    error: str = ""
    """One sentence; empty when it ended well."""
    batches: int = 0
    rows: int = 0
    checkpoint: int | None = None
    """The newest complete checkpoint."""
    stopped: str = ""
    """Why it ended: drained, bound reached, or who asked."""

    @property
    def nothing_left(self) -> bool:
        """Whether the run ended because it had read all that it was to read."""
        return self.exit_code == 0 and self.stopped in (INPUT_DRAINED, BOUND_REACHED, JOB_DRAINED)


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `control/heartbeat-<epoch>`: only a counter that changes says that the run lives."""

    format: int = FORMAT
    epoch: int
    counter: int
    owner: Owner
    at: Micros = 0
    """For people: the clock of another machine may be wrong."""
    ended: bool = False
    """The run's last beat: nobody need wait for another."""
    outcome: RunOutcome | None = None
    """With the last beat of a pipeline's run."""
    looked_at: Micros | None = None
    """When a run that goes on last waited for input: it had read all there was."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `control/progress-<epoch>`: the last batch, for other programs."""

    format: int = FORMAT
    epoch: int
    slot: int
    phase: str = ""
    statistics: dict[str, Any] = {}
    at: Micros = 0


@dataclass(frozen=True, slots=True)
class Liveness:
    """What watching a job for a while has shown."""

    epoch: int
    owner: Owner | None
    alive: bool


T = TypeVar("T", bound=msgspec.Struct)


def request_stop(store: Store, layout: JobLayout, request: StopRequest) -> None:
    """Asks one run to end. It names an epoch, so that a request that came too late stops no later run."""
    store.put(layout.stop_request(request.epoch), encode(request))


def stop_requested(store: Store, layout: JobLayout, epoch: int) -> StopRequest | None:
    """What was asked of the run of this very epoch."""
    return _read(store, layout.stop_request(epoch), StopRequest)


def beat(store: Store, layout: JobLayout, heartbeat: Heartbeat) -> None:
    """Shows that the run lives; the counter must differ from that of every earlier beat of the epoch."""
    store.put(layout.heartbeat(heartbeat.epoch), encode(heartbeat))


def read_heartbeat(store: Store, layout: JobLayout, epoch: int) -> Heartbeat | None:
    return _read(store, layout.heartbeat(epoch), Heartbeat)


def report_progress(store: Store, layout: JobLayout, progress: Progress) -> None:
    store.put(layout.progress(progress.epoch), encode(progress))


def read_progress(store: Store, layout: JobLayout, epoch: int) -> Progress | None:
    return _read(store, layout.progress(epoch), Progress)


def watch(
    store: Store,
    layout: JobLayout,
    *,
    patience: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], object],
    interval: float = 1.0,
) -> Liveness:
    """Whether the newest run lives: its counter changed while looked at for up to `patience` seconds.

    Only the watcher's own monotonic clock is read. A newer claim during the watch is a sign of life too.
    """
    began = monotonic()
    epoch, first = _newest(store, layout)
    owner = first.owner if first else None
    if first is None or first.ended:
        return Liveness(epoch, owner, False)
    while monotonic() - began < patience:
        sleep(interval)
        now, beating = _newest(store, layout)
        if now != epoch:
            return Liveness(now, beating.owner if beating else None, True)
        if beating is not None and beating.ended:
            return Liveness(epoch, owner, False)
        if beating is not None and beating.counter != first.counter:
            return Liveness(epoch, owner, True)
    return Liveness(epoch, owner, False)


def refuse_while_live(
    store: Store,
    layout: JobLayout,
    owner: Owner,
    *,
    patience: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], object],
    interval: float = 1.0,
) -> None:
    """Raises BusyError while another owner's run lives; the same DAG run and task takes over at once."""
    _, newest = _newest(store, layout)
    if newest is None or same_owner(newest.owner, owner):
        return
    live = watch(store, layout, patience=patience, monotonic=monotonic, sleep=sleep, interval=interval)
    if live.alive and not (live.owner is not None and same_owner(live.owner, owner)):
        who = _named(live.owner) if live.owner else "a run that has just begun"
        raise BusyError(
            f"job {layout.job!r} is run by {who} (epoch {live.epoch}), which is alive: wait for it, "
            f"or end it with `stateflow stop {layout.job}`"
        )


def same_owner(one: Owner, other: Owner) -> bool:
    """Whether two runs stand for the same task of the same DAG run, or are the same run."""
    if one.dag_run or other.dag_run:
        return (one.dag_run, one.task) == (other.dag_run, other.task)
    return one.run == other.run


def _newest(store: Store, layout: JobLayout) -> tuple[int, Heartbeat | None]:
    epoch = max(read_epochs(store, layout), default=0)
    return epoch, read_heartbeat(store, layout, epoch)


def _named(owner: Owner) -> str:
    parts = [f"DAG run {owner.dag_run!r}" if owner.dag_run else f"run {owner.run!r}"]
    if owner.task:
        parts.append(f"task {owner.task!r}")
    if owner.host:
        parts.append(f"on {owner.host}")
    return " ".join(parts)


def _read(store: Store, path: str, kind: type[T]) -> T | None:
    try:
        return decode(store.read(path), kind, path)
    except NotFoundError:
        return None
