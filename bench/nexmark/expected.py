"""The same questions in SQL, for DuckDB: what the tables of the pipelines must hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bench.nexmark.ranks import by_rank

_TENS = "time_bucket(interval 10 seconds, ts)"

_WINNERS = """(
    select auction.* rename (ts as left_ts), bidder, price, bid.ts as right_ts
    from auction join bid on id = auction and bid.ts between auction.ts and expires
    qualify row_number() over (partition by id order by price desc, bid.ts) = 1)"""

SQL = {
    "q3": """
        select name, city, state, auction.id as auction from auction join person on seller = person.id
        where category = 10 and state in ('or', 'id', 'ca')""",
    "q4": f"select category, avg(price) as average from {_WINNERS} group by category",
    "q6": f"""
        select seller, id, avg(price) over (
            partition by seller order by expires, id rows between 9 preceding and current row) as average
        from {_WINNERS}""",
    "q9": f"select *, 1 as rank from {_WINNERS}",
    "q12": "select bidder, count(*) as n from bid group by bidder",
    "q20": """
        select auction, bidder, price, channel, bid.ts as left_ts, auction.ts as right_ts, initial_bid, reserve, seller, category,
               expires
        from bid join auction on auction = id where category = 10""",
    "q5": """
        select * exclude (place), 1 as rank from (
            select *, row_number() over (partition by window_start order by n desc, auction) as place from (
                select auction, time_bucket(interval 2 seconds, ts) - to_seconds(2 * back) as window_start, count(*) as n
                from bid, range(5) as _(back) group by all))
        where place = 1""",
    "q7": f"""
        select window_start, auction, bidder, price from (
            select *, {_TENS} as window_start, max(price) over (partition by {_TENS}) as most from bid)
        where price = most""",
    "q8": f"""
        select id, any_value(name) as name, window_start from (
            select id, name, {_TENS} as window_start from person) join (
            select distinct seller as id, {_TENS} as window_start from auction) using (id, window_start)
        group by id, window_start""",
    "q11": """
        select bidder, min(ts) as window_start, max(ts) + interval 10 seconds as window_end, count(*) as n from (
            select *, sum(new) over (partition by bidder order by ts, number) as session from (
                select *, (coalesce(epoch_us(ts) - epoch_us(lag(ts) over (partition by bidder order by ts, number)), 1e9)
                           > 10000000)::int as new
                from (select *, row_number() over () as number from bid)))
        group by bidder, session""",
    "q15": f"select ts::date as day, {by_rank('bidder', 'auction')} from bid group by day",
    "q16": f"select channel, ts::date as day, {by_rank('bidder', 'auction')} from bid group by all",
    "q17": f"""
        select auction, ts::date as day, {by_rank()}, min(price) as least, max(price) as most, sum(price)::bigint as total,
               avg(price) as average
        from bid group by auction, day""",
    "q18": """
        select * exclude (place) from (
            select *, row_number() over (partition by bidder, auction order by ts desc, price desc, channel desc) as place
            from bid)
        where place = 1""",
    "q19": """
        select * from (
            select *, row_number() over (partition by auction order by price desc, bidder, channel, ts) as rank from bid)
        where rank <= 10""",
}  # fmt: skip


def expected(query: str, folder: Path) -> list[dict[str, Any]]:
    """The rows that a query must give over the events in a folder."""
    import duckdb

    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        for kind in ("person", "auction", "bid"):
            engine.execute(f"create view {kind} as from read_parquet('{folder}/{kind}/*.parquet')")
        return list(engine.sql(SQL[query]).to_arrow_table().to_pylist())


COMPARED = {"q12": ("bidder", "n")}
"""The clock of the machine cuts the windows of q12, so only their sums are what they must be."""


def comparable(query: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a query's table as `expected` has them."""
    if query not in COMPARED:
        return rows
    key, number = COMPARED[query]
    sums = Counter[Any]()
    for row in rows:
        sums[row[key]] += row[number]
    return [{key: value, number: total} for value, total in sums.items()]


def differences(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Rows that are too many, and rows that are missing."""
    mine, theirs = Counter(map(_text, found)), Counter(map(_text, wanted))
    return list((mine - theirs).elements()), list((theirs - mine).elements())


def _text(row: dict[str, Any]) -> str:
    return repr(
        [
            (name, value.timestamp() if hasattr(value, "timestamp") else value)
            for name, value in sorted(row.items())
        ]
    )
