"""A job goes back together with the jobs that have read what this undoes, also when the process dies in between."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import DisagreementError, UsageError
from stateflow.jobs.job import Job
from stateflow.restore.planned import RestorePlan
from stateflow.restore.together import RestoreTogether
from tests.refusals.refusal import lacking, refused
from tests.spark.pipelines import ORDER, Order, Sum, Total, Workbench, at
from tests.spark.sink_places import contents

pytestmark = pytest.mark.usefixtures("own_classes")


class Again(sf.KeyedProcess[int, Total, Total]):
    """Sums what it reads, so that a row that is counted twice shows."""

    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += row.total
        yield Total(key, self.total.value)


def pipelines(bench: Workbench) -> dict[str, sf.Pipeline]:
    def place(name: str) -> Any:
        return sf.delta(str(bench.folder / f"{name}-out"))

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        rows.key_by("user", order_by="ts").process("sum", Sum).append("out", place("orders"))

    def summing(name: str, of: str) -> sf.Pipeline:
        @sf.pipeline(name)
        def made(flow: sf.Flow) -> None:
            rows = flow.source("in", place(of), Total)
            rows.key_by("user", order_by="total").process("sum", Again).append("out", place(name))

        return made

    return {"orders": orders, "daily": summing("daily", "orders"), "weekly": summing("weekly", "daily")}


@pytest.mark.slow
def test_readers_go_back_first_and_a_crash_in_between_is_finished_by_the_same_again(
    spark: SparkSession, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = pipelines(bench)
    root = str(bench.folder / "root")
    options = load(
        code={
            "checkpoint_dir": root,
            "cache_dir": str(bench.folder / "cache"),
            "scratch_dir": str(bench.folder / "scratch"),
            "local_fsync": False,
            "retained_checkpoints": 20,
        },
        env={},
        folder=bench.folder,
    )

    def run_all() -> None:
        for flow in flows.values():
            bench.run(flow, retained_checkpoints=20)

    def rows() -> list[list[Any]]:
        return [contents(spark, bench.folder / f"{name}-out") for name in flows]

    bench.rows("orders", [Order(1, "a", 1.0, at(1))])
    run_all()
    sound, slot = rows(), bench.records("orders")[-1].slot
    heads = {name: bench.records(name)[-1].slot for name in flows}
    bench.rows("orders", [Order(1, "a", 2.0, at(2))])
    run_all()
    forward = rows()

    job = Job(root, "orders")

    def planned(approved: str | None = None) -> RestoreTogether:
        readers = {name: flows[name] for name in ("daily", "weekly")}
        return job.restore_with_readers(
            f"checkpoint:{slot}", flows["orders"], readers, options=options, approved=approved
        )

    with refused(UsageError, "'daily', 'weekly' have read", "--reader daily=FILE --reader weekly=FILE"):
        job.restore_with_readers(f"checkpoint:{slot}", flows["orders"], {}, options=options)
    plan = planned()
    assert [(each.request.job.name, each.request.origin.record.slot) for each in plan.plans] == [
        ("weekly", heads["weekly"]),
        ("daily", heads["daily"]),
        ("orders", slot),
    ]
    assert f"job daily has read {bench.folder}/orders-out of job orders" in str(plan)
    digest = plan.digest

    applied = RestorePlan.apply

    def dies(self: RestorePlan, *args: Any) -> Any:
        if self.request.job.name == "daily":
            raise KeyboardInterrupt
        return applied(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RestorePlan, "apply", dies)
        with pytest.raises(KeyboardInterrupt):
            plan.apply()
    again = planned(approved=digest)
    assert [each.request.job.name for each in again.plans] == ["daily", "orders"]
    assert again.digest == digest, "what was approved still holds"
    with refused(UsageError, "not the one that was approved"):
        planned(approved=planned().digest.translate(str.maketrans("0123", "4567"))).apply()
    again.apply()
    assert rows() == sound
    assert planned().first.readers == ()
    run_all()
    assert rows() == forward

    # Without the readers the first rewind leaves them with what was undone, and they say so.
    job.restore(f"checkpoint:{slot}", flows["orders"], options=options, rewind_sinks=True).apply()
    with refused(DisagreementError, "has read version 4 of"):
        bench.run(flows["daily"])
    # Then the same command takes them back all the same.
    late = planned()
    assert [each.request.job.name for each in late.plans] == ["weekly", "daily", "orders"]
    late.apply()
    assert rows() == sound


@pytest.mark.slow
def test_a_reader_of_the_changes_is_told_to_stay_and_is_right_by_its_next_run(
    spark: SparkSession, bench: Workbench
) -> None:
    table = str(bench.folder / "orders-out")

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        sums = rows.key_by("user", order_by="ts").process("sum", Sum)
        sums.append("out", sf.delta(table, options={"delta.enableChangeDataFeed": "true"}))

    @sf.pipeline("daily")
    def daily(flow: sf.Flow) -> None:
        columns = "user long, total double, _change_type string"
        rows = flow.source("in", sf.delta(table, changes=True), columns)
        signed = "if(_change_type = 'insert', total, -total) as total"
        totals = rows.transform(lambda frame: frame.selectExpr("user", signed), type=Total)
        totals.key_by("user", order_by="total").process("sum", Again).append(
            "out", sf.delta(str(bench.folder / "daily-out"))
        )

    slots = []
    for batch in (1, 2):
        bench.rows("orders", [Order(1, "a", float(batch), at(batch))])
        bench.run(orders, retained_checkpoints=20)
        bench.run(daily, retained_checkpoints=20)
        slots.append(bench.records("orders")[-1].slot)
    plan = Job(str(bench.folder / "root"), "orders").restore_with_readers(
        f"checkpoint:{slots[0]}", orders, {}, options=bench.options(retained_checkpoints=20)
    )
    assert [each.request.job.name for each in plan.plans] == ["orders"]
    [sentence] = [each for each in plan.first.warnings if "job daily" in each]
    assert lacking(sentence, ("as changes", "source in", "stays where it is")) == []
    plan.apply()
    assert bench.run(daily, retained_checkpoints=20).warnings == ()
    # What it read first, then with the second row, which the table has no more.
    assert contents(spark, bench.folder / "daily-out", "total") == [1.0, 1.0, 4.0]
