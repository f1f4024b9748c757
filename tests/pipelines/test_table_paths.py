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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("orders", r"no name of a table with its schema: write its parts with dots, such as 'sales.orders'"),
        ("", r"needs a name: write table\('main\.sales\.orders'\)"),
        ("sales.my orders", "a part with other signs than letters"),
        ("/data/orders", r"is a path, .* write delta\(\.\.\.\) for a path"),
        ("delta.`orders`", r"is a path, .* write delta\(\.\.\.\) for a path"),
        ("{schema}.orders", r"has \{schema\} in it: write f'\.\.\.', with the f"),
    ],
)
def test_what_is_no_name_is_refused_with_what_to_write(name: str, message: str) -> None:
    with pytest.raises(sf.UsageError, match=message):
        sf.table(name)


@pytest.mark.parametrize("name", ["sales.orders", "main.sales.orders", "`my cat`.`sales`.v1", "a.b.c.d"])
def test_names_are_known_whatever_their_case_and_quotes(name: str) -> None:
    table = sf.table(name)
    assert (table.path, table.create) == ("", False)
    assert table.is_called(f"main.{name.upper()}")
    assert not table.is_called("main.sales.others")


def test_a_source_makes_no_table() -> None:
    @sf.pipeline("p")
    def p(flow: sf.Flow) -> None:
        flow.source("a", sf.table("sales.orders", create=True)).append("b", sf.delta("/b"))

    with pytest.raises(
        sf.UsageError, match="create= and location= are for a sink that makes its table: leave them out"
    ):
        p.build()


def test_a_path_object_is_a_path() -> None:
    assert sf.delta(Path("/data/orders")).path == "/data/orders"  # type: ignore[arg-type]
