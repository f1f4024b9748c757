"""`Job`: the verbs that the command line, Airflow and scripts call.

Imports of `stateflow.spark`, and of whatever else is heavy, stay inside the verbs that need them: the command line and
DAG files load this module and must start fast.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, get_args

from stateflow.checkpoint.abandon import Abandoned, Probe, require_lowest
from stateflow.checkpoint.abandon import abandon as abandon_record
from stateflow.checkpoint.claim import CarryOut, claim
from stateflow.checkpoint.collection import (
    CollectionPlan,
    CollectionReport,
    DisposeSavepoint,
    collect,
    inspect,
)
from stateflow.checkpoint.control import begun_by_restore, read_heartbeat, read_progress
from stateflow.checkpoint.deletion import Deleted, delete_job
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.edit import Edited, edit
from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.kept_past import KeptPast, read_kept_past
from stateflow.checkpoint.log import Log, list_jobs, read_epochs, read_identity, read_log
from stateflow.checkpoint.names import parse, slot_of, tag_of
from stateflow.checkpoint.pins import before_drop, list_pins, pin, read_pins, release
from stateflow.checkpoint.processes import is_dead
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.scheduled import sweep
from stateflow.checkpoint.statistics import HistoryLine, Summary, history, standing_lines, summary
from stateflow.checkpoint.verification import Finding
from stateflow.checkpoint.verification import verify as verify_job
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options, load
from stateflow.config.retention_rule import NO_RULE, RetentionRule
from stateflow.errors import BusyError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import LAST_EPOCH, JobLayout
from stateflow.format.records import Pin, Prepared, Record
from stateflow.jobs.savepoints import (
    MadeSavepoint,
    SavepointKind,
    SavepointRequest,
    create_savepoint,
    dispose_unfinished,
)
from stateflow.jobs.stopping import Stopped, stop_job
from stateflow.names import with_options
from stateflow.observe.status import JobStatus, status_of
from stateflow.pipelines.parameters import known_parameters
from stateflow.savepoints.dispose import dispose_claimed
from stateflow.savepoints.origin import find_origin, written_places
from stateflow.storage.local import held_root
from stateflow.storage.roots import open_store

if TYPE_CHECKING:
    from stateflow.compatibility.flows import Check, Counts
    from stateflow.debugging.trial import Run, Trial
    from stateflow.pipelines.pipeline import Pipeline
    from stateflow.reading.bisect import FirstBad
    from stateflow.reading.diff import Differences
    from stateflow.reading.history import KeyHistory
    from stateflow.reading.predicates import Predicate
    from stateflow.replay.comparison import ReplayReport
    from stateflow.restore.planned import RestorePlan
    from stateflow.restore.together import RestoreTogether
    from stateflow.spark.runner import RunReport
    from stateflow.spark.sinks.sink_versions import DeliveredSlot

_log = logging.getLogger(__name__)

PERMISSION = "allow_non_restored_state"
"""What callers give beside the fields of a request. The pipeline carries it to where it is compared with its state."""
COLLECTED_RETAINED = 3
"""How many checkpoints `garbage` and `collect` keep by default, like the option `retained_checkpoints`."""


@dataclass(frozen=True, slots=True)
class AbandonPlan:
    """What `abandon` would do."""

    slot: int
    epoch: int
    decided_at: int
    sinks: Mapping[str, str]
    """Per sink uid, its kind and target."""
    rows: int
    record: Record


class Job(JobHandle):
    """`Job("s3://bucket/root", "orders")`. Verbs that take a pipeline take `allow_non_restored_state=True` beside it."""

    def __init__(
        self,
        root: str,
        name: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        conf: Mapping[str, str] | None = None,
        **handle: Any,
    ) -> None:
        """`conf` is Spark's, for verbs that carry out a record. `handle` takes what `JobHandle` takes."""
        options = dict(storage_options or {})
        store = open_store(root, options)
        made = with_options(JobHandle.__init__)
        made(self, store, JobLayout(name), root=root, storage_options=options, **handle)
        self._conf = dict(conf or {})

    def checkpoints(self) -> list[Record]:
        """Complete checkpoints, oldest first."""
        return list(self.log().checkpoints)

    def summary(self) -> Summary:
        """The gauges that Flink shows for a job."""
        return summary(self.history())

    def status(self) -> JobStatus:
        """The job at a glance. RUNNING and LOST depend on clocks, so decide nothing by them."""
        log = self.log()
        return self._status(log, history(self.store, self.layout, log=log))

    def glance(self) -> JobStatus:
        """Like `status()`, cheaper, for pollers: the gauges count only the records that are still in the log."""
        log = self.log()
        return self._status(log, standing_lines(log))

    def _status(self, log: Log, lines: list[HistoryLine]) -> JobStatus:
        epoch = log.newest_epoch
        heartbeat = read_heartbeat(self.store, self.layout, epoch)
        return status_of(
            log,
            self.store.url,
            heartbeat=heartbeat,
            progress=read_progress(self.store, self.layout, epoch),
            pins=list_pins(self.store, self.layout),
            lines=lines,
            now=self.clock(),
            patience=round(self.heartbeat_timeout * 1e6),
            begun_by_restore=log.head is None and begun_by_restore(self.store, self.layout),
            gone=heartbeat is not None and is_dead(heartbeat.process),
        )

    def versions(self, as_of: str | int = "latest") -> DeliveredSlot:
        """Which versions of the outputs belong together: what every sink had at a checkpoint, which may be collected by now.

        `as_of` is a number, `tag:NAME` or a time. By default it is the newest checkpoint that every sink has.
        """
        from stateflow.spark.sinks.sink_versions import sink_versions

        return sink_versions(self, str(as_of))

    def check(
        self,
        pipeline: Pipeline,
        parameters: Mapping[str, Any] | None = None,
        *,
        parallelism: int = 0,
        allow_non_restored_state: bool = False,
        counts: Counts | None = None,
    ) -> Check:
        """Whether a run of the pipeline would fit the newest state. Missing parameters are those of the last run."""
        from stateflow.jobs.checking import checked, folders_read
        from stateflow.spark.shared_outputs import outputs_shared_in_root

        record: Record | None = None
        checkpoints: tuple[int, ...] = ()
        written: dict[str, Prepared] = {}
        if self.exists:
            log = read_log(self.store, self.layout)
            decided, checkpoints = log.decided, tuple(kept.slot for kept in log.checkpoints)
            record = decided if decided is not None and decided.carries_state else log.head
            # A restore or a rescale writes nothing, and the record of one has no outputs.
            written = written_places(log)
        # A pin that cannot be read is for `verify` to report.
        kept_as = before_drop(record.slot, read_pins(self.store, self.layout)[0]) if record else ""
        before = known_parameters(pipeline.function, record)
        values = {**before, **(parameters or {})}
        flow = permitted(pipeline, allow_non_restored_state).build(values)
        return checked(
            flow,
            self.name,
            record,
            shared=outputs_shared_in_root(flow, self.name, self.store) if record is None else (),
            parallelism=parallelism,
            checkpoints=checkpoints,
            counts=counts,
            written=written,
            read=folders_read(pipeline, before) if parameters else {},
            kept_as=kept_as,
        )

    def run(
        self,
        pipeline: Pipeline,
        parameters: Mapping[str, Any] | None = None,
        *,
        options: Options | Mapping[str, Any] | None = None,
        **request: Any,
    ) -> RunReport:
        """Runs the pipeline as this job, to the end of its trigger. `request` takes the fields of `RunRequest`. Parameters that it needs
        and that are not given are those of the job's last run.

        Options that the mapping does not set come from the environment and `stateflow.toml`. Root and credentials are the job's.
        """
        from stateflow.spark.runner import RunRequest, run  # loads Spark

        own = self._run_options(options)
        given = pipeline.parameters_behind(self.log().head if self.exists else None, parameters or {})
        pipeline = permitted(pipeline, request.pop(PERMISSION, False))
        return run(with_options(RunRequest)(pipeline, own, given, job=self.name, **request))

    def replay(
        self,
        pipeline: Pipeline,
        first: str | int = "latest",
        last: str | int = "latest",
        parameters: Mapping[str, Any] | None = None,
        *,
        newest: int | None = None,
        options: Options | Mapping[str, Any] | None = None,
        **request: Any,
    ) -> ReplayReport:
        """Runs the batches of the checkpoints `first..last` again with this pipeline, on a fork, and compares what it puts out and
        keeps with what the job did. Nothing is published. A run of the job may go on meanwhile.

        `newest` is for that many of the newest batches instead, or those of them that can be run again.
        `request` takes the fields of `ReplayRequest`: compare, check, master, conf, listener, changes and so on. Parameters
        that are not given are those of the last of the batches.
        """
        from stateflow.replay.held import held_newest
        from stateflow.replay.running import ReplayRequest, replay  # loads Spark
        from stateflow.replay.span import span

        pipeline = permitted(pipeline, request.pop(PERMISSION, False))
        own, given = self._run_options(options), dict(parameters or {})
        if newest is not None:
            with held_newest(self, newest) as held:
                notes = (*request.pop("notes", ()), *filter(None, (held.note,)))
                return replay(
                    ReplayRequest(self, pipeline, held.steps, held.log, own, given, notes=notes, **request)
                )
        log = self.log()
        begin, end = (slot_of(parse(str(name)), self, log) for name in (first, last))
        return replay(ReplayRequest(self, pipeline, span(log, begin, end), log, own, given, **request))

    def debug(
        self,
        pipeline: Pipeline,
        operator: str,
        key: str,
        at: str | int,
        parameters: Mapping[str, Any] | None = None,
        *,
        run: Run | None = None,
        options: Options | Mapping[str, Any] | None = None,
        **request: Any,
    ) -> Trial | None:
        """Runs this pipeline's operator for one key in the batch that made checkpoint `at`: with the state that the key had before,
        the rows that it got, and the time, chance and watermark of the batch. The key is written as on the command line.

        `run` calls the code, such as under a debugger, and gives False if that was left early; then there is no answer. Parameters
        that are not given are those of the batch. `request` takes `expectation`, of a test that is to be written, which is checked
        before anything runs, and the further fields of `PastBatches`: master, conf and so on.
        """
        from stateflow.jobs import past

        return past.debugged(
            self,
            permitted(pipeline, request.pop(PERMISSION, False)),
            operator,
            key,
            at,
            self._run_options(options),
            dict(parameters or {}),
            run,
            **request,
        )

    def stop(self, *, wait: float | None = None, reason: str = "", drain: bool = False) -> Stopped:
        """Asks the newest run to end after its batch. With `wait` (seconds) watches until it has ended.

        With `drain` the run first raises the watermark to its end, so that all event-time timers fire: the job is over
        then. A run whose heartbeat stops meanwhile counts as lost. BusyError when the time is up.
        """
        return stop_job(self, wait=wait, reason=reason, drain=drain)

    def settle(self, *, wait: float = 600.0) -> int | None:
        """Carries out what a run decided and did not finish; returns the newest complete checkpoint.

        Does nothing when nothing is pending. A run that lives carries it out itself: waits for that as many seconds, then BusyError.
        """
        log, owner, began = self.log(), self.owner(), self.monotonic()
        unfinished = {record.slot for record in log.pending if record.carries_state}
        while unfinished.intersection(record.slot for record in log.pending):
            try:
                self.refuse_while_live(owner, takeover=False)
            except BusyError:
                if self.monotonic() - began > wait:
                    raise
            else:
                claim(
                    self.store, self.layout, owner=owner, ids=self.new_id, clock=self.clock,
                    carry_out=self._recovery(), after=log.newest_epoch,
                )  # fmt: skip
            log = self.log()
        return log.head.slot if log.head else None

    def tag(self, name: str, checkpoint: str = "latest", *, note: str = "") -> Pin:
        """Names a checkpoint and keeps it: an instant savepoint inside the job that copies nothing."""
        if name == "latest" or name.isdigit():
            raise UsageError(
                f"a tag {name!r} would be taken for the checkpoint of that name: choose another one, such as v{name}"
            )
        slot = slot_of(parse(checkpoint), self, self.log())
        return pin(
            self.store, self.layout, slot, kind="tag", owner=self.owner(), ids=self.new_id,
            clock=self.clock, name=name, reason=note,
        )  # fmt: skip

    def untag(self, name: str) -> int:
        """Removes a tag; returns the checkpoint that it named. The next collection deletes what only the tag kept."""
        tag = tag_of(name, self)
        release(self.store, self.layout, tag.id)
        return tag.slot

    def savepoint(
        self,
        kind: SavepointKind = "native",
        *,
        options: Options | None = None,
        progress: Callable[[str, int, int], object] = lambda what, done, total: None,
        **request: Any,
    ) -> MadeSavepoint:
        """Makes a savepoint from a complete checkpoint, beside a run or without one.

        `request` takes the fields of `SavepointRequest`: checkpoint, to, name, note, expires, max_files, split_size.
        """
        owner = request.pop("owner", None) or self.owner()
        if kind not in (known := get_args(SavepointKind)):
            raise UsageError(f"{kind!r} is no kind of savepoint: {' or '.join(map(repr, known))}")
        make = with_options(SavepointRequest)
        return create_savepoint(make(self, options or self._options(), owner, kind, **request), progress)

    def restore(
        self,
        origin: str,
        pipeline: Pipeline,
        parameters: Mapping[str, Any] | None = None,
        *,
        options: Options | None = None,
        from_job: str = "",
        approved: str | None = None,
        count: bool = False,
        **request: Any,
    ) -> RestorePlan:
        """Plans a restore from `latest`, `checkpoint:N`, `tag:NAME` or a savepoint's URL. Writes nothing.

        With `approved`, the digest of an approved plan, `apply` does exactly that plan or nothing. With `count` it reads the
        snapshot's state if the type of any changes, and the plan says how many entries each of those has.

        `from_job` names another job of this root whose checkpoint to restore. `request` takes the fields of
        `RestoreRequest`: claim_mode, rewind_sinks, clone_sinks, parallelism and so on.
        """
        from stateflow.jobs.counting import counted
        from stateflow.restore.plan import RestoreRequest
        from stateflow.restore.planned import plan_restore

        whose = self if from_job in ("", self.name) else self.beside(from_job)
        wanted = with_options(RestoreRequest)(
            job=self,
            pipeline=permitted(pipeline, request.pop(PERMISSION, False)),
            origin=find_origin(origin, whose, self.storage_options),
            options=options or self._options(),
            parameters=parameters or {},
            approved=approved,
            owner=request.pop("owner", None) or self.owner(),
            **request,
        )
        plan = plan_restore(wanted)
        if count and any(operator.evolution for operator in plan.check.operators):
            plan = plan_restore(replace(wanted, counts=counted(wanted.origin, self, wanted.options)))
        return plan

    def restore_with_readers(
        self,
        origin: str,
        pipeline: Pipeline,
        readers: Mapping[str, Pipeline],
        parameters: Mapping[str, Any] | None = None,
        *,
        options: Options | None = None,
        approved: str | None = None,
        rewind_sinks: bool = True,
        **request: Any,
    ) -> RestoreTogether:
        """Plans a restore that rewinds the outputs, together with the jobs of the root that have read what it undoes.

        `readers` has their pipelines by name. `request` takes what `restore` takes: of it `takeover`, `conf`, `owner` and `count` hold for
        every job, and the rest for this one. So state of the readers is left behind only by a restore of their own. With `approved`, the digest of all of it, `apply` does exactly that or nothing; after a crash it does
        what is left of it.
        """
        from stateflow.restore.together import plan_together

        if not rewind_sinks:
            raise UsageError(
                "--with-readers takes back whoever has read what --rewind-sinks undoes: give that, too"
            )
        together: dict[str, Any] = {"options": options, "rewind_sinks": True, "with_readers": True}
        first = self.restore(origin, pipeline, parameters, **together, **request)
        shared = {name: request[name] for name in ("takeover", "conf", "owner", "count") if name in request}

        def plan_reader(name: str, slot: int) -> RestorePlan:
            return self.beside(name).restore(f"checkpoint:{slot}", readers[name], **together, **shared)

        def history_of(name: str) -> list[HistoryLine]:
            reader = self.beside(name)
            return reader.history() if reader.exists else []  # it may never have run

        return plan_together(first, plan_reader, readers, approved=approved, history_of=history_of)

    def rescale(self, parallelism: int, *, note: str = "", takeover: bool = False) -> Edited:
        """Hands the state to another number of subtasks. It edits only the record, and the next run follows it."""
        self.refuse_while_live(self.owner(), takeover=takeover)

        def draft(writer: Writer) -> Draft:
            if writer.parent is None:
                raise NotFoundError(
                    f"job {self.name!r} has no checkpoint yet: its first run takes --parallelism"
                )
            operators = rescaled_operators(writer.parent.operators, parallelism, self.name)
            noted = {"parallelism": parallelism}  # a repetition asks whether it wants the same
            return Draft.continuing("rescale", writer.parent, operators=operators, statistics=noted)

        head = self.log().head
        if head is not None:
            rescaled_operators(head.operators, parallelism, self.name)  # refuses before the claim
        return edit(
            self.store,
            self.layout,
            draft,
            owner=self.owner(note),
            ids=self.new_id,
            clock=self.clock,
            carry_out=self._recovery(),
            once="rescale",
        )

    def delete(self, *, note: str = "", takeover: bool = False) -> Deleted:
        """Deletes the job: its state, checkpoints and claimed savepoints. A tombstone keeps zombies out.

        Repeating it is safe, and deletes what a fenced run has written since.
        """
        with self._held() as job:
            exists = job.exists
            if LAST_EPOCH not in read_epochs(job.store, job.layout):
                if not exists:
                    raise job.unknown()
                job.refuse_while_live(job.owner(), takeover=takeover)
            deleted = delete_job(
                job.store,
                job.layout,
                owner=job.owner(note),
                ids=job.new_id,
                clock=job.clock,
                # The job's identity is deleted last: a job without one has no savepoint left.
                dispose=job._disposal() if exists else lambda url: None,
            )
            try:
                return replace(deleted, unfinished=dispose_unfinished(job))
            except StateflowError as error:
                # The job is deleted. A clean-up of any other job in the root tries again.
                _log.warning("what was unfinished among the savepoints of deleted jobs stays: %s", error)
                return deleted

    def history_of(
        self,
        operator: str,
        state: str,
        key: str,
        *,
        map_key: str | None = None,
        namespace: str | None = None,
        since: str = "",
        limit: int | None = None,
        rows: Pipeline | None = None,
        parameters: Mapping[str, Any] | None = None,
        options: Options | None = None,
        **request: Any,
    ) -> KeyHistory:
        """What the state held for a key, written as on the command line, after each kept checkpoint in which that changed.

        `since` is a slot, a tag or a time; `limit` leaves out older versions. With `rows` each version has the rows that the key
        got since the kept checkpoint before, read again from this pipeline's sources: Spark runs for that. Then `parameters` are
        those of the pipeline, else those of the newest of the batches, and `request` takes the further fields of `PastBatches`.
        """
        from stateflow.jobs import past
        from stateflow.reading.past_states import KeyOfState

        asked = KeyOfState(operator, state, key, map_key, namespace)
        found = past.history(self, asked, options or self._options(), since=since, limit=limit)
        if rows is None:
            return found
        own = self._run_options(options)
        rows = permitted(rows, request.pop(PERMISSION, False))
        return past.with_rows(self, found, asked, rows, own, dict(parameters or {}), **request)

    def diff(
        self,
        before: str,
        after: str,
        *,
        with_job: str = "",
        operators: Sequence[str] = (),
        states: Sequence[str] = (),
        look_up: bool | None = None,
        options: Options | None = None,
    ) -> AbstractContextManager[Differences]:
        """What changed between two points: slots, tags, times or savepoints; `after` of `with_job` if that is given.

        Both stay pinned until the block ends. Its `changes()` gives one entry after the other. `look_up` fetches files that both
        have, to find out what a key held before; by default they are read if they are on this host.
        """
        from stateflow.jobs import past

        return past.differing(
            self, before, after, options or self._options(), other=self.beside(with_job) if with_job else None,
            operators=operators, states=states, look_up=look_up,
        )  # fmt: skip

    def bisect(
        self,
        operator: str,
        state: str,
        key: str | None,
        first: str | Predicate,
        *,
        map_key: str | None = None,
        namespace: str | None = None,
        since: str = "",
        until: str = "",
        scan: bool = False,
        options: Options | None = None,
    ) -> FirstBad:
        """The first kept checkpoint for which the condition holds for this key, or with None for any key of the state.

        A condition is SQL over `value` and `previous`. A binary search serves conditions that stay true; `scan` looks at
        every checkpoint.
        """
        from stateflow.jobs import past

        return past.first_bad(
            self, operator, state, key, first, options or self._options(), map_key=map_key, namespace=namespace,
            since=since, until=until, scan=scan,
        )  # fmt: skip

    def beside(self, name: str) -> Job:
        """Another job of the same root."""
        return Job(
            self.root, name, storage_options=self.storage_options, heartbeat_timeout=self.heartbeat_timeout,
            clock=self.clock, monotonic=self.monotonic, sleep=self.sleep, ids=self.new_id,
            acts_as=self.acts_as, conf=self._conf,
        )  # fmt: skip

    def plan_abandon(self, slot: int) -> AbandonPlan:
        """What `abandon` would give up. Writes nothing."""
        record = require_lowest(self.name, self.log().pending, slot)
        return AbandonPlan(
            slot=slot,
            epoch=record.epoch,
            decided_at=record.at,
            sinks={uid: f"{p.kind} {p.target}".strip() for uid, p in record.sinks.items()},
            rows=sum(p.rows for p in record.sinks.values()),
            record=record,
        )

    def abandon(
        self,
        slot: int,
        *,
        reason: str = "",
        probe: Probe | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> Abandoned:
        """Completes a decided record without the outputs that cannot be delivered. Fences a running run.

        `probe` tells which sinks have the output. The default starts Spark and asks the tables.
        """
        self.plan_abandon(slot)
        return abandon_record(
            self.store,
            self.layout,
            slot,
            owner=self.owner(),
            ids=self.new_id,
            clock=self.clock,
            probe=probe or self._probe(conf or {}),
            reason=reason,
        )

    def verify(self, *, deep: bool = False) -> list[Finding]:
        """Everything that is wrong with the job. With `deep` it reads and compares every file."""
        if not self.exists and not read_epochs(self.store, self.layout):
            raise self.unknown()
        return verify_job(
            self.store,
            self.layout,
            deep=deep,
            open_base=self.open_base,
        )

    def garbage(
        self,
        retained: int = COLLECTED_RETAINED,
        age: timedelta = timedelta(0),
        rule: RetentionRule = NO_RULE,
        *,
        without: Collection[str] = (),
    ) -> CollectionPlan:
        """What `collect` would delete now, or once the pins with the ids `without` are released, what it would keep, and why."""
        if not self.exists:
            raise self.unknown()
        retention = Retention.of_rule(retained, age, rule, self.clock())
        return inspect(self.store, self.layout, retention, without=without)

    def collect(
        self,
        retained: int = COLLECTED_RETAINED,
        age: timedelta = timedelta(0),
        rule: RetentionRule = NO_RULE,
    ) -> CollectionReport:
        """Deletes the files that only subsumed checkpoints name. A run may go on meanwhile.

        It keeps the newest `retained` checkpoints, all younger than `age`, those that `rule` keeps, those that tags and other pins
        name, and all that the job's last run has announced to keep.
        """
        with self._held() as job:
            if not job.exists:
                raise job.unknown()
            report = collect(
                job.store,
                job.layout,
                collector=f"gc-{job.new_id()}",
                retained=Retention.of_rule(retained, age, rule, job.clock()),
                orphans=True,
                dispose=job._disposal(),
            )
            sweep(job.store, job.layout)
            return report

    def kept_past(
        self,
        retained: int = COLLECTED_RETAINED,
        age: timedelta = timedelta(0),
        rule: RetentionRule = NO_RULE,
    ) -> KeptPast:
        """What such a retention would keep of the checkpoints there are, and what that costs."""
        if not self.exists:
            raise self.unknown()
        return read_kept_past(self.store, self.layout, Retention.of_rule(retained, age, rule, self.clock()))

    @contextmanager
    def _held(self) -> Iterator[Self]:
        """This job in the folder that its root is now: what it looks at and what it deletes is one folder."""
        with ExitStack() as stack:
            try:
                store = stack.enter_context(held_root(self.store))
            except NotFoundError:
                raise self.unknown() from None
            job = copy.copy(self)
            job.store = store
            yield job

    def _disposal(self) -> DisposeSavepoint:
        identity = read_identity(self.store, self.layout)
        if identity is None:
            raise self.unknown()
        return dispose_claimed(
            self.storage_options, job=identity.uuid, owner=self.owner(), clock=self.clock, root=self.store.url
        )

    def _recovery(self) -> CarryOut:
        """Carries out what a run left pending. It starts Spark only when there is something to carry out."""
        from stateflow.spark.carry_out import Sinks
        from stateflow.spark.session.build import build_session

        return Sinks.of(
            self, lambda: build_session(f"stateflow {self.name}", conf=self._conf)
        ).carry_out_pending

    def _run_options(self, options: Options | Mapping[str, Any] | None) -> Options:
        if isinstance(options, Options):
            return options
        # The file's root and credentials are not taken, so it need not be trusted for them.
        own = {"checkpoint_dir": self.root, "storage_options": self.storage_options}
        loaded = load(code={**(options or {}), **own})
        return replace(loaded, checkpoint_dir=self.root, storage_options=self.storage_options)

    def _options(self) -> Options:
        return replace(load(cli={"checkpoint_dir": self.root}), storage_options=self.storage_options)

    def _probe(self, conf: Mapping[str, str]) -> Probe:
        from stateflow.spark.sinks.kinds import delivered, needs_spark

        def probe(record: Record) -> Mapping[str, bool]:
            if not needs_spark(record):
                return delivered(None, record, self.name)
            from stateflow.spark.session.build import build_session

            return delivered(build_session(f"stateflow abandon {self.name}", conf=conf), record, self.name)

        return probe


def permitted(pipeline: Pipeline, allow_non_restored_state: bool) -> Pipeline:
    """The pipeline, which lets go of state that it lacks if the caller allows it."""
    return replace(pipeline, allow_non_restored_state=True) if allow_non_restored_state else pipeline


def jobs(root: str, *, storage_options: Mapping[str, str] | None = None) -> list[str]:
    """The jobs of a checkpoint root."""
    return list_jobs(open_store(root, dict(storage_options or {})))
