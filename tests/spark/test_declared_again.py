"""A release leaves timers or timed entries out, and a later one has them again: they come although no rows do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import stateflow as sf
from tests.spark.pipelines import ORDER, Order, Workbench, at

TOLD = "what string, user long"
TIMED, PLAIN = sf.columns({"n": int}, timed=True), sf.columns({"n": int})


class WithoutReminder(sf.KeyedProcess[int, Order, Any]):
    n = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
        self.n.value += len(list(rows))


class WithReminder(sf.KeyedProcess[int, Order, Any]):
    n = sf.ValueState(int, default=0)
    idle = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
        for row in rows:
            self.n.value += 1
            self.idle.set(row.ts + timedelta(minutes=10))

    @idle.fires
    def on_idle(self, key: int, when: Any, ctx: sf.Context) -> Iterator[Any]:
        yield "idle", key


def kept(rows: pa.Table, states: Any, ctx: Any) -> None:
    keys, n = rows.select(["user"]), pa.table({"n": rows["user"]})
    states["plain"].put(keys, n)
    if "timed" in states:
        states["timed"].put(keys, n, at=rows["ts"])


def due(states: Any, ctx: Any) -> Iterator[pa.Table]:
    if ctx.watermark is not None:
        for table in states["timed"].due(ctx.watermark):
            yield pa.table({"what": ["idle"] * len(table), "user": table["user"]})
        states["timed"].delete_due(ctx.watermark)


def declared(keyed: Any, code: str, whole: bool) -> Any:
    if code == "process":
        return keyed.process("op", WithReminder if whole else WithoutReminder, output=TOLD)
    state = {"plain": PLAIN, "timed": TIMED} if whole else {"plain": PLAIN}
    return keyed.process_arrow("op", kept, state=state, on_due=due if whole else None, output=TOLD)


@pytest.mark.slow
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("code", ["process", "process_arrow"])
def test_what_is_declared_again_comes_in_a_run_without_rows(bench: Workbench, code: str, drain: bool) -> None:
    out = sf.memory(f"again-{code}")
    out.clear()

    def run(whole: bool, *rows: Order, **options: Any) -> list[tuple[str, int]]:
        @sf.pipeline("again")
        def again(flow: sf.Flow) -> None:
            source = flow.source(
                "in", bench.source("in", ORDER), Order, event_time="ts", watermark="1 minute"
            )
            declared(source.key_by("user"), code, whole).collect("out", out)

        if rows:
            bench.rows("in", rows)
        bench.run(again, **options)
        return sorted((row["what"], row["user"]) for _, found in out.batches for row in found)

    assert run(True, Order(1, "tea", 1.0, at(0)), Order(2, "tea", 1.0, at(0)), parallelism=1) == []
    assert run(False, Order(3, "tea", 1.0, at(100))) == []
    [[shard]] = bench.records("again")[-1].operators["op"].shards
    assert shard.next_event_timer is None, "this release knows of nothing that would come"
    assert run(True, drain=drain) == [("idle", 1), ("idle", 2)]
