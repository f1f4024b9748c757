from collections.abc import Iterator
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Sale:
    category: str
    product: str
    amount: float


@dataclass
class Place:
    category: str
    rank: int
    product: str
    revenue: float


class Best(sf.KeyedProcess[str, Sale, Place]):
    revenue = sf.MapState(str, float)

    def process(self, category: str, sales: Iterator[Sale], ctx: sf.Context) -> Iterator[Place]:
        for sale in sales:
            self.revenue[sale.product] = self.revenue.get(sale.product, 0.0) + sale.amount
        best = sorted(self.revenue.items(), key=lambda item: (-item[1], item[0]))
        for rank, (product, revenue) in enumerate(best[:3], 1):
            yield Place(category, rank, product, revenue)


@sf.pipeline("top")
def top(flow: sf.Flow, *, input: str, output: str) -> None:
    sales = flow.source("sales", sf.files(input, "json"), Sale).key_by("category")
    sales.process("best", Best).upsert("places", sf.delta(output), keys=["category", "rank"])
