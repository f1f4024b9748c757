"""The streaming queries of a run: they bring the input from the recorded positions on to the trigger's end, or to the bound.

One query does, unless a table that a source reads went back. Then one reads up to what was undone there, and the next goes on
behind it.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.checkpoint.control import BOUND_BEHIND, BOUND_REACHED, INPUT_DRAINED
from stateflow.checkpoint.log import read_log
from stateflow.errors import DisagreementError, IncompatibleError, StateflowError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import joined_lines
from stateflow.spark.inputs.beginnings import tell_of_beginnings
from stateflow.spark.inputs.foreign_changes import tell_of_files
from stateflow.spark.inputs.seeding import plan_batch, seed
from stateflow.spark.inputs.silence import looked_into
from stateflow.spark.internals.scratch_folder import SHUFFLE
from stateflow.spark.internals.words import LOST, RENAMED, UNRECORDED, WAITING
from stateflow.spark.loop import BatchLoop
from stateflow.spark.sources import changed_columns, feed_gaps
from stateflow.spark.sources.availability import check_available
from stateflow.spark.sources.delta_restores import Detour
from stateflow.spark.sources.detours import LeafDetour, detours, ways_round
from stateflow.spark.sources.other_folders import tell_of_other_folders
from stateflow.spark.sources.positions import (
    Bound,
    bound_lies_behind,
    bounded_batches,
    ends_at_newest,
    limited_batch,
    resolve_initial,
)
from stateflow.spark.task.failures import translated
from stateflow.storage.file_urls import hadoop_path

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)


class Queries:
    def __init__(
        self,
        loop: BatchLoop,
        scratch: Path,
        until: Bound | Mapping[str, Bound] | None,
        idle: Callable[[], object],
    ) -> None:
        """`idle` is called while an endless query waits for input."""
        self.loop, self.scratch, self.until, self.idle = loop, scratch, until, idle
        self.spark, self.inputs, self.options = loop.spark, loop.inputs, loop.options
        self.ending, self.clock = loop.ending, loop.clock
        self._unread: Collection[str] = ()
        """Sources whose beginning this run has recorded, and that it has not read yet."""
        self.cut_off: Collection[str] = ()
        """Sources that this run reads to a bound, if at all, with perhaps more behind it."""
        self._numbers = itertools.count()

    def run(self) -> str:
        """Reads to the end; returns why it ended."""
        known = self._sources()
        if not self._detours():
            self._check_available(known)
        beginnings = resolve_initial(
            self.spark, self.inputs.leaves, known, self.scratch / "initial", self.until
        )
        tell_of_beginnings(self.spark, self.inputs.nodes, known, beginnings, self.loop.warnings.add)
        if beginnings:
            self.loop.source_records.begin(beginnings)
        self._unread = beginnings
        while True:
            if self._went_round():
                self._check_available(known)
            try:
                return self._to_the_end()
            except StateflowError as error:
                if LOST.is_in(str(error)):
                    # A topic that was made anew, and is shorter than before, says no more than one whose retention was too short.
                    self.loop.check_topics()
                if RENAMED.is_in(str(error)):
                    raise IncompatibleError(self._columns_sentence()) from error
                if UNRECORDED.is_in(str(error)) and (gap := self._gap_sentence()):
                    raise IncompatibleError(gap) from error
                # A table may have gone back under the query. What failed in a batch of ours has another reason.
                if self.loop.failure is not None or all(each.stops for each, _ in self._detours()):
                    self._refuse_what_is_gone(error)
                    raise
                self.loop.ended = False

    def _sources(self) -> dict[str, SourceState]:
        return self.loop.sources.recorded()

    def _lines(self) -> tuple[str, ...]:
        """Where the streams are, in plan order."""
        return joined_lines(self.inputs.layout, self._sources())

    def _folder(self, name: str) -> Path:
        return self.scratch / f"{name}-{next(self._numbers)}"

    def _check_available(self, uids: Collection[str]) -> None:
        state = {uid: source for uid, source in self._sources().items() if uid in uids}
        found = check_available(
            self.spark,
            self.inputs.leaves,
            state,
            self._folder("available"),
            allow_non_restored_state=self.loop.settings.flow.allow_non_restored_state,
        )
        for loss in found.losses:
            self.loop.warnings.add(f"accepted loss: {loss}", loss)
        for left in found.left:
            self.loop.warnings.add(left, left)
        if found.moved:
            self.loop.source_records.extend(found.moved)

    def _refuse_what_is_gone(self, error: StateflowError) -> None:
        """DisagreementError where a source has lost under the query what comes behind its position: the next run could only say so, too."""
        if type(error) is not StateflowError or self.ending():
            return  # it has a reason of its own
        try:
            check_available(self.spark, self.inputs.leaves, self._sources(), self._folder("gone"))
        except DisagreementError as gone:
            raise gone from error
        except Exception as failed:
            # Such as Spark's end, of which the error tells.
            _log.debug("whether a source has lost its next rows is not known: %s", failed)

    def _to_the_end(self) -> str:
        if self.until is None:
            self._unbounded()
            while not self.ending() and self.loop.sources.go_on():
                # Those that others waited for have come to their end, so the others go on to theirs.
                self._unbounded()
            self._reached_end()
            return INPUT_DRAINED
        nearer = {each.leaf.number: each.nearer(way) for each, way in self._detours() if each.stops}
        planned = self._bounded(self.until, nearer)
        self._reached_end()
        streams = (self.spark, self.loop.location, self.inputs.leaves)
        if not planned and bound_lies_behind(*streams, self._lines(), self.until):
            return BOUND_BEHIND
        return BOUND_REACHED

    def _reached_end(self) -> None:
        """No source has anything more up to its bound, unless the run was told to stop."""
        if not self.ending():
            self.loop.sources.looking.reached_end()

    def _unbounded(self) -> None:
        looking, trigger = self.loop.sources.looking, self.options.trigger
        if trigger == "drain":
            looking.begin(looked_into(looking.uids, self.clock(), None))
            when: dict[str, Any] = {"availableNow": True}
        else:
            pause = trigger if isinstance(trigger, timedelta) else timedelta()
            looking.begin_without_end(pause // timedelta(microseconds=1), self.clock())
            when = {"processingTime": f"{round(pause.total_seconds() * 1000)} milliseconds"}
        batch_id = self._seed()
        self._plan_first(batch_id)
        self._await(self._query(when))

    def _bounded(self, until: Bound | Mapping[str, Bound], nearer: Mapping[int, int]) -> bool:
        """Runs the batches up to the bounds; returns whether there were any."""
        began = self.clock()
        batch_id = self._seed()
        newest = ends_at_newest(self.spark, self.loop.location, self.inputs.leaves, until)
        uids = self.loop.sources.looking.uids
        self.cut_off = [uid for uid in uids if until != {} and uid not in newest]
        self.loop.sources.looking.begin(looked_into(uids, began, until, newest))
        planned = False
        for lines in bounded_batches(
            self.spark,
            self.loop.location,
            self.inputs.leaves,
            self._lines(),
            until,
            nearer,
            self.loop.admission.limit,
            self.loop.admission.holds,
            # A way round an undone version is no end of the sources that it does not touch.
            self.loop.sources.go_on if until != {} else lambda: False,
        ):
            planned = True
            if self.ending():
                break
            plan_batch(self.loop.location, batch_id, lines, self._conf, self.clock() // 1000)
            self._await(self._query({"once": True}))
            batch_id += 1
        return planned

    def _plan_first(self, batch_id: int) -> None:
        """Holds the query's first batch back, too. From then on each batch says what the next one may take."""
        admission = self.loop.admission
        if not admission.plans_first_batch:
            return
        streams = (self.spark, self.loop.location, self.inputs.leaves, self._lines())
        while (lines := limited_batch(*streams, admission.limit)) is None and self.loop.sources.go_on():
            pass
        if lines is not None:
            plan_batch(self.loop.location, batch_id, lines, self._conf, self.clock() // 1000)

    def _seed(self) -> int:
        """Prepares a folder for the next query; returns the id of its first batch."""
        self._unread = ()
        self.loop.location = self._folder("query")

        def fetch(ref: Any) -> Path:
            target = self.scratch / f"source-{uuid.uuid4().hex}"
            self.loop.storage.download(ref, target)
            return target

        sources = self._sources()
        batch_id = seed(
            self.loop.location,
            self.inputs.layout,
            sources,
            fetch,
            self._conf,
            self.clock() // 1000,
            str(uuid.uuid4()),
        )
        for uid, sentence in tell_of_other_folders(
            self.spark, self.inputs.leaves, sources, self.loop.location
        ):
            self.loop.warnings.add(f"folder of {uid}", sentence)
        tell_of_files(self.spark, self.inputs, sources, self.loop.location, self.loop.warnings.add)
        return batch_id

    @property
    def _conf(self) -> dict[str, str]:
        return {SHUFFLE: str(self.spark.conf.get(SHUFFLE))}

    def _detours(self) -> list[tuple[LeafDetour, Detour]]:
        """The detours around undone versions of the sources' tables. Refuses if the job has read some of them, or another copy."""
        found = detours(
            self.spark,
            self.inputs.leaves,
            self._sources(),
            self._folder("detours"),
            self.until,
            self._unread,
        )
        store, layout = self.loop.writer.store, self.loop.writer.layout
        return ways_round(found, self.loop.settings.job, lambda: read_log(store, layout).checkpoints)

    def _went_round(self) -> bool:
        """Reads up to where tables went back, and goes on behind it; returns whether there was anything to do."""
        went = False
        while not self.ending():
            ways = [(each, way) for each, way in self._detours() if not each.stops]
            if not ways:
                break
            went = True
            if ahead := {each.leaf.number: way.through for each, way in ways if not way.reached}:
                self._bounded({}, ahead)
            else:
                self._pass_over(ways)
        return went

    def _pass_over(self, ways: list[tuple[LeafDetour, Detour]]) -> None:
        """Records that the sources go on behind the undone versions."""
        sources = self._sources()
        for each, way in ways:
            uid = each.leaf.uid
            state = sources[uid]
            lines = list(state.lines)
            lines[each.leaf.place] = way.onward.line()
            sources[uid] = msgspec.structs.replace(state, lines=tuple(lines))
            version = way.restore.version
            self.loop.warnings.add(
                f"source {uid}: table went back at {version}",
                f"source {uid!r}: version {version} took the Delta table {each.table} back (RESTORE); nothing of what that "
                "undid had been read, so the source goes on behind it",
            )
        self.loop.source_records.move(sources, {each.leaf.uid: way.restore.version for each, way in ways})

    def _columns_sentence(self) -> str:
        inputs, folder = self.inputs, self._folder("columns")
        return changed_columns.sentence(
            changed_columns.changed_columns(self.spark, inputs.leaves, self._sources(), folder)
        )

    def _gap_sentence(self) -> str:
        """Empty if no source of the pipeline stands in a gap."""
        gaps = feed_gaps.feed_gaps(self.spark, self.inputs.leaves, self._sources(), self._folder("gaps"))
        return feed_gaps.sentence(gaps[0]) if gaps else ""

    def _query(self, trigger: dict[str, Any]) -> StreamingQuery:
        return (
            self.inputs.stream.writeStream.option("checkpointLocation", hadoop_path(self.loop.location))
            .trigger(**trigger)
            .foreachBatch(self.loop.on_batch)
            .start()
        )

    def _await(self, query: StreamingQuery) -> None:
        """Waits until the query ends by itself, or ends it after its batch when the run has to stop."""
        loop = self.loop
        endless = self.options.trigger != "drain" and self.until is None
        try:
            while not query.awaitTermination(0.2):  # type: ignore[arg-type]
                if self.ending():
                    with loop.lock:
                        loop.ended = True
                    query.stop()
                    if loop.failure is not None and not isinstance(loop.failure, InterruptedError):
                        raise loop.failure from None
                    return
                loop.deliveries.look()
                # Before the question: what the query does may change before its answer is read.
                asked = self.clock() if endless else 0
                if endless and loop.due():
                    loop.input_free()
                elif endless and query.status["message"] in WAITING.texts:
                    loop.sources.looking.was_idle(asked)
                    if loop.sources.silent_too_long():
                        loop.admission.release(str(query.id))
                    self.idle()
        except Exception as error:
            loop.ended = True
            if self.ending() and isinstance(loop.failure, InterruptedError):
                return
            if loop.failure is not None:
                raise loop.failure from None
            raise translated(error) from error
        finally:
            with suppress(Exception):
                query.stop()
