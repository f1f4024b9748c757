"""A Postgres that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.connectors.postgres_server import Server


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    """Tables of it are `sf.postgres(..., connection="env:TEST_POSTGRES")`."""
    from tests.connectors.postgres_server import server, variable

    with server() as made, variable("TEST_POSTGRES", made.url):
        made.run("CREATE SCHEMA shop")
        yield made


@pytest.fixture
def shop(database: Server) -> Server:
    """With nothing in its schema `shop`, whatever the test before has done to it."""
    database.run("DROP SCHEMA IF EXISTS shop CASCADE")
    database.run("CREATE SCHEMA shop")
    return database
