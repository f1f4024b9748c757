"""One job in its root: the store, the layout, the owner, the ids and the clock. Every step of the protocol needs these."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from stateflow.checkpoint import control
from stateflow.checkpoint.idempotency import history_line_of, pins_of
from stateflow.checkpoint.log import Log, SlotCache, list_jobs, read_identity, read_log
from stateflow.checkpoint.pins import release
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.statistics import HistoryLine, history
from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner
from stateflow.storage.roots import open_recorded, open_store
from stateflow.storage.store import Store


class JobHandle:
    """`JobHandle.at("s3://bucket/root", "orders")`; `Job` adds the verbs."""

    def __init__(
        self,
        store: Store,
        layout: JobLayout,
        *,
        root: str = "",
        storage_options: Mapping[str, str] | None = None,
        heartbeat_timeout: float = 10.0,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        ids: Callable[[], str] = lambda: uuid.uuid4().hex,
        acts_as: Owner | None = None,
    ) -> None:
        """`root`: the checkpoint root as the user typed it; the store's URL by default.

        `acts_as` is the owner written into records, claims and pins, in place of this process. Its `run` is an
        idempotency key: when one try has made a restore or rescale, the next try does not make it again.
        """
        self.store, self.layout = store, layout
        self.name = layout.job
        self.root = root or store.url
        self.storage_options = dict(storage_options or {})
        self.clock, self.new_id = clock, ids
        self.acts_as = acts_as
        self.heartbeat_timeout = heartbeat_timeout
        self.monotonic, self.sleep = monotonic, sleep

    @classmethod
    def at(cls, root: str, name: str, storage_options: Mapping[str, str] | None = None) -> JobHandle:
        """A job in the checkpoint root with this URL."""
        options = dict(storage_options or {})
        return JobHandle(open_store(root, options), JobLayout(name), root=root, storage_options=options)

    def open_base(self, url: str) -> Store:
        """The store that a record's references are relative to: that of a savepoint, or the job's own."""
        return open_recorded(url, self.storage_options, root=self.store.url)

    @property
    def exists(self) -> bool:
        return read_identity(self.store, self.layout) is not None

    def owner(self, note: str = "") -> Owner:
        """The owner in the records that this handle writes: `acts_as`, or this process."""
        if self.acts_as is None:
            return this_process(run=self.new_id(), note=note)
        return msgspec.structs.replace(self.acts_as, note=note or self.acts_as.note)

    def log(self, slots: SlotCache | None = None) -> Log:
        """The job's log. NotFoundError when there is no such job, CorruptError when it has lost its identity."""
        if not self.exists:
            raise self.unknown()
        return read_log(self.store, self.layout, slots=slots)

    def history(self) -> list[HistoryLine]:
        """A line for every record that ever was in the chain, also for collected ones, oldest first."""
        return history(self.store, self.layout, log=self.log())

    def done_before(self, kind: Literal["restore", "rescale"]) -> HistoryLine | None:
        """The record that an earlier try with the same idempotency key has made; see `acts_as`."""
        if self.acts_as is None or not self.exists:
            return None
        return history_line_of(self.history(), self.acts_as.run, kind)

    def release_left(self) -> None:
        """Releases the pins that killed tries with the same idempotency key left behind; see `acts_as`."""
        if self.acts_as is not None:
            for pin in pins_of(self.store, self.layout, self.acts_as.run):
                release(self.store, self.layout, pin.id)

    def refuse_while_live(self, owner: Owner, *, takeover: bool, patience: float | None = None) -> None:
        """Raises BusyError while another owner's run lives. With `takeover` it never raises: the caller will fence that run."""
        if not takeover:
            control.refuse_while_live(
                self.store,
                self.layout,
                owner,
                patience=self.heartbeat_timeout if patience is None else patience,
                monotonic=self.monotonic,
                sleep=self.sleep,
            )

    def unknown(self) -> NotFoundError | CorruptError:
        """The error for a job that is not there, or has lost its identity and is not known for that."""
        try:
            read_log(self.store, self.layout).require_identity()
        except CorruptError as lost:
            return lost
        known = ", ".join(list_jobs(self.store)) or "none"
        return NotFoundError(f"there is no job {self.name!r} in {self.store.url}; its jobs are: {known}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r}, {self.name!r})"
