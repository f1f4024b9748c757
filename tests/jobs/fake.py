"""A job that is made by the protocol's own calls, without a pipeline and without Spark: the base of every fake job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.collection import CollectionReport, collect
from stateflow.checkpoint.control import Heartbeat, Progress, beat, report_progress
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.pins import list_pins, pin, release
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.writer import Writer
from stateflow.errors import StateflowError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Kind, Owner, Pin, Record
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store

T0 = 1_767_225_600_000_000
"""2026-01-01, in microseconds."""


class FakeJob:
    """A job in a store. Its ids and its clock never repeat."""

    def __init__(self, store: Store, name: str = "orders", retained: int | None = None) -> None:
        self.store, self.name, self.retained = store, name, retained
        self.layout = JobLayout(name)
        self.ticks = 0
        """Also where a copy of the job has to go on: no id is ever given again."""

        self.tick = 1_000_000
        """How long a tick takes, in microseconds."""

    def ids(self) -> str:
        self.ticks += 1
        return f"id{self.ticks}"

    def clock(self) -> int:
        self.ticks += 1
        return T0 + self.ticks * self.tick

    def owner(self, run: str = "run") -> Owner:
        return Owner(run=run, host="here", pid=1, user="tester")

    def carry_out(
        self, record: Record, last_commits: Mapping[str, int], still_owner: Callable[[], None]
    ) -> Mapping[str, str]:
        raise StateflowError("the table is not to be had")

    def claim(self, run: str = "run", retained: Retention | int | None = None) -> Writer:
        return claim(
            self.store,
            self.layout,
            owner=self.owner(run),
            ids=self.ids,
            clock=self.clock,
            carry_out=self.carry_out,
            retained=retained or self.retained,
            probe=lambda store, ids: None,
        )

    def log(self) -> Log:
        return read_log(self.store, self.layout)

    def tag(self, slot: int, name: str) -> Pin:
        return pin(
            self.store,
            self.layout,
            slot,
            kind="tag",
            name=name,
            owner=self.owner(),
            ids=self.ids,
            clock=self.clock,
        )

    def untag(self, name: str) -> None:
        for made in list_pins(self.store, self.layout):
            if made.name == name:
                release(self.store, self.layout, made.id)

    def collect(self, retained: Retention | int | None = None, orphans: bool = True) -> CollectionReport:
        return collect(
            self.store,
            self.layout,
            collector=self.ids(),
            retained=retained or self.retained or 3,
            orphans=orphans,
        )


class ClaimedJob(FakeJob):
    """A job in a root, and the run that owns it."""

    def __init__(
        self,
        root: str,
        name: str = "orders",
        *,
        run: str = "run",
        retained: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.root, self.storage_options = root, storage_options or {}
        super().__init__(open_store(root, self.storage_options, fsync=False), name, retained)
        self.begin(run)

    def begin(self, run: str, retained: int | None = None) -> Writer:
        """A run claims the job."""
        self.writer = self.claim(run, retained)
        return self.writer

    def decide(
        self,
        *,
        kind: Kind = "checkpoint",
        outcomes: Mapping[str, str] | None = None,
        timings: Mapping[str, Any] | None = None,
        pending: bool = False,
        **fields: Any,
    ) -> Record:
        """A record, such as a checkpoint, with these fields of a draft; one that is `pending` is decided and not carried out."""
        permit = self.writer.decide(Draft(kind, **{"now": self.clock(), **fields}))
        if not pending:
            self.writer.complete(permit, outcomes or {}, timings or {})
        return permit.record

    def head(self) -> Record:
        head = self.writer.parent
        assert head is not None
        return head

    def beat(self, counter: int = 1, *, at: int | None = None, **fields: Any) -> None:
        now = self.clock() if at is None else at
        sign = Heartbeat(epoch=self.writer.epoch, counter=counter, owner=self.writer.owner, at=now, **fields)
        beat(self.store, self.layout, sign)

    def progress(self, slot: int) -> None:
        found = Progress(
            epoch=self.writer.epoch, slot=slot, statistics={"processed_rows": 100}, at=self.clock()
        )
        report_progress(self.store, self.layout, found)
