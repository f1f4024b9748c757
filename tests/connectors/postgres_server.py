"""A Postgres for tests of its sinks, and statements to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.airflow.postgres import postgres


@dataclass(frozen=True)
class Server:
    """A server, as the environment of its users names it."""

    url: str

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def server() -> Iterator[Server]:
    with postgres() as url:
        yield Server(url.replace("postgresql+psycopg2", "postgresql"))


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """A variable of this process's environment."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
