"""The batches of a run. The loop evaluates, decides, delivers and completes each, and tries again what failed before its decision."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import Writer
from stateflow.compatibility.non_restored import lets_go
from stateflow.config.options import Options
from stateflow.errors import (
    CorruptError,
    FencedError,
    IncompatibleError,
    StateflowError,
    UsageError,
    without_exit,
)
from stateflow.format.records import Prepared, Record, SourceState
from stateflow.operators.context import Moment
from stateflow.spark.batch_record import MadeBy, held_by, job_time, record_of, rows_of
from stateflow.spark.batch_warnings import BatchWarnings, clock_behind
from stateflow.spark.batches.batch import Batch
from stateflow.spark.batches.batch_attempt import BatchAttempt, BatchSettings
from stateflow.spark.batches.routes import Routes, routes_of
from stateflow.spark.carry_out import Sinks
from stateflow.spark.deadline import Deadline
from stateflow.spark.deliveries import Deliveries, cause
from stateflow.spark.inputs.admission import Admission
from stateflow.spark.inputs.alignment import nothing_waits
from stateflow.spark.inputs.file_types import refuse_other_types
from stateflow.spark.inputs.observations import Observation, check_times, less, observations
from stateflow.spark.inputs.open_inputs import OpenInputs, SourceFrames
from stateflow.spark.inputs.output_watch import OutputWatch
from stateflow.spark.inputs.seeding import refuse_patterns
from stateflow.spark.inputs.watermark import advanced, holder_of
from stateflow.spark.own_files import with_own_files
from stateflow.spark.run_warnings import RunWarnings
from stateflow.spark.source_progress import SourceProgress
from stateflow.spark.source_records import SourceRecords
from stateflow.spark.sources.availability import check_topics_stay
from stateflow.spark.sources.read_commits import ReadCommits
from stateflow.spark.task.failures import translated
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.tidying import Tidying

_log = logging.getLogger(__name__)
_NEVER_RETRIED = (FencedError, IncompatibleError, CorruptError, UsageError)
_LONGEST_PAUSE = 60.0
_LOOK = 0.2
"""After how many seconds of a pause to look whether a drain is asked for."""
MOST_INPUT_FREE = 100


@dataclass
class BatchReport:
    """The figures of a finished batch."""

    slot: int
    input_free: bool
    rows: int
    duration: float
    record: Record
    statistics: dict[str, Any]


@dataclass
class BatchLoop:
    spark: SparkSession
    settings: BatchSettings
    inputs: OpenInputs
    writer: Writer
    options: Options
    storage: TaskStorage
    """Each batch writes for its own slot."""
    sinks: Sinks
    outputs: OutputWatch
    listener: Callable[[BatchReport], None]
    clock: Callable[[], int]
    parameters: Mapping[str, Any]
    made_by: MadeBy
    warnings: RunWarnings
    stop: threading.Event
    """Set by whoever waits for no further try of a batch."""
    drain_asked: Callable[[], bool]
    """Whether a stop request asks for a drain, whose batches are tried again."""
    admission: Admission = field(init=False)
    sources: SourceProgress = field(init=False)
    source_records: SourceRecords = field(init=False)
    deliveries: Deliveries = field(init=False)
    location: Path = Path()
    """The folder of the query that is under way."""
    failure: BaseException | None = None
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    batches: int = 0
    rows: int = 0
    _routes: Routes = field(init=False)
    """Where operators' rows go, as far as the run's batches have shown."""
    _batch_warnings: BatchWarnings = field(init=False)
    _tidying: Tidying = field(init=False)
    _failed_tries: int = 0
    """Of the batch that is under way."""
    _batch_id: int = 0
    """Spark's own, of the batch that is under way."""
    _cost: tuple[int, float] = (0, 0.0)
    """Rows and seconds of the last batch."""
    _planned: int = 0
    """When the batch that is under way was to begin, by the job's clock: before its pause, and before its first try."""

    def __post_init__(self) -> None:
        flow, writer = self.settings.flow, self.writer
        self._routes = routes_of(flow)
        self.deliveries = Deliveries(self.settings.job, writer, self.sinks, self.options, self.settings.sinks)
        self._tidying = Tidying(writer, self.options, self.clock)
        self._batch_warnings = BatchWarnings(self.spark, self.inputs, self.warnings, self.settings.job)
        commits = ReadCommits(self.spark, self.inputs.leaves)
        self.source_records = SourceRecords(
            self.inputs, writer, self.made_by, self.warnings, self.clock, commits, self.deliveries.settle
        )
        target = self.options.target_batch_duration.total_seconds()
        self.admission = Admission(self.spark, self.inputs, target, self.warnings.add)
        self.admission.begin(writer.log.slots[record.slot] for record in writer.log.chain)
        self.sources = SourceProgress(flow, writer, self.options, self.clock, self.admission)
        if self.options.max_source_drift:
            for sentence in nothing_waits(flow):
                self.warnings.add("max_source_drift", sentence)
        self._now(writer.parent)  # it warns, also where no batch follows

    def on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """For foreachBatch. It keeps an error in `failure`, because Spark passes on only the error's text."""
        # Now, and not when a batch without input has let go of the lock: what has come since then is not in this batch.
        planned = self.clock()
        with self.lock:
            try:
                self._planned = planned
                self._pause()
                if self.ended or self.ending():
                    raise InterruptedError("the run is stopping; this batch is not run")
                refuse_patterns(self.location, batch_id, self.inputs.layout)
                self._batch_id = batch_id
                with without_exit("code in the batch, such as a package's sink or source,"):
                    self._run_with_retries(
                        lambda: self._read(frame),
                        lambda: self.source_records.of_batch(self.location, batch_id),
                        input_free=False,
                    )
                self.sources.batch_ended(*self._cost)
            except BaseException as error:
                self.failure = error
                if isinstance(error, Exception):
                    raise
                # Py4J answers Spark for no other errors, such as a panic of a library in Rust, and Spark would wait for ever.
                raise RuntimeError(f"the batch ended with {type(error).__name__}") from error

    def _read(self, frame: DataFrame) -> SourceFrames:
        """The rows of each source, which Spark reads as their files have them."""
        refuse_other_types(self.spark, self.inputs, self.location, self._batch_id)
        return self.inputs.split(frame)

    def due(self) -> bool:
        """Whether a checkpoint without new input has anything to do: timers would fire, or state goes that the caller lets go of."""
        # Every batch lets it go.
        return self.sources.due() or (self.batches == 0 and lets_go(self.settings.flow, self.writer.parent))

    def input_free(self) -> None:
        """Makes a checkpoint without new input."""
        with self.lock:
            self._planned = self.clock()
            self._pause()
            with without_exit("code in the batch, such as a package's sink or source,"):
                self._run_with_retries(
                    lambda: self.inputs.empty(self.spark),
                    lambda: self.sources.known(self._planned),
                    input_free=True,
                )

    def ending(self) -> bool:
        """Whether the run ends after its batch."""
        return self.stop.is_set() or self.drain_asked()

    def check_topics(self) -> None:
        """Refuses rows of a topic that was made anew under the run. One that is made anew from here on is not in the batch any more."""
        for loss in check_topics_stay(self.spark, self.inputs.leaves):
            self.warnings.add(f"accepted loss: {loss}", loss)

    def drain(self) -> None:
        """Raises the watermark to its end, so that every event-time timer fires; the job is over then."""
        self.sources.draining = True
        if self.writer.parent is None or not self.writer.parent.final:
            self.input_free()
        for _ in range(MOST_INPUT_FREE):
            if not self.sources.due():
                return
            self.input_free()
        raise StateflowError(
            f"job {self.settings.job!r} is not drained: after {MOST_INPUT_FREE} rounds its timers still set new ones"
        )

    def __enter__(self) -> BatchLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Ends what goes on behind the batches. After a failure elsewhere the record that is on its way arrives, if it can."""
        if kind is None or issubclass(kind, Exception):
            with suppress(Exception) if error is not None else nullcontext():
                self.deliveries.settle()
        self.deliveries.in_flight.close()
        if error is None:
            self._tidying.end()

    def _pause(self) -> None:
        """Waits until `min_pause` has passed since the last checkpoint, unless the run is to stop or drains."""
        if self.options.min_pause:
            self.deliveries.settle()
        if (ended := self.deliveries.ended) is not None:
            end = ended + self.options.min_pause.total_seconds()
            while not self.ending() and not self.sources.draining and (left := end - time.perf_counter()) > 0:
                self.stop.wait(min(left, _LOOK))

    def _run_with_retries(
        self,
        frames: Callable[[], SourceFrames],
        sources: Callable[[], dict[str, SourceState]],
        *,
        input_free: bool,
    ) -> None:
        failures = self._failed_tries = 0
        refetched = False
        pause = self.options.failure_backoff.total_seconds()
        while True:
            slot = self.writer.next_slot
            try:
                again = (failures or refetched) and not input_free
                counted = observations(self.spark, self.inputs.observed) if again else {}
                self._run_batch(frames(), sources, counted, input_free=input_free)
                return
            except Exception as error:
                flight = self.deliveries.in_flight
                if flight.overdue:
                    raise  # the store may not answer the next question either
                problem = cause(self.writer, translated(error))
                decided = flight.failed or self.writer.stopped or self.writer.next_slot != slot
                if isinstance(problem, CorruptError) and not refetched and not decided:
                    # The tasks have deleted this host's copies. If the store is sound, they fetch sound files now.
                    refetched = True
                    _log.warning("state was damaged on a host and is fetched again: %s", problem)
                    continue
                failures += 1
                self._failed_tries = failures
                # Also when a listener failed after the record was complete: the rows are in the state then.
                if (
                    decided
                    or isinstance(problem, _NEVER_RETRIED)
                    or failures > self.options.tolerable_failed_batches
                ):
                    if problem is error:
                        raise
                    raise problem from error
                _log.warning("batch failed (%d in a row), again in %.1f s: %s", failures, pause, problem)
                if self.stop.wait(pause):
                    raise problem from error
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _run_batch(
        self,
        frames: SourceFrames,
        sources: Callable[[], dict[str, SourceState]],
        counted: Mapping[str, Observation],
        *,
        input_free: bool,
    ) -> None:
        """`counted` is what Spark had counted when the try before failed: it does not begin anew at the next one."""
        began = time.perf_counter()
        # 1. When the batch is: its slot, its watermark, its clock.
        batch = self._batch(frames, input_free=input_free)
        # 2. Spark computes it: the tasks upload new state, and sinks prepare rows that nobody sees yet.
        try:
            with Deadline(self.spark, self.options.batch_deadline.total_seconds()):
                prepared = batch.run()
        finally:
            self._routes = batch.routes
        evaluating = time.perf_counter() - began
        # 3. What was read: positions, event times, and what the user should hear of.
        read = sources()
        if not input_free:
            self.check_topics()
        observed = {} if input_free else less(observations(self.spark, self.inputs.observed, read), counted)
        check_times(observed)
        positions = advanced(
            self.inputs.with_time_columns(read),
            observed,
            batch.attempt.moment.now,
            self.admission.waits,
            before=self.sources.recorded(),
            looked={} if input_free else self.sources.looking.of_batch(self._planned),
            cutting=self.inputs.cutting,
        )
        self._batch_warnings.warn_or_refuse(batch, observed, positions, self.location)
        self.outputs.look()
        # 4. The record before is delivered and complete: none is decided earlier.
        waited = time.perf_counter()
        self.deliveries.settle()
        waited = time.perf_counter() - waited
        # 5. What a target takes beside the rows that it has, it can say only now.
        checked = time.perf_counter()
        batch.check(prepared)
        evaluating += time.perf_counter() - checked
        # 6. The record that says all this.
        record = self._record(batch, prepared, observed, positions)
        # 7. From the decision on the batch has happened. Then it is delivered, with several in flight while the next one is evaluated.
        self.deliveries.send(
            batch.attempt.moment.slot,
            record,
            began,
            evaluating,
            waited,
            lambda record, phases, duration: self._completed(batch, record, phases, duration),
        )
        # 8. What the next batch goes by: what this one cost, and until when its sources were looked into.
        self._cost = (rows_of(observed), time.perf_counter() - began)
        self.sources.looking.ended_batch(self.clock())

    def _completed(self, batch: Batch, record: Record, phases: Mapping[str, int], duration: float) -> None:
        """Others hear of a complete checkpoint, and what it subsumes is deleted while the next batch runs."""
        slot, input_free, rows = record.slot, batch.attempt.input_free, record.statistics["processed_rows"]
        self.batches += 1
        self.rows += rows
        statistics = {**record.statistics, **phases, "duration_ms": round(duration * 1000)}
        self._tidying.begin(slot, statistics)
        self.listener(BatchReport(slot, input_free, rows, duration, record, statistics))

    def _batch(self, frames: SourceFrames, *, input_free: bool) -> Batch:
        writer = self.writer
        parent, slot = writer.parent, writer.next_slot
        # Read before what was committed last: a record that arrives in between is then known twice, and not never.
        late = self.deliveries.late()
        moment = Moment(
            slot=slot,
            now=self._now(parent),
            seed=random.SystemRandom().getrandbits(63),
            watermark=self.sources.watermark(self._planned),
            parameters=self.parameters,
            shift=parent.shift if parent else 0,
            watermark_before=parent.watermark if parent else None,
        )
        attempt = BatchAttempt(
            spark=self.spark,
            settings=self.settings,
            moment=moment,
            parent=parent,
            last_commits=writer.last_commits,
            routes=self._routes,
            feeds=writer.feeds,
            storage=dataclasses.replace(self.storage, slot=slot),
            late=late,
            input_free=input_free,
            record_at=lambda slot: writer.log.member(slot),
            again=self._failed_tries > 0,
            live=True,
        )
        return Batch(attempt, frames)

    def _now(self, parent: Record | None) -> int:
        """The time of the next batch."""
        clock = self.clock()
        now = job_time(clock, parent)
        if sentence := clock_behind(clock, now, self.settings.job):
            self.warnings.add("clock", sentence)
        return now

    def _record(
        self,
        batch: Batch,
        prepared: Mapping[str, Prepared],
        observed: Mapping[str, Observation],
        positions: Mapping[str, SourceState],
    ) -> Draft:
        """What is to be decided. With `incremental=False` it has files of its own."""
        progress, storage = self.sources, batch.attempt.storage
        holder = None if progress.draining else holder_of(self.settings.flow, positions, progress.idle_after)
        notes = {
            **self.admission.note(None if batch.attempt.input_free else self.location, self._batch_id),
            **({"failed_tries": self._failed_tries} if self._failed_tries else {}),
            **self.warnings.noted(),
            **held_by(holder),
        }
        record = record_of(batch, prepared, observed, positions, self.made_by, notes, final=progress.draining)
        if self.options.incremental:
            return record
        scratch = Path(storage.scratch_dir)
        return with_own_files(
            record, self.writer, storage.store, ids=lambda: uuid.uuid4().hex, scratch=scratch
        )
