"""The conditions that sensors wait for, as pure decisions: the same for a worker that pokes and for a trigger."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from stateflow.observe.health import health_of
from stateflow.quantities import age_text, time_text, written_duration

if TYPE_CHECKING:
    from stateflow.observe.status import JobStatus

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the condition holds, and why."""

    done: bool
    text: str
    """For the log."""
    checkpoint: int | None = None
    watermark: int | None = None
    """Microseconds since 1970."""
    age: float | None = None
    """Seconds since the job was last fresh."""

    def document(self) -> dict[str, Any]:
        """Small and plain: goes through Airflow's database."""
        return {"checkpoint": self.checkpoint, "watermark": self.watermark, "age": self.age}


def is_fresh(status: JobStatus, now: int, max_age: timedelta) -> Answer:
    """Whether the job, at some time in the last `max_age`, had read everything that its sources held.

    A job that was drained for good counts as fresh: it will get no newer checkpoint.
    """
    health = health_of(status, now, max_age)
    young = health.age is not None and health.age <= max_age // _MICROSECOND
    if young or status.over:
        return _answer(status, True, health.reason, health.age)
    waiting = f"not younger than {written_duration(max_age)} yet: {health.reason}"
    return _answer(status, False, waiting, health.age)


def has_passed(status: JobStatus, now: int, target: int) -> Answer:
    """Whether everything up to the target has been seen, as far as the sources' watermarks promise."""
    age = health_of(status, now, None).age
    if status.watermark is None:
        why = "its sources have had no rows yet, or declare no event_time with a watermark"
        return _answer(status, False, f"job {status.name!r} has no watermark: {why}", age)
    where = f"the watermark of job {status.name!r} stands at {time_text(status.watermark)}"
    if status.watermark >= target:
        return _answer(status, True, f"{where}, past {time_text(target)}", age)
    behind = age_text(target - status.watermark)
    return _answer(status, False, f"{where}, {behind} before {time_text(target)}", age)


def micros(at: datetime) -> int:
    """Microseconds since 1970; a time without a zone is UTC, as everywhere in Airflow."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.fromtimestamp(0, UTC)) // _MICROSECOND


def _answer(status: JobStatus, done: bool, text: str, age: int | None) -> Answer:
    return Answer(done, text, status.head, status.watermark, None if age is None else age / 1e6)
