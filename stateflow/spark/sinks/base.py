"""What every sink is: rows are prepared invisibly, a record is decided, then anybody can commit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stateflow.errors import CorruptError, DisagreementError
from stateflow.format.records import Prepared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.checkpoint.writer import CommitPermit
    from stateflow.spark.sinks.staging import Stager

Delivery = Literal["exactly_once", "at_least_once"]
Committed = Literal["committed", "already", "none"]
BatchFunction = Callable[["DataFrame", int], Any]
"""A user's sink: called with the rows and the checkpoint id until it returns."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which record and which sink of it something is about."""

    job: str
    """UUID: a job recreated under an old name is another job, and must not skip what the old one wrote."""
    job_name: str
    sink: str
    """The sink's uid."""
    slot: int
    epoch: int
    late: tuple[int, ...] = ()
    """Slots whose output was abandoned and may have arrived all the same, from a run that was slow to stop."""

    @property
    def app_id(self) -> str:
        """The name under which Delta keeps the slot last committed to a table."""
        return f"stateflow/{self.job}/{self.sink}"

    def __str__(self) -> str:
        return f"sink {self.sink!r} of job {self.job_name!r}"


class Sink(Protocol):
    """One sink of a flow, for the length of a run."""

    @property
    def kind(self) -> str:
        """The name that a record keeps, by which `commit` finds what to do."""
        ...

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """When a run starts: creates what is missing, checks that rows of `schema` fit; writes no rows."""
        ...

    def prepare(self, frame: DataFrame, place: Place, prev: int | None, stage: Stager) -> Prepared:
        """Runs the job that computes `frame`, once, with its last stage as the job's result stage.

        Nothing becomes visible. `prev` is the slot last committed to this sink (`Outcome.last_commits`).
        Whatever can fail for a reason of its own fails here, before the record is decided.
        """
        ...


class Commit(Protocol):
    """How one kind of sink carries out what it prepared."""

    def __call__(
        self,
        spark: SparkSession,
        prepared: Prepared,
        place: Place,
        still_owner: Callable[[], None],
        functions: Mapping[str, BatchFunction],
        stage: Stager,
    ) -> Committed: ...


def commit(
    spark: SparkSession,
    prepared: Prepared,
    place: Place,
    permit: CommitPermit,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stage: Stager,
) -> Committed:
    """Makes what a decided record prepared visible, exactly once however often and by whomever it is called.

    `permit` can only be had for a record that stands. `still_owner` raises FencedError when a newer run owns
    the job. `functions` are the user's own sinks by uid; `stage` reads the files that the record names.
    "none" means that there was nothing to commit: the sink stays at the slot that it was at.
    """
    from stateflow.spark.sinks.kinds import COMMITS

    if permit.slot != place.slot:
        raise TypeError(f"the permit is for record {permit.slot}, not for {place.slot}")
    carry_out = COMMITS.get(prepared.kind)
    if carry_out is None:
        raise CorruptError(
            f"record {place.slot} of job {place.job_name!r} has a sink of unknown kind {prepared.kind!r}: "
            "carry it out with the version of stateflow that wrote it"
        )
    still_owner()
    return carry_out(spark, prepared, place, still_owner, functions, stage)


def decide(
    version: int | None, prev: int | None, slot: int, late: tuple[int, ...] = ()
) -> Literal["commit", "already", "disagree"]:
    """What a sink that has `version` needs for `slot`, when the log says it was given `prev` last, or perhaps `late`.

    Slots only grow, so a version at or above `slot` can only mean that this record was carried out before.
    Everything else is a table that lost or gained commits behind the log's back.
    """
    if version is not None and version >= slot:
        return "already"
    return "commit" if version == prev or version in late else "disagree"


def disagreement(place: Place, target: str, version: int | None, prev: int | None) -> DisagreementError:
    """The sink is not where the log says it is."""
    has = "no slot of this job" if version is None else f"slot {version}"
    expected = "none" if prev is None else f"slot {prev}"
    return DisagreementError(
        f"sink and log disagree: {target} has {has}, and the log of job {place.job_name!r} says "
        f"that {expected} was last committed to sink {place.sink!r} (was the table recreated, restored, or "
        "the sink's path changed?); put the table back, give a new table a new sink uid, or, when a decided "
        f"record is stuck on it, run `stateflow abandon {place.job_name} {place.slot}`"
    )
