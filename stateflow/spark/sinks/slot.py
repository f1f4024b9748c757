"""One slot of a job's log, for one sink: what `prepare` writes and `commit` commits."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash


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

    record: str = ""
    """The `writer` of the decided record: unique to it. Empty before the decision."""

    @property
    def app_id(self) -> str:
        """Delta's name of the writer, for the slot last committed to a table."""
        return f"stateflow/{self.job}/{self.sink}"

    @property
    def mark_id(self) -> str:
        """The name under which Delta keeps which record it was. Copies of a log decide other records for one slot."""
        return f"stateflow-record/{self.job}/{self.sink}"

    @property
    def mark(self) -> int:
        """The slot and 31 bits of the record."""
        return self.slot << 31 | xxhash.xxh3_64_intdigest(self.record.encode()) >> 33

    def is_marked_by(self, mark: int) -> bool:
        """Whether a table's mark is of this slot."""
        return mark >> 31 == self.slot

    def __str__(self) -> str:
        return f"sink {self.sink!r} of job {self.job_name!r}"
