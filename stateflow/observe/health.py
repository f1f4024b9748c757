"""Whether somebody should look at a job: one word, and one sentence that says why and what to do. Pure.

A job is fresh if it has read what its sources held: its newest checkpoint is young, or a run looked a short time ago and
found nothing to read. A night without input does not make a job stale; a run that hangs does. A fresh job whose last run failed
is not well either.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from stateflow.format.instants import CLOCKS_DIFFER
from stateflow.quantities import age_text

if TYPE_CHECKING:
    from stateflow.observe.status import JobStatus

HealthState = Literal["ok", "stale", "lost", "blocked", "new", "failed", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a job at one moment."""

    state: HealthState
    reason: str
    """One sentence. If the job is not well, it names the next step."""
    fresh_at: int | None
    """When the job last had read all its input, in microseconds since 1970; None if it never had."""
    age: int | None
    """Microseconds since then."""

    @property
    def well(self) -> bool:
        return self.state in ("ok", "new")


def fresh_at(status: JobStatus, now: int) -> int | None:
    """When the newest checkpoint was taken, or when a run last found nothing to read, whichever is later. A time that is far ahead
    counts only where there is no other: the clock was wrong that gave it."""
    times = [at for at in (status.last_checkpoint_at, status.looked_at) if at is not None]
    return max([at for at in times if at - now <= CLOCKS_DIFFER] or times, default=None)


def _age(fresh: int, now: int) -> int:
    """Microseconds since the job was last fresh. It is never negative, even if the caller's clock runs behind. Of a time that is far
    ahead nobody knows how long ago it was: it is then as old as the two clocks are apart."""
    return abs(now - fresh) if _is_ahead(fresh, now) else max(0, now - fresh)


def health_of(status: JobStatus, now: int, stale_after: timedelta | None) -> Health:
    """The health of a job. `now` is microseconds since 1970, by the caller's clock. Without `stale_after` no job is stale.

    The worst problem comes first: over a damaged log no run goes on, and a lost run needs a new run, whatever else is true.
    """
    fresh = fresh_at(status, now)
    age = None if fresh is None else _age(fresh, now)
    bound = None if stale_after is None else stale_after // timedelta(microseconds=1)
    old = bound is not None and (now - _began(status) if age is None else age) > bound
    state, reason = _state_and_reason(status, now, fresh, old)
    return Health(state, f"job {status.name!r} {reason}", fresh, age)


def _state_and_reason(status: JobStatus, now: int, fresh: int | None, old: bool) -> tuple[HealthState, str]:
    if status.half_deleted:
        return "failed", f"is half deleted: `stateflow delete {status.name} --yes` finishes it"
    if status.damage:
        return "unreadable", (
            f"is damaged: {status.damage}, so nothing of it may be decided or deleted: run `stateflow verify {status.name}`"
        )
    if status.to_be_restored and status.status != "RUNNING":
        ended = f"failed ({failure})" if (failure := _failure(status)) else "has not come to its end"
        return "failed", (
            f"has nothing yet, since its restore {ended}: restore it again, or, to begin anew, run it under another name"
        )
    if status.status == "LOST":
        silent = f" for {age_text(now - status.heartbeat_at)}" if status.heartbeat_at is not None else ""
        return "lost", (
            f"has lost its run (epoch {status.epoch}{_whereabouts(status)}), which has given no sign of life{silent}: start the "
            f"next run, it carries on {_resumption(status)}"
        )
    if status.pending and (old or status.status != "RUNNING"):
        first = status.pending[0]
        return "blocked", (
            f"has decided record {first} and not delivered it: start the next run, which delivers it, or if that fails see "
            f"`stateflow abandon {status.name} {first}`"
        )
    if status.over:
        return "ok", f"was drained at checkpoint {status.head} and is over"
    if old:
        return "stale", f"{_staleness(status, now, fresh)}: {_advice(status)}"
    if status.status != "RUNNING" and (failure := _failure(status)):
        return "failed", f"failed in its last run ({failure}): start it again when that is settled"
    if fresh is None:
        since = "yet" if status.head is None else "since it was restored"
        return "new", f"has no checkpoint {since}{' and is running' if status.status == 'RUNNING' else ''}"
    if status.looked_at == fresh:
        return "ok", f"had nothing left to read {_since(fresh, now)}"
    return "ok", f"has a checkpoint of {_since(fresh, now)}"


def _is_ahead(fresh: int, now: int) -> bool:
    return fresh - now > CLOCKS_DIFFER


def _since(fresh: int, now: int) -> str:
    return f"{age_text(_age(fresh, now))} {'ahead of this clock' if _is_ahead(fresh, now) else 'ago'}"


def _began(status: JobStatus) -> int:
    return status.created_at if status.head_at is None else status.head_at


def _staleness(status: JobStatus, now: int, fresh: int | None) -> str:
    if fresh is None:
        what = "made" if status.head is None else "restored"
        return f"has no checkpoint {age_text(now - _began(status))} after it was {what}"
    if _is_ahead(fresh, now):
        return f"cannot be told to be fresh: it last was so {_since(fresh, now)}, so that clock or this one is or was wrong"
    if status.last_checkpoint_at == fresh:
        return f"is stale: its newest checkpoint is {age_text(_age(fresh, now))} old"
    return f"is stale: it was last seen with nothing left to read {_since(fresh, now)}"


def _advice(status: JobStatus) -> str:
    if status.status == "RUNNING":
        return (
            f"its run (epoch {status.epoch}{_whereabouts(status)}) lives and completes no batch, see its log, or end it with "
            f"`stateflow stop {status.name}`"
        )
    if failure := _failure(status):
        return f"its last run failed ({failure}), start it again when that is settled"
    return "start its next run, or see why the schedule does not"


def _failure(status: JobStatus) -> str:
    """Why the last run failed; empty if it did not."""
    code, error = status.outcome.get("exit_code"), str(status.outcome.get("error", ""))
    return error.rstrip(".") or (f"exit code {code}" if code else "")


def _whereabouts(status: JobStatus) -> str:
    """The DAG run and host of the run, so that somebody finds its log."""
    owner = status.owner
    parts = [f"DAG run {owner['dag_run']}"] if owner.get("dag_run") else []
    parts += [f"on {owner['host']}"] if owner.get("host") else []
    return f", {' '.join(parts)}" if parts else ""


def _resumption(status: JobStatus) -> str:
    if status.pending:
        return f"from record {status.pending[-1]}, which is decided and which it delivers first"
    return "from the beginning" if status.head is None else f"from checkpoint {status.head}"
