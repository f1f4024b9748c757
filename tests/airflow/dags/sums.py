"""Sums of what another job has put out: a row that is read twice, or that is undone and still counted, shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Total:
    user: int
    orders: int
    total: float


@dataclass
class Sum:
    user: int
    rows: int
    sum: float


class Adding(sf.KeyedProcess[int, Total, Sum]):
    rows = sf.ValueState(int, default=0)
    sum = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Iterator[Total], ctx: sf.Context) -> Iterator[Sum]:
        for row in rows:
            self.rows.value += 1
            self.sum.value += row.total
        yield Sum(key, self.rows.value, self.sum.value)


@sf.pipeline("sums")
def sums(flow: sf.Flow, *, input: str, output: str) -> None:
    totals = flow.source("totals", sf.delta(input), Total)
    totals.key_by("user", order_by="orders").process("adding", Adding).append("sums", sf.delta(output))
