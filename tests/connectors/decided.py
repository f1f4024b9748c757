"""Records that are decided, and a process that carries them out slot by slot until somebody kills it: what those of all kinds have in common."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa

from stateflow.connectors import (
    CommitRequest,
    DisagreementError,
    FileRef,
    Prepared,
    Sink,
    SinkSlot,
    Stager,
    UnavailableError,
)
from stateflow.spark.sinks.staging import StagedWriter, StoreTarget
from stateflow.storage.roots import open_store

JOB = "3f2b6c1e-1111-4a6e-9d3f-0123456789ab"
UNAVAILABLE, BEHIND = 9, 7
"""Exit codes of a process that its server let down, and of one that others were faster than."""


@dataclass(frozen=True, kw_only=True)
class DecidedRecords:
    """Each lies in `root`, beside its staged rows."""

    root: Path
    slots: int

    @property
    def finished(self) -> int:
        """The last slot that a process has seen committed."""
        return max((int(path.stem) for path in self.root.glob("*.done")), default=0)

    def staged(self, slot: int, rows: pa.RecordBatch) -> FileRef:
        target = StoreTarget(partial(open_store, str(self.root)), f"{slot}.parquet")
        writer = StagedWriter(rows.schema, target)
        writer.write(rows)
        file = writer.close()
        assert file is not None
        return file

    def keep(self, slot: int, prepared: Prepared) -> None:
        (self.root / f"{slot}.json").write_bytes(msgspec.json.encode(prepared))


@dataclass(frozen=True, kw_only=True)
class DecidedRows(DecidedRecords):
    """For tables. An append has new ids in each slot; an upsert the ids of two slots, so that each replaces half of the one before."""

    SCHEMA = pa.schema([("id", pa.int64()), ("slot", pa.int64())])

    kind: str
    rows: int

    @property
    def wanted(self) -> list[tuple[int, int]]:
        """The rows that a batch computation has."""
        found: dict[int, int] = {}
        for slot in range(1, self.slots + 1):
            found |= dict.fromkeys(self.ids(slot), slot)
        return sorted(found.items())

    def ids(self, slot: int) -> range:
        step = self.rows // 2 if self.kind.endswith("_upsert") else self.rows
        return range(slot * step, slot * step + self.rows)

    def batch(self, slot: int) -> pa.RecordBatch:
        return pa.record_batch([list(self.ids(slot)), [slot] * self.rows], schema=self.SCHEMA)


def carry_out(
    root: str,
    first: int,
    last: int,
    sinks: Mapping[str, type[Sink]],
    unavailable: tuple[type[Exception], ...] = (UnavailableError,),
    job: str = JOB,
) -> None:
    """Commits these records. `unavailable` are the errors of a server that let the process down; another run may have been faster, too."""
    stager = Stager(partial(open_store, root), lambda: uuid.uuid4().hex)
    for slot in range(first, last + 1):
        prepared = msgspec.json.decode(Path(root, f"{slot}.json").read_bytes(), type=Prepared)
        at = SinkSlot(job, "orders", "out", slot, 1, record=f"w{slot}", prev=prepared.prev)
        try:
            sinks[prepared.kind].commit(CommitRequest(prepared, at, cast("Any", None), stager, lambda: None))
        except (*unavailable, DisagreementError) as error:
            # Of two runs the slower one may find the target ahead of it: in a job its fence stops it.
            os._exit(UNAVAILABLE if isinstance(error, unavailable) else BEHIND)
        Path(root, f"{slot}.done").touch()
