"""One slot of a job's log, for one sink: what `prepare` writes and `commit` commits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinkSlot:
    """A record's slot and one of its sinks."""

    job: str
    """UUID: a job recreated under an old name is another job, and must not skip what the old one wrote."""
    job_name: str
    sink: str
    """The sink's uid."""
    slot: int
    epoch: int
    late: tuple[int, ...] = ()
    """Abandoned slots that may have arrived all the same, from a run that was slow to stop. Not rows behind the watermark."""

    @property
    def app_id(self) -> str:
        """Delta's name of the writer, for the slot last committed to a table."""
        return f"stateflow/{self.job}/{self.sink}"

    def __str__(self) -> str:
        return f"sink {self.sink!r} of job {self.job_name!r}"
