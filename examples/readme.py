from collections.abc import Iterator
from typing import Any, NamedTuple

import stateflow as sf


class Balance(NamedTuple):
    account: str
    balance: float


class RunningBalance(sf.KeyedProcess[str, Any, Balance]):  # key, row in, row out
    balance = sf.ValueState(float, default=0.0)

    def process(self, key: str, rows: Iterator[Any], ctx: sf.Context) -> Iterator[Balance]:
        self.balance.value += sum(row.amount for row in rows)
        yield Balance(key, self.balance.value)


@sf.pipeline("payments")
def payments(flow: sf.Flow, *, input: str, output: str) -> None:
    made = flow.source(
        "made", lambda spark: spark.readStream.json(input, schema="account string, amount double")
    )
    made.key_by("account").process("balance", RunningBalance).append("balances", sf.delta(output))
