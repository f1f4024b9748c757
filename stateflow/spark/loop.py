"""The batches of a run. The loop evaluates, decides, delivers and completes each, and tries again what failed before its decision."""

from __future__ import annotations

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

import msgspec
from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options
from stateflow.errors import CorruptError, FencedError, IncompatibleError, StateflowError, UsageError
from stateflow.format.records import Prepared, Record, SourceState
from stateflow.operators.context import Moment
from stateflow.spark.batch_record import MadeBy, held_by, record_of, rows_of
from stateflow.spark.batch_warnings import BatchWarnings
from stateflow.spark.batches.batch import Batch
from stateflow.spark.batches.batch_attempt import BatchAttempt, BatchSettings
from stateflow.spark.batches.routes import Routes, routes_of
from stateflow.spark.carry_out import Sinks
from stateflow.spark.deadline import Deadline
from stateflow.spark.in_flight import InFlight, Passage
from stateflow.spark.inputs.admission import Admission
from stateflow.spark.inputs.alignment import nothing_waits
from stateflow.spark.inputs.open_inputs import (
    Observation,
    OpenInputs,
    SourceFrames,
    advanced,
    check_times,
    holder_of,
    less,
    observations,
)
from stateflow.spark.inputs.seeding import refuse_patterns
from stateflow.spark.own_files import with_own_files
from stateflow.spark.run_warnings import RunWarnings
from stateflow.spark.source_progress import SourceProgress
from stateflow.spark.source_records import SourceRecords
from stateflow.spark.task.failures import translated
from stateflow.spark.task.storage import TaskStorage
from stateflow.spark.tidying import Tidying

