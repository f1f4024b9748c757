"""The questions in SQL for Flink, as its own Nexmark asks them, with the bounds in time that our pipelines have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.nexmark.ranks import by_rank

COLUMNS = {
    "person": "id bigint, name string, city string, state string, ts timestamp_ltz(3)",
    "auction": (
        "id bigint, initial_bid bigint, reserve bigint, seller bigint, category bigint, ts timestamp_ltz(3), "
        "expires timestamp_ltz(3)"
    ),
    "bid": "auction bigint, bidder bigint, price bigint, channel string, ts timestamp_ltz(3), p as proctime()",
}
MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
}
"""For what has no windows: it puts out fewer changes and reads its state less often."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "q9": ("id",),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank"),
}
"""By which rows replace each other where Flink does not say which row goes."""
SETTINGS: Mapping[str, Mapping[str, str]] = dict.fromkeys(
    ("q4", "q15", "q16", "q17", "q18", "q19"), MINI_BATCH
)


def lanes(events: Path, folder: Path, files: int, count: int = 2) -> None:
    """The first files of events in as many files as there are readers, each over the whole time, as the partitions of a topic are. Of
    files that follow each other in time a reader could take a later one first, which makes the rows of the others late."""
    for kind in COLUMNS:
        table = pq.read_table(sorted((events / kind).glob("*.parquet"))[:files])
        (folder / kind).mkdir(parents=True)
        for lane in range(count):
            pq.write_table(table.take(np.arange(lane, len(table), count)), folder / kind / f"{lane}.parquet")


def tables(folder: Path) -> list[str]:
    return [
        f"create table {kind} ({columns}, watermark for ts as ts - interval '4' second) "
        f"with ('connector' = 'filesystem', 'path' = 'file://{folder / kind}', 'format' = 'parquet')"
        for kind, columns in COLUMNS.items()
    ]


_DAY = "cast(ts as date) as `day`"
_FAIR = """(
    select auction.*, bidder, price, bid.ts as right_ts from auction join bid on id = bid.auction
    and bid.ts between auction.ts and auction.ts + interval '20' second where bid.ts <= expires)"""
_WINNERS = f"""(
    select id, initial_bid, reserve, seller, category, ts as left_ts, expires, bidder, price, right_ts, place as `rank` from (
        select *, row_number() over (partition by id order by price desc, right_ts) as place from {_FAIR})
    where place = 1)"""
_TENS = "tumble(table {table}, descriptor(ts), interval '10' second)"

SQL = {
    "q3": """
        select name, city, state, auction.id as auction from auction join person on seller = person.id
        and person.ts between auction.ts - interval '1' day and auction.ts + interval '1' day
        where category = 10 and state in ('or', 'id', 'ca')""",
    "q4": f"""
        select category, avg(cast(highest as double)) as average from (
            select id, category, max(price) as highest from {_FAIR} group by id, category)
        group by category""",
    "q5": """
        select auction, window_start, n, place as `rank` from (
            select *, row_number() over (partition by window_start, window_end order by n desc, auction) as place from (
                select auction, window_start, window_end, count(*) as n
                from table(hop(table bid, descriptor(ts), interval '2' second, interval '10' second))
                group by auction, window_start, window_end))
        where place = 1""",
    "q7": f"""
        select most.window_start, auction, bidder, price from (
            select * from table({_TENS.format(table="bid")})) as bids
        join (
            select window_start, window_end, max(price) as highest from table({_TENS.format(table="bid")})
            group by window_start, window_end) as most
        on bids.window_start = most.window_start and bids.window_end = most.window_end and price = highest""",
    "q8": f"""
        select persons.id, name, persons.window_start from (
            select id, name, window_start, window_end from table({_TENS.format(table="person")})
            group by id, name, window_start, window_end) as persons
        join (
            select seller, window_start, window_end from table({_TENS.format(table="auction")})
            group by seller, window_start, window_end) as sellers
        on persons.id = seller and persons.window_start = sellers.window_start
        and persons.window_end = sellers.window_end""",
    "q9": f"select * from {_WINNERS}",
    "q11": """
        select bidder, window_start, window_end, count(*) as n
        from table(session(table bid partition by bidder, descriptor(ts), interval '10' second))
        group by bidder, window_start, window_end""",
    "q12": """
        select bidder, window_start, count(*) as n from table(tumble(table bid, descriptor(p), interval '10' second))
        group by bidder, window_start, window_end""",
    "q15": f"select `day`, {by_rank('bidder', 'auction')} from (select *, {_DAY} from bid) group by `day`",
    "q16": f"""
        select channel, `day`, {by_rank("bidder", "auction")} from (select *, {_DAY} from bid) group by channel, `day`""",
    "q17": f"""
        select auction, `day`, {by_rank()}, min(price) as `least`, max(price) as most, sum(price) as total,
               avg(cast(price as double)) as average
        from (select *, {_DAY} from bid) group by auction, `day`""",
    "q18": """
        select auction, bidder, price, channel, ts from (
            select *, row_number() over (partition by bidder, auction order by ts desc, price desc, channel desc) as place
            from bid)
        where place = 1""",
    "q19": """
        select auction, bidder, price, channel, ts, place as `rank` from (
            select *, row_number() over (partition by auction order by price desc, bidder, channel, ts) as place from bid)
        where place <= 10""",
    "q20": """
        select auction.id as auction, bidder, price, channel, bid.ts as left_ts, auction.ts as right_ts, initial_bid, reserve,
               seller, category, expires
        from bid join auction on bid.auction = auction.id
        and auction.ts between bid.ts - interval '1' day and bid.ts + interval '1' day where category = 10""",
}


def request(query: str, passes: Sequence[Mapping[str, Any]], jars: list[str]) -> dict[str, Any]:
    """What `flink_query.py` is asked."""
    return {
        "query": SQL[query],
        "keys": list(KEYS.get(query, ())),
        "settings": dict(SETTINGS.get(query, {})),
        "jars": jars,
        "passes": list(passes),
    }


def one_pass(folder: Path, checkpoints: Path, asked: str) -> dict[str, Any]:
    """Over the lanes of a folder."""
    return {"tables": tables(folder), "checkpoints": str(checkpoints), "asked": asked}
