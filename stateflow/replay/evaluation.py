"""What batches of the past are evaluated with: Spark, the sources opened again, and a fork for what the batches write."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log
from stateflow.compatibility.flows import check_flow
from stateflow.config.options import Options, scratch_parent
from stateflow.format.records import FileRef, OperatorState, Outcome, Record
from stateflow.operators.context import Moment
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.parameters import known_parameters
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.redirected import refuse_tidying
from stateflow.replay.answers import RecordedAnswers, with_recorded_answers
from stateflow.replay.captured import CapturedSink
from stateflow.replay.fork import Fork, forked
from stateflow.replay.span import Step
from stateflow.spark.batches.batch_attempt import BatchAttempt, BatchSettings
from stateflow.spark.batches.changes_between import under_todays_names
from stateflow.spark.batches.routes import Routes, routes_of
from stateflow.spark.inputs.open_inputs import OpenInputs, SourceFrames, open_inputs
from stateflow.spark.inputs.readable import refuse_unreadable
from stateflow.spark.inputs.reread import SlotInput, reread
from stateflow.spark.inputs.schemas import Outline
from stateflow.spark.session.build import build_session
from stateflow.spark.session.sent_modules import NO_MODULES, SentModules
from stateflow.spark.session.settings import one_process
from stateflow.spark.shuffle.placement import Placement
from stateflow.spark.sinks.base import Sink
from stateflow.spark.sinks.staging import Stager
from stateflow.spark.task.failures import own_words
from stateflow.spark.task.storage import TaskStorage, task_storage
from stateflow.state.backends.choice import open_backend, open_reader
from stateflow.storage.roots import open_store
from stateflow.storage.scratch import temporary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


@dataclass
class PastBatches:
    """Batches of a job's past, and the code that they are evaluated with."""

    job: JobHandle
    pipeline: Pipeline
    steps: Sequence[Step]
    log: Log
    options: Options
    parameters: Mapping[str, Any] = field(default_factory=dict)
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    sent_modules: SentModules = NO_MODULES

    def texts(self, last: Record) -> dict[str, Any]:
        """The parameters: what is not given is that of this record."""
        return {**known_parameters(self.pipeline.function, last), **self.parameters}

    def built(self, last: Record) -> tuple[Flow, Mapping[str, Any]]:
        """The flow and its arguments."""
        texts = self.texts(last)
        flow = self.pipeline.build(texts)
        for source in flow.sources:
            refuse_tidying(source)
        return flow, self.pipeline.arguments(texts)


