"""What every sink is: rows are prepared invisibly, a record is decided, then anybody can commit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stateflow.errors import DisagreementError
from stateflow.format.records import Prepared
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

Delivery = Literal["exactly_once", "at_least_once"]
Committed = Literal["committed", "already", "none"]
BatchFunction = Callable[["DataFrame", int], Any]
"""A user's sink: called with the rows and the checkpoint id until it returns."""


class Sink(Protocol):
    """One sink of a flow, for the length of a run."""

    @property
    def kind(self) -> str:
        """The name that a record keeps, by which `commit` finds what to do."""
        ...

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """When a run starts: creates what is missing, checks that rows of `schema` fit; writes no rows."""
        ...

    def prepare(self, frame: DataFrame, place: SinkSlot, prev: int | None, stage: Stager) -> Prepared:
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
        place: SinkSlot,
        still_owner: Callable[[], None],
        functions: Mapping[str, BatchFunction],
        stage: Stager,
    ) -> Committed: ...


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


def disagreement(place: SinkSlot, target: str, version: int | None, prev: int | None) -> DisagreementError:
    """The sink is not where the log says it is."""
    has = "no slot of this job" if version is None else f"slot {version}"
    expected = "none" if prev is None else f"slot {prev}"
    return DisagreementError(
        f"sink and log disagree: {target} has {has}, and the log of job {place.job_name!r} says "
        f"that {expected} was last committed to sink {place.sink!r} (was the table recreated, restored, or "
        "the sink's path changed?); put the table back, give a new table a new sink uid, or, when a decided "
        f"record is stuck on it, run `stateflow abandon {place.job_name} {place.slot}`"
    )
