"""A process that carries out decided records for a table of Iceberg, one slot after another, until somebody kills it."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from stateflow.connectors import Prepared
from stateflow.connectors.iceberg.catalog import loaded
from stateflow.connectors.iceberg.sink import IcebergAppend, RecordedTable
from stateflow.connectors.iceberg.table import IcebergTable
from stateflow.connectors.iceberg.upsert import IcebergUpsert
from stateflow.connectors.iceberg.writer import DescribingWriter
from tests.connectors.decided import DecidedRows, carry_out

IN_SPARK = {
    "type": "struct",
    "fields": [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in DecidedRows.SCHEMA.names
    ],
}
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
            self.keep(slot, self._prepared(slot))

    def carry_on(self) -> BaseProcess:
        """A process with all the records that are not finished. It begins at once: a server of forks has imported all there is."""
        names = [name for name in os.environ if name.startswith("PYICEBERG_")]
        environment = {name: os.environ[name] for name in names}
        arguments = (str(self.root), self.finished + 1, self.slots, environment)
        process = _forks.Process(target=main, args=arguments, daemon=True)
        process.start()
        return process

    def _prepared(self, slot: int) -> Prepared:
        batch = self.batch(slot)
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
            staged = (self.staged(slot, batch),)
            payload |= {"schema": json.dumps(IN_SPARK), "keys": ["id"], "order_by": [], "operation": ""}
        return Prepared(
            kind=self.kind, target=self.table.place, prev=slot - 1 or None, payload=payload, files=staged, rows=self.rows
        )  # fmt: skip


def main(root: str, first: int, last: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    carry_out(root, first, last, SINKS)
