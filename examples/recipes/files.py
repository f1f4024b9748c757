from dataclasses import dataclass
from datetime import date

import stateflow as sf


@dataclass
class Sale:
    shop: str
    day: date
    amount: float


@dataclass
class Total:
    shop: str
    sales: int
    total: float


@sf.pipeline("files")
def files(flow: sf.Flow, *, input: str, output: str) -> None:
    sales = flow.source("sales", sf.files(input, "csv", per_batch=100), Sale)
    totals = sales.key_by("shop").aggregate(
        "totals", Total, sales=sf.count(), total=sf.sum("amount")
    )
    totals.upsert("shops", sf.delta(output))
