"""What a job's state held: the history of a key, and what changed between two checkpoints. Bounded, without Spark and without a
database; nothing is written into the root, so nothing is pinned either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import cast

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.names import complete_records, parse, slot_of
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.records import FileRef, OperatorState, Record
from stateflow.jobs.past import begins_later, kept_records
from stateflow.quantities import size_text
from stateflow.reading.diff import ComparedSnapshot, Differences, EntryChange, StateNames, names_of_states
from stateflow.reading.files.shard_files import StateFiles, identity
from stateflow.reading.history import KeyHistory, history_of_key
from stateflow.reading.past_states import KeyOfState, PastStates
from stateflow.reading.query import LookupResult
from stateflow.reading.snapshots import ReaderContext, reader_context
from stateflow.state.backends.base import Backend, OpenShard
from stateflow_ui.reading_budget import BudgetedCache, BudgetedShard, BudgetSpent, ReadingBudget
from stateflow_ui.root import Root

SECONDS = 20.0
"""For one question."""
MOST_CHECKPOINTS = 200
"""Of a history: the newest ones."""
MOST_VERSIONS = 500
MOST_ENTRIES = 50
"""Of a list or a map."""
MOST_COMPARED = 16 << 20
"""Bytes of files that two checkpoints do not share. Their entries are held in memory while they are compared."""
FIRST = 20
"""Changes of a state that are shown."""
LOOK_UP_SECONDS = 8.0
"""For finding out what each key held before. What takes longer is told without that."""


@dataclass(frozen=True)
class ReadHistory:
    """The history of one key."""

    asked: KeyOfState
    history: KeyHistory
    cut: str
    """Why it is not the whole history that is kept, as a sentence."""
    previous: Mapping[int, int]
    """By slot, the kept record before it."""


@dataclass
class ReadDifferences:
    """What changed between two checkpoints."""

    before: Record
    after: Record
    counts: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """By operator and state, by kind."""
    first: dict[tuple[str, str], list[EntryChange]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, change: EntryChange) -> None:
        name = change.operator, change.state
        counts = self.counts.setdefault(name, {})
        counts[change.kind] = counts.get(change.kind, 0) + 1
        first = self.first.setdefault(name, [])
        if len(first) < FIRST:
            first.append(change)


class _Past(PastStates):
    """Look-ups that cost time."""

    budget: ReadingBudget

    def look_up(self, record: Record, asked: KeyOfState, *, at: Record | None = None) -> LookupResult | None:
        self.budget.check()
        return super().look_up(record, asked, at=at)


@dataclass(frozen=True)
class StateReader:
    """Questions about the state of one job."""

    root: Root
    job: JobHandle
    """Its store refuses to write."""
    records: Callable[[Sequence[int]], list[Record]]
    """The records of these slots as they were written."""

    def history(self, asked: KeyOfState, since: str, log: Log) -> ReadHistory:
        budget = ReadingBudget(
            f"stateflow history {self.job.name} {asked.operator} {asked.state} KEY", SECONDS
        )
        kept = kept_records(self.job, log, since)
        records = self.records([record.slot for record in kept[-MOST_CHECKPOINTS:]])
        states = _Past(self._context(budget))
        states.budget = budget
        with _refused():
            found = history_of_key(records, states, replace(asked, limit=MOST_ENTRIES), limit=MOST_VERSIONS)
        found = replace(found, begins_later=begins_later(kept, log, since))
        cut = ""
        if len(kept) > MOST_CHECKPOINTS:
            cut = f"these are the newest {MOST_CHECKPOINTS} of {len(kept):,} kept checkpoints: `stateflow history` looks at all of them"
        elif found.more:
            cut = f"these are the newest {MOST_VERSIONS} values: `stateflow history` shows all of them"
        slots = [record.slot for record in complete_records(log)]
        return ReadHistory(asked, found, cut, dict(zip(slots[1:], slots, strict=False)))

    def differences(self, before: str, after: str, operator: str, state: str, log: Log) -> ReadDifferences:
        slots = [slot_of(parse(name), self.job, log) for name in (before, after)]
        one, other = self.records(slots)
        between = [r.slot for r in complete_records(log) if min(slots) < r.slot < max(slots)]
        near = 0 < len(between) <= MOST_CHECKPOINTS
        names = names_of_states(one, other, lambda: self.records(between) if near else [])
        points = one, other, names
        command = f"stateflow diff {self.job.name} {one.slot} {other.slot}"
        _refuse_too_different(one, other, operator, command)
        # With what a key held before, if that is found in time; else without.
        with suppress(BudgetSpent):
            return self._compared(points, operator, state, True, ReadingBudget(command, LOOK_UP_SECONDS))
        with _refused():
            found = self._compared(points, operator, state, False, ReadingBudget(command, SECONDS))
        found.notes.append(
            f"what each key held before takes too long to find here: such keys are written or deleted, and `{command}` says which of "
            "them are new"
        )
        return found

    def _compared(
        self,
        points: tuple[Record, Record, StateNames],
        operator: str,
        state: str,
        look_up: bool,
        budget: ReadingBudget,
    ) -> ReadDifferences:
        """`points`: the two, and what the states of the second are called in the first."""
        one, other, names = points
        context = self._context(budget)
        sides = [ComparedSnapshot(f"checkpoint {each.slot}", each, context) for each in (one, other)]
        differences = Differences(
            sides[0],
            sides[1],
            operators=(operator,) if operator else (),
            states=(state,) if state else (),
            look_up=None if look_up else False,
            names=names,
        )
        found = ReadDifferences(one, other)
        for change in differences.changes():
            budget.check()
            found.take(change)
        found.notes += differences.notes
        if look_up and differences.unread:
            away = sum(ref.size for ref in differences.unread.values())
            found.notes.append(
                f"what a written key held before may stand in {size_text(away)} of files that both have and that are not on the API "
                "server: `stateflow diff --before` fetches them"
            )
        return found

    def _context(self, budget: ReadingBudget) -> ReaderContext:
        options = self.root.options
        context = reader_context(options, self.root.url, self.job.clock)
        cache = BudgetedCache(context.cache.folder, context.cache.limit_bytes, budget)
        files = StateFiles(lambda base: made.store(base), cache)

        def open_shard(backend: str) -> OpenShard:
            return lambda shard, folder, fetch, remote=None: cast(
                "Backend", BudgetedShard(files, shard, budget)
            )

        made = replace(
            context, cache=cache, open_shard=open_shard, storage_options=dict(self.root.storage_options)
        )
        return made


@contextmanager
def _refused() -> Iterator[None]:
    """Makes a spent budget the refusal that the page shows."""
    try:
        yield
    except BudgetSpent as error:
        raise UsageError(str(error)) from None


def _refuse_too_different(one: Record, other: Record, operator: str, command: str) -> None:
    wanted = {*one.operators, *other.operators} if not operator else {operator}
    size = 0
    for uid in wanted:
        files = [_files(record.operators.get(uid)) for record in (one, other)]
        size += sum(files[n][key].size for n in (0, 1) for key in files[n].keys() - files[1 - n].keys())
    if size > MOST_COMPARED:
        raise UsageError(
            f"checkpoints {one.slot} and {other.slot} do not share {size_text(size)} of files, and the pages compare at most "
            f"{size_text(MOST_COMPARED)}: choose two that are closer or one operator, or use `{command}`"
        )


def _files(operator: OperatorState | None) -> dict[object, FileRef]:
    return {} if operator is None else {identity(ref): ref for ref in operator.files}


def whole_records(found: Sequence[Record | None], slots: Sequence[int]) -> list[Record]:
    """Those that are there; NotFoundError when none is, or one of two is not."""
    there = [record for record in found if record is not None]
    if not there or (len(slots) <= 2 and len(there) < len(slots)):
        raise NotFoundError("that checkpoint was collected a moment ago: choose another one")
    return there


__all__ = ["ReadDifferences", "ReadHistory", "StateReader", "whole_records"]
