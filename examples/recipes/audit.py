from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import stateflow as sf


@dataclass
class Request:
    account: int
    limit: float
    owner: str


class Accounts(sf.KeyedProcess[int, Request, Request]):
    limit = sf.ValueState(float)
    owner = sf.ValueState(str)

    def process(
        self, key: int, rows: Iterator[Request], ctx: sf.Context
    ) -> None:
        for row in rows:
            self.limit.value, self.owner.value = row.limit, row.owner


def as_text(rows: Any) -> Any:
    texts = [f"string({name}) as {name}" for name in ("before", "after")]
    return rows.selectExpr("account", "state", "kind", *texts, "slot", "time")


@sf.pipeline("audit")
def audit(flow: sf.Flow, *, input: str, output: str) -> None:
    rows = flow.source("requests", sf.files(input, "json"), Request)
    rows.key_by("account").process("accounts", Accounts)
    limits, owners = (
        flow.state_changes("accounts", state=state).transform(as_text)
        for state in ("limit", "owner")
    )
    limits.union(owners).append("audit", sf.delta(output))
