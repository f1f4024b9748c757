"""Messages between a run and other programs: stop requests, heartbeats, progress.

Nothing here decides who owns a job. A stop request asks a run to end, and a heartbeat tells a second run to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from stateflow.checkpoint.log import read_epoch_claim, read_epochs, read_if_there
from stateflow.checkpoint.processes import ProcessIdentity, is_dead
from stateflow.errors import BusyError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FORMAT, Count, Micros, Owner, encode
from stateflow.logs import waiting
from stateflow.masking import without_secrets
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
BOUND_BEHIND = "the bound lies behind what was read"
"""A bounded run had nothing to do, because an earlier run has read beyond its bound."""
JOB_DRAINED = "the job was drained"
INTERRUPTED = "a stop was requested"
"""A signal stopped the process: the store has no stop request, and the host may be shutting down."""
KILLED = "its task was killed"
"""A stop request with this reason ends the old driver only: a retry ignores it and starts a new driver."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended, for the program that started it and cannot ask its process any more."""

    exit_code: int = 0
    error: str = ""
    """One sentence; empty when it ended well."""
    batches: int = 0
    rows: int = 0
    checkpoint: int | None = None
    """The newest complete checkpoint."""
    stopped: str = ""
    """Why it ended: drained, bound reached, or who asked it to stop."""
    warnings: tuple[str, ...] = ()
    """What a person should know of a run that ended well, a sentence each."""

    @property
    def nothing_left(self) -> bool:
        """Whether the run ended because it had read all its input."""
        return self.exit_code == 0 and self.stopped in (INPUT_DRAINED, BOUND_REACHED, JOB_DRAINED)


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `control/heartbeat-<epoch>`: only a changing counter proves that the run lives."""

    format: int = FORMAT
    epoch: int
    counter: int
    owner: Owner
    process: ProcessIdentity | None = None
    """The process of the run. If it has ended, programs on its machine need not wait for a counter that cannot change any
    more."""
    at: Micros = 0
    """For people: the clock of another machine may be wrong."""
    ended: bool = False
    """True in the run's last heartbeat: no other follows."""
    outcome: RunOutcome | None = None
    """How the run ended, in the last heartbeat of a pipeline's run."""
    looked_at: Micros | None = None
    """When a continuing run last waited for input, because it had read all there was; or when somebody who would have
    started a run saw that there was nothing to read."""
    warm_host: str = ""
    """The warm host of `owner.host` that carries out the run, or has."""
    interval: Count = 0
    """Microseconds that the run waits between two heartbeats; 0 where it does not say."""

    def patience(self, least: float) -> float:
        """Seconds without a change before the run counts as lost, for somebody who waits at least so many. The run's options are not
        those of who watches."""
        return max(least, SILENT_BEATS * self.interval / 1e6)


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `control/progress-<epoch>`: the last batch, for other programs."""

    format: int = FORMAT
    epoch: int
    slot: int
    statistics: dict[str, Any] = {}
    at: Micros = 0


SILENT_BEATS = 3
"""No run counts as lost before it could have written so many heartbeats."""
SILENCE = 0.3
"""The share of its patience after which a watch says that it waits. A run that lives mostly beats before."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """What `watch` has seen of a job."""

    epoch: int
    owner: Owner | None
    alive: bool


def request_stop(store: Store, layout: JobLayout, request: StopRequest) -> None:
    """Asks one run to end. The request names an epoch, so a late request never stops a later run."""
    store.put(layout.stop_request(request.epoch), encode(request))


def stop_requested(store: Store, layout: JobLayout, epoch: int) -> StopRequest | None:
    """The stop request for the run of this epoch, if there is one."""
    return read_if_there(store, layout.stop_request(epoch), StopRequest)


def beat(store: Store, layout: JobLayout, heartbeat: Heartbeat) -> None:
    """Shows that the run lives. The counter must differ from every earlier counter of the epoch."""
    store.put(layout.heartbeat(heartbeat.epoch), encode(heartbeat))


def read_heartbeat(store: Store, layout: JobLayout, epoch: int) -> Heartbeat | None:
    """Without secrets in how the run ended: whoever sees the job reads that, and older runs have written it as it was raised."""
    heartbeat = read_if_there(store, layout.heartbeat(epoch), Heartbeat)
    if heartbeat is None or heartbeat.outcome is None or not heartbeat.outcome.error:
        return heartbeat
    shown = msgspec.structs.replace(heartbeat.outcome, error=without_secrets(heartbeat.outcome.error))
    return msgspec.structs.replace(heartbeat, outcome=shown)


def note_look(store: Store, layout: JobLayout, at: Micros) -> None:
    """Notes that somebody looked and found nothing to read, so that no run was needed. The job is as fresh as after a run."""
    _, heartbeat = newest_heartbeat(store, layout)
    if heartbeat is not None and heartbeat.ended:
        # A run that begins meanwhile has a higher epoch, and a heartbeat of its own.
        beat(store, layout, msgspec.structs.replace(heartbeat, looked_at=at))


def report_progress(store: Store, layout: JobLayout, progress: Progress) -> None:
    store.put(layout.progress(progress.epoch), encode(progress))


def read_progress(store: Store, layout: JobLayout, epoch: int) -> Progress | None:
    return read_if_there(store, layout.progress(epoch), Progress)


def watch(
    store: Store,
    layout: JobLayout,
    *,
    patience: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], object],
    interval: float = 1.0,
    silent: Callable[[int, Owner, float, float], object] = lambda epoch, owner, since, left: None,
) -> Liveness:
    """Whether the newest run lives: whether its counter changes within `patience` seconds, or longer if it writes heartbeats rarely.

    It reads only its own monotonic clock. A newer claim during the watch is a sign of life too. A run whose process is
    known to be dead is not waited for. It calls `silent` once, when it has seen no sign of life for a while, with the
    seconds that have passed and those that are left.
    """
    began = monotonic()
    epoch, first = newest_heartbeat(store, layout)
    owner = first.owner if first else None
    if first is None or first.ended:
        return Liveness(epoch, owner, False)
    patience = first.patience(patience)
    reported = False
    while not is_dead(first.process) and (passed := monotonic() - began) < patience:
        if not reported and passed >= patience * SILENCE:
            reported = True
            silent(epoch, first.owner, passed, patience - passed)
        sleep(interval)
        newest, heartbeat = newest_heartbeat(store, layout)
        if newest != epoch:
            return Liveness(newest, heartbeat.owner if heartbeat else None, True)
        if heartbeat is not None and heartbeat.ended:
            return Liveness(epoch, owner, False)
        if heartbeat is not None and heartbeat.counter != first.counter:
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
    """Raises BusyError while another owner's run lives. The same task of the same DAG run may take over at once."""
    _, newest = newest_heartbeat(store, layout)
    if newest is None or same_owner(newest.owner, owner):
        return
    liveness = watch(
        store,
        layout,
        patience=patience,
        monotonic=monotonic,
        sleep=sleep,
        interval=interval,
        silent=_say_silent,
    )
    if liveness.alive and not (liveness.owner is not None and same_owner(liveness.owner, owner)):
        raise busy(layout.job, liveness.epoch, liveness.owner)


