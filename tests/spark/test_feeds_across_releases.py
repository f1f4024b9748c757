"""A feed whose state has another name, another type or another number in a later release: its rows stay those of the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest

import stateflow as sf
from stateflow.jobs.job import Job
from tests.spark.pipelines import ORDER, Order, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")


class Releases:
    """A job whose operator adds 1 to a state of the orders' users, and the table of a feed."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, self.batches = bench, 0
        sf.memory("told").clear()

    def release(self, fed: str = "", *, step: Any = None, **states: Any) -> sf.Pipeline:
        """One with these states, of which one has a feed."""
        bench = self.bench

        def process(self: Any, key: int, rows: Any, ctx: Any) -> Any:
            for row in rows:
                for name in states:
                    state = getattr(self, name)
                    if row.sku in (name, "any"):
                        state.value += type(state.value)(1)
                    elif row.sku == "again":
                        state.value = state.value
            yield from ()

        operator = type("Counts", (sf.KeyedProcess,), {**states, "process": process})

        @sf.pipeline("releases")
        def releases(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            rows.key_by("user").process("counts", operator, output="user long")
            if fed:
                feed = flow.state_changes("counts", state=fed)
                (feed if step is None else feed.transform(step)).collect("told", sf.memory("told"))

        return releases

    def batch(self, pipeline: sf.Pipeline, sku: str, *users: int) -> int:
        self.batches += 1
        self.bench.rows("orders", [Order(user, sku, 1.0, at(self.batches)) for user in users])
        report = self.bench.run(pipeline, retained_checkpoints=50)
        assert not [each for each in report.warnings if "the feed of" in each]
        return self.bench.records("releases")[-1].slot

    @property
    def job(self) -> Job:
        return Job(str(self.bench.folder / "root"), "releases")

    @property
    def options(self) -> Any:
        return self.bench.options()

    def replay(self, pipeline: sf.Pipeline, since: int, until: int) -> Any:
        return self.job.replay(pipeline, since, until, options=self.options)

    def restore(self, pipeline: sf.Pipeline, slot: int) -> None:
        """Leaves the table alone; what was read since is not there any more."""
        plan = self.job.restore(
            f"checkpoint:{slot}", pipeline, options=self.options, allow_non_restored_state=True
        )
        plan.apply()
        for path in sorted((self.bench.folder / "orders").iterdir())[1:]:
            path.unlink()

    @property
    def told(self) -> Mapping[int, Any]:
        """The feed's rows, applied in order to nothing."""
        held: dict[int, Any] = {}
        for row in sorted(sf.memory("told").rows, key=lambda row: row["slot"]):
            assert held.get(row["user"]) == row["before"], sf.memory("told").rows
            held.pop(row["user"], None)
            if row["kind"] != "delete":
                held[row["user"]] = row["after"]
        return held


@pytest.fixture
def job(bench: Workbench) -> Releases:
    return Releases(bench)


def number(**options: Any) -> Any:
    return sf.ValueState(float, default=0.0, **options)


@pytest.mark.slow
def test_a_release_from_before_a_state_had_another_name_goes_on(job: Releases) -> None:
    old, new = job.release("total", total=number()), job.release("sum", sum=number(aliases=["total"]))
    early = job.batch(old, "total", 1, 2)
    job.batch(old, "total", 1)
    job.batch(new, "sum", 1, 3)
    assert job.told == {1: 3.0, 2: 1.0, 3: 1.0}
    job.restore(old, early)
    job.batch(old, "total", 9)
    assert job.told == {1: 1.0, 2: 1.0, 9: 1.0}


def test_a_value_stored_again_as_a_later_type_while_the_feed_was_away_is_not_read_as_the_former(
    job: Releases,
) -> None:
    counts = sf.ValueState(int, default=0)
    job.batch(job.release("total", total=counts), "total", 1, 2, 3)
    job.batch(job.release(total=number()), "again", 1)
    job.batch(job.release("total", total=number()), "total", 2)
    assert job.told == {1: 1, 2: 2.0, 3: 1}


@pytest.mark.slow
def test_a_state_that_got_the_number_of_another_one_is_told_by_its_name(job: Releases) -> None:
    early = job.batch(job.release(a=number()), "a", 1, 2)
    job.batch(job.release("x", a=number(), x=number()), "x", 1, 2, 3)
    job.restore(job.release(a=number()), early)
    job.batch(job.release(a=number(), y=number()), "y", 2, 5)
    job.batch(job.release(a=number(), y=number(), x=number()), "x", 6)
    job.batch(job.release("x", a=number(), y=number(), x=number()), "x", 7)
    assert job.told == {6: 1.0, 7: 1.0}, "2 has the bytes in y that it had in x"


@pytest.mark.slow
def test_a_state_that_has_another_name_and_another_number_is_told_by_its_alias(job: Releases) -> None:
    early = job.batch(job.release(a=number()), "a", 1, 2)
    job.batch(job.release("total", a=number(), total=number()), "total", 1, 2, 3)
    job.restore(job.release(a=number()), early)
    job.batch(job.release(a=number(), y=number()), "y", 2, 5)
    today = {"a": number(), "y": number(), "sum": number(aliases=["total"])}
    job.batch(job.release(**today), "sum", 2, 6)
    job.batch(job.release("sum", **today), "sum", 7)
    assert job.told == {2: 1.0, 6: 1.0, 7: 1.0}


@pytest.mark.slow
def test_a_key_whose_value_only_a_function_reads_is_told_when_it_goes(job: Releases) -> None:
    def text(value: float) -> str:
        return f"{value:g}"

    marks = sf.ValueState(str, default="", migrate=text)
    old, new = job.release("total", total=number()), job.release("total", total=marks)
    early = job.batch(old, "total", 1)
    job.batch(old, "total", 4)
    job.batch(new, "total", 1)
    job.restore(new, early)
    job.batch(new, "total", 1)
    gone = [row for row in sf.memory("told").rows if row["kind"] == "delete"]
    assert [(row["user"], row["before"]) for row in gone] == [(4, "1")]


@pytest.mark.slow
def test_a_decimal_that_a_function_makes_a_float_of_is_told_again_only_when_it_changes(job: Releases) -> None:
    def to_float(value: Decimal) -> float:
        return float(value)

    earlier = sf.ValueState(Decimal, default=Decimal("0.14"))
    job.batch(job.release("total", total=earlier), "total", 1, 4)
    slot = job.batch(job.release("total", total=number(migrate=to_float)), "total", 1)
    rows = [row for row in sf.memory("told").rows if row["slot"] == slot]
    assert [(row["user"], row["before"], row["after"]) for row in rows] == [(1, 1.14, 1.14 + 1)]


@pytest.mark.slow
def test_a_replay_over_a_rename_compares_the_feeds_rows_as_those_of_the_state(job: Releases) -> None:
    old, new = job.release("total", total=number()), job.release("sum", sum=number(aliases=["total"]))
    job.batch(old, "any", 1, 2)
    second = job.batch(old, "any", 1)
    third = job.batch(old, "any", 2)
    last = job.batch(new, "any", 3)
    for code, since, until, now, then in (
        (new, second, third, "sum", "total"),
        (old, last, last, "total", "sum"),
    ):
        report = job.replay(code, since, until)
        assert report.is_same, report.document()
        where = f"2 checkpoints, {second} to {third}" if since < until else f"checkpoint {last}"
        compared = f"its feed's rows for sink 'told' are compared as if column 'state' had said {now!r}"
        assert report.notes == [
            f"state {now!r} of operator 'counts' was called {then!r} in {where}: {compared}"
        ]
    assert job.replay(new, last, last).notes == []


@pytest.mark.slow
def test_a_replay_says_which_rows_a_renamed_state_makes_differ_by_its_name(job: Releases) -> None:
    def named(frame: Any) -> Any:
        return frame.withColumnRenamed("state", "whose")

    states = {"total": number()}, {"sum": number(aliases=["total"])}
    old, new = (job.release(*each, step=named, **each) for each in states)
    job.batch(old, "any", 1, 2)
    slot = job.batch(old, "any", 1)
    report = job.replay(new, slot, slot)
    (sink,) = report.document()["sinks"]
    names = [(c["before"] or c["after"])["whose"] for c in sink["changes"]]
    assert sorted(names) == ["sum", "total"]
    differ = "rows for sink 'told' into which a step puts that name of its feed differ by it"
    assert report.notes == [
        f"state 'sum' of operator 'counts' was called 'total' in checkpoint {slot}: {differ}"
    ]


@dataclass
class Spent:
    amount: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return replace(self, amount=self.amount + other.amount)


@dataclass
class SpentOften(Spent):
    orders: int = 7


@pytest.mark.slow
def test_a_replay_goes_through_the_batch_that_tells_of_a_changed_type(job: Releases) -> None:
    def declared(kind: Any) -> sf.Pipeline:
        return job.release("total", total=sf.ValueState(kind, default=kind))

    old, new = declared(Spent), declared(SpentOften)
    job.batch(old, "total", 0, 1, 2)
    second = job.batch(old, "total", 0)
    evolved = job.batch(new, "total", 1)
    last = job.batch(new, "total", 2)
    kinds = [(row["slot"], row["kind"]) for row in sf.memory("told").rows if row["slot"] >= evolved]
    assert sorted(kinds) == [(evolved, "evolve"), (evolved, "evolve"), (evolved, "put"), (last, "put")]
    for code, since, until in ((new, evolved, last), (old, second, second)):
        report = job.replay(code, since, until)
        assert report.is_same, report.document()
    # Code of today over a batch from before it tells of the change there.
    report = job.replay(new, second, last)
    sink = report.document()["sinks"][0]
    assert (sink["gone"], sink["new"], sink["different"]) == (2, 2, 1)
    assert {(each["after"] or each["before"])["kind"] for each in sink["changes"]} == {"evolve", "put"}
    [put] = [each for each in sink["changes"] if each["kind"] == "different"]
    assert put["before"]["after"] == {"amount": 2.0}
    assert put["after"]["after"] == {"amount": 2.0, "orders": 7}, "today's code says a field more of it"
    assert [each.partition(" ")[0] for each in sink["retyped"]] == ["before", "after"]
