"""One attempt at a batch: what its operators and sinks have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from stateflow.format.records import OperatorState, Record, ShownState
from stateflow.operators.combiner_choice import Combined, noted
from stateflow.operators.context import Moment
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, SinkNode
from stateflow.spark.batches.routes import Routes
from stateflow.spark.inputs.reread import is_before_first_batch
from stateflow.spark.session.sent_modules import NO_MODULES, SentModules
from stateflow.spark.shuffle.placement import Placement
from stateflow.spark.sinks.base import Sink
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import Stager
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import OpenShard


@dataclass(frozen=True)
class BatchSettings:
    """What all batches of a run share."""

    job: str
    job_uuid: str
    flow: Flow
    sinks: Mapping[str, Sink]
    parallelism: int
    max_parallelism: int
    backend: str
    open_shard: Callable[[str], OpenShard]
    stager: Stager
    placement: Placement
    shared_scratch: bool
    """True if every task can read what another one writes to scratch disk."""
    scratch: str
    dead_letter_threshold: int
    dead_letter_limit: int
    sent_modules: SentModules = NO_MODULES
    python_beside: bool = False
    """True if Python of a sink may get Arrow batches in the same session while a batch runs."""


@dataclass(frozen=True)
class BatchAttempt:
    """A batch that fails is tried again by another attempt."""

    spark: SparkSession
    settings: BatchSettings
    moment: Moment
    parent: Record | None
    last_commits: Mapping[str, int]
    routes: Routes
    """What the flow and the batches before say."""
    storage: TaskStorage
    feeds: tuple[ShownState, ...]
    """What the tables of feeds show before it."""
    input_free: bool
    record_at: Callable[[int], Record | None]
    """The record of a slot, as long as the log has it."""
    late: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Per sink uid the abandoned slots whose output may have arrived all the same."""
    again: bool = False
    """Whether an attempt at this batch has failed."""
    live: bool = False
    """Whether this process is the run of the batch's epoch. A replay repeats one of the past, perhaps with other code."""

    @property
    def begins(self) -> bool:
        """True for a run's first batch."""
        return is_before_first_batch(self.parent, self.storage.epoch)

    @property
    def goes_on(self) -> bool:
        """Whether this run has made `parent`, so that it has states just as today's code declares them."""
        return self.live and not self.begins

    def before(self, node: KeyedNode) -> OperatorState | None:
        """The operator's state as the newest record has it."""
        return self.parent.operators.get(node.uid) if self.parent else None

    def groups_before(self, node: KeyedNode) -> Combined | None:
        return noted(self.parent.statistics, node.uid) if self.parent else None

    def slot_of(self, sink: SinkNode) -> SinkSlot:
        settings = self.settings
        return SinkSlot(
            settings.job_uuid,
            settings.job,
            sink.uid,
            self.moment.slot,
            self.storage.epoch,
            self.late.get(sink.uid, ()),
            prev=self.last_commits.get(sink.uid),
        )
