from collections.abc import Iterator
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Customer:
    id: int
    tier: str
    updated: int


class Tiers(sf.KeyedProcess[int, Customer, Customer]):
    tier = sf.ValueState(str)

    def process(
        self, key: int, rows: Iterator[Customer], ctx: sf.Context
    ) -> None:
        for row in rows:
            self.tier.value = row.tier


@sf.pipeline("versions")
def versions(flow: sf.Flow, *, input: str, output: str) -> None:
    rows = flow.source("customers", sf.files(input, "json"), Customer)
    rows.key_by("id", order_by="updated").process("tiers", Tiers)
    flow.state_changes("tiers").append("changes", sf.delta(output))


VALID = """
select id, after as tier, time as valid_from, valid_to from (
  select *, lead(time) over (partition by id order by slot) as valid_to
  from changes
) where kind not in ('delete', 'expire')
  and (valid_to is null or valid_to > time)
"""
