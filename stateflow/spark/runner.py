"""A run: it claims the job, goes on from the newest record, runs batch after batch, and ends."""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from stateflow.checkpoint.claim import claim, living_epochs
from stateflow.checkpoint.control import (
    INTERRUPTED,
    JOB_DRAINED,
    RunOutcome,
    newest_heartbeat,
    read_heartbeat,
    refuse_unrestored,
    refuse_while_live,
    same_owner,
)
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import Log, names_by_id, read_epochs, read_identity, read_log
from stateflow.checkpoint.pins import keep_before_drop
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.rescale import kept_key_groups, needs_rescale, rescaled_operators
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.statistics import history, taken_back
from stateflow.checkpoint.writer import Writer
from stateflow.compatibility.flows import check_flow, compare, renamed_targets
from stateflow.config.options import Options, checkpoint_root, scratch_parent
from stateflow.errors import BusyError, IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Record
from stateflow.liveness.heart import Heart
from stateflow.metrics import numbers, reporter, user_counters
from stateflow.pipelines.bounds import check_bounds
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import put_table
from stateflow.pipelines.lost_rows import LostRows, added, lost_rows
from stateflow.pipelines.needs import unmet_needs
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.sinks import refuse_one_place
from stateflow.savepoints.origin import written_places
from stateflow.spark.batch_record import MadeBy
from stateflow.spark.batches.batch_attempt import BatchSettings
from stateflow.spark.carry_out import Sinks, functions_of
from stateflow.spark.inputs.absent_inputs import absent_inputs
from stateflow.spark.inputs.foreign_changes import tell_of_outputs
from stateflow.spark.inputs.lineage import traced
from stateflow.spark.inputs.open_inputs import OpenInputs, locate, open_inputs
from stateflow.spark.inputs.output_watch import OutputWatch
from stateflow.spark.inputs.schemas import Outline
from stateflow.spark.inputs.watermark import Holder
from stateflow.spark.loop import MOST_INPUT_FREE, BatchLoop, BatchReport
from stateflow.spark.queries import Queries
from stateflow.spark.run_warnings import RunWarnings, unsaid
from stateflow.spark.session import lent
from stateflow.spark.session.build import build_session
from stateflow.spark.session.sent_modules import NO_MODULES, SentModules
from stateflow.spark.session.settings import one_process
from stateflow.spark.shared_outputs import check_other_writers, outputs_shared_in_root
from stateflow.spark.shuffle.placement import Placement
from stateflow.spark.sinks.base import Sink
from stateflow.spark.sinks.delta_rewind import TableSink
from stateflow.spark.sinks.identities import refuse_one_identity
from stateflow.spark.sinks.kinds import class_of
from stateflow.spark.sinks.lacking import unwritable
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import Stager
from stateflow.spark.sources.positions import Bound
from stateflow.spark.task.failures import own_words, translated
from stateflow.spark.task.storage import large_files_of_run, task_storage
from stateflow.state.backends.choice import open_backend_of_run
from stateflow.storage.roots import open_store
from stateflow.storage.scratch import sweep_scratch, temporary
from stateflow.storage.store import Store

_log = logging.getLogger(__name__)
_FIRST_SIGN = 2.0
"""Seconds after which a claim without a heartbeat is no run's."""


