"""Doing what a restore plan says: state, timers, watermark and source offsets come back as one record.

The job is claimed, what was decided is carried out, files are brought in under the claimed epoch, and only then the
record is decided. So a crash at any point leaves the job as it was, or restored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.edit import Edited, edit
from stateflow.checkpoint.idempotency import history_line_of, release_others
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.pins import pinned
from stateflow.checkpoint.rescale import rescaled_operators
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import cache_folder
from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.records import FileRef, Pin, Prepared, Record
from stateflow.format.references import bases
from stateflow.liveness.heart import Heart
from stateflow.pipelines.parameters import as_texts
from stateflow.restore.copying import copied
from stateflow.restore.digest import require_same
from stateflow.restore.plan import Plan, Progress, Restored, same_job
from stateflow.restore.planning import kept_by, make_plan
from stateflow.savepoints.dispose import dispose_claimed
from stateflow.savepoints.format import claim_savepoint, read_savepoint, to_pin
from stateflow.savepoints.origin import find_origin, newest_sinks, refuse_erased
from stateflow.savepoints.publish import probe_elsewhere
from stateflow.storage.roots import open_store

if TYPE_CHECKING:
    from stateflow.checkpoint.handle import JobHandle
    from stateflow.pipelines.flow import Flow


class RestoreRun:
    """One application of a plan."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self.plan = plan
        self.request = plan.request
        self.origin = plan.request.origin
        self.job = plan.request.job
        self.flow: Flow = self.request.pipeline.build(plan.values)
        self.progress = progress
        self.copied = 0
        self._held = ExitStack()
        self._pin: Pin | None = None
        """What keeps the snapshot, when it is a checkpoint."""

    def run(self) -> Restored:
        job, request = self.job, self.request
        if request.approved is not None and not self._is_done():
            require_same(request.approved, self.plan)
        if job.exists:
            patience = request.options.heartbeat_timeout.total_seconds()
            job.refuse_while_live(request.owner, takeover=request.takeover, patience=patience)
        with ExitStack() as stack:
            self._held = stack
            if self.origin.owner is not None:
                self._pin = stack.enter_context(self._pinned(self.origin.owner, self.origin.record.slot))
            self._check_sources()
            heart = stack.enter_context(
                Heart(job.store, job.layout, request.owner, self._beat_every(), Event())
            )
            edited = self._edited(heart)
        self._dispose_of_what_nothing_names(edited)
        return Restored(
            job=job.name,
            checkpoint=edited.slot,
            timeline=edited.record.timeline,
            copied_bytes=self.copied,
            sinks=dict(edited.outcome.sinks),
        )

    def _is_done(self) -> bool:
        """Whether another try with this idempotency key has restored meanwhile: then the plan was made from its result."""
        if not self.job.exists:
            return False
        return history_line_of(self.job.history(), self.request.owner.run, "restore") is not None

    def _require_approved(self) -> None:
        """Asked when nobody else has the job any more: a run that lived until now may have gone on since the plan was made."""
        if self.request.approved is not None:
            whose = self.origin.owner or self.job
            origin = find_origin(self.origin.label, whose, self.job.storage_options)
            require_same(self.request.approved, make_plan(replace(self.request, origin=origin)), self.plan)

    def _dispose_of_what_nothing_names(self, edited: Edited) -> None:
        """State so small that it travels in records leaves nothing of a claimed savepoint to own."""
        request, origin = self.request, self.origin
        if origin.savepoint is None or request.claim_mode != "claim":
            return
        # Of any record: an earlier restore from it may still be wanted.
        slots = read_log(self.job.store, self.job.layout).slots.values()
        if origin.url not in bases(slot.record for slot in slots if slot.record is not None):
            with suppress(NotFoundError):  # disposed of by others: nothing of it is needed
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
        """The savepoint that was planned with, for the job of this UUID."""
        assert self.origin.savepoint is not None
        claim_savepoint(
            open_store(self.origin.url, self.job.storage_options),
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
        """The snapshot stays while it is restored, whatever its job collects."""
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
        """Input that is to be read again must still be there."""
        if not self.job.exists:
            return
        head = read_log(self.job.store, self.job.layout).head
        files = head is not None and any(s.kind == "file" for s in head.sources.values())
        if head is None or not files or head.slot == self.origin.record.slot:
            return
        from stateflow.spark.sources.availability import check_rewindable

        with tempfile.TemporaryDirectory(prefix="stateflow-") as scratch:

            def fetch(ref: FileRef) -> Path:
                target = Path(scratch) / self.job.new_id()
                self._store_of(ref.base).download(ref.path, target)
                return target

            check_rewindable(self.spark, self.origin.record.sources, head.sources, fetch)

    def _edited(self, heart: Heart) -> Edited:
        from stateflow.spark.carry_out import Sinks, functions_of

        job, request = self.job, self.request
        sinks = Sinks.of(job, lambda: self.spark, functions_of(self.flow))
        return edit(
            job.store,
            job.layout,
            self._draft,
            owner=request.owner,
            ids=self.job.new_id,
            clock=self.job.clock,
            carry_out=sinks.recover,
            commit=sinks.commit,
            retained=request.options.retained_checkpoints,
            claimed_epoch=heart.begin,
            once="restore",
        )

    def _draft(self, writer: Writer) -> Draft:
        origin, request = self.origin, self.request
        self._require_approved()
        brought = self._brought(kept_by(origin.record, self.flow), writer)
        operators = dict(brought.operators)
        if request.parallelism:
            operators = rescaled_operators(operators, request.parallelism, self.job.name)
        sources, watermark = dict(brought.sources), brought.watermark
        if request.reset_watermark:
            watermark = None
            sources = {
                uid: msgspec.structs.replace(s, event_time=None, active=None) for uid, s in sources.items()
            }
        own = origin.owner is not None and same_job(origin.owner, self.job)
        return Draft(
            "restore",
            # 0 is no slot: the state comes from elsewhere.
            based_on=origin.record.slot if own else 0,
            sources=sources,
            operators={uid: msgspec.structs.replace(o, hosts=()) for uid, o in operators.items()},
            sinks=self._rewinds(writer),
            timeline=writer.next_timeline,
            watermark=watermark,
            now=brought.now,
            parameters=as_texts(self.plan.values),
            versions=brought.versions,
            origin=origin.label,
            shift=max(0, brought.slot + brought.shift - writer.next_slot),
            statistics={"trigger_timestamp": self.job.clock() // 1000, "restored_bytes": self.copied},
        )

    def _brought(self, record: Record, writer: Writer) -> Record:
        """The snapshot's record with every file where this job keeps its own, or may read it for good."""
        origin = self.origin
        if origin.savepoint is not None and self.request.claim_mode == "claim" and not origin.canonical:
            naming = to_pin(read_log(writer.store, writer.layout), origin.url)
            if naming is not None:
                # Claimed by an earlier restore: until the new record names it, only this keeps it from disposal.
                self._held.enter_context(self._pinned(self.job, naming.slot))
            # After the log was read: when no record named it there, a disposal that has ended is found by the claim.
            probe_elsewhere(
                open_store(origin.url, self.job.storage_options), self.job.store.url, self.job.new_id
            )
            self._claim(writer.job)
            return record
        if origin.owner is not None and self._pin is not None:
            if same_job(origin.owner, self.job):
                self._pin = self._held.enter_context(self._pinned(self.job, record.slot))
                self._require_same(writer.log)
            # Only now, when tries before this one are fenced: until then their pins are all that they have.
            release_others(origin.owner.store, origin.owner.layout, self._pin)
            if same_job(origin.owner, self.job):
                return record
        copied = self._copied(record, writer)
        return self._loaded(copied, writer) if origin.canonical else copied

    def _require_same(self, log: Log) -> None:
        """Whoever had the job between the plan and the claim may have let go of its pin and collected, or erased a key."""
        slot = self.origin.record.slot
        stands = log.slots[slot].record if slot in log.slots else None
        if stands is None or stands.writer != self.origin.record.writer:
            raise NotFoundError(
                f"checkpoint {slot} of job {self.job.name!r} was collected after this restore was planned: "
                f"`stateflow checkpoints {self.job.name}` lists those that stay"
            )
        refuse_erased(log, slot)

    def _copied(self, record: Record, writer: Writer) -> Record:
        brought, missing = record, None
        try:
            brought, self.copied = copied(
                record,
                writer,
                self._store_of,
                ids=self.job.new_id,
                scratch=Path(self.request.options.scratch_dir or cache_folder() / "scratch"),
                progress=lambda done, total: self.progress("copying state", done, total),
            )
        except NotFoundError as error:
            missing = error
        if self.origin.savepoint is not None:
            # It may have been disposed of while it was copied: then something copied may be missing.
            again = read_savepoint(open_store(self.origin.url, self.job.storage_options))
            if again.id != self.origin.savepoint.id:
                raise NotFoundError(f"{self.origin.url} was replaced while it was copied: restore again")
        if missing is not None:
            raise CorruptError(
                f"{self.origin.label} is not whole: {missing}; restore another snapshot (`stateflow verify` tells which are "
                "sound)"
            )
        return brought

    def _loaded(self, record: Record, writer: Writer) -> Record:
        from stateflow.spark.state_tables.restore import loaded

        assert self.origin.savepoint is not None
        operators = loaded(
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

    def _rewinds(self, writer: Writer) -> dict[str, Prepared]:
        if not self.request.rewind_sinks:
            return {}
        from stateflow.spark.sinks.delta_rewind import prepare_rewind
        from stateflow.spark.sinks.slot import SinkSlot

        newest = newest_sinks(read_log(writer.store, writer.layout))
        wanted = {sink.uid for sink in self.plan.sinks if sink.action == "rewinds"}
        return {
            uid: prepare_rewind(
                self.spark,
                newest[uid],
                SinkSlot(
                    writer.job, self.job.name, uid, writer.next_slot, writer.epoch, writer.late.get(uid, ())
                ),
                writer.last_commits.get(uid),
                self.origin.last_commits.get(uid),
            )
            for uid in sorted(wanted)
        }

    def _store_of(self, base: str) -> Any:
        if base:
            return open_store(base, self.job.storage_options)
        return (self.origin.owner or self.job).store

    @cached_property
    def spark(self) -> Any:
        from stateflow.spark.session.build import build_session

        return build_session(f"stateflow restore {self.job.name}", conf=dict(self.request.conf))
