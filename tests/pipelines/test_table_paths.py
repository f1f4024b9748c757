"""Paths of tables: what would quietly become a folder of an odd name is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import stateflow as sf


@pytest.mark.parametrize(
    "path",
    ["orders", "./main.sales.orders", "/data/v1.2", "data/orders.delta", "s3a://bucket/a.b.c", "file:/data/orders",
     "abfss://container@account.dfs.core.windows.net/t", "C:/data/orders", "/data/day={1,2}"],
)  # fmt: skip
def test_paths_are_taken_as_they_are(path: str) -> None:
    assert sf.delta(path).path == path


@pytest.mark.parametrize("name", ["sales.orders", "main.sales.orders", "`my cat`.`sales`.v1", "a.b.c.d"])
def test_names_are_known_whatever_their_case_and_quotes(name: str) -> None:
    table = sf.table(name)
    assert (table.path, table.create) == ("", False)
    assert table.is_called(f"main.{name.upper()}")
    assert not table.is_called("main.sales.others")


def test_a_path_object_is_a_path() -> None:
    assert sf.delta(Path("/data/orders")).path == "/data/orders"  # type: ignore[arg-type]
