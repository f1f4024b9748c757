from dataclasses import dataclass
from datetime import datetime

import stateflow as sf


@dataclass
class Offer:
    product: str
    shop: str
    price: float
    ts: datetime


@sf.pipeline("top")
def top(flow: sf.Flow, *, input: str, output: str) -> None:
    offers = flow.source("offers", sf.files(input, "json"), Offer)
    cheapest = offers.key_by("product", order_by="ts").top(
        "cheapest", 3, by="price", per="shop", ttl="90 days"
    )
    # by product and shop; what drops out is deleted
    cheapest.upsert("cheapest", sf.delta(output))
