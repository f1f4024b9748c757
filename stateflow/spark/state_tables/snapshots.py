"""The snapshots that tables are read from: a job's complete checkpoint, or a savepoint of either kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.names import LatestCheckpoint, parse, slot_of
from stateflow.checkpoint.pins import found_and_held, pinned
from stateflow.config.options import Options, load
from stateflow.errors import CorruptError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner, Record, Savepoint
from stateflow.savepoints.format import read_savepoint, resolved
from stateflow.savepoints.outputs import JobOutputs, outputs_at, outputs_of
from stateflow.spark.state_tables.tables import Part, Table, table_of
from stateflow.spark.task.storage import TaskStorage, task_storage
from stateflow.state.backends.choice import open_reader
from stateflow.storage.roots import open_store

LATEST = "latest"


@dataclass(frozen=True)
class SnapshotOrigin:
    """Where a snapshot lies. Tasks get it, to tell a collected file from a damaged one."""

    label: str
    """The snapshot in words."""
    url: str
    """The checkpoint root, or the savepoint."""
    job: str
    """Empty for a savepoint."""
    slot: int
    identity: str
    """The record's writer, or the savepoint's id."""

    def explained(self, error: CorruptError, options: Mapping[str, str]) -> StateflowError:
        """The error for a missing file. Files are only deleted together with the snapshots that name them."""
        if not self._exists(options):
            how = "collected" if self.job else "disposed of"
            keep = (
                f": read a newer one, or keep it with `stateflow tag {self.job} NAME` first"
                if self.job
                else ""
            )
            return NotFoundError(f"{self.label} was {how} while it was read{keep}")
        return error

    def _exists(self, options: Mapping[str, str]) -> bool:
        store = open_store(self.url, options)
        try:
            if not self.job:
                return read_savepoint(store).id == self.identity
            slot = read_log(store, JobLayout(self.job)).slots.get(self.slot)
        except NotFoundError:
            return False
        return (
            slot is not None
            and slot.record is not None
            and slot.record.writer == self.identity
            and not slot.marks
        )


@dataclass(frozen=True)
class TableSnapshot:
    """A snapshot with a record whose files can be fetched."""

    origin: SnapshotOrigin
    record: Record
    savepoint: Savepoint | None
    options: Options
    """Cache and scratch folders, RocksDB settings, storage options."""
    owner: JobHandle | None = None
    """The job, when it is one of its checkpoints."""

    def storage(self) -> TaskStorage:
        return task_storage(self.options, self.origin.url, self.origin.job, 0, self.record.slot)

    def table(self, operator: str, state: str) -> tuple[Table, list[Part]]:
        """The table of one state and all its parts. NotFoundError lists the operators or states that exist."""
        return table_of(
            self.record,
            operator,
            state,
            self.storage(),
            open_reader(self.options),
            label=self.origin.label,
            savepoint=self.savepoint,
        )

    def outputs(self) -> JobOutputs:
        """What it says of its job's outputs."""
        if self.savepoint is not None:
            return outputs_of(self.savepoint)
        assert self.owner is not None, "a checkpoint has a job"
        return outputs_at(self.owner.log(), self.record.slot)

    @contextmanager
    def pinned(
        self, owner: Owner, ids: Callable[[], str], clock: Callable[[], int], reason: str
    ) -> Iterator[None]:
        """Pins a checkpoint for the length of a block. A savepoint needs no pin: it stays until somebody disposes of it."""
        if self.owner is None:
            yield
            return
        job = self.owner
        with pinned(
            job.store,
            job.layout,
            self.record.slot,
            kind="reader",
            owner=owner,
            ids=ids,
            clock=clock,
            reason=reason,
        ):
            yield


