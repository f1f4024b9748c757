"""The batches of a run. The loop evaluates, decides, carries out and completes each, then tidies the log behind it."""

from __future__ import annotations

import logging
import platform
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.control import Progress, report_progress
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options
from stateflow.distribution import installed_version
from stateflow.errors import CorruptError, FencedError, IncompatibleError, StateflowError, UsageError
from stateflow.format.records import END_OF_TIME, FileRef, Prepared, Record, SourceState
from stateflow.operators.context import Moment
from stateflow.pipelines.parameters import as_texts
from stateflow.pipelines.partly_late_rows import partly_late_rows, partly_late_warning
from stateflow.savepoints.dispose import dispose_claimed
from stateflow.spark.batches.batch import Batch
from stateflow.spark.batches.batch_attempt import BatchAttempt, BatchSettings
from stateflow.spark.batches.routes import Routes, routes_of
from stateflow.spark.carry_out import Sinks
from stateflow.spark.in_flight import InFlight, Passage
from stateflow.spark.inputs.absent_columns import AbsentColumns
from stateflow.spark.inputs.admission import Admission
from stateflow.spark.inputs.alignment import nothing_waits, waiting
from stateflow.spark.inputs.foreign_changes import passed_sentences
from stateflow.spark.inputs.open_inputs import (
    Holder,
    Observation,
    OpenInputs,
    SourceFrames,
    advanced,
    check_times,
    early_times,
    holder_of,
    less,
    observations,
    times_to_come,
    watermark_of,
)
from stateflow.spark.inputs.seeding import capture, refuse_patterns
from stateflow.spark.inputs.silence import Looking, recorded_sources
from stateflow.spark.inputs.timers import timers_due
from stateflow.spark.own_files import with_own_files
from stateflow.spark.run_warnings import WARNINGS, RunWarnings
from stateflow.spark.task.failures import translated
from stateflow.spark.task.storage import TaskStorage
from stateflow.storage.files import inline, upload_file

_log = logging.getLogger(__name__)
_NEVER_RETRIED = (FencedError, IncompatibleError, CorruptError, UsageError)
_INLINE_LOG_ENTRY = 2048
_LONGEST_PAUSE = 60.0
_CANCEL_EVERY = 0.5
ORPHANS_EVERY = 64
MOST_INPUT_FREE = 100


