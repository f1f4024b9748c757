"""Paths of tables: what would quietly become a folder of an odd name is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import stateflow as sf


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("main.sales.orders", r"looks like the name of a table .* say '\./main\.sales\.orders' for a folder"),
        ("sales.orders", r"write sf\.table\('sales\.orders'\)"),
        ("`main`.`sales`.`my orders`", "looks like the name of a table"),
        ("delta.`/data/orders`", r"is written as in SQL: write delta\('/data/orders'\)"),
        ("/data/orders ", r"has a space at its end: write delta\('/data/orders'\)"),
        ("~/orders", "nobody puts in what a shell would"),
        ("$HOME/orders", "nobody puts in what a shell would"),
        ("s3a://${BUCKET}/orders", "nobody puts in what a shell would"),
        ("{output}/late", r"has \{output\} in it, .* write f'...', with the f"),
    ],
)
def test_what_is_no_path_is_refused_with_what_to_write(path: str, message: str) -> None:
    with pytest.raises(sf.UsageError, match=message):
        sf.delta(path)


@pytest.mark.parametrize(
    "path",
    ["orders", "./main.sales.orders", "/data/v1.2", "data/orders.delta", "s3a://bucket/a.b.c", "file:/data/orders",
     "abfss://container@account.dfs.core.windows.net/t", "C:/data/orders", "/data/day={1,2}"],
)  # fmt: skip
def test_paths_are_taken_as_they_are(path: str) -> None:
    assert sf.delta(path).path == path


def test_a_path_object_is_a_path() -> None:
    assert sf.delta(Path("/data/orders")).path == "/data/orders"  # type: ignore[arg-type]
