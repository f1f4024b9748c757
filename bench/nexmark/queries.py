"""The questions of Nexmark as pipelines. Each takes the folder that `events.write` has filled, and a table to write to.

Where a published question keeps its inputs for ever (q3, q20), these let go of rows after a day. q6 counts the auctions that have
closed, in the order in which they did.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import stateflow as sf
from bench.nexmark.events import TABLES


def source(flow: sf.Flow, kind: str, input: str, columns: str = "") -> sf.Stream:
    """The events of a kind. Columns that a source does not name are not read."""
    files = sf.files(f"{input}/{kind}", "parquet", per_batch=1)
    return flow.source(kind, files, columns or TABLES[kind], event_time="ts", watermark="4 seconds")


def bids(flow: sf.Flow, input: str, read: str, computed: str = "", type: str = "") -> sf.Stream:
    """Columns of the bids, with one more that is computed."""
    columns = ", ".join(column for column in TABLES["bid"].split(", ") if column.split()[0] in read.split())
    rows = source(flow, "bid", input, columns)
    if not computed:
        return rows
    return rows.transform(lambda frame: frame.selectExpr("*", computed), f"{columns}, {type}")


EVERY = "auction bidder price channel ts"
A_DAY = ("-1 day", "1 day")


@sf.pipeline("q3")
def q3(flow: sf.Flow, *, input: str, output: str) -> None:
    """Local items: who sells in category 10, in Oregon, Idaho and California."""
    people = source(flow, "person", input).transform(
        lambda frame: frame.where("state in ('or', 'id', 'ca')"), TABLES["person"]
    )
    lots = source(flow, "auction", input).transform(
        lambda frame: frame.where("category = 10").selectExpr("id as auction", "seller", "ts"),
        "auction long, seller long, ts timestamp",
    )
    columns = "name string, city string, state string, auction long"
    found = lots.key_by("seller").join("found", people.key_by("id"), columns, within=A_DAY)
    found.append("out", sf.delta(output))


def fair_bids(flow: sf.Flow, input: str) -> sf.Stream:
    """The bids on each auction while it was open, each with its auction. No auction is open for longer than 20 seconds."""
    columns = f"{TABLES['auction'].replace('ts', 'left_ts')}, bidder long, price long, right_ts timestamp"
    offers = bids(flow, input, "auction bidder price ts").key_by("auction")
    found = source(flow, "auction", input).key_by("id").join(
        "fair", offers, columns, within=("0 seconds", "20 seconds")
    )  # fmt: skip
    return found.transform(lambda frame: frame.where("right_ts <= expires"), columns)


def raised(auction: int, row: Any, highest: int) -> tuple[tuple[int, int, int] | None, int]:
    """By how much a bid raises the sum of the highest bids of its category, and the number of its auctions."""
    more = row.price - highest
    return ((row.category, more, int(highest == 0)), row.price) if more > 0 else (None, highest)


@sf.pipeline("q4")
def q4(flow: sf.Flow, *, input: str, output: str) -> None:
    """The average of the highest bids on the auctions of each category. No operator takes back what another one has changed, so
    the sums are moved by hand."""
    raises = fair_bids(flow, input).key_by("id", order_by="right_ts").map_with_state(
        "raises", raised, state=int, default=0, ttl="1 hour", output="category long, more long, auctions long"
    )  # fmt: skip
    sums = raises.key_by("category").aggregate(
        "sums", "category long, total long, n long", total=sf.sum("more"), n=sf.sum("auctions")
    )
    averages = sums.transform(
        lambda frame: frame.selectExpr("category", "total / n as average"), "category long, average double"
    )
    averages.upsert("out", sf.delta(output))


@sf.pipeline("q5")
def q5(flow: sf.Flow, *, input: str, output: str) -> None:
    """Hot items: which auction had the most bids in the last ten seconds, every two seconds."""
    counts = (
        bids(flow, input, "auction ts")
        .key_by("auction")
        .window(sf.hopping("10 seconds", "2 seconds"))
        .aggregate("counts", "auction long, window_start timestamp, n long", n=sf.count())
    )
    hot = counts.key_by("window_start").top("hot", 1, by=("-n", "auction"), ttl="1 hour")
    hot.upsert("out", sf.delta(output))


class Closed(sf.KeyedProcess[int, Any, Any]):
    """The highest bid of an auction, once it has closed."""

    seller, price = sf.ValueState(int), sf.ValueState(int, default=0)
    closed = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
        for row in rows:
            self.seller.value, self.price.value = row.seller, max(self.price.value, row.price)
            self.closed.set(row.expires)

    @closed.fires
    def sold(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield self.seller.value, key, at, self.price.value
        self.seller.clear()
        self.price.clear()


def of_last_ten(seller: int, row: Any, prices: list[int]) -> tuple[tuple[int, int, float], list[int]]:
    newest = [*prices, row.price][-10:]
    return (seller, row.id, sum(newest) / len(newest)), newest


@sf.pipeline("q6")
def q6(flow: sf.Flow, *, input: str, output: str) -> None:
    """Whenever an auction closes: the average price of the last ten of its seller."""
    sales = "seller long, id long, closed timestamp, price long"
    sold = fair_bids(flow, input).key_by("id").process("sold", Closed, output=sales)
    averages = sold.key_by("seller", order_by=("closed", "id")).map_with_state(
        "averages", of_last_ten, state=list[int], default=list, output="seller long, id long, average double"
    )
    averages.append("out", sf.delta(output))


class Highest(sf.WindowProcess[int, Any, Any]):
    def process(
        self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext
    ) -> Iterator[Any]:
        most = max(row.price for row in rows)
        yield from ((window.start, row.auction, row.bidder, row.price) for row in rows if row.price == most)


@sf.pipeline("q7")
def q7(flow: sf.Flow, *, input: str, output: str) -> None:
    """Highest bid: all bids with the highest price of every ten seconds."""
    rows = bids(flow, input, "auction bidder price ts", "0L as every", "every long")
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


@sf.pipeline("q9")
def q9(flow: sf.Flow, *, input: str, output: str) -> None:
    """The highest bid on each auction so far, and of bids alike the first."""
    winners = fair_bids(flow, input).key_by("id").top("winners", 1, by=("-price", "right_ts"), ttl="1 hour")
    winners.upsert("out", sf.delta(output))


@sf.pipeline("q11")
def q11(flow: sf.Flow, *, input: str, output: str) -> None:
    """User sessions: how many bids each bidder makes while no more than ten seconds pass between two of them."""
    bounds = "bidder long, window_start timestamp, window_end timestamp, n long"
    sessions = bids(flow, input, "bidder ts").key_by("bidder").window(sf.session("10 seconds"))
    sessions.aggregate("sessions", bounds, n=sf.count()).append("out", sf.delta(output))


@sf.pipeline("q12")
def q12(flow: sf.Flow, *, input: str, output: str) -> None:
    """How many bids of each bidder come in every ten seconds of the machine's clock: a batch has one time. What the windows are is
    not the same twice."""
    clock = "window(current_timestamp(), '10 seconds').start as window_start"
    counts = bids(flow, input, "bidder ts", clock, "window_start timestamp").key_by("bidder", "window_start").aggregate(
        "counts", "bidder long, window_start timestamp, n long", ttl="1 minute", n=sf.count()
    )  # fmt: skip
    counts.upsert("out", sf.delta(output))


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
    rows = bids(flow, input, "auction bidder price ts", "cast(ts as date) as day", "day date").key_by("day")
    days = rows.aggregate("days", f"day date, {longs(*parts)}", **parts[0], **parts[1], **parts[2])
    days.upsert("out", sf.delta(output))


@sf.pipeline("q16")
def q16(flow: sf.Flow, *, input: str, output: str) -> None:
    """The same for every channel and day."""
    parts = by_rank(), by_rank("bidder"), by_rank("auction")
    rows = bids(flow, input, EVERY, "cast(ts as date) as day", "day date").key_by("channel", "day")
    channels = rows.aggregate(
        "channels", f"channel string, day date, {longs(*parts)}", **parts[0], **parts[1], **parts[2]
    )
    channels.upsert("out", sf.delta(output))


@sf.pipeline("q17")
def q17(flow: sf.Flow, *, input: str, output: str) -> None:
    """Statistics of every auction and day."""
    prices: dict[str, Any] = {"least": sf.min("price"), "most": sf.max("price"), "total": sf.sum("price")}
    columns = f"auction long, day date, {longs(by_rank(), prices)}, average double"
    rows = bids(flow, input, "auction price ts", "cast(ts as date) as day", "day date").key_by(
        "auction", "day"
    )
    auctions = rows.aggregate("auctions", columns, **by_rank(), **prices, average=sf.mean("price"))
    auctions.upsert("out", sf.delta(output))


@sf.pipeline("q18")
def q18(flow: sf.Flow, *, input: str, output: str) -> None:
    """The last bid of every bidder on every auction."""
    last = bids(flow, input, EVERY).key_by("bidder", "auction", order_by="ts").latest("last")
    last.upsert("out", sf.delta(output))


@sf.pipeline("q19")
def q19(flow: sf.Flow, *, input: str, output: str) -> None:
    """The ten highest bids of every auction."""
    bids(flow, input, EVERY).key_by("auction").top("highest", 10, by="-price").upsert("out", sf.delta(output))


@sf.pipeline("q20")
def q20(flow: sf.Flow, *, input: str, output: str) -> None:
    """Each bid on an auction of category 10, with the auction."""
    lots = source(flow, "auction", input).transform(
        lambda frame: frame.where("category = 10").withColumnRenamed("id", "auction"), _LOTS
    )
    columns = "bidder long, price long, channel string, left_ts timestamp, right_ts timestamp"
    found = bids(flow, input, EVERY).key_by("auction").join(
        "found", lots.key_by("auction"),
        f"auction long, {columns}, initial_bid long, reserve long, seller long, category long, expires timestamp", within=A_DAY,
    )  # fmt: skip
    found.append("out", sf.delta(output))


_LOTS = TABLES["auction"].replace("id long", "auction long", 1)

QUERIES = {
    pipeline.name: pipeline
    for pipeline in (q3, q4, q5, q6, q7, q8, q9, q11, q12, q15, q16, q17, q18, q19, q20)
}
