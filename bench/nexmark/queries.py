"""The questions of Nexmark as pipelines. Each takes the folder that `events.write` has filled, and a table to write to.

Those that join bids with auctions (q3, q4, q6, q9, q20) are not here, nor is q12, which cuts windows by the clock of the
machine: what comes out of it is not the same twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import stateflow as sf
from bench.nexmark.events import TABLES


def source(flow: sf.Flow, kind: str, input: str) -> sf.Stream:
    files = sf.files(f"{input}/{kind}", "parquet", per_batch=1)
    return flow.source(kind, files, TABLES[kind], event_time="ts", watermark="4 seconds")


def bids(flow: sf.Flow, input: str, columns: str = "", type: str = "") -> sf.Stream:
    """The bids, with more columns that are computed."""
    rows = source(flow, "bid", input)
    return (
        rows.transform(lambda frame: frame.selectExpr("*", columns), f"{TABLES['bid']}, {type}")
        if columns
        else rows
    )


@sf.pipeline("q5")
def q5(flow: sf.Flow, *, input: str, output: str) -> None:
    """Hot items: which auction had the most bids in the last ten seconds, every two seconds."""
    counts = (
        bids(flow, input)
        .key_by("auction")
        .window(sf.hopping("10 seconds", "2 seconds"))
        .aggregate("counts", "auction long, window_start timestamp, n long", n=sf.count())
    )
    hot = counts.key_by("window_start").top("hot", 1, by=("-n", "auction"), ttl="1 hour")
    hot.upsert("out", sf.delta(output))


class Highest(sf.WindowProcess[int, Any, Any]):
    def process(
        self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext
    ) -> Iterator[Any]:
        most = max(row.price for row in rows)
        yield from ((window.start, row.auction, row.bidder, row.price) for row in rows if row.price == most)


@sf.pipeline("q7")
def q7(flow: sf.Flow, *, input: str, output: str) -> None:
    """Highest bid: all bids with the highest price of every ten seconds."""
    rows = bids(flow, input, "0L as every", "every long")
    highest = rows.key_by("every").window(sf.tumbling("10 seconds")).process(
        "highest", Highest, output="window_start timestamp, auction long, bidder long, price long"
    )  # fmt: skip
    highest.append("out", sf.delta(output))


class NewSellers(sf.WindowProcess[int, Any, Any]):
    def process(
        self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext
    ) -> Iterator[Any]:
        names = [row.name for row in rows if row.name is not None]
        if names and len(names) < len(rows):
            yield key, names[0], window.start


@sf.pipeline("q8")
def q8(flow: sf.Flow, *, input: str, output: str) -> None:
    """New users: who registered and put up an auction within the same ten seconds."""
    columns = "id long, name string, ts timestamp"
    persons = source(flow, "person", input).transform(lambda frame: frame.select("id", "name", "ts"), columns)
    sellers = source(flow, "auction", input).transform(
        lambda frame: frame.selectExpr("seller as id", "cast(null as string) as name", "ts"), columns
    )
    both = persons.union(sellers).key_by("id").window(sf.tumbling("10 seconds"))
    new = both.process("new", NewSellers, output="id long, name string, window_start timestamp")
    new.append("out", sf.delta(output))


@sf.pipeline("q11")
def q11(flow: sf.Flow, *, input: str, output: str) -> None:
    """User sessions: how many bids each bidder makes while no more than ten seconds pass between two of them."""
    bounds = "bidder long, window_start timestamp, window_end timestamp, n long"
    sessions = bids(flow, input).key_by("bidder").window(sf.session("10 seconds"))
    sessions.aggregate("sessions", bounds, n=sf.count()).append("out", sf.delta(output))


RANKS = {
    "low": "price < 10000",
    "middle": "price >= 10000 AND price < 1000000",
    "high": "price >= 1000000",
}


def by_rank(column: str = "") -> dict[str, Any]:
    """Bids, or different values of a column, of all prices and of each rank of them."""
    conditions = {"all": "", **RANKS}
    if column:
        return {
            f"{column}s_{rank}": sf.count_distinct(column, where=where) for rank, where in conditions.items()
        }
    return {f"bids_{rank}": sf.count(where=where) for rank, where in conditions.items()}


def longs(*groups: dict[str, Any]) -> str:
    return ", ".join(f"{name} long" for group in groups for name in group)


@sf.pipeline("q15")
def q15(flow: sf.Flow, *, input: str, output: str) -> None:
    """Bidding statistics of every day: bids, bidders and auctions, by rank of price."""
    parts = by_rank(), by_rank("bidder"), by_rank("auction")
    rows = bids(flow, input, "cast(ts as date) as day", "day date").key_by("day")
    days = rows.aggregate("days", f"day date, {longs(*parts)}", **parts[0], **parts[1], **parts[2])
    days.upsert("out", sf.delta(output))


@sf.pipeline("q16")
def q16(flow: sf.Flow, *, input: str, output: str) -> None:
    """The same for every channel and day."""
    parts = by_rank(), by_rank("bidder"), by_rank("auction")
    rows = bids(flow, input, "cast(ts as date) as day", "day date").key_by("channel", "day")
    channels = rows.aggregate(
        "channels", f"channel string, day date, {longs(*parts)}", **parts[0], **parts[1], **parts[2]
    )
    channels.upsert("out", sf.delta(output))


@sf.pipeline("q17")
def q17(flow: sf.Flow, *, input: str, output: str) -> None:
    """Statistics of every auction and day."""
    prices: dict[str, Any] = {"least": sf.min("price"), "most": sf.max("price"), "total": sf.sum("price")}
    columns = f"auction long, day date, {longs(by_rank(), prices)}, average double"
    rows = bids(flow, input, "cast(ts as date) as day", "day date").key_by("auction", "day")
    auctions = rows.aggregate("auctions", columns, **by_rank(), **prices, average=sf.mean("price"))
    auctions.upsert("out", sf.delta(output))


@sf.pipeline("q18")
def q18(flow: sf.Flow, *, input: str, output: str) -> None:
    """The last bid of every bidder on every auction."""
    last = bids(flow, input).key_by("bidder", "auction", order_by="ts").latest("last")
    last.upsert("out", sf.delta(output))


@sf.pipeline("q19")
def q19(flow: sf.Flow, *, input: str, output: str) -> None:
    """The ten highest bids of every auction."""
    bids(flow, input).key_by("auction").top("highest", 10, by="-price").upsert("out", sf.delta(output))


QUERIES = {pipeline.name: pipeline for pipeline in (q5, q7, q8, q11, q15, q16, q17, q18, q19)}