class BatchDeadlineError(StateflowError):
    """A batch took longer than it may."""


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
    code: Mapping[str, str] = field(default_factory=dict)
    """Which version of the pipeline's own code runs."""
    admission: Admission = field(init=False)
    location: Path = Path()
    failure: BaseException | None = None
    ended: bool = False
    over: set[str] = field(default_factory=set)
    """Sources that this run has read to their end: nobody waits for them any more, nor they for others."""
    draining: bool = False
    """The input is over for good: the watermark stands at its end."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    warnings: RunWarnings = field(default_factory=RunWarnings)
    batches: int = 0
    rows: int = 0
    looking: Looking = field(init=False)
    """What the queries look into."""
    _routes: Routes = field(init=False)
    """Where operators' rows go, as far as the run's batches have shown."""
    _absent: AbsentColumns = field(init=False)
    _partly_late: Counter[str] = field(default_factory=Counter)
    """Rows by operator, of all batches of this run."""
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
    _had_rows: float | None = None
    """When the last batch ended that Spark has begun, since it had something to read."""
    _tidying: Future[Any] | None = None
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "stateflow-tidy"))
    _in_flight: InFlight = field(init=False)
    _latest_end: float = 0.0
    """Until when the record that is on its way may take."""

    def __post_init__(self) -> None:
        self.looking = Looking(tuple(node.uid for node in self.settings.flow.sources))
        self._routes = routes_of(self.settings.flow)
        self._in_flight = InFlight(self.settings.job)
        self._absent = AbsentColumns(self.spark, self.inputs, self.warnings.add)
        target = self.options.target_batch_duration.total_seconds()
        self.admission = Admission(self.spark, self.inputs, target, self.warnings.add)
        log = self.writer.log
        self.admission.begin(log.slots[record.slot] for record in log.chain)
        if self.options.max_source_drift:
            for sentence in nothing_waits(self.settings.flow):
                self.warnings.add("max_source_drift", sentence)
        self._hold_first()

    def on_batch(self, frame: DataFrame, batch_id: int) -> None:
        """For foreachBatch. It keeps an error in `failure`, because Spark passes on only the error's text."""
        # Now, and not when a batch without input has let go of the lock: what has come since then is not in this batch.
        planned = self._now()
        with self.lock:
            try:
                self._planned = planned
                self._pause()
                if self.ended or self.stop.is_set():
                    raise InterruptedError("the run is stopping; this batch is not run")
                refuse_patterns(self.location, batch_id, self.inputs.layout)
                self._batch_id = batch_id
                self._run_with_retries(
                    lambda: self.inputs.split(frame), lambda: self._positions(batch_id), input_free=False
                )
                self.admission.ran(*self._cost, self._waiting())
                self._had_rows = time.perf_counter()
            except BaseException as error:
                self.failure = error
                raise

    def input_free(self) -> None:
        """Makes a checkpoint without new input, for timers that are due."""
        with self.lock:
            self._planned = self._now()
            self._pause()
            self._run_with_retries(
                lambda: self.inputs.empty(self.spark),
                lambda: self._sources(self._planned),
                input_free=True,
            )

    def record_positions(self, sources: Mapping[str, SourceState]) -> None:
        """Writes a record before the first batch of a source, so that the run resolves the source's beginning only once."""
        now = self._now()
        beginnings = {
            uid: SourceState(
                lines=s.lines,
                files=s.files,
                kind=s.kind,
                active=now,
                since=self.inputs.since.get(uid, ""),
                topic_ids=s.topic_ids,
                looked=now,
            )
            for uid, s in sources.items()
        }
        # Nobody has looked for rows of the others: they are silent for no longer than before.
        self._note_sources({**self.recorded(), **beginnings}, positions=sorted(sources))

    def move_sources(self, sources: Mapping[str, SourceState], undone_by: Mapping[str, int]) -> None:
        """Writes a record that puts sources behind undone versions of their tables. `undone_by`: the version that undid them. `sources` are
        those of `recorded`, moved."""
        # Nobody has looked for rows: no source is silent for longer than before.
        self._note_sources(dict(sources), positions=sorted(undone_by), undone_by=dict(undone_by))

    def _note_sources(self, sources: dict[str, SourceState], **noted: Any) -> None:
        now = self._now()
        record = Draft.continuing(
            "checkpoint",
            self.writer.parent,
            sources=sources,
            now=now,
            parameters=as_texts(self.parameters),
            versions={**versions(), **self.code},
            statistics={"trigger_timestamp": now // 1000, **noted, **self._warned()},
        )
        permit = self.writer.decide(record)
        self.writer.complete(permit, {}, {})

    def drain(self) -> None:
        """Raises the watermark to its end, so that every event-time timer fires; the job is over then."""
        self.draining = True
        if self.writer.parent is None or not self.writer.parent.final:
            self.input_free()
        for _ in range(MOST_INPUT_FREE):
            if not self.due():
                return
            self.input_free()
        raise StateflowError(
            f"job {self.settings.job!r} is not drained: after {MOST_INPUT_FREE} rounds its timers still set new ones"
        )

    def due(self) -> bool:
        """Whether a timer would fire in an input-free batch now."""
        parent = self.writer.parent
        if parent is None:
            return False
        now = self._now()
        return timers_due(parent, self._watermark(now), now, draining=self.draining)

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
            if self._tidying is not None:
                self._tidying.result()
            self._pool.shutdown(wait=True)

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
        moment = self._moment()
        batch = self._batch(frames, moment, input_free=input_free)
        # 2. Spark computes it: the tasks upload new state, and sinks prepare rows that nobody sees yet.
        with self._deadline():
            try:
                prepared = batch.run()
            finally:
                self._routes = batch.routes
        times.append(time.perf_counter())
        # 3. What was read: positions, event times, and what the user should hear of.
        read = sources()
        seen = {} if input_free else observations(self.spark, self.inputs.nodes, read)
        observed = less(seen, counted)
        check_times(observed)
        looked = {} if input_free else self.looking.of_batch(self._planned)
        before = self.recorded()
        positions = advanced(
            read,
            observed,
            moment.now,
            self.admission.waits,
            before=before,
            looked=looked,
            cutting=self.inputs.cutting,
        )
        self._tell(batch, observed, positions, input_free=input_free)
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
            moment.slot,
            lambda passage: self._explained(
                passage, lambda: self._deliver(passage, batch, record, observed, times)
            ),
            self._time_left(),
        )
        if self.options.max_concurrent_checkpoints == 1:
            self.settle()
        self._cost = (rows_of(observed), time.perf_counter() - times[0])
        self.looking.ended_batch(self._now())

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
        self._report(batch, permit.record, observed, phases, self._ended - times[0])

    def _continuing(self, prepared: Mapping[str, Prepared]) -> dict[str, Prepared]:
        """What was prepared while the record before was on its way, behind what that has committed."""
        last = self.writer.last_commits
        return {uid: msgspec.structs.replace(each, prev=last.get(uid)) for uid, each in prepared.items()}

    def _late(self) -> Mapping[str, tuple[int, ...]]:
        """A sink may or may not have the slot of the record that is on its way."""
        known, slot = self.writer.late, self._in_flight.slot
        if slot is None:
            return known
        return {uid: (*known.get(uid, ()), slot) for uid in self.settings.sinks}

    def _time_left(self) -> float | None:
        """Seconds until the record that is on its way is overdue; None if it never is."""
        if not self.options.batch_deadline:
            return None
        return max(0.0, self._latest_end - time.perf_counter())

    def _waiting(self) -> dict[str, str]:
        """The sources that the next batch takes nothing of."""
        parent, drift = self.writer.parent, self.options.max_source_drift
        if parent is None or not drift:
            return {}
        micros = round(drift.total_seconds() * 1e6)
        return waiting(self.settings.flow, self.recorded(), micros, parent.now, self._idle_after, self.over)

    def go_on(self) -> bool:
        """Call it when there is nothing to read but of sources that wait; returns whether there are any, of which some go on now."""
        held = set(self.admission.waits)
        if not held or self.options.trigger != "drain":
            return self.admission.release()
        self.over |= {node.uid for node in self.settings.flow.sources} - held
        self._hold_first()
        return True

    def _hold_first(self) -> None:
        """Lets sources wait in a query's first batch, if that can be held back."""
        self.admission.hold(self._waiting() if self.admission.plans_first_batch else {})

    def silent_too_long(self) -> bool:
        """Whether no batch has come for so long that the sources which others wait for are idle."""
        idle = self.options.source_idle_timeout.total_seconds()
        return idle > 0 and self._had_rows is not None and time.perf_counter() - self._had_rows > idle

    def _moment(self) -> Moment:
        parent = self.writer.parent
        now = max(self._now(), parent.now if parent else 0)
        return Moment(
            slot=self.writer.next_slot,
            now=now,
            seed=random.SystemRandom().getrandbits(63),
            watermark=self._watermark(self._planned),
            parameters=self.parameters,
            shift=parent.shift if parent else 0,
            watermark_before=parent.watermark if parent else None,
        )

    def _batch(self, frames: SourceFrames, moment: Moment, *, input_free: bool) -> Batch:
        writer = self.writer
        # Read before what was committed last: a record that arrives in between is then known twice, and not never.
        late = self._late()
        attempt = BatchAttempt(
            spark=self.spark,
            settings=self.settings,
            moment=moment,
            parent=writer.parent,
            last_commits=writer.last_commits,
            routes=self._routes,
            feeds=writer.feeds,
            storage=self.storage_of(moment.slot),
            late=late,
            input_free=input_free,
            record_at=lambda slot: writer.log.member(slot),
            again=self._failed_tries > 0,
        )
        return Batch(attempt, frames)

    def _tell(
        self,
        batch: Batch,
        observed: Mapping[str, Observation],
        positions: Mapping[str, SourceState],
        *,
        input_free: bool,
    ) -> None:
        """Warns of what the batch showed. A misspelt field is an error before the batch is decided."""
        self._absent.check(observed, positions, self.location)
        for about, sentence in batch.warnings.items():
            self.warnings.add(about, sentence)
        for uid, hot in batch.hot_keys().items():
            self.warnings.add(f"hot key: {uid}", hot.sentence(uid), f"the key is {hot.key}")
        to_come = times_to_come(observed, batch.attempt.moment.now, self.settings.job)
        for about, sentence in (*early_times(observed), *to_come):
            self.warnings.add(about, sentence)
        if batch.attempt.parent is not None and not input_free:
            self._tell_of_passed(batch.attempt.parent.sources, positions)
        self._tell_of_partly_late(batch.statistics()["operators"])

    def _record(
        self,
        batch: Batch,
        prepared: Mapping[str, Prepared],
        observed: Mapping[str, Observation],
        positions: Mapping[str, SourceState],
    ) -> Draft:
        """What is to be decided. With `incremental=False` it has files of its own."""
        moment, parent = batch.attempt.moment, batch.attempt.parent
        statistics: dict[str, Any] = {
            "trigger_timestamp": moment.now // 1000,
            "processed_rows": rows_of(observed),
            "input_free": batch.attempt.input_free,
            "source_rows": {uid: seen.rows for uid, seen in observed.items()},
            "sink_rows": {uid: sink.rows for uid, sink in prepared.items()},
            **batch.statistics(),
            **self.admission.note(None if batch.attempt.input_free else self.location, self._batch_id),
        }
        if self._failed_tries:
            statistics["failed_tries"] = self._failed_tries
        statistics |= self._warned()
        if not self.draining and (holder := holder_of(self.settings.flow, positions, self._idle_after)):
            statistics["watermark_held_by"] = holder.source
            statistics["watermark_held_since"] = holder.since
            if holder.partition:
                statistics["watermark_held_partition"] = holder.partition
        record = Draft(
            "checkpoint",
            sources=dict(positions),
            operators=batch.operators,
            sinks=dict(prepared),
            feeds=batch.shown(prepared),
            timeline=parent.timeline if parent else 1,
            shift=moment.shift,
            now=moment.now,
            seed=moment.seed,
            watermark=moment.watermark,
            parameters=as_texts(self.parameters),
            versions={**versions(), **self.code},
            statistics=statistics,
            final=self.draining,
        )
        copied = 0
        if not self.options.incremental:
            record, copied = with_own_files(
                record,
                self.writer,
                batch.attempt.storage.store,
                ids=lambda: uuid.uuid4().hex,
                scratch=Path(batch.attempt.storage.scratch_dir),
            )
        # The record has this very mapping.
        figures = statistics["metrics"]
        statistics["checkpointed_size"] = copied + int(
            figures.get("uploaded_bytes", 0) + figures.get("inlined_bytes", 0)
        )
        return record

    def _report(
        self,
        batch: Batch,
        record: Record,
        observed: Mapping[str, Observation],
        phases: Mapping[str, int],
        duration: float,
    ) -> None:
        rows, slot = rows_of(observed), batch.attempt.moment.slot
        self.batches += 1
        self.rows += rows
        statistics = {**record.statistics, **phases, "duration_ms": round(duration * 1000)}
        self._tidy(statistics, slot)
        self.listener(
            BatchReport(
                slot=slot,
                input_free=batch.attempt.input_free,
                rows=rows,
                duration=duration,
                record=record,
                statistics=statistics,
            )
        )

    def _tell_of_passed(self, before: Mapping[str, SourceState], after: Mapping[str, SourceState]) -> None:
        folder = self.location.with_name(f"{self.location.name}-passed")
        for about, sentence in passed_sentences(
            self.spark, self.inputs, before, after, folder, self.settings.job
        ):
            self.warnings.add(about, sentence)

    def _tell_of_partly_late(self, noted: Mapping[str, Mapping[str, Any]]) -> None:
        self._partly_late.update(partly_late_rows(noted))
        for operator, rows in self._partly_late.items():
            self.warnings.add(f"partly late: {operator}", partly_late_warning(operator, rows))

    def _warned(self) -> dict[str, Any]:
        """For a record: the run's warnings so far."""
        sentences = self.warnings.sentences
        return {WARNINGS: list(sentences)} if sentences else {}

    def _positions(self, batch_id: int) -> dict[str, SourceState]:
        return capture(
            self.location,
            batch_id,
            self.inputs.layout,
            self.recorded(),
            self._save_log_entry,
            self.inputs.topic_ids,
            self.inputs.since,
        )

    def _save_log_entry(self, name: str, path: Path) -> FileRef:
        data = path.read_bytes()
        if len(data) <= _INLINE_LOG_ENTRY:
            return inline(name, data)
        writer = self.writer
        target = writer.layout.shared_file(writer.epoch, writer.next_slot, uuid.uuid4().hex, ".log")
        return upload_file(writer.store, target, path, name)

    def _watermark(self, now: int) -> int | None:
        if self.draining:
            return END_OF_TIME
        parent = self.writer.parent
        before = parent.watermark if parent else None
        return watermark_of(self.settings.flow, self._sources(now), before, self._idle_after)

    def recorded(self) -> dict[str, SourceState]:
        """The sources as the newest record has them."""
        return recorded_sources(self.writer.parent) if self.writer.parent else {}

    def _sources(self, now: int) -> dict[str, SourceState]:
        """The sources as far as they are known: what the record says, and what the run has seen since by looking."""
        return self.looking.known(self.recorded(), now, self.admission.waits)

    def held(self) -> Holder | None:
        """What holds the watermark back."""
        parent = self.writer.parent
        if parent is None or parent.final:
            return None
        return holder_of(self.settings.flow, self._sources(self._now()), self._idle_after)

    @property
    def _idle_after(self) -> int:
        return round(self.options.source_idle_timeout.total_seconds() * 1e6)

    def _now(self) -> int:
        return self.clock()

    def _deadline(self) -> _Deadline:
        return _Deadline(self.spark, self.options.batch_deadline.total_seconds())

    def _tidy(self, statistics: dict[str, Any], slot: int) -> None:
        """Reports progress to other programs and deletes subsumed checkpoints, while the next batch runs."""
        if self._tidying is not None:
            self._tidying.result()
        orphans = self.batches % ORPHANS_EVERY == 1
        at = self.clock()

        def work() -> None:
            writer = self.writer
            try:
                report_progress(
                    writer.store,
                    writer.layout,
                    Progress(epoch=writer.epoch, slot=slot, statistics=statistics, at=at),
                )
                dispose = dispose_claimed(
                    self.options.storage_options,
                    job=writer.job,
                    owner=writer.owner,
                    clock=self.clock,
                    root=writer.store.url,
                )
                retention = Retention.of(self.options, self.clock())
                report = writer.collect(retention, orphans=orphans, dispose=dispose)
                for url, why in report.undisposed.items():
                    _log.warning("%s stays, and so do the records that name it: %s", url, why)
            except Exception as error:
                # Old checkpoints do no harm; the next collection tries again.
                _log.warning("checkpoints were not tidied up: %s", error)

        self._tidying = self._pool.submit(work)


