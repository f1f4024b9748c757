"""The steps of every sink: it prepares rows that nobody sees, the run decides a record, then any run can commit them."""

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

DeliveryMode = Literal["exactly_once", "at_least_once"]
Committed = Literal["committed", "already", "none"]
BatchFunction = Callable[["DataFrame", Any], Any]
"""A user's sink: stateflow calls it with the rows and their `Delivery` until it returns."""


class Sink(Protocol):
    """One sink of a flow, for the length of a run."""

    @property
    def kind(self) -> str:
        """The name that a record keeps; `commit` looks up by it how to commit."""
        ...

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """At the start of a run: creates a missing table, checks that rows of `schema` fit it, writes no rows."""
        ...

    def prepare(self, frame: DataFrame, at: SinkSlot, prev: int | None, stager: Stager) -> Prepared:
        """Runs the job that computes `frame`, once, with its last stage as the job's result stage.

        Nothing becomes visible. `prev` is the slot last committed to this sink (`Outcome.last_commits`).
        Rows that the target would refuse fail here, before the record is decided.
        """
        ...


class Commit(Protocol):
    """How one kind of sink commits what it prepared."""

    def __call__(
        self,
        spark: SparkSession,
        prepared: Prepared,
        at: SinkSlot,
        still_owner: Callable[[], None],
        functions: Mapping[str, BatchFunction],
        stager: Stager,
    ) -> Committed: ...


def decide(
    version: int | None, prev: int | None, slot: int, late: tuple[int, ...] = ()
) -> Literal["commit", "already", "disagree"]:
    """What to do for `slot` in a sink whose table says `version`.

    The log says that the job committed `prev` last, or perhaps one of `late`. Slots only grow, so a version at or
    above `slot` means that this record was committed before. Any other version means that the table lost or gained
    commits without the log.
    """
    if version is not None and version >= slot:
        return "already"
    return "commit" if version == prev or version in late else "disagree"


def is_committed(version: int | None, prepared: Prepared, at: SinkSlot) -> bool:
    """Whether a Delta table that has `version` has the slot already. DisagreementError when table and log disagree."""
    verdict = decide(version, prepared.prev, at.slot, at.late)
    if verdict == "disagree":
        raise disagreement(at, f"Delta table {prepared.target}", version, prepared.prev)
    return verdict == "already"


def disagreement(at: SinkSlot, target: str, version: int | None, prev: int | None) -> DisagreementError:
    """The error for a sink whose table has another slot than the log says."""
    has = "no slot of this job" if version is None else f"slot {version}"
    expected = "none" if prev is None else f"slot {prev}"
    return DisagreementError(
        f"sink and log disagree: {target} has {has}, and the log of job {at.job_name!r} says "
        f"that {expected} was last committed to sink {at.sink!r} (was the table recreated, restored, or "
        "the sink's path changed?); put the table back, give a new table a new sink uid, or, when a decided "
        f"record is stuck on it, run `stateflow abandon {at.job_name} {at.slot}`"
    )
