"""The questions of Nexmark have the answers that DuckDB gives over the same events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import stateflow as sf
from bench.nexmark.events import START, events, write
from bench.nexmark.expected import comparable, differences, expected
from bench.nexmark.queries import QUERIES
from stateflow.format.instants import END_OF_TIME, instant
from stateflow.pipelines.graph import KeyedNode
from stateflow.testing import ColumnarHarness, KeyedHarness
from tests.long_form import BEFORE_A_RELEASE

COUNT = 6000
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nexmark")
    write(made, [COUNT // 3] * 3, per_second=100)
    return made


ROWS: dict[str, tuple[str, ...]] = {
    "q3": (
        "select id as auction, seller, ts from auction where category = 10",
        "from person where state in ('or', 'id', 'ca')",
    ),
    **dict.fromkeys(("q4", "q6", "q9"), ("from auction", "from bid")),
    "q7": ("select *, 0::bigint as every from bid",),
    "q8": ("from (select id, name, ts from person union all select seller, null, ts from auction)",),
    "q12": ("select *, '{clock}'::timestamptz as window_start from bid",),
    **dict.fromkeys(("q15", "q16", "q17"), ("select *, ts::date as day from bid",)),
    "q20": ("from bid", "select id as auction, * exclude (id) from auction where category = 10"),
}
"""What the transforms of a query make of the events, for each input of its first operator: Spark does it in a run."""
TRANSFORMED: dict[tuple[str, str], Callable[[list[dict[str, Any]]], list[dict[str, Any]]]] = {
    **dict.fromkeys(
        [(query, "fair") for query in ("q4", "q6", "q9")],
        lambda rows: [row for row in rows if row["right_ts"] <= row["expires"]],
    ),
    ("q4", "sums"): lambda rows: [
        {"category": row["category"], "average": row["total"] / row["n"]} for row in rows
    ],
}
"""What the transforms behind an operator make of its rows."""
CUTS = [0, 20, 40, 60]
"""Seconds of event time at which batches begin."""


def batches_of(query: str, folder: Path) -> Iterator[list[pa.Table]]:
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        for kind in ("person", "auction", "bid"):
            engine.execute(f"create view {kind} as from read_parquet('{folder}/{kind}/*.parquet')")
        for number, (first, end) in enumerate(pairwise(CUTS)):
            clock = _clocked(number).isoformat()
            within = f"epoch_us(ts) >= {START + first * 10**6} and epoch_us(ts) < {START + end * 10**6}"
            yield [
                engine.sql(
                    f"select * from ({rows.format(clock=clock)}) where {within} order by ts"
                ).to_arrow_table()
                for rows in ROWS.get(query, ("from bid",))
            ]


def _clocked(number: int) -> datetime:
    """The window of ten seconds of a batch: they run at 0:00:00, 0:00:07 and 0:00:14."""
    return NOW + timedelta(seconds=number * 7 // 10 * 10)


def harness_of(flow: sf.Flow, node: KeyedNode) -> Any:
    if node.process is None:
        return ColumnarHarness.of(flow, node.uid)

    def key(row: Any) -> Any:
        """Each input has a key of its own."""
        (name,) = next(
            k.columns for k in node.keyed if k.stream.rows is not None and k.stream.rows.names == row._fields
        )
        return getattr(row, name)

    return KeyedHarness(node.process, key=key, key_type=int, output=node.output, now=NOW)


def fed(harness: Any, node: KeyedNode, inputs: list[Any]) -> list[Any]:
    """What a batch puts out. A process gets objects, in the order that the query asks for."""
    if node.process is not None:
        assert None not in node.rows
        inputs = [
            [rows.make(*(row[name] for name in rows.names)) for row in listed(given)]  # type: ignore[union-attr]
            for given, rows in zip(inputs, node.rows, strict=True)
        ]
        for rows, keyed in zip(inputs, node.keyed, strict=True):
            rows.sort(key=lambda row, by=keyed.order_by: [getattr(row, name) for name in by])  # type: ignore[misc]
    if len(inputs) == 2:
        return list(harness.both(*inputs))
    return list(harness.rows(*([inputs[0]] if isinstance(inputs[0], pa.Table) else inputs[0])))


def listed(rows: Any) -> list[dict[str, Any]]:
    return rows.to_pylist() if isinstance(rows, pa.Table) else rows


def named(node: KeyedNode, rows: list[Any]) -> list[dict[str, Any]]:
    assert node.output is not None
    return [row if isinstance(row, dict) else dict(zip(node.output.names, row, strict=True)) for row in rows]


def put_out(query: str, flow: sf.Flow, batches: list[list[pa.Table]]) -> Iterator[dict[str, Any]]:
    """As runs do it: in a batch each operator gets its rows, then time passes, then the next operator gets what came out."""
    steps = [(node, harness_of(flow, node)) for node in flow.operators]
    times = [instant(START + end * 10**6 - 1) for end in CUTS[1:]]
    nothing = [table.slice(0, 0) for table in batches[0]]
    for watermark, batch in zip([*times, instant(END_OF_TIME)], [*batches, nothing], strict=True):
        rows: list[Any] = batch
        for node, harness in steps:
            out = named(node, fed(harness, node, rows) + harness.advance(watermark, now=timedelta(seconds=7)))
            rows = [TRANSFORMED.get((query, node.uid), list)(out)]
        yield from rows[0]


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


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_what_duckdb_gives(query: str, folder: Path) -> None:
    found, flow = table_of(query, folder)
    wanted = expected(query, folder)
    assert len(wanted) > (0 if query == "q15" else 3)
    assert differences(comparable(query, found), wanted) == ([], [])
    assert flow.sinks[0].uid == "out"


def table_of(query: str, folder: Path) -> tuple[list[dict[str, Any]], sf.Flow]:
    """What a query's table holds at the end."""
    flow = QUERIES[query].build({"input": str(folder), "output": "/out"})
    rows = list(put_out(query, flow, list(batches_of(query, folder))))
    changes = flow.sinks[0].options.get("keys")
    return kept(rows, changes), flow


def test_windows_by_the_clock_are_those_of_the_batches_times(folder: Path) -> None:
    wanted: dict[tuple[int, Any], int] = Counter()
    for number, (batch,) in enumerate(batches_of("q12", folder)):
        wanted.update((bidder, _clocked(number)) for bidder in batch["bidder"].to_pylist())
    found, _ = table_of("q12", folder)
    assert {(row["bidder"], row["window_start"]): row["n"] for row in found} == wanted


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


@BEFORE_A_RELEASE
@pytest.mark.system
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_runs_as_one_command(
    spark: Any, query: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from bench.nexmark.__main__ import measured

    assert measured(query, tmp_path, 5000, 2, 100) == 0
    assert "as DuckDB has it" in capfd.readouterr().out