def checkpoint_of(job: str, which: str, options: Options) -> TableSnapshot:
    """`which` is latest, a number, checkpoint:N, tag:NAME or a time."""
    if not options.checkpoint_dir:
        raise UsageError(
            "no checkpoint root: give the option checkpoint_dir, set STATEFLOW_CHECKPOINT_DIR, or write checkpoint_dir "
            "into stateflow.toml"
        )
    owner = JobHandle.at(options.checkpoint_dir, job, options.storage_options)
    log = owner.log()
    slot = slot_of(parse(which), owner, log)
    record = log.record(slot)
    label = f"checkpoint {record.slot} of job {job!r}"
    return TableSnapshot(
        SnapshotOrigin(label, owner.store.url, job, record.slot, record.writer), record, None, options, owner
    )


@contextmanager
def held_checkpoint(job: str, which: str, options: Options, reason: str) -> Iterator[TableSnapshot]:
    """Like `checkpoint_of`, pinned from here to the end of the block: Spark takes seconds to start, and a run that goes on may collect
    the checkpoint meanwhile."""

    def hold(snapshot: TableSnapshot) -> ExitStack:
        by = snapshot.owner
        assert by is not None, "a checkpoint has a job"
        with ExitStack() as pins:
            pins.enter_context(snapshot.pinned(by.owner(), by.new_id, by.clock, reason))
            return pins.pop_all()

    newest = parse(which) == LatestCheckpoint()
    snapshot, pins = found_and_held(lambda: checkpoint_of(job, which, options), hold, again=newest)
    with pins:
        yield snapshot


def savepoint_at(url: str, options: Options) -> TableSnapshot:
    """The savepoint in a folder or at a URL."""
    store = open_store(url, options.storage_options)
    return savepoint_snapshot(read_savepoint(store), store.url, options)


def savepoint_snapshot(savepoint: Savepoint, url: str, options: Options) -> TableSnapshot:
    """A savepoint that has been read already."""
    origin = SnapshotOrigin(f"the savepoint {url}", url, "", savepoint.record.slot, savepoint.id)
    return TableSnapshot(origin, resolved(savepoint, url), savepoint, options)


STORAGE = "storage."
_OPTIONS = ("checkpoint_dir", "cache_dir", "cache_size", "scratch_dir")
_NAMES = (
    "job",
    "checkpoint",
    "at",
    "path",
    "operator",
    "state",
    "key",
    "keys",
    "pushdown",
    "diff",
    "with",
    "versions",
    "root",
    *_OPTIONS,
)


def check_names(settings: Mapping[str, str]) -> None:
    """UsageError for an option that the data source does not have."""
    unknown = sorted(name for name in settings if name not in _NAMES and not name.startswith(STORAGE))
    if unknown:
        raise UsageError(
            f"option {unknown[0]!r} of the stateflow source does not exist: use {', '.join(_NAMES)} or {STORAGE}<name>"
        )


def snapshot_of(settings: Mapping[str, str]) -> TableSnapshot:
    """The snapshot that a data source's options name. Missing options come from environment and file, as for a run."""
    check_names(settings)
    options = configured(settings)
    if "with" in settings:
        raise UsageError("option with goes with option diff: it names the job of the second point")
    if ("job" in settings) == ("path" in settings):
        raise UsageError(
            "say what to read: option job for a job's checkpoint, or option path for a savepoint, and not both"
        )
    which = [settings[name] for name in ("checkpoint", "at") if name in settings]
    if "path" in settings:
        if which:
            raise UsageError("options checkpoint and at go with option job: a savepoint is one snapshot")
        return savepoint_at(settings["path"], options)
    if len(which) == 2:
        raise UsageError("options checkpoint and at are the same: leave one of them out")
    return checkpoint_of(settings["job"], which[0] if which else LATEST, options)


def configured(settings: Mapping[str, str]) -> Options:
    """The configuration with the source's own options on top."""
    own: dict[str, str | None] = {name: settings.get(name) for name in _OPTIONS}
    if "root" in settings:
        own["checkpoint_dir"] = settings["root"]
    options = load(cli=own, env=os.environ)
    storage = {
        name.removeprefix(STORAGE): value for name, value in settings.items() if name.startswith(STORAGE)
    }
    if storage:
        options = replace(options, storage_options={**options.storage_options, **storage})
    return options
