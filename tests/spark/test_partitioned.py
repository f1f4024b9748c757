"""An operator without keys in real runs: its state over batches, runs, another parallelism, savepoints and restores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import stateflow as sf
from stateflow.format.records import Record
from stateflow.jobs.job import Job
from tests.spark.pipelines import ORDER, Order, Rate, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")


class Counting(sf.PartitionProcess[Order, Any]):
    """Counts the rows of each subtask; the subtasks tell each other in a union, once per run, how far they have come."""

    count = sf.OperatorListState(int)
    reached = sf.UnionListState(str)
    rates = sf.BroadcastState(str, float)

    def restore(self, ctx: sf.Context) -> None:
        self.seen = len(self.reached.get())

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        for row in rows:
            self.rates[row.sku] = row.factor

    def process(self, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        if not self.reached.get():
            self.reached.add(f"subtask {ctx.subtask} of {ctx.parallelism}")
        for row in rows:
            self.count.add(row.user)
            yield row.user, row.amount * self.rates.get(row.sku, 1.0), ctx.subtask, self.seen


def counting_job(bench: Workbench, name: str, parallelism: int | None, more: bool = False) -> sf.Pipeline:
    out = sf.memory(f"{bench.folder.name}-{name}")

    @sf.pipeline(name)
    def counting(flow: sf.Flow) -> None:
        orders = flow.source("orders", bench.source("orders", ORDER), Order)
        if more:
            orders = orders.union(flow.source("more", bench.source("more", ORDER), Order))
        rates = flow.source("rates", bench.source("rates", "sku string, factor double"), Rate)
        counted = orders.process_partition(
            "counting",
            Counting,
            output="user long, price double, subtask int, seen int",
            order_by="-amount",
            broadcast={"rates": rates},
            parallelism=parallelism,
        )
        counted.collect("out", out)
        counted.key_by("user").map_with_state(
            "keyed", lambda key, row, n: (None, (n or 0) + 1), state=int, output="n int"
        )

    return counting


def feed(bench: Workbench, users: range) -> None:
    bench.rows("orders", [Order(user, "tea" if user % 2 else "jam", float(user), at(user)) for user in users])


def head(bench: Workbench, job: str) -> Record:
    record = Job(str(bench.folder / "root"), job).log().head
    assert record is not None
    return record


def elements(bench: Workbench, job: str, state: str) -> list[int]:
    """How many elements each subtask has in the newest record."""
    operator = head(bench, job).operators["counting"]
    return [len(part) for part in operator.operator_states[state].parts]


def subtasks(bench: Workbench, job: str) -> dict[str, int]:
    return {uid: len(each.assignment) for uid, each in head(bench, job).operators.items()}


@pytest.mark.slow
def test_it_keeps_its_state_over_batches_runs_and_another_parallelism(bench: Workbench) -> None:
    out = sf.memory(f"{bench.folder.name}-plain")
    bench.rows("rates", [{"sku": "tea", "factor": 10.0}])
    feed(bench, range(8))
    feed(bench, range(8, 12))
    bench.run(counting_job(bench, "plain", 3), parallelism=2)
    (_, first), (_, second) = out.batches
    assert sorted((row["user"], row["price"]) for row in first) == [
        (user, user * (10.0 if user % 2 else 1.0)) for user in range(8)
    ]
    for subtask in range(3):
        mine = [row["user"] for row in first if row["subtask"] == subtask]
        assert len(mine) in (2, 3), "rows are spread evenly"
        assert mine == sorted(mine, reverse=True), "and come in their order"
    assert {row["seen"] for row in second} == {1}, "within a run a subtask has its own part of the union"
    assert (sum(elements(bench, "plain", "count")), elements(bench, "plain", "reached")) == (12, [1, 1, 1])
    assert subtasks(bench, "plain") == {"counting": 3, "keyed": 2}
    operator = head(bench, "plain").operators["counting"]
    assert (operator.key, operator.shards, operator.parallelism) == ((), ((), (), ()), 3)
    # A rescale of the job leaves what the pipeline decides.
    Job(str(bench.folder / "root"), "plain").rescale(1)
    assert subtasks(bench, "plain") == {"counting": 3, "keyed": 1}
    feed(bench, range(12, 14))
    bench.run(counting_job(bench, "plain", None), parallelism=4)
    assert {row["seen"] for row in out.batches[-1][1]} == {3}, "a run begins with the whole union"
    assert subtasks(bench, "plain") == {"counting": 4, "keyed": 4}
    assert sum(elements(bench, "plain", "count")) == 14
    assert elements(bench, "plain", "reached") == [1, 1, 1, 0], "and no subtask records another's part"


@pytest.mark.slow
def test_a_run_begins_with_the_whole_union_also_if_it_first_notes_where_a_new_source_begins(
    bench: Workbench,
) -> None:
    bench.rows("rates", [{"sku": "tea", "factor": 10.0}])
    feed(bench, range(6))
    bench.run(counting_job(bench, "more", 3), parallelism=1)
    for users in (range(6, 9), range(9, 12)):
        bench.rows("more", [Order(user, "tea", float(user), at(user)) for user in users])
    bench.run(counting_job(bench, "more", 3, more=True), parallelism=1)
    seen = [{row["seen"] for row in rows} for _, rows in sf.memory(f"{bench.folder.name}-more").batches]
    assert seen == [{0}, {3}, {1}]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["native", "canonical"])
def test_savepoints_of_both_kinds_take_its_state_along(bench: Workbench, kind: Any) -> None:
    bench.rows("rates", [{"sku": "tea", "factor": 10.0}])
    feed(bench, range(6))
    bench.run(counting_job(bench, "saved", 2), parallelism=1)
    given, root = bench.options(), str(bench.folder / "root")
    origin = Job(root, "saved").savepoint(kind, options=given, to=str(bench.folder / f"to-{kind}")).url
    fork = counting_job(bench, "fork", 2)
    Job(root, "fork").restore(origin, fork, options=given, parallelism=1).apply()
    feed(bench, range(6, 8))
    bench.run(fork, parallelism=1)
    assert sum(elements(bench, "fork", "count")) == 8
    assert {row["seen"] for row in sf.memory(f"{bench.folder.name}-fork").batches[-1][1]} == {2}
    assert subtasks(bench, "fork") == {"counting": 2, "keyed": 1}
