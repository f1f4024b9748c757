"""A key's state before a batch is what the batch saw, whatever stands before it: a restore, a rescale, an erasure, an evolved type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import Options
from stateflow.debugging.trial import Trial
from stateflow.errors import NotFoundError, UsageError
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench

pytestmark = pytest.mark.system
USERS = range(4)


@dataclass
class Pay:
    user: int
    amount: int


class Adding(sf.KeyedProcess[int, Pay, Any]):
    total: Any
    seen = sf.ListState(int)
    per = sf.MapState(int, int)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += row.amount
            self.seen.add(row.amount)
            self.per[row.amount % 2] = int(self.total.value)
        yield {"user": key}


class Wallet(Adding):
    total = sf.ValueState(int, default=0)


class Wider(Adding):
    """Its totals are floats."""

    total = sf.ValueState(float, default=0.0)


def unheard(frame: Any, delivery: Any) -> None:
    """A sink of a test that looks at state."""


def after(before: dict[str, Any], amounts: list[int]) -> dict[str, Any]:
    """What the operator keeps of a key."""
    if not amounts:
        return before
    total, per = before.get("total", 0), dict(before.get("per", {}))
    for amount in amounts:
        total += amount
        per[str(amount % 2)] = total
    return {"total": total, "seen": [*before.get("seen", []), *amounts], "per": per}


Model = dict[int, dict[str, Any]]


@dataclass
class Purse:
    """A job, and by slot what each user had before its batch, in plain Python."""

    bench: Workbench
    process: type[Adding] = Wallet
    model: Model = field(default_factory=lambda: {user: {} for user in USERS})
    before: dict[int, Model] = field(default_factory=dict)
    given: list[dict[int, list[int]]] = field(default_factory=list)
    """The rows of each file that was read."""
    number: int = 0

    def pipeline(self, process: type[Adding] | None = None) -> sf.Pipeline:
        kind = process or self.process

        @sf.pipeline("purse")
        def purse(flow: sf.Flow) -> None:
            rows = flow.source("pays", self.bench.source("pays", "user int, amount int"), Pay)
            paid = rows.key_by("user", order_by="amount").process("wallet", kind, output="user long")
            paid.for_each_batch("out", unheard)

        return purse

    @property
    def job(self) -> Job:
        return Job(str(self.bench.folder / "root"), "purse")

    def options(self) -> Options:
        return self.bench.options()

    def file(self, *users: int) -> dict[int, list[int]]:
        self.number += 1
        rows = {user: [10 * self.number + user, 10 * self.number + user + 5] for user in users}
        self.bench.rows("pays", [Pay(user, amount) for user, some in rows.items() for amount in some])
        return rows

    def run(self, *files: dict[int, list[int]]) -> None:
        """A run over these files, one a batch."""
        known = {record.slot for record in self.bench.records("purse")}
        self.bench.run(self.pipeline(), retained_checkpoints=20)
        made = [
            record.slot
            for record in self.bench.records("purse")
            if record.slot not in known and "positions" not in record.statistics
        ]
        assert len(made) == len(files)
        for slot, rows in zip(made, files, strict=True):
            self.before[slot] = self.model
            self.model = {user: after(self.model[user], rows.get(user, [])) for user in USERS}

    def debug(self, user: int, slot: int) -> Trial:
        found = self.job.debug(self.pipeline(), "wallet", str(user), slot, options=self.options())
        assert found is not None
        return found

    def agrees(self, slot: int, *users: int) -> None:
        for user in users:
            trial = self.debug(user, slot)
            assert trial.before == self.before[slot][user], (slot, user)
            assert trial.is_same, trial.document()


@pytest.fixture(scope="module")
def purse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Purse:
    from stateflow.spark.session.shipping import by_value
    from tests.debugging import test_debug_across_edits
    from tests.spark import pipelines

    by_value([pipelines, test_debug_across_edits])
    return Purse(Workbench(spark, tmp_path_factory.mktemp("edits")))


def test_what_a_batch_saw_is_known_across_every_edit(purse: Purse) -> None:
    first, second = purse.file(0, 1, 2), purse.file(0, 1)
    purse.run(first, second)
    one, two = purse.before
    kept = purse.model
    third = purse.file(0, 1, 3)
    purse.run(third)
    (three,) = purse.before.keys() - {one, two}
    purse.agrees(one, 2)
    purse.agrees(three, 3)

    rescaled = purse.job.rescale(3)
    fourth = purse.file(1, 2, 3)
    purse.run(fourth)
    four = max(purse.before)
    purse.agrees(four, 2)
    with pytest.raises(UsageError, match="is a rescale, which no code computes"):
        purse.debug(1, rescaled.slot)

    purse.job.restore(f"checkpoint:{two}", purse.pipeline(), options=purse.options()).apply()
    purse.model = kept
    purse.run(third, fourth)
    again, last = sorted(purse.before)[-2:]
    purse.agrees(again, 1)
    purse.agrees(last, 2)
    purse.agrees(three, 1)

    purse.process = Wider
    purse.run(purse.file(0, 2))
    wide = max(purse.before)
    assert isinstance(purse.debug(0, wide).after["total"], float)
    purse.agrees(wide, 0, 2)

    plan_erase(purse.job, "2", purse.options()).apply(purse.job.owner("erase"))
    purse.model = {**purse.model, 2: {}}
    purse.run(purse.file(1), purse.file(1, 2))
    behind, erased = sorted(purse.before)[-2:]
    assert purse.before[erased][2] == {}
    purse.agrees(erased, 1, 2)
    # The record of the erasure goes with the next checkpoint.
    with refused(NotFoundError, "no longer kept", "the first that can is"):
        purse.debug(1, behind)
    with pytest.raises(NotFoundError, match=rf"has no checkpoint {wide} \(any more\)"):
        purse.debug(1, wide)
