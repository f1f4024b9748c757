"""A process that carries out decided records for a table of Postgres, one slot after another, until somebody kills it or its server."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

import psycopg

import stateflow.connectors.tries as pauses
from stateflow.connectors import Prepared, UnavailableError
from stateflow.connectors.postgres.sink import PostgresAppend, PostgresUpsert
from tests.connectors.decided import DecidedRows, carry_out
from tests.connectors.postgres_server import Server

SINKS = {"postgres_append": PostgresAppend, "postgres_upsert": PostgresUpsert}
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
            "columns": [[name, name, "bigint"] for name in self.SCHEMA.names], "keys": ["id"] if upsert else [],
        }  # fmt: skip
        self.root.mkdir()
        for slot in range(1, self.slots + 1):
            file = self.staged(slot, self.batch(slot))
            self.keep(
                slot, Prepared(self.kind, "public.t", slot - 1 or None, (), payload, (file,), self.rows)
            )

    def carry_on(self, url: str) -> BaseProcess:
        """A process with all the records that are not finished. It begins at once: a server of forks has imported all there is."""
        arguments = (str(self.root), self.finished + 1, self.slots, url)
        process = _forks.Process(target=main, args=arguments, daemon=True)
        process.start()
        return process


def main(root: str, first: int, last: int, url: str) -> None:
    os.environ["TEST_POSTGRES"] = url
    pauses.PAUSES = (0.05, 0.2)  # the next run is soon there
    carry_out(root, first, last, SINKS, (UnavailableError, psycopg.OperationalError))
