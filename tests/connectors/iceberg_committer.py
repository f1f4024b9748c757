"""A process that carries out decided records for a table of Iceberg, one slot after another, until somebody kills it."""

from __future__ import annotations

import json
import multiprocessing
import os
import uuid
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa

from stateflow.connectors import (
    CommitRequest,
    DisagreementError,
    Prepared,
    SinkSlot,
    Stager,
    UnavailableError,
)
from stateflow.connectors.iceberg.catalog import loaded
from stateflow.connectors.iceberg.sink import IcebergAppend, RecordedTable
from stateflow.connectors.iceberg.table import IcebergTable
from stateflow.connectors.iceberg.upsert import IcebergUpsert
from stateflow.connectors.iceberg.writer import DescribingWriter
from stateflow.spark.sinks.staging import StagedWriter, StoreTarget
from stateflow.storage.roots import open_store
from tests.connectors.decided import DecidedRows

SCHEMA = pa.schema([("id", pa.int64()), ("slot", pa.int64())])
IN_SPARK = {
    "type": "struct",
    "fields": [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in SCHEMA.names],
}
JOB = "3f2b6c1e-1111-4a6e-9d3f-0123456789ab"
UNAVAILABLE, BEHIND = 9, 7
"""Exit codes of a process that its catalog let down, and of one that others were faster than."""
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [
        "tests.connectors.iceberg_committer",
        "pyiceberg.catalog.sql",
        "pyiceberg.catalog.rest",
        "pyiceberg.io.pyarrow",
    ]
)
SINKS = {"iceberg_append": IcebergAppend, "iceberg_upsert": IcebergUpsert}


@dataclass(frozen=True, kw_only=True)
class Records(DecidedRows):
    table: IcebergTable
    kind: str = "iceberg_append"
    rows: int = 20

    def decide(self) -> None:
        self.root.mkdir()
        for slot in range(1, self.slots + 1):
            (self.root / f"{slot}.json").write_bytes(msgspec.json.encode(self._prepared(slot)))

    def carry_on(self) -> BaseProcess:
        """A process with all the records that are not finished. It begins at once: a server of forks has imported all there is."""
        names = [name for name in os.environ if name.startswith("PYICEBERG_")]
        environment = {name: os.environ[name] for name in names}
        arguments = (str(self.root), self.finished + 1, self.slots, environment)
        process = _forks.Process(target=main, args=arguments, daemon=True)
        process.start()
        return process

    def _prepared(self, slot: int) -> Prepared:
        batch = pa.record_batch([list(self.ids(slot)), [slot] * self.rows], schema=SCHEMA)
        opened = loaded(self.table)
        columns = [[field.field_id, field.name] for field in opened.schema().fields]
        uuid = str(opened.metadata.table_uuid)
        recorded = RecordedTable(
            self.table.catalog, self.table.name, uuid, opened.metadata.default_spec_id, columns
        )
        payload, staged = recorded.payload(), ()
        if self.kind == "iceberg_append":
            writer = DescribingWriter(opened.io, opened.metadata, opened.schema(), f"slot{slot}")
            writer.write(batch)
            payload["files"] = [json.loads(text) for text in writer.close()]
        else:
            target = StoreTarget(partial(open_store, str(self.root)), f"{slot}.parquet")
            staging = StagedWriter(SCHEMA, target)
            staging.write(batch)
            file = staging.close()
            assert file is not None
            staged = (file,)
            payload |= {"schema": json.dumps(IN_SPARK), "keys": ["id"], "order_by": [], "operation": ""}
        return Prepared(
            kind=self.kind, target=self.table.place, prev=slot - 1 or None, payload=payload, files=staged, rows=self.rows
        )  # fmt: skip


def main(root: str, first: int, last: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    stager = Stager(partial(open_store, root), lambda: uuid.uuid4().hex)
    for slot in range(first, last + 1):
        prepared = msgspec.json.decode(Path(root, f"{slot}.json").read_bytes(), type=Prepared)
        at = SinkSlot(JOB, "orders", "out", slot, 1, record=f"w{slot}", prev=prepared.prev)
        try:
            SINKS[prepared.kind].commit(CommitRequest(prepared, at, cast("Any", None), stager, lambda: None))
        except (UnavailableError, DisagreementError) as error:
            # Of two runs the slower one may find the table ahead of it: in a job its fence stops it.
            os._exit(UNAVAILABLE if isinstance(error, UnavailableError) else BEHIND)
        Path(root, f"{slot}.done").touch()
