from dataclasses import dataclass

import stateflow as sf


@dataclass
class Order:
    id: int
    user: str
    amount: int


@dataclass
class Total:
    user: str
    amount: int


@sf.pipeline("iceberg")
def iceberg(flow: sf.Flow, *, catalog: str = "lake") -> None:
    orders = flow.source(
        "orders", sf.iceberg("shop.orders", catalog=catalog), Order
    )
    by_user = sf.iceberg(
        "shop.by_user", catalog=catalog, create=True, partition_by="user"
    )
    orders.append("by-user", by_user)
    totals = orders.key_by("user").aggregate(
        "totals", Total, amount=sf.sum("amount")
    )
    newest = sf.iceberg("shop.totals", catalog=catalog, create=True)
    totals.upsert("newest", newest)