_log = logging.getLogger(__name__)
_NEVER_RETRIED = (FencedError, IncompatibleError, CorruptError, UsageError)
_LONGEST_PAUSE = 60.0
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
    storage_of: Callable[[int], TaskStorage]
    sinks: Sinks
    listener: Callable[[BatchReport], None]
    clock: Callable[[], int]
    parameters: Mapping[str, Any]
    made_by: MadeBy
    warnings: RunWarnings
    stop: threading.Event
    admission: Admission = field(init=False)
    sources: SourceProgress = field(init=False)
    source_records: SourceRecords = field(init=False)
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
    _in_flight: InFlight = field(init=False)
    _failed_tries: int = 0
    """Of the batch that is under way."""
    _batch_id: int = 0
    """Spark's own, of the batch that is under way."""
    _cost: tuple[int, float] = (0, 0.0)
    """Rows and seconds of the last batch."""
    _ended: float | None = None
    """When the last batch was complete."""
    _planned: int = 0
    """When the batch that is under way was to begin, by the job's clock: before its pause, and before its first try."""
    _latest_end: float = 0.0
    """Until when the record that is on its way may take."""

    def __post_init__(self) -> None:
        flow, writer = self.settings.flow, self.writer
        self._routes = routes_of(flow)
        self._in_flight = InFlight(self.settings.job)
        self._tidying = Tidying(writer, self.options, self.clock)
        self._batch_warnings = BatchWarnings(self.spark, self.inputs, self.warnings, self.settings.job)
        self.source_records = SourceRecords(self.inputs, writer, self.made_by, self.warnings, self.clock)
        target = self.options.target_batch_duration.total_seconds()
        self.admission = Admission(self.spark, self.inputs, target, self.warnings.add)
        self.admission.begin(writer.log.slots[record.slot] for record in writer.log.chain)
        self.sources = SourceProgress(flow, writer, self.options, self.clock, self.admission)
        if self.options.max_source_drift:
            for sentence in nothing_waits(flow):
                self.warnings.add("max_source_drift", sentence)

    def on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """For foreachBatch. It keeps an error in `failure`, because Spark passes on only the error's text."""
        # Now, and not when a batch without input has let go of the lock: what has come since then is not in this batch.
        planned = self.clock()
        with self.lock:
            try:
                self._planned = planned
                self._pause()
                if self.ended or self.stop.is_set():
                    raise InterruptedError("the run is stopping; this batch is not run")
                refuse_patterns(self.location, batch_id, self.inputs.layout)
                self._batch_id = batch_id
                self._run_with_retries(
                    lambda: self.inputs.split(frame),
                    lambda: self.source_records.of_batch(self.location, batch_id),
                    input_free=False,
                )
                self.sources.batch_ended(*self._cost)
            except BaseException as error:
                self.failure = error
                raise

    def input_free(self) -> None:
        """Makes a checkpoint without new input, for timers that are due."""
        with self.lock:
            self._planned = self.clock()
            self._pause()
            self._run_with_retries(
                lambda: self.inputs.empty(self.spark),
                lambda: self.sources.known(self._planned),
                input_free=True,
            )

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

    def settle(self) -> None:
        """Waits for the record that is on its way."""
        self._in_flight.arrive(self._time_left())

    def look_at_delivery(self) -> None:
        """Raises what has failed since the last batch was decided, or is overdue: no later batch may come that would wait for it."""
        self._in_flight.look(self._time_left)

    def __enter__(self) -> BatchLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Ends what goes on behind the batches. After a failure elsewhere the record that is on its way arrives, if it can."""
        if kind is None or issubclass(kind, Exception):
            with suppress(Exception) if error is not None else nullcontext():
                self.settle()
        self._in_flight.close()
        if error is None:
            self._tidying.end()

    def _pause(self) -> None:
        """Waits until `min_pause` has passed since the last checkpoint, unless the run is to stop."""
        if self.options.min_pause:
            self.settle()
        if self._ended is not None:
            left = self._ended + self.options.min_pause.total_seconds() - time.perf_counter()
            if left > 0:
                self.stop.wait(left)

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
                counted = observations(self.spark, self.inputs.nodes) if again else {}
                self._run_batch(frames(), sources, counted, input_free=input_free)
                return
            except Exception as error:
                if self._in_flight.overdue:
                    raise  # the store may not answer the next question either
                problem = cause(self.writer, translated(error))
                decided = self._in_flight.failed or self.writer.stopped or self.writer.next_slot != slot
                undecided = not decided
                if isinstance(problem, CorruptError) and not refetched and undecided:
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
        times = [time.perf_counter()]
        # 1. When the batch is: its slot, its watermark, its clock.
        batch = self._batch(frames, input_free=input_free)
        # 2. Spark computes it: the tasks upload new state, and sinks prepare rows that nobody sees yet.
        try:
            with Deadline(self.spark, self.options.batch_deadline.total_seconds()):
                prepared = batch.run()
        finally:
            self._routes = batch.routes
        times.append(time.perf_counter())
        # 3. What was read: positions, event times, and what the user should hear of.
        read = sources()
        observed = {} if input_free else less(observations(self.spark, self.inputs.nodes, read), counted)
        check_times(observed)
        positions = advanced(
            read,
            observed,
            batch.attempt.moment.now,
            self.admission.waits,
            before=self.sources.recorded(),
            looked={} if input_free else self.sources.looking.of_batch(self._planned),
            cutting=self.inputs.cutting,
        )
        self._batch_warnings.look(batch, observed, positions, self.location)
        # 4. The record before is delivered and complete: none is decided earlier.
        waited = time.perf_counter()
        self.settle()
        waited = time.perf_counter() - waited
        # 5. What a target takes beside the rows that it has, it can say only now.
        checked = time.perf_counter()
        prepared = self._continuing(prepared)
        batch.check(prepared)
        times[1] += time.perf_counter() - checked
        # 6. The record that says all this.
        record = self._record(batch, prepared, observed, positions)
        # 7. From the decision on the batch has happened. Then it is delivered, with several in flight while the next one is evaluated.
        self._latest_end = times[0] + waited + self.options.batch_deadline.total_seconds()
        self._in_flight.send(
            batch.attempt.moment.slot,
            lambda passage: self._explained(
                passage, lambda: self._deliver(passage, batch, record, observed, times)
            ),
            self._time_left(),
        )
        if self.options.max_concurrent_checkpoints == 1:
            self.settle()
        self._cost = (rows_of(observed), time.perf_counter() - times[0])
        self.sources.looking.ended_batch(self.clock())

    def _explained(self, passage: Passage, steps: Callable[[], None]) -> None:
        """Goes the way of a record. What fails behind the decision is raised with its real reason: who waits for the record, or looks at
        it, may be no batch that would ask for that."""
        try:
            steps()
        except Exception as error:
            problem = cause(self.writer, translated(error)) if passage.is_decided else error
            if problem is error:
                raise
            raise problem from error

    def _deliver(
        self,
        passage: Passage,
        batch: Batch,
        record: Draft,
        observed: Mapping[str, Observation],
        times: list[float],
    ) -> None:
        """`times`: when the evaluation began and ended."""
        writer = self.writer
        # 1. The decision.
        decided = time.perf_counter()
        permit = writer.decide(record)
        times = [times[0], times[1], decided, time.perf_counter()]
        passage.decided()
        # 2. The sinks make their rows visible.
        outcomes = self.sinks.carry_out(permit, writer.still_owner)
        times.append(time.perf_counter())
        # 3. The checkpoint is complete.
        phases = {
            "evaluate_ms": round((times[1] - times[0]) * 1000),
            "decide_ms": round((times[3] - times[2]) * 1000),
            "commit_ms": round((times[4] - times[3]) * 1000),
        }
        if self.options.max_concurrent_checkpoints > 1:
            phases["waited_ms"] = round((times[2] - times[1]) * 1000)
        writer.complete(permit, outcomes, phases)
        self._ended = time.perf_counter()
        # 4. Others hear of it, and what it subsumes is deleted while the next batch runs.
        duration, rows, slot = self._ended - times[0], rows_of(observed), batch.attempt.moment.slot
        self.batches += 1
        self.rows += rows
        statistics = {**permit.record.statistics, **phases, "duration_ms": round(duration * 1000)}
        self._tidying.begin(slot, statistics)
        input_free = batch.attempt.input_free
        self.listener(BatchReport(slot, input_free, rows, duration, permit.record, statistics))

    def _time_left(self) -> float | None:
        """Seconds until the record that is on its way is overdue; None if it never is."""
        if not self.options.batch_deadline:
            return None
        return max(0.0, self._latest_end - time.perf_counter())

    def _batch(self, frames: SourceFrames, *, input_free: bool) -> Batch:
        writer = self.writer
        parent, slot = writer.parent, writer.next_slot
        # Read before what was committed last: a record that arrives in between is then known twice, and not never.
        late = self._late()
        moment = Moment(
            slot=slot,
            now=max(self.clock(), parent.now if parent else 0),
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
            storage=self.storage_of(slot),
            late=late,
            input_free=input_free,
            record_at=lambda slot: writer.log.member(slot),
            again=self._failed_tries > 0,
        )
        return Batch(attempt, frames)

    def _late(self) -> Mapping[str, tuple[int, ...]]:
        """A sink may or may not have the slot of the record that is on its way."""
        known, slot = self.writer.late, self._in_flight.slot
        if slot is None:
            return known
        return {uid: (*known.get(uid, ()), slot) for uid in self.settings.sinks}

    def _continuing(self, prepared: Mapping[str, Prepared]) -> dict[str, Prepared]:
        """What was prepared while the record before was on its way, behind what that has committed."""
        last = self.writer.last_commits
        return {uid: msgspec.structs.replace(each, prev=last.get(uid)) for uid, each in prepared.items()}

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


def cause(writer: Writer, problem: Exception) -> Exception:
    """The real reason why a batch failed: when a newer run has taken the job over, its collector deletes this run's files.

    The missing file would invite a retry beside the newer run, so the error says who owns the job.
    """
    if isinstance(problem, FencedError):
        return problem
    try:
        writer.still_owner()
    except FencedError as fenced:
        return fenced
    except Exception:
        return problem  # the store does not say
    return problem