@dataclass
class Evaluation:
    """Evaluates batches of the past, each as its record says. It is good until its block ends."""

    flow: Flow
    parameters: Mapping[str, Any]
    options: Options
    spark: SparkSession
    inputs: OpenInputs
    fork: Fork
    scratch: Path
    sinks: Mapping[str, Sink]
    sent_modules: SentModules
    log: Log
    begun: Mapping[str, OperatorState] = field(default_factory=dict)
    """By uid, operators as the first of the batches that has them left them: a record that only tells where sources begin has none."""
    answers: Sequence[RecordedAnswers] = ()
    own: Stager = field(init=False)
    settings: BatchSettings = field(init=False)
    routes: Routes = field(init=False)
    """As far as batches have shown."""

    def __post_init__(self) -> None:
        options = self.options
        opener = partial(
            open_store, options.checkpoint_dir, dict(options.storage_options), fsync=options.local_fsync
        )
        self.own = Stager(opener, lambda: uuid.uuid4().hex)
        self.routes = routes_of(self.flow)
        self.settings = BatchSettings(
            job=self.fork.name,
            job_uuid=self.fork.name,
            flow=self.flow,
            sinks=self.sinks,
            parallelism=options.parallelism or self.spark.sparkContext.defaultParallelism,
            max_parallelism=options.max_parallelism,
            backend=options.backend,
            open_shard=open_backend(options),
            stager=self.own,
            placement=Placement(self.spark),
            shared_scratch=one_process(self.spark.sparkContext.master),
            scratch=str(self.scratch),
            dead_letter_threshold=options.dead_letter_threshold,
            dead_letter_limit=options.dead_letter_limit,
            sent_modules=self.sent_modules,
        )

    def storage(self, epoch: int, slot: int) -> TaskStorage:
        return task_storage(self.options, self.options.checkpoint_dir, self.fork.name, epoch, slot)

    def fetch(self, ref: FileRef) -> Path:
        """A file that a record names."""
        target = self.scratch / f"source-{uuid.uuid4().hex}"
        self.storage(0, 0).download(ref, target)
        return target

    def refuse_unreadable(self, batches: Sequence[SlotInput]) -> None:
        refuse_unreadable(self.spark, self.inputs, batches, self.scratch, self.fetch)

    def read(self, step: Step, use: Callable[[SourceFrames], T]) -> T:
        """Gives `use` the batch's input, read again. Answers that it asks for are those of then."""
        for answers in self.answers:
            answers.turn_to(step.record)
        batch = SlotInput.of(step.record, step.before)
        return reread(self.spark, self.inputs, batch, self.scratch, self.fetch, use)

    def attempt(self, step: Step, parent: Record | None) -> BatchAttempt:
        """An attempt at the batch of a step, on the state of `parent`."""
        record, outcome = step.record, _outcome_of(self.log, step.before)
        replaced = [sink.replaced for sink in self.sinks.values() if isinstance(sink, CapturedSink)]
        return BatchAttempt(
            spark=self.spark,
            settings=self._settings(parent),
            moment=moment_of(record, parent, self.parameters),
            parent=parent,
            # Feeds lack what they lacked then.
            last_commits=outcome.last_commits if outcome else {},
            routes=self.routes,
            feeds=under_todays_names(outcome.feeds if outcome else (), replaced),
            record_at=self.log.member,
            # Its epoch is that of the run then: what a run does at its first batch, it does again.
            storage=self.storage(record.epoch, record.slot),
            input_free=bool(record.statistics.get("input_free")),
        )

    def _settings(self, parent: Record | None) -> BatchSettings:
        """With what operators began with that `parent` does not have yet, whatever today's options say."""
        had = parent.operators if parent is not None else {}
        begun = [operator for uid, operator in self.begun.items() if uid not in had]
        if not begun:
            return self.settings
        # The pipeline itself says what the others have.
        of_run = [len(operator.assignment) for operator in begun if not operator.parallelism]
        return replace(
            self.settings,
            parallelism=max(of_run, default=self.settings.parallelism),
            max_parallelism=begun[0].max_parallelism,
        )


def _outcome_of(log: Log, record: Record | None) -> Outcome | None:
    return log.slots[record.slot].outcome if record is not None and record.slot in log.slots else None


def moment_of(record: Record, parent: Record | None, parameters: Mapping[str, Any]) -> Moment:
    """What was fixed for the batch of a record."""
    return Moment(
        slot=record.slot,
        now=record.now,
        seed=record.seed,
        watermark=record.watermark,
        parameters=parameters,
        shift=record.shift,
        watermark_before=parent.watermark if parent else None,
    )


def records_read(log: Log, steps: Sequence[Step]) -> list[Record]:
    """The records whose files an evaluation of these steps may open."""
    # A feed lacks what its table lacked then, since the checkpoint that this shows.
    shown = {
        each.slot
        for step in steps
        if (outcome := _outcome_of(log, step.before)) is not None
        for each in outcome.feeds
    }
    bases = (record for record in log.chain if record.slot in shown)
    read = (*bases, *(each for step in steps for each in (step.before, step.record) if each is not None))
    return list({each.slot: each for each in read}.values())


@contextmanager
def evaluation(
    batches: PastBatches,
    flow: Flow,
    parameters: Mapping[str, Any],
    sinks: Mapping[str, Sink],
    purpose: str,
) -> Iterator[Evaluation]:
    """Opens all that is needed. The records are kept from collection until the block ends, and then the fork goes."""
    job, options, steps = batches.job, batches.options, batches.steps
    before = steps[0].before
    check_flow(
        flow,
        before,
        checkpoints=[record.slot for record in batches.log.checkpoints],
    )
    with forked(job, records_read(batches.log, steps), job.owner(purpose)) as fork:
        spark = build_session(
            f"stateflow {purpose} {job.name}",
            master=batches.master,
            conf=batches.conf,
            scratch=scratch_parent(options),
            bundles=flow.jars,
        )
        with temporary(scratch_parent(options)) as scratch, own_words():
            inputs = open_inputs(spark, flow.sources, exactly_once=True)
            Outline(spark, flow, inputs).check(before)
            made = Evaluation(
                flow,
                parameters,
                options,
                spark,
                inputs,
                fork,
                scratch,
                sinks,
                batches.sent_modules,
                batches.log,
                {uid: each for step in reversed(steps) for uid, each in step.record.operators.items()},
            )
            made.answers = with_recorded_answers(flow, made.storage(0, 0), open_reader(options))
            yield made
