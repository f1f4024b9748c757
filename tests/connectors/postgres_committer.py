"""A process that carries out decided records for a table of Postgres, one slot after another, until somebody kills it or its server."""

from __future__ import annotations

import multiprocessing
import os
import uuid
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import msgspec
import psycopg
import pyarrow as pa

import stateflow.connectors.tries as pauses
from stateflow.connectors import CommitRequest, Prepared, SinkSlot, Stager, UnavailableError
from stateflow.connectors.postgres.sink import PostgresAppend, PostgresUpsert
from stateflow.spark.sinks.staging import StagedWriter, StoreTarget
from stateflow.storage.roots import open_store
from tests.connectors.decided import DecidedRows
from tests.connectors.postgres_server import Server

SCHEMA = pa.schema([("id", pa.int64()), ("slot", pa.int64())])
SINKS = {"postgres_append": PostgresAppend, "postgres_upsert": PostgresUpsert}
UNAVAILABLE = 9
"""Exit code of a process that its server let down."""
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.connectors.postgres_committer"])


@dataclass(frozen=True, kw_only=True)
class Records(DecidedRows):
    rows: int = 1000

    def decide(self, server: Server) -> None:
        upsert = self.kind == "postgres_upsert"
        server.run(f"CREATE TABLE public.t (id bigint {'PRIMARY KEY' * upsert}, slot bigint)")
        [(oid,)] = server.run("SELECT 'public.t'::regclass::oid")
        payload = {
            "connection": "env:TEST_POSTGRES", "name": "public.t", "relation": oid,
            "columns": [[name, name, "bigint"] for name in SCHEMA.names], "keys": ["id"] if upsert else [],
        }  # fmt: skip
        self.root.mkdir()
        for slot in range(1, self.slots + 1):
            writer = StagedWriter(SCHEMA, StoreTarget(partial(open_store, str(self.root)), f"{slot}.parquet"))
            writer.write(pa.record_batch([list(self.ids(slot)), [slot] * self.rows], schema=SCHEMA))
            file = writer.close()
            assert file is not None
            prepared = Prepared(self.kind, "public.t", slot - 1 or None, (), payload, (file,), self.rows)
            (self.root / f"{slot}.json").write_bytes(msgspec.json.encode(prepared))

    def carry_on(self, url: str) -> BaseProcess:
        """A process with all the records that are not finished. It begins at once: a server of forks has imported all there is."""
        arguments = (str(self.root), self.finished + 1, self.slots, url)
        process = _forks.Process(target=main, args=arguments, daemon=True)
        process.start()
        return process


def main(root: str, first: int, last: int, url: str) -> None:
    os.environ["TEST_POSTGRES"] = url
    pauses.PAUSES = (0.05, 0.2)  # the next run is soon there
    stager = Stager(partial(open_store, root), lambda: uuid.uuid4().hex)
    for slot in range(first, last + 1):
        prepared = msgspec.json.decode(Path(root, f"{slot}.json").read_bytes(), type=Prepared)
        at = SinkSlot(
            "3f2b6c1e-1111-4a6e-9d3f-0123456789ab",
            "orders",
            "out",
            slot,
            1,
            record=f"w{slot}",
            prev=prepared.prev,
        )
        try:
            SINKS[prepared.kind].commit(CommitRequest(prepared, at, cast("Any", None), stager, lambda: None))
        except (UnavailableError, psycopg.OperationalError):
            os._exit(UNAVAILABLE)
        Path(root, f"{slot}.done").touch()