@dataclass
class RunRequest:
    """A request to run a pipeline: what to run, and how."""

    pipeline: Pipeline
    options: Options
    parameters: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    """Defaults to the pipeline's name."""
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    until: Bound | Mapping[str, Bound] | None = None
    owner: Owner | None = None
    takeover: bool = False
    """Fences a live run instead of refusing to start."""
    drain: bool = False
    """Raises the watermark to its end when the input is drained. The job is over then."""
    sent_modules: SentModules = NO_MODULES
    listener: Callable[[BatchReport], None] = lambda report: None
    stop: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class RunReport:
    """The report of a run."""

    job: str
    epoch: int
    batches: int
    rows: int
    checkpoint: int | None
    """The newest complete checkpoint."""
    stopped: str
    """Why it ended: drained, bound reached, or who asked."""
    held: Holder | None = None
    """What holds the watermark back at the run's end: a source, or a partition of one."""
    lost: tuple[LostRows, ...] = ()
    """The late rows that nobody reads, by operator."""
    warnings: tuple[str, ...] = ()
    """Warnings for people, a sentence each."""

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended it before its input or its bound did. The program has not ended by it: that is for whoever called."""
        return self.stopped == INTERRUPTED


def run(request: RunRequest) -> RunReport:
    """Runs a pipeline to its trigger's end. Raises StateflowError; the job's log stays sound whatever happens."""
    return _Run(request).run()


class _Run:
    def __init__(self, request: RunRequest) -> None:
        self.request = request
        self.options = request.options
        self.job = request.job or request.pipeline.name
        self.layout = JobLayout(self.job)
        self.flow: Flow = request.pipeline.build(request.parameters)
        self.parameters = request.pipeline.arguments(request.parameters)
        self.store: Store = open_store(
            checkpoint_root(self.options), self.options.storage_options, fsync=self.options.local_fsync
        )
        self.owner = request.owner or this_process()
        self.stop = request.stop
        self._known_epoch = 0
        self._lost: dict[str, LostRows] = {}
        self.warnings = RunWarnings()
        self.scratch = scratch_parent(self.options)

    def run(self) -> RunReport:
        check_bounds(self.request.until, self.flow)
        self._check_before_spark()
        for sentence in absent_inputs(self.flow):
            raise NotFoundError(sentence)
        for unmet in unmet_needs(self.flow):
            raise unmet
        with _set_by(self.stop, signal.SIGTERM):
            return self._in_session()

    def _in_session(self) -> RunReport:
        try:
            spark = build_session(
                f"stateflow {self.job}",
                master=self.request.master,
                conf=self._conf(),
                scratch=self.scratch,
                bundles=self.flow.jars,
            )
        except Exception as error:
            if not self.stop.is_set():
                raise
            raise StateflowError(
                f"the run of job {self.job!r} was told to end while Spark started, and had not begun: run again"
            ) from error
        self._check_root(spark)
        sweep_scratch(self.scratch)
        with temporary(self.scratch) as scratch, own_words():
            return self._with_spark(spark, scratch)

    def _check_before_spark(self) -> None:
        if read_identity(self.store, self.layout) is None:
            # Of a deleted job only this tells.
            living_epochs(self.store, self.layout)
            self._refuse_shared_outputs()
            return
        log = read_log(self.store, self.layout)
        newest = log.decided if log.decided is not None and log.decided.carries_state else log.head
        check_flow(
            self.flow,
            newest,
            checkpoints=[kept.slot for kept in log.checkpoints],
        )
        for sentence in renamed_targets(self.flow, written_places(log)).values():
            raise IncompatibleError(sentence)
        self._refuse_drained(newest, pending=bool(log.pending))
        origin = self.options.origin("max_parallelism")
        refusal = kept_key_groups(newest, self.options.max_parallelism, self.job) if newest else ""
        if refusal and origin != "default":
            _log.warning("max_parallelism, set by %s, is not taken: %s", origin, refusal)
        if not self.request.takeover:
            self._refuse_while_live()
        if newest is None:
            refuse_unrestored(self.store, self.layout)
            self._refuse_shared_outputs()

    def _refuse_shared_outputs(self) -> None:
        """What other jobs of the root have written to is known without Spark."""
        if not self.options.shared_outputs:
            for sentence in outputs_shared_in_root(self.flow, self.job, self.store):
                raise UsageError(sentence)

    def _check_claimed(self, writer: Writer) -> None:
        """Checks the flow against the record that the run goes on from, and tells what `check` warns of."""
        if writer.parent is None:
            refuse_unrestored(
                self.store, self.layout
            )  # a restore may have begun and failed while Spark started
        check_flow(self.flow, writer.parent)
        written = written_places(writer.log)
        check = compare(self.flow, self.job, writer.parent, written=written)
        if check.drops and writer.parent is not None:
            # Before the first batch: a few batches on, the run's own collection would have deleted it.
            tag = keep_before_drop(
                self.store, self.layout, writer.parent.slot, owner=self.owner,
                ids=lambda: uuid.uuid4().hex, clock=_micros,
            )  # fmt: skip
            check = compare(self.flow, self.job, writer.parent, written=written, kept_as=tag)
        for sentence in check.warnings:
            self.warnings.add(sentence, sentence)

    def _refuse_drained(self, record: Record | None, *, pending: bool = False) -> None:
        if record is not None and record.final and not self._finishes(record, pending=pending):
            raise IncompatibleError(
                f"job {self.job!r} was drained at checkpoint {record.slot}: its watermark stands at the end of time, so all "
                f"new rows would be late; restore an earlier checkpoint, or `stateflow restore {self.job} ... --from latest "
                "--reset-watermark`"
            )

    def _finishes(self, record: Record, *, pending: bool) -> bool:
        """True if this run finishes a drain that was cut off, or repeats the work of its own earlier try."""
        if not self.request.drain:
            return False
        shards = (shard for operator in record.operators.values() for shard in operator.all_shards)
        unfired = any(shard.next_event_timer is not None for shard in shards)
        return pending or unfired or same_owner(record.owner, self.owner)

    def _refuse_while_live(self) -> None:
        self._known_epoch = max(read_epochs(self.store, self.layout), default=0)
        refuse_while_live(
            self.store,
            self.layout,
            self.owner,
            patience=self.options.heartbeat_timeout.total_seconds(),
            monotonic=time.monotonic,
            sleep=time.sleep,
            interval=min(0.5, self.options.heartbeat_interval.total_seconds()),
        )

    def _await_first_sign(self) -> None:
        """A run claims the job a moment before its first sign of life; a rescale, which claims it, too, gives none."""
        until = time.monotonic() + _FIRST_SIGN
        while time.monotonic() < until and newest_heartbeat(self.store, self.layout)[1] is None:
            time.sleep(0.1)

    def _conf(self) -> dict[str, str]:
        return {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self.options.chunk_rows),
            "spark.locality.wait": f"{round(self.options.locality_wait.total_seconds() * 1000)}ms",
            **self.request.conf,
        }

    def _check_root(self, spark: SparkSession) -> None:
        cluster = not str(spark.sparkContext.master).startswith("local")
        if cluster and self.store.local_root is not None and not self.options.shared_filesystem:
            raise UsageError(
                f"checkpoint root {self.store.url} is a local folder, but the master is {spark.sparkContext.master}: use an "
                "object store, or set shared_filesystem=true if every host sees this very folder"
            )

    def _with_spark(self, spark: SparkSession, scratch: Path) -> RunReport:
        exactly_once = self.options.delivery == "exactly_once"
        inputs = open_inputs(spark, self.flow.sources, exactly_once=exactly_once)
        log = read_log(self.store, self.layout) if read_identity(self.store, self.layout) else None
        inputs.check(log.head if log else None)
        outline = Outline(spark, self.flow, inputs)
        outline.check(log.head if log else None)
        open_sinks = self._open_sinks(spark, outline, log)
        written = {uid: sink.identity for uid, sink in open_sinks.items() if sink.identity}
        # A source may have to ask a catalog.
        refuse_one_identity(written, inputs.identities if written else {})
        check_other_writers(
            spark, self.flow, open_sinks, log, partial(names_by_id, self.store),
            shared=self.options.shared_outputs, warn=self.warnings.add,
        )  # fmt: skip
        opener = partial(
            open_store,
            self.options.checkpoint_dir,
            dict(self.options.storage_options),
            fsync=self.options.local_fsync,
        )
        stager = Stager(opener, lambda: uuid.uuid4().hex)
        sinks = Sinks(self.job, lambda: spark, stager, functions_of(self.flow), self.warnings.add)
        for uid, sink in open_sinks.items():
            if sink.warning:
                self.warnings.add(f"sink {uid}", sink.warning)
        with self._reporting() as listener, Heart(
            self.store, self.layout, self.owner, self.options.heartbeat_interval.total_seconds(), self.stop,
            explain=lambda error: translated(error) if isinstance(error, Exception) else error,
            warm_host=lent.name_of_host(),
        ) as heart:  # fmt: skip
            writer = self._claimed(sinks, heart)
            self.warnings.take_over(
                unsaid(writer.log, writer.epoch, partial(read_heartbeat, self.store, self.layout))
            )
            self._check_claimed(writer)
            # `claim` has carried out what was pending. That may have been the end of the drain.
            drained = writer.parent is not None and writer.parent.final and self.request.drain
            if not drained:
                self._refuse_drained(writer.parent)
            inputs.check(writer.parent)
            outline.check(writer.parent)
            self._rescale(writer)
            tell_of_outputs(spark, self.flow, self.warnings.add)
            outputs = OutputWatch(
                spark,
                self.flow.sinks,
                open_sinks,
                SinkSlot(writer.job, self.job, "", 0, writer.epoch),
                log.last_commits if log else {},
                lambda: taken_back(history(self.store, self.layout, log=writer.log)),
                lambda: {checkpoint.slot for checkpoint in read_log(self.store, self.layout).checkpoints},
                self.warnings.add,
            )
            outputs.begin()
            loop = self._loop(spark, inputs, open_sinks, sinks, outputs, writer, scratch, listener, heart)
            with traced(spark, self.flow, inputs, outline, writer), loop:
                with _set_by(self.stop, signal.SIGTERM, signal.SIGINT):
                    stopped = JOB_DRAINED if drained else self._batches(loop, scratch, heart.found_nothing)
                if heart.fenced is not None:
                    raise heart.fenced
                if heart.drain or (self.request.drain and not self.stop.is_set()):
                    loop.drain()
                    stopped = JOB_DRAINED
                elif self.request.drain and (not drained or loop.sources.due()):
                    stopped = INTERRUPTED  # its timers have not fired, so the next try does that
                loop.deliveries.settle()
            outputs.end()
            report = RunReport(
                job=self.job,
                epoch=writer.epoch,
                batches=loop.batches,
                rows=loop.rows,
                checkpoint=writer.parent.slot if writer.parent else None,
                stopped=heart.reason or stopped,
                held=loop.sources.held(),
                lost=tuple(self._lost.values()),
                warnings=self.warnings.sentences,
            )
            if not report.interrupted:
                lent.note_ended()
            heart.outcome = RunOutcome(
                batches=report.batches,
                rows=report.rows,
                checkpoint=report.checkpoint,
                stopped=report.stopped,
                warnings=report.warnings,
            )
            return report

    def _claimed(self, sinks: Sinks, heart: Heart) -> Writer:
        """The writer of the job, once nobody runs it."""
        while True:
            try:
                return claim(
                    self.store,
                    self.layout,
                    owner=self.owner,
                    ids=lambda: uuid.uuid4().hex,
                    clock=_micros,
                    carry_out=sinks.carry_out_pending,
                    retained=Retention.of(self.options, _micros()),
                    claimed_epoch=heart.begin,
                    after=None if self.request.takeover else self._known_epoch,
                )
            except BusyError:
                # Spark took seconds to start, and somebody was faster. A run is left alone, and a command is through in a moment.
                self._await_first_sign()
                self._refuse_while_live()

    def _rescale(self, writer: Writer) -> None:
        """Hands the state to another number of subtasks, in a record of its own, if the options or the pipeline ask for it."""
        parent, parallelism = writer.parent, self.options.parallelism
        own = {node.uid: node.parallelism for node in self.flow.operators}
        if parent is None or not needs_rescale(parent, parallelism, own):
            return
        operators = rescaled_operators(parent.operators, parallelism, self.job, own)
        permit = writer.decide(Draft.continuing("rescale", parent, operators=operators))
        writer.complete(permit, {})

    def _open_sinks(self, spark: SparkSession, outline: Outline, log: Log | None) -> dict[str, Sink]:
        sinks, misfits = {}, []
        last_commits = log.last_commits if log else {}
        written = written_places(log) if log else {}
        for node in self.flow.sinks:
            locate(spark, node)
        refuse_one_place(self.flow)
        for node in self.flow.sinks:
            sink = class_of(node.sink_kind)(node.target, node.options, self.options.delivery)
            if (slot := last_commits.get(node.uid)) is not None:
                sink.last_commit = SinkSlot("", self.job, node.uid, slot, 0)
            sink.last_prepared = written.get(node.uid)
            try:
                sink.open(spark, outline.schema(node.inputs[0]))
            except IncompatibleError as error:
                # The sink sees only the columns of today; the pipeline knows their former names.
                misfits.append(unwritable(self.flow, renamed=True).get(node.uid, str(error)))
            if isinstance(sink, TableSink):
                put_table(node, sink.target)
                # Where a table is that was only made now, no catalog could say before.
                refuse_one_place(self.flow)
            sinks[node.uid] = sink
        if misfits:
            # All at once: every attempt costs a start of Spark.
            raise IncompatibleError("; ".join(misfits))
        return sinks

    def _loop(
        self,
        spark: SparkSession,
        inputs: OpenInputs,
        open_sinks: Mapping[str, Sink],
        sinks: Sinks,
        outputs: OutputWatch,
        writer: Writer,
        scratch: Path,
        listener: Callable[[BatchReport], None],
        heart: Heart,
    ) -> BatchLoop:
        options = self.options
        settings = BatchSettings(
            job=self.job,
            job_uuid=writer.job,
            flow=self.flow,
            sinks=open_sinks,
            parallelism=options.parallelism or spark.sparkContext.defaultParallelism,
            max_parallelism=options.max_parallelism,
            backend=options.backend,
            open_shard=open_backend_of_run(options),
            stager=sinks.stager,
            placement=Placement(spark),
            shared_scratch=one_process(spark.sparkContext.master),
            scratch=str(scratch),
            dead_letter_threshold=options.dead_letter_threshold,
            dead_letter_limit=options.dead_letter_limit,
            sent_modules=self.request.sent_modules,
            # Spark alone commits to Delta tables.
            python_beside=options.max_concurrent_checkpoints > 1
            and not all(sink.sink_kind.table for sink in self.flow.sinks),
        )

        storage = task_storage(options, options.checkpoint_dir, self.job, writer.epoch, 0)
        storage = replace(storage, large_files=large_files_of_run(options))
        return BatchLoop(
            spark=spark,
            settings=settings,
            inputs=inputs,
            writer=writer,
            options=options,
            storage=storage,
            sinks=sinks,
            outputs=outputs,
            listener=listener,
            clock=_micros,
            parameters=self.parameters,
            made_by=MadeBy.of(self.parameters, self.request.pipeline.versions),
            warnings=self.warnings,
            stop=self.stop,
            drain_asked=lambda: heart.drain,
        )

    @contextmanager
    def _reporting(self) -> Iterator[Callable[[BatchReport], None]]:
        """A listener that reports each batch to the metrics and to the caller."""
        options = self.options
        with reporter(options.metrics, self.job, self.warnings.add, options.metrics_port) as report:

            def both(batch: BatchReport) -> None:
                record = batch.record
                noted = batch.statistics.get("operators", {})
                self._lost = added(self._lost, lost_rows(self.flow, noted))
                report(
                    numbers(
                        batch.slot, batch.duration, record.watermark, record.state_size, batch.statistics
                    ),
                    user_counters(batch.statistics),
                )
                self.request.listener(batch)

            yield both

    def _batches(self, loop: BatchLoop, scratch: Path, idle: Callable[[], object]) -> str:
        queries = Queries(loop, scratch, self.request.until, idle)
        stopped = queries.run()
        if loop.ending():
            return INTERRUPTED
        if self.request.drain and queries.cut_off:
            self._warn_of_the_end(queries.cut_off, loop.writer.parent)
        for _ in range(MOST_INPUT_FREE):
            if not loop.due():
                break
            if loop.ending():
                return INTERRUPTED
            loop.input_free()
        return stopped

    def _warn_of_the_end(self, cut_off: Collection[str], parent: Record | None) -> None:
        way = (
            "begin another job (--job)"
            if parent is None
            else f"restore checkpoint {parent.slot} with --rewind-sinks"
        )
        self.warnings.add(
            "the end at a bound",
            f"job {self.job!r} is over with this run, and its bound ends what is read of {', '.join(sorted(cut_off))}: no run will read "
            f"the rows behind it; if there are some, {way} and run without --final",
        )


@contextmanager
def _set_by(stop: threading.Event, *numbers: signal.Signals) -> Any:
    """Lets these signals end the run after its batch. A second Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _micros() -> int:
    return time.time_ns() // 1000
