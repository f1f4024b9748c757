"""Catalogs of Iceberg for tests, and what readers see in their tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.connectors.postgres_server import variable
from tests.servers import glue_server

NAME = "lake"


@contextmanager
def sql_catalog(folder: Path) -> Iterator[Catalog]:
    """A catalog in SQLite, as PyIceberg's variables in the environment name it."""
    pytest.importorskip(
        "sqlalchemy",
        reason="SQLAlchemy comes with Airflow, which the environments of older Sparks do not have",
    )
    folder.mkdir(parents=True, exist_ok=True)
    with _configured(folder, type="sql", uri=f"sqlite:///{folder}/catalog.db") as catalog:
        yield catalog


@contextmanager
def glue_catalog(folder: Path) -> Iterator[Catalog]:
    """The same in a Glue Data Catalog, whose tables are on this disk."""
    with (
        glue_server() as server,
        _configured(
            folder,
            type="glue",
            **{
                "glue.endpoint": server.endpoint,
                "glue.region": "us-east-1",
                "glue.access-key-id": "test-access",
                "glue.secret-access-key": "test-secret-value",
            },
        ) as catalog,
    ):
        yield catalog


@contextmanager
def _configured(folder: Path, **properties: str) -> Iterator[Catalog]:
    properties["warehouse"] = f"file://{folder}/warehouse"
    with ExitStack() as variables:
        for name, value in properties.items():
            # Another fixture may have said another type for longer than this one lives.
            words = name.upper().replace(".", "__").replace("-", "_")
            variables.enter_context(variable(f"PYICEBERG_CATALOG__LAKE__{words}", value))
        catalog = load_catalog(NAME, **properties)
        catalog.create_namespace("shop")
        yield catalog


def rows_of(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    """All rows that a reader sees; none of a table that is not there."""
    try:
        return catalog.load_table(name).scan().to_arrow().to_pylist()
    except NoSuchTableError:
        return []
