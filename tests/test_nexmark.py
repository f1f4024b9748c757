"""The questions of Nexmark have the answers that DuckDB gives over the same events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from bench.nexmark.events import events, write
from bench.nexmark.expected import differences, expected
from bench.nexmark.queries import QUERIES
from stateflow.format.instants import instant
from stateflow.format.records import END_OF_TIME
from stateflow.testing import ColumnarHarness

COUNT = 6000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nexmark")
    write(made, COUNT, files=3, per_second=100)
    return made


ROWS = {
    "q7": "select *, 0::bigint as every from bid order by ts",
    "q8": "select id, name, ts from person union all select seller, null, ts from auction order by ts",
    **dict.fromkeys(("q15", "q16", "q17"), "select *, ts::date as day from bid order by ts"),
}
"""What the transforms of a query make of the events: Spark does it in a run."""


def rows_of(query: str, folder: Path) -> pa.Table:
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        for kind in ("person", "auction", "bid"):
            engine.execute(f"create view {kind} as from read_parquet('{folder}/{kind}/*.parquet')")
        return engine.sql(ROWS.get(query, "from bid order by ts")).to_arrow_table()


def put_out(harness: ColumnarHarness, batches: Iterator[pa.Table]) -> Iterator[list[Any]]:
    for batch in batches:
        yield harness.rows(batch)
        yield harness.advance(batch["ts"].to_pylist()[-1])
    yield harness.advance(instant(END_OF_TIME))


def kept(changes: list[dict[str, Any]], keys: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """What a table holds that takes them."""
    if keys is None:
        return changes
    table: dict[Any, dict[str, Any]] = {}
    for change in changes:
        row = dict(change)
        key = tuple(row[name] for name in keys)
        if row.pop("_op", "upsert") == "delete":
            table.pop(key, None)
        else:
            table[key] = row
    return list(table.values())


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_duckdb_gives(query: str, folder: Path) -> None:
    flow = QUERIES[query].build({"input": str(folder), "output": "/out"})
    rows = rows_of(query, folder)
    batches = (rows.slice(begin, 2000) for begin in range(0, rows.num_rows, 2000))
    first, *others = flow.operators
    produced = [row for batch in put_out(ColumnarHarness.of(flow, first.uid), batches) for row in batch]
    for node in others:
        harness = ColumnarHarness.of(flow, node.uid)
        produced = [
            row
            for begin in range(0, len(produced), 100)
            for row in harness.rows(*produced[begin : begin + 100])
        ]
    found = kept(produced, flow.sinks[0].inputs[0].changes)
    wanted = expected(query, folder)
    assert len(wanted) > (0 if query == "q15" else 4)
    assert differences(found, wanted) == ([], [])


def test_events_are_those_of_the_model_and_the_same_however_many_files_they_fill() -> None:
    made = events(0, 50_000)
    assert {kind: table.num_rows for kind, table in made.items()} == {
        "person": 1000,
        "auction": 3000,
        "bid": 46_000,
    }
    assert made == events(0, 50_000)
    hot = [bid % 100 == 0 for bid in made["bid"]["auction"].to_pylist()]
    assert 0.5 < sum(hot) / len(hot) < 0.53, (
        "half of the bids are on the hot auction, and some others by chance"
    )


@pytest.mark.system
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_runs_as_one_command(
    spark: Any, query: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from bench.nexmark.__main__ import measured

    assert measured(query, tmp_path, 5000, 2, 100) == 0
    assert "as DuckDB has it" in capfd.readouterr().out
