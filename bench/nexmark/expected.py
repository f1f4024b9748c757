"""The same questions in SQL, for DuckDB: what the tables of the pipelines must hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from bench.nexmark.queries import RANKS


def _by_rank() -> str:
    conditions = {"all": "true", **RANKS}
    counts = [f"count(*) filter (where {where}) as bids_{rank}" for rank, where in conditions.items()]
    for column in ("bidder", "auction"):
        counts += [
            f"count(distinct {column}) filter (where {where}) as {column}s_{rank}"
            for rank, where in conditions.items()
        ]
    return ", ".join(counts)


_BIDS_BY_RANK = _by_rank().partition(", count(distinct")[0]
_TENS = "time_bucket(interval 10 seconds, ts)"

SQL = {
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
    "q15": f"select ts::date as day, {_by_rank()} from bid group by day",
    "q16": f"select channel, ts::date as day, {_by_rank()} from bid group by all",
    "q17": f"""
        select auction, ts::date as day, {_BIDS_BY_RANK}, min(price) as least, max(price) as most, sum(price)::bigint as total,
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
