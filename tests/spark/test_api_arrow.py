"""Columnar operators: the same sums as Spark's own aggregation, in chunks of any size."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

import stateflow as sf
from tests.spark.pipelines import ORDER, Order, Workbench, at
from tests.storage.scratch_folders import in_scratch


def summed(table: pa.Table, state: Any, ctx: sf.Context) -> pa.Table:
    """Running sum and count per user."""
    batch = table.group_by("user").aggregate([("amount", "sum"), ("amount", "count")])
    keys = batch.column("user")
    before = state.get(keys)
    new = pa.table(
        {
            "total": pc.add(pc.fill_null(before.column("total"), 0.0), batch.column("amount_sum")),
            "n": pc.add(pc.fill_null(before.column("n"), 0), batch.column("amount_count")),
            "seen": pa.array([ctx.now] * len(keys), pa.timestamp("us", "UTC")),
        }
    )
    state.put(keys, new)
    ctx.metrics.counter("chunks").inc()
    return pa.table({"user": keys, "total": new.column("total"), "n": new.column("n")})


def latest(table: pa.Table, state: Any, ctx: sf.Context) -> Any:
    """The first and last sku per user and parity; text in the state, one key forgotten in every batch."""
    batch = table.group_by(["sku", "parity"]).aggregate([("note", "max"), ("note", "count")])
    keys = batch.select(["sku", "parity"])
    before = state.get(keys)
    notes = [
        max(filter(None, (old, new)), default=None)
        for old, new in zip(before["note"].to_pylist(), batch["note_max"].to_pylist(), strict=True)
    ]
    counts = pc.add(pc.fill_null(before["n"], 0), batch["note_count"])
    state.put(keys, pa.table({"note": pa.array(notes, pa.string()), "n": counts}))
    gone = pc.equal(keys["sku"], "sku-1")
    state.delete(keys.filter(gone))
    yield pa.table(
        {"sku": keys["sku"], "parity": keys["parity"], "note": pa.array(notes, pa.string()), "n": counts}
    )


def orders(batch: int) -> list[Order]:
    return [Order((n * 31) % 97, f"sku-{n % 5}", float(n % 11) + batch, at(n)) for n in range(400)]


@pytest.mark.slow
def test_columnar_operators_equal_an_aggregation_of_sparks(bench: Workbench) -> None:
    sums, small, notes = sf.memory("arrow-sums"), sf.memory("arrow-small"), sf.memory("arrow-notes")
    for table in (sums, small, notes):
        table.clear()
    state = {"total": float, "n": int, "seen": datetime}

    @sf.pipeline("arrow")
    def arrow(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", ORDER), Order)
        keyed = source.key_by("user")
        keyed.process_arrow("sums", summed, state=state, output="user long, total double, n long").collect(
            "s", sums
        )
        # The same in chunks of at most 20 rows, which go over scratch disk.
        keyed.process_arrow(
            "small", summed, state=state, output="user long, total double, n long", chunk_rows=20
        ).collect("m", small)
        with_parity = source.transform(
            lambda f: f.select(
                "sku",
                (F.col("user") % 2 == 0).alias("parity"),
                F.concat("sku", F.lit("é"), "user").alias("note"),
            )
        )
        with_parity.key_by("sku", "parity").process_arrow(
            "notes", latest, state={"note": str, "n": int},
            output="sku string, parity boolean, note string, n long", chunk_rows=100,
        ).collect("n", notes)  # fmt: skip

    everything: list[Order] = []
    for batch in range(3):
        bench.rows("in", orders(batch))
        everything += orders(batch)
        if batch != 0:
            bench.run(arrow)
    frame = bench.spark.createDataFrame(everything)
    expected = {r["user"]: (r["t"], r["n"]) for r in frame.groupBy("user").agg(F.sum("amount").alias("t"),
                                                                             F.count("*").alias("n")).collect()}  # fmt: skip
    for table in (sums, small):
        assert {r["user"]: (r["total"], r["n"]) for r in table.batches[-1][1]} == expected
        assert [sorted((r["user"], r["n"]) for r in rows) for _, rows in table.batches] == [
            sorted((user, n * (batch + 1) // 3) for user, (_, n) in expected.items()) for batch in range(3)
        ]
    counters = bench.reports[-1].statistics["operators"]
    assert counters["sums"]["counters"] == {"chunks": 2}
    assert counters["small"]["counters"]["chunks"] > 20
    assert not in_scratch(bench.folder / "scratch", "*/bucket-*"), "spilled files are gone"
    _notes_as_expected(notes.batches)


def _notes_as_expected(batches: list[tuple[int, Any]]) -> None:
    held: dict[tuple[str, bool], tuple[str, int]] = {}
    for batch, (_, rows) in enumerate(batches):
        wanted = {}
        for order in orders(batch):
            key = (order.sku, order.user % 2 == 0)
            note, n = wanted.get(key) or held.get(key) or ("", 0)
            wanted[key] = (max(note, f"{order.sku}é{order.user}"), n + 1)
        held = {key: value for key, value in wanted.items() if key[0] != "sku-1"}
        assert {(r["sku"], r["parity"]): (r["note"], r["n"]) for r in rows} == wanted


def misfit(table: pa.Table, state: Any, ctx: sf.Context) -> Any:
    return pa.table({"user": ["x"] * 3})


def failing(table: pa.Table, state: Any, ctx: sf.Context) -> Any:
    raise ValueError("no such luck\nand more")


def wrong_state(table: pa.Table, state: Any, ctx: sf.Context) -> Any:
    state.put(table["user"], pa.table({"total": ["x"] * table.num_rows}))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (misfit, "operator 'op' put out a table that does not fit its output (user)"),
        (failing, "operator 'op' failed: ValueError: no such luck and more"),
        (wrong_state, "operator 'op': put() was given a table that does not fit the state's columns"),
    ],
)
def test_what_a_columnar_operator_does_wrong_is_told_in_one_sentence(
    bench: Workbench, function: Any, message: str
) -> None:
    @sf.pipeline("wrong")
    def wrong(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", ORDER), Order)
        keyed = source.key_by("user")
        keyed.process_arrow("op", function, state={"total": float}, output="user long").collect(
            "o", sf.memory("w")
        )

    bench.rows("in", orders(0)[:5])
    with pytest.raises(sf.StateflowError) as caught:
        bench.run(wrong)
    text = str(caught.value)
    assert text.startswith(message)
    assert "\n" not in text
    assert "Traceback" not in text
    assert all(not r.operators for r in bench.records("wrong"))
