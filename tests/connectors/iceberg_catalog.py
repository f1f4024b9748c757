"""Catalogs of Iceberg for tests, and what readers see in their tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from tests.connectors.postgres_server import variable

NAME = "lake"


@contextmanager
def sql_catalog(folder: Path) -> Iterator[Catalog]:
    """A catalog in SQLite, as PyIceberg's variables in the environment name it."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    with (
        # Another fixture may have said "rest" for longer than this one lives.
        variable("PYICEBERG_CATALOG__LAKE__TYPE", properties["type"]),
        variable("PYICEBERG_CATALOG__LAKE__URI", properties["uri"]),
        variable("PYICEBERG_CATALOG__LAKE__WAREHOUSE", properties["warehouse"]),
    ):
        catalog = load_catalog(NAME, **properties)
        catalog.create_namespace("shop")
        yield catalog


def rows_of(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    """All rows that a reader sees; none of a table that is not there."""
    try:
        return catalog.load_table(name).scan().to_arrow().to_pylist()
    except NoSuchTableError:
        return []