class _Deadline:
    """Cancels the Spark jobs of a block that takes too long, and fails the block."""

    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self._context = spark.sparkContext
        self._seconds = seconds
        self._tag = f"stateflow-{uuid.uuid4().hex}"
        self._expired = False
        self._over = threading.Event()
        self._watch: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._seconds > 0:
            self._context.addJobTag(self._tag)
            self._watch = threading.Thread(target=self._cancel, name="stateflow-deadline", daemon=True)
            self._watch.start()

    def _cancel(self) -> None:
        # Again and again: at the deadline the driver may be between two jobs, and Spark cancels none that begins later.
        left = self._seconds
        while not self._over.wait(left):
            self._expired = True
            self._context.cancelJobsWithTag(self._tag)
            left = _CANCEL_EVERY

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._watch is None:
            return
        self._over.set()
        self._watch.join()
        self._context.removeJobTag(self._tag)
        if self._expired:
            raise BatchDeadlineError(
                f"the batch took longer than batch_deadline={self._seconds:g} s and was cancelled: give it more time or "
                "smaller batches"
            ) from error


def rows_of(observed: Mapping[str, Observation]) -> int:
    return sum(seen.rows for seen in observed.values())


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


def versions() -> dict[str, str]:
    """The versions of the code that made a record."""
    return {
        "python": platform.python_version(),
        "stateflow": installed_version(),
        **{p: version(p) for p in ("pyspark", "rocksdict")},
    }