def _say_silent(epoch: int, owner: Owner, since: float, left: float) -> None:
    waiting(
        f"{_named(owner)} (epoch {epoch}) gave no sign of life in {since:.0f} s: waiting another {left:.0f} s before it "
        "counts as lost"
    )


def busy(job: str, epoch: int, owner: Owner | None) -> BusyError:
    """The refusal to begin beside a live run."""
    who = _named(owner) if owner else "a run that has just begun"
    return BusyError(
        f"job {job!r} is run by {who} (epoch {epoch}), which is alive: wait for it, or end it with `stateflow stop {job}`"
    )


def same_owner(one: Owner, other: Owner) -> bool:
    """Whether both owners are the same task of the same DAG run or, outside of Airflow, the same run."""
    if one.dag_run or other.dag_run:
        return (one.dag_run, one.task) == (other.dag_run, other.task)
    return one.run == other.run


def newest_heartbeat(store: Store, layout: JobLayout) -> tuple[int, Heartbeat | None]:
    """The newest epoch, and the heartbeat of its run."""
    epoch = max(read_epochs(store, layout), default=0)
    return epoch, read_heartbeat(store, layout, epoch)


def begun_by_restore(store: Store, layout: JobLayout) -> bool:
    """Whether a restore made the job. As long as the job has no record, the restore has brought nothing."""
    epochs = read_epochs(store, layout)
    return bool(epochs) and read_epoch_claim(store, layout, epochs[0]).restores


def refuse_unrestored(store: Store, layout: JobLayout) -> None:
    """UsageError for a job without a record that a restore has made. A run would begin with empty state, and write its output once more."""
    if not begun_by_restore(store, layout):
        return
    beat = read_heartbeat(store, layout, read_epochs(store, layout)[0])
    error = beat.outcome.error.rstrip(".") if beat is not None and beat.outcome is not None else ""
    raise UsageError(
        f"job {layout.job!r} was to be restored, and the restore {f'failed ({error})' if error else 'has not come to its end'}: a run would begin "
        "with empty state at the beginning of its sources; restore it again, or, to begin anew, run it under another name"
    )


def _named(owner: Owner) -> str:
    parts = [f"DAG run {owner.dag_run!r}" if owner.dag_run else f"run {owner.run!r}"]
    if owner.task:
        parts.append(f"task {owner.task!r}")
    if owner.host:
        parts.append(f"on {owner.host}")
    return " ".join(parts)
