"""The steps of every sink: it prepares rows that nobody sees, the run decides a record, then any run can commit them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stateflow.errors import DisagreementError, UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.sink_kinds import SinkKind
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.upsert_options import UpsertOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from stateflow.spark.sinks.staging import Stager

DeliveryMode = Literal["exactly_once", "at_least_once"]
Committed = Literal["committed", "already", "none"]
BatchFunction = Callable[["DataFrame", Any], Any]
"""A user's sink: stateflow calls it with the rows and their `Delivery` until it returns."""
_log = logging.getLogger(__name__)


def logged(about: str, sentence: str) -> None:
    """Tells of it in the log alone, for those who have no other place."""
    _log.warning("%s", sentence)


_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """One sink's part of a decided record, and what whoever commits it has at hand."""

    prepared: Prepared
    at: SinkSlot
    spark: SparkSession
    stager: Stager
    """Reads the files that the record names."""
    still_owner: Callable[[], None]
    """Raises FencedError when a newer run owns the job."""
    function: BatchFunction | None = None
    """The user's own, where the pipeline is known and has one for this sink."""
    warn: Callable[[str, str], None] = logged
    """Tells people of something that is no error, such as rows that the target has left out. The first text names the matter, which a later
    sentence may be about, too."""

    def is_in(self, target: str, slot: int | None, mark: int | None, *, mark_may_lack: bool = False) -> bool:
        """Whether the target has the record already, by the slot and the mark that it keeps of the sink. DisagreementError if target and log
        disagree, unless another run owns the job. `mark_may_lack`: something may set the slot without the mark."""
        verdict = self.at.verdict(slot, mark, mark_may_lack=mark_may_lack)
        if verdict == "disagree":
            self.still_owner()
            raise self.at.disagreement(target, slot, decided=True)
        return verdict == "already"

    def stuck(self, why: str) -> DisagreementError:
        """The error for a record that cannot be committed; `why` ends in what to do about it."""
        at = self.at
        return DisagreementError(
            f"record {at.slot} of {at} is decided, and {why}, or give the rows up with `stateflow abandon {at.job_name} {at.slot}`"
        )


class Sink(ABC):
    """A kind of sink; each object of it is one sink of a flow, for the length of a run.

    What a kind takes and can do stands in `declared`, for those who know nothing of Spark.
    """

    declared: ClassVar[SinkKind]
    last_commit: SinkSlot | None = None
    """What the log says that the target got last. The run sets it before `open`."""
    last_prepared: Prepared | None = None
    """What the log says that was prepared for it last."""
    identity: str = ""
    """What the target is, however its address is spelled: `open` says it where it can tell. No two sinks of a pipeline write to one, and no source
    reads it."""
    warning: str = ""
    """What people should know of the target as it is now: `open` says it. The log has it, and the run's end."""

    def __init__(
        self, target: Any, options: Mapping[str, Any] = _NONE, delivery: DeliveryMode = "exactly_once"
    ) -> None:
        """The sink that a flow declares, with a target and options that fit. Touches nothing."""
        self.target = target
        self.options = options
        self.upsert = UpsertOptions.of(target, options)
        self.delivery = delivery

    @property
    def kind(self) -> str:
        """The name that a record keeps; whoever commits finds the class by it."""
        return self.declared.name

    @abstractmethod
    def open(self, spark: SparkSession, schema: StructType) -> None:
        """At the start of a run: creates a missing table behind `refuse_gone`, checks that rows of `schema` fit it, writes no rows."""

    def refuse_gone(self, target: str) -> None:
        """For `open`, before it creates a missing table: DisagreementError if the target had rows. An empty table in its place would look to readers
        as if there had been none, and stand in the way of whoever puts the old one back."""
        if (last := self.last_commit) is not None:
            before, kind = self.last_prepared, self.declared
            has_place = bool(kind.place(self.target))
            if before and has_place and not kind.is_at(self.target, before.target, before.name):
                raise DisagreementError(
                    f"sink and log disagree: {last} wrote to {before.name or before.target} up to slot {last.slot}, and is told to write to "
                    f"{target} now, which does not exist: correct the parameter or the code that says so (where the old one was moved, to "
                    "its place now), or give a new table a new sink uid"
                )
            raise DisagreementError(
                f"sink and log disagree: {target} is gone, and the log says that it got slot {last.slot} of {last}: put it back as it was, or "
                "give a new table a new sink uid"
            )

    @abstractmethod
    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        """Runs the job that computes `frame`, once, with its last stage as the job's result stage.

        Nothing becomes visible. Rows that the target would refuse fail here, before the record is decided. The slot below may still be on its way to the target.
        """

    def check(self, prepared: Prepared, at: SinkSlot, stager: Stager) -> None:
        """Right before the decision, when the target has all slots below: refuses rows that it refuses beside those that it has."""
        return None

    @staticmethod
    @abstractmethod
    def commit(request: CommitRequest) -> Committed:
        """Makes visible what a decided record prepared. Any run can: it needs no object, and has the record alone."""

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        """The slot of this job's sink that its target got last, if `declared.tells_slot` says that it can be asked; None if it has
        none."""
        raise NotImplementedError

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        """The sinks of all jobs whose rows the open target has, each by its `SinkSlot.app_id`, with its job's name where that is
        kept. A job that begins on a target with rows of another one is told."""
        return {}

    @classmethod
    def put_out(cls, prepared: Prepared) -> str:
        """An expression over staged rows for the struct that the pipeline put out, for a replay that compares them; empty where they are
        staged as they were put out."""
        return ""

    @classmethod
    def delivered(cls, prepared: Prepared) -> pa.Table | None:
        """The rows that a record gave its target, read from there, for a replay that compares them; None where nobody can tell them from
        others. An error says why they are not there any more."""
        return None

    @classmethod
    def rewind(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Prepared:
        """Prepares that the output goes back to what it had at `last_slot`. `prepared` is the newest of the sink. The record has
        it under the name `declared.rewound_as`, by which `commit_rewind` is found."""
        raise UsageError(f"the output of {at} cannot be taken back: restore without --rewind-sinks")

    @staticmethod
    def commit_rewind(request: CommitRequest) -> Committed:
        raise NotImplementedError
