from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import stateflow as sf

Amount = Annotated[Decimal, "decimal(18,2)"]
Sum = Annotated[Decimal | None, "decimal(28,2)"]


@dataclass
class Change:
    shop: str
    region: str
    total: Amount
    _change_type: str


@dataclass
class Signed:
    region: str
    total: Amount
    shops: int


@dataclass
class Region:
    region: str
    total: Sum
    shops: int


def signed(changes: Any) -> Any:
    """A row as it is now counts, and what it was before is taken off."""
    sign = "if(_change_type in ('insert', 'update_postimage'), 1, -1)"
    return changes.selectExpr(
        "region",
        f"cast(total * {sign} as decimal(18,2)) as total",
        f"cast({sign} as bigint) as shops",
    )


@sf.pipeline("changes")
def changes(flow: sf.Flow, *, input: str, output: str) -> None:
    feed = sf.delta(input, changes=True)
    rows = flow.source("shops", feed, Change).transform(signed, type=Signed)
    regions = rows.key_by("region").aggregate(
        "regions", Region, total=sf.sum("total"), shops=sf.sum("shops")
    )
    regions.upsert("regions", sf.delta(output))  # by region
