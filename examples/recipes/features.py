from collections.abc import Iterator
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Payment:
    user: int
    amount: float


@dataclass
class Spending:
    payments: int
    total: float


class Spent(sf.KeyedProcess[int, Payment, Payment]):
    spending = sf.ValueState(Spending)

    def process(
        self, key: int, rows: Iterator[Payment], ctx: sf.Context
    ) -> None:
        known = self.spending.value or Spending(0, 0.0)
        for row in rows:
            known = Spending(known.payments + 1, known.total + row.amount)
        self.spending.value = known


@sf.pipeline("features")
def features(flow: sf.Flow, *, input: str, output: str) -> None:
    rows = flow.source("payments", sf.files(input, "json"), Payment)
    rows.key_by("user").process("spent", Spent)
    flow.state_changes("spent").append("changes", sf.delta(output))


TRAINING = """
select label.*, max_by(change.after, change.slot) as known
from labels as label left join changes as change
on change.user = label.user and change.time + interval {delay} <= label.ts
group by all
"""
