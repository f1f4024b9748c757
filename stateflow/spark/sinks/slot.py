"""One slot of a job's log, for one sink: what `prepare` writes and `commit` commits. The slot that its target has is judged here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import xxhash

from stateflow.errors import DisagreementError

Verdict = Literal["commit", "already", "disagree"]


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
    prev: int | None = None
    """The slot that the log says was committed last to this sink."""
    back_to: int | None = None
    """Of a way back: the slot to which it leads; 0 for that before the job's first."""
    unmarked: bool = False
    """Whether `prev` was delivered at least once, which leaves no slot in the target."""

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

    def restore_to(self, slot: int | None) -> str:
        """How the job follows a target that was put back as it was at an older slot, of a kind whose output can be taken back."""
        return f"take the job there, too, with `stateflow restore {self.job_name} PIPELINE --from checkpoint:{slot} --rewind-sinks`"

    def verdict(self, slot: int | None, mark: int | None, *, mark_may_lack: bool = False) -> Verdict:
        """What to do for the record, with a target that has `slot` and the `mark` of the record that it came by; None for none.

        The log says that the job committed `prev` last, or perhaps one of `late`. Any other slot means that the target lost or gained
        commits without the log; where `prev` left none there, an older one and none are right, too. One above this means so, too: the log
        decides no slot before the one below it is carried out. Only a run that was fenced meets that otherwise. A way back begins at any slot
        behind its own end: somebody may have put back a copy of the target. `mark_may_lack`: the target can have the slot without its mark, or with that of an earlier one.
        """
        if slot == self.slot:
            lacks = mark_may_lack and (mark is None or mark >> 31 != self.slot)
            return "already" if lacks or mark == self.mark else "disagree"
        if self.unmarked and (slot or 0) <= (self.prev or 0):
            return "commit"
        return "commit" if slot == self.prev or slot in self.late or self._is_on_the_way(slot) else "disagree"

    def _is_on_the_way(self, slot: int | None) -> bool:
        if slot is None or self.prev is None or self.back_to is None:
            return False
        return self.back_to <= slot <= self.prev

    def refuse_disagreement(self, target: str, slot: int | None, way: str = "") -> None:
        """Before the decision: DisagreementError unless the target has a slot that the record can follow. What shows only after the decision blocks
        the job. Nobody can have committed the slot yet, unless another copy of the log has it. `way`: what a target can do that was put back
        as it was at an older slot."""
        if self.verdict(slot, None) != "commit":
            raise self.disagreement(target, slot, way)

    def disagreement(
        self, target: str, slot: int | None, way: str = "", *, decided: bool = False
    ) -> DisagreementError:
        """The error for a target that has another slot than the log says. `decided`: the record of this slot is."""
        has = "no slot of this job" if slot is None else f"slot {slot}"
        expected = "none" if self.prev is None else f"slot {self.prev}"
        if slot is not None and slot > (self.prev or 0):
            return DisagreementError(
                f"sink and log disagree: {target} has slot {slot} of this job, and its log says that {expected} was last committed to "
                f"sink {self.sink!r} (were the checkpoints of {self.job_name!r} put back from a copy, or does another run go on with a copy of "
                f"them?); go on with the checkpoints that the table is of, or as a new job with a copy of the output as it was then (of a Delta "
                f"table, `stateflow restore NEW PIPELINE --from latest --from-job {self.job_name} --clone-sinks -p OUTPUT=ANOTHER/PATH`)"
            )
        ways = ["put the table back"]
        if slot is not None and way:
            ways.append(f"if it is right as it was at slot {slot}, {way}")
        ways.append("give a new table a new sink uid")
        if decided:
            ways.append(
                f"give the rows of this record up with `stateflow abandon {self.job_name} {self.slot}`"
            )
        return DisagreementError(
            f"sink and log disagree: {target} has {has}, and the log of job {self.job_name!r} says "
            f"that {expected} was last committed to sink {self.sink!r} (was the table recreated, restored, or "
            f"the sink's path changed?); {', '.join(ways[:-1])}, or {ways[-1]}"
        )

    def __str__(self) -> str:
        return f"sink {self.sink!r} of job {self.job_name!r}"
