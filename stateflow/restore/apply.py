"""Applies a restore plan: state, timers, watermark and source offsets come back as one record.

The restore claims the job, carries out what was decided, copies files in under the claimed epoch, and only then decides
its record. So a crash at any point leaves the job as it was, or restored.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from stateflow.checkpoint.control import newest_heartbeat
from stateflow.checkpoint.copying import copy_files
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.edit import Edited, edit
from stateflow.checkpoint.feeds import shown_by_copies, shown_by_rewound
from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.idempotency import history_line_of, release_others
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.names import refuse_erased
from stateflow.checkpoint.pins import pinned
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.statistics import CONTINUED_JOB, CONTINUED_SLOT
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import cache_folder, scratch_parent
from stateflow.errors import CorruptError, NotFoundError, StateflowError, UsageError
from stateflow.format.records import FileRef, Pin, Prepared, Record
from stateflow.format.references import bases
from stateflow.liveness.heart import Heart
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.parameters import as_texts
from stateflow.restore.ahead import check_ahead, jars_to_ask
from stateflow.restore.copies import copies_of
from stateflow.restore.digest import digest, require_same, require_unmoved
from stateflow.restore.gone_back import note
from stateflow.restore.plan import Plan, Progress, Restored, same_job
from stateflow.restore.planning import (
    is_own_savepoint,
    is_renamed,
    make_plan,
    taken_over,
    with_time_anew,
)
from stateflow.savepoints.dispose import dispose_claimed
from stateflow.savepoints.format import claim_savepoint, read_savepoint, to_pin
from stateflow.savepoints.origin import find_origin
from stateflow.savepoints.publish import probe_elsewhere
from stateflow.spark.carry_out import Sinks, functions_of
from stateflow.spark.sinks.delta_copy import copy_table
from stateflow.spark.sinks.kinds import prepare_rewind
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.storage.roots import open_recorded, open_store

_log = logging.getLogger(__name__)


class RestoreRun:
    """One application of a plan."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.plan = plan
        self.request = plan.request
        self.origin = plan.request.origin
        self.job = plan.request.job
        self.flow: Flow = self.request.pipeline.build(plan.values)
        self.progress = progress
        self.copied_bytes = 0
        self._stays: dict[str, str] = {}
        """Why outputs that the code does not have stay, though the plan was to take them back."""
        self._stack = ExitStack()
        self._pin: Pin | None = None
        """Keeps the snapshot from collection, when it is a checkpoint."""
        self._looks_first = False
        """Whether the sources are looked at before the claim, which ends a run: a refusal leaves that run alone."""

    def run(self) -> Restored:
        job, request = self.job, self.request
        if request.approved is not None and not self._is_done():
            require_same(request.approved, self.plan)
        if job.exists:
            patience = request.options.heartbeat_timeout.total_seconds()
            job.refuse_while_live(request.owner, takeover=request.takeover, patience=patience)
        self._looks_first = request.takeover and self._may_fence()
        with ExitStack() as stack:
            self._stack = stack
            if self.origin.owner is not None:
                self._pin = stack.enter_context(self._pinned(self.origin.owner, self.origin.record.slot))
            if self._looks_first:
                self._check_sources()
            heart = stack.enter_context(
                Heart(job.store, job.layout, request.owner, self._beat_every(), Event())
            )
            edited = self._edit(heart)
        self._dispose_of_what_nothing_names(edited)
        return Restored(
            job=job.name,
            checkpoint=edited.slot,
            timeline=edited.record.timeline,
            copied_bytes=self.copied_bytes,
            sinks={**edited.outcome.sinks, **self._stays},
        )

    def _is_done(self) -> bool:
        """Whether an earlier try with this idempotency key has restored already: the plan then shows its result."""
        if not self.job.exists:
            return False
        return history_line_of(self.job.history(), self.request.owner.run, "restore") is not None

    def _require_planned_job(self, writer: Writer) -> None:
        """Parameters were planned for this job: a new one takes the snapshot's, one that exists keeps its own."""
        if self.plan.job_uuid != (writer.job if writer.parent is not None else ""):
            raise UsageError(
                f"job {self.job.name!r} was created or replaced after this restore was planned: plan it again"
            )

    def _may_fence(self) -> bool:
        """Whether the job's newest run may be alive, so that the claim ends it."""
        _, newest = newest_heartbeat(self.job.store, self.job.layout)
        return newest is not None and not newest.ended

    def _require_as_planned(self, writer: Writer) -> None:
        """Compares the plans again once this restore owns the job: until then a run may have gone on, or have come and gone."""
        if self.request.approved is None:
            now = make_plan(self.request)
            writer.still_owner()  # else a newer run may have moved the job while the plan was made, and that is what to say
            require_unmoved(self.plan, now)
            return
        whose = self.origin.owner or self.job
        origin = find_origin(self.origin.label, whose, self.job.storage_options)
        require_same(self.request.approved, make_plan(replace(self.request, origin=origin)), self.plan)

    def _dispose_of_what_nothing_names(self, edited: Edited) -> None:
        """Disposes of a claimed savepoint that no record names: its state was so small that it went into the record."""
        request, origin = self.request, self.origin
        if origin.savepoint is None or request.claim_mode != "claim" or edited.record.origin != origin.label:
            return  # the last: an earlier try with this idempotency key has restored something else
        # Every record counts: one that an earlier restore made from the savepoint may still need it.
        slots = read_log(self.job.store, self.job.layout).slots.values()
        if origin.url not in bases(slot.record for slot in slots if slot.record is not None):
            with suppress(NotFoundError):  # somebody else has disposed of it, and nothing of it is needed
                self._claim(edited.record.job)
                dispose = dispose_claimed(
                    self.job.storage_options,
                    job=edited.record.job,
                    owner=request.owner,
                    clock=self.job.clock,
                    root=self.job.store.url,
                )
                dispose(origin.url)

    def _claim(self, job: str) -> None:
        """Claims the plan's savepoint for the job with this UUID."""
        assert self.origin.savepoint is not None
        # From now on records name it, so it is opened as they will have it opened: no link in the root may lie on the way to it.
        claim_savepoint(
            open_recorded(self.origin.url, self.job.storage_options, root=self.job.store.url),
            job=job,
            name=self.job.name,
            owner=self.request.owner,
            clock=self.job.clock,
            expect=self.origin.savepoint.id,
            root=self.job.store.url,
        )

    def _beat_every(self) -> float:
        return self.request.options.heartbeat_interval.total_seconds()

    @contextmanager
    def _pinned(self, owner: JobHandle, slot: int) -> Iterator[Pin]:
        """Pins the snapshot for the length of a block, so that its job's collection spares it."""
        same = same_job(owner, self.job)
        with pinned(
            owner.store,
            owner.layout,
            slot,
            kind="reader" if same else "fork",
            owner=self.request.owner,
            ids=self.job.new_id,
            clock=self.job.clock,
            reason=f"restored into job {self.job.name}",
        ) as mine:
            yield mine

    def _check_sources(self) -> None:
        """Refuses when input that the job would read again is gone."""
        if not self.job.exists:
            return
        head = read_log(self.job.store, self.job.layout).head
        if head is None or head.slot == self.origin.record.slot:
            return
        self._check_files(head)
        if self.request.rewind_sinks:
            check_ahead(
                self.flow.sources,
                self.origin.record.sources,
                lambda: self.spark,
                self.job.name,
                lambda: read_log(self.job.store, self.job.layout).checkpoints,
                allow_non_restored_state=self.flow.allow_non_restored_state,
            )

    def _check_files(self, head: Record) -> None:
        if not any(state.kind == "file" for state in head.sources.values()):
            return
        from stateflow.spark.sources.availability import (
            check_rewindable,  # loads Spark, which few restores need
        )

        with tempfile.TemporaryDirectory(prefix="stateflow-") as scratch:

            def fetch(ref: FileRef) -> Path:
                target = Path(scratch) / self.job.new_id()
                self._store_of(ref.base).download(ref.path, target)
                return target

            check_rewindable(self.spark, self.origin.record.sources, head.sources, fetch)

    def _edit(self, heart: Heart) -> Edited:
        job, request = self.job, self.request
        sinks = Sinks.of(job, lambda: self.spark, functions_of(self.flow))
        return edit(
            job.store,
            job.layout,
            self._draft,
            owner=request.owner,
            ids=self.job.new_id,
            clock=self.job.clock,
            carry_out=sinks.carry_out_pending,
            commit=sinks.carry_out,
            claimed_epoch=heart.begin,
            once="restore",
        )

    def _draft(self, writer: Writer) -> Draft:
        origin, request = self.origin, self.request
        self._require_planned_job(writer)
        self._require_as_planned(writer)
        if not self._looks_first:
            # Starting Spark takes long. A run that comes meanwhile is refused, since the job is claimed.
            self._check_sources()
        snapshot = self._bring_in(taken_over(origin.record, self.flow), writer)
        operators = dict(snapshot.operators)
        if request.parallelism:
            operators = rescaled_operators(operators, request.parallelism, self.job.name)
        if request.reset_watermark:
            snapshot = with_time_anew(snapshot)
        own = origin.owner is not None and same_job(origin.owner, self.job)
        self._copy_tables(writer.job)
        rewinds = self._rewinds(writer) if request.rewind_sinks else {}
        return Draft(
            "restore",
            # 0 is no slot: the state comes from another job or a savepoint.
            based_on=origin.record.slot if own else 0,
            sources=snapshot.sources,
            operators={uid: msgspec.structs.replace(o, hosts=()) for uid, o in operators.items()},
            sinks=rewinds,
            feeds=(
                *shown_by_rewound(rewinds, origin.record, origin.outputs.feeds, writer.next_slot),
                *shown_by_copies(self._copied, origin.record, origin.outputs.feeds, writer.next_slot),
            ),
            timeline=writer.next_timeline,
            watermark=snapshot.watermark,
            now=snapshot.now,
            parameters=as_texts(self.plan.values),
            versions={**snapshot.versions, **request.pipeline.versions},
            origin=origin.label,
            shift=max(
                snapshot.slot + snapshot.shift - writer.next_slot,
                writer.parent.shift if writer.parent is not None else 0,
                0,
            ),
            statistics={
                "trigger_timestamp": self.job.clock() // 1000,
                "restored_bytes": self.copied_bytes,
                **(
                    {CONTINUED_SLOT: origin.record.slot}
                    if is_own_savepoint(origin, self.job, writer.log)
                    else {}
                ),
                **(
                    {CONTINUED_JOB: origin.record.job}
                    if self.plan.new_job or is_renamed(origin, self.job)
                    else {}
                ),
                **note(request.together, digest(self.plan)),
            },
        )

    def _bring_in(self, record: Record, writer: Writer) -> Record:
        """The snapshot's record with every file where this job keeps its own, or may read it for good."""
        origin = self.origin
        if origin.savepoint is not None and self.request.claim_mode == "claim" and not origin.canonical:
            naming = to_pin(read_log(writer.store, writer.layout), origin.url)
            if naming is not None:
                # An earlier restore claimed it. Until the new record names it, only this pin keeps it from disposal.
                self._stack.enter_context(self._pinned(self.job, naming.slot))
            # After reading the log: if no record named the savepoint there, the claim finds a disposal that has ended.
            probe_elsewhere(
                open_store(origin.url, self.job.storage_options), self.job.store.url, self.job.new_id
            )
            self._claim(writer.job)
            return record
        if origin.owner is not None and self._pin is not None:
            if same_job(origin.owner, self.job):
                self._pin = self._stack.enter_context(self._pinned(self.job, record.slot))
                self._require_same(writer.log)
            # Only now, when earlier tries are fenced: until then they rely on their pins.
            release_others(origin.owner.store, origin.owner.layout, self._pin)
            if same_job(origin.owner, self.job):
                return record
        copied = self._copy(record, writer)
        return self._load(copied, writer) if origin.canonical else copied

    def _require_same(self, log: Log) -> None:
        """Between the plan and the claim, another process may have collected the checkpoint or erased a key."""
        slot = self.origin.record.slot
        record = log.slots[slot].record if slot in log.slots else None
        if record is None or record.writer != self.origin.record.writer:
            raise NotFoundError(
                f"checkpoint {slot} of job {self.job.name!r} was collected after this restore was planned: "
                f"`stateflow checkpoints {self.job.name}` lists those that stay"
            )
        refuse_erased(log, slot)

    def _copy(self, record: Record, writer: Writer) -> Record:
        local_record, missing = record, None
        try:
            local_record, self.copied_bytes = copy_files(
                record,
                writer,
                self._store_of,
                ids=self.job.new_id,
                scratch=scratch_parent(self.request.options),
                progress=lambda done, total: self.progress("copying state", done, total),
            )
        except NotFoundError as error:
            missing = error
        if self.origin.savepoint is not None:
            # Somebody may have disposed of it during the copy. Then files may be missing.
            again = read_savepoint(open_store(self.origin.url, self.job.storage_options))
            if again.id != self.origin.savepoint.id:
                raise NotFoundError(f"{self.origin.url} was replaced while it was copied: restore again")
        if missing is not None:
            raise CorruptError(
                f"{self.origin.label} is not whole: {missing}; restore another snapshot (`stateflow verify` tells which are "
                "sound)"
            )
        return local_record

    def _load(self, record: Record, writer: Writer) -> Record:
        from stateflow.spark.state_tables.load import load_canonical  # loads Spark

        assert self.origin.savepoint is not None
        operators = load_canonical(
            self.spark,
            self.origin.savepoint,
            self.origin.url,
            record.operators,
            job=self.job,
            writer=writer,
            options=self.request.options,
            parallelism=self.request.parallelism,
            max_parallelism=self.request.max_parallelism,
        )
        return msgspec.structs.replace(record, operators=operators)

    def _copy_tables(self, uuid: str) -> None:
        """Before the decision: a fork that is there has its tables."""
        for copy in copies_of(self.plan.sinks):
            copy_table(self.spark, copy, uuid)

    @property
    def _copied(self) -> list[str]:
        return [sink.uid for sink in self.plan.sinks if sink.copy_version is not None]

    def _rewinds(self, writer: Writer) -> dict[str, Prepared]:
        newest = read_log(writer.store, writer.layout).newest_sinks
        known = {sink.uid for sink in self.flow.sinks}
        rewinds = {}
        for uid in sorted(sink.uid for sink in self.plan.sinks if sink.action == "rewinds"):
            at = SinkSlot(
                writer.job,
                self.job.name,
                uid,
                writer.next_slot,
                writer.epoch,
                writer.late.get(uid, ()),
                prev=writer.last_commits.get(uid),
            )
            try:
                rewinds[uid] = prepare_rewind(self.spark, newest[uid], at, self.origin.last_commits.get(uid))
            except StateflowError as error:
                if uid in known:
                    raise
                # Nobody can put right for the code what it does not have, and the others have to go back.
                self._stays[uid] = f"stays as it is, since it cannot be taken back: {error}"
                _log.warning("sink %s, which this code does not have, %s", uid, self._stays[uid])
        return rewinds

    def _store_of(self, base: str) -> Any:
        owner = (self.origin.owner or self.job).store
        if not base:
            return owner
        options = self.job.storage_options
        # The person who asked for the restore named the origin's URL, records name the others.
        named = self.origin.savepoint is not None and base == self.origin.url
        return open_store(base, options) if named else open_recorded(base, options, root=owner.url)

    @cached_property
    def spark(self) -> Any:
        from stateflow.spark.session.build import build_session, starts_anew  # loads Spark
        from stateflow.spark.session.jars import recorded_bundles

        bundles: set[str] = set()
        if self.request.rewind_sinks and starts_anew():
            # Those that are here: a restore fetches nothing in order to ask.
            bundles = jars_to_ask(self.flow.sources, self.origin.record.sources) & {
                *recorded_bundles(cache_folder())
            }
        return build_session(
            f"stateflow restore {self.job.name}", conf=dict(self.request.conf), bundles=sorted(bundles)
        )
