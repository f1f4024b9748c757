"""The questions in SQL for Spark's own streaming, in its JVM, as far as it can answer them.

It cannot take what a join of streams gives into an aggregation that changes (q4, q9), number the rows of a stream (q6), or
count what is distinct without keeping the set (q15, q16 keep it).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bench.nexmark.events import TABLES
from bench.nexmark.ranks import by_rank

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UPSERTED: Mapping[str, tuple[str, ...]] = {
    "q12": ("bidder", "window_start"),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank"),
}
"""The key of each query whose rows change. The others put out a row once, when it is final."""


def _by_rank(*columns: str) -> str:
    values = "cast(size(collect_set(if({where}, {column}, null))) as bigint)"
    return by_rank(*columns, bids="count_if({where})", values=values)


SQL = {
    "q3": """
        select name, city, state, lot.id as auction
        from (select id, seller, ts from auction where category = 10) as lot
        join (select id, name, city, state, ts from person where state in ('or', 'id', 'ca')) as who
        on seller = who.id and who.ts between lot.ts - interval 1 day and lot.ts + interval 1 day""",
    "q5": """
        select -best.minus as auction, window.start as window_start, best.n as n, 1 as rank from (
            select window, max(struct(n, -auction as minus)) as best from (
                select auction, window(ts, '10 seconds', '2 seconds') as window, count(*) as n from bid group by 1, 2)
            group by window)""",
    "q7": """
        select most.window.start as window_start, auction, bidder, price
        from (select window(ts, '10 seconds') as window, auction, bidder, price from bid) as offer
        join (select window(ts, '10 seconds') as window, max(price) as highest from bid group by 1) as most
        on offer.window = most.window and price = highest""",
    "q8": """
        select who.id, name, who.window.start as window_start
        from (select id, name, window(ts, '10 seconds') as window from person group by 1, 2, 3) as who
        join (select seller, window(ts, '10 seconds') as window from auction group by 1, 2) as lot
        on who.id = seller and who.window = lot.window""",
    "q11": """
        select bidder, session.start as window_start, session.end as window_end, n from (
            select bidder, session_window(ts, '10 seconds') as session, count(*) as n from bid group by 1, 2)""",
    "q12": """
        select bidder, window.start as window_start, n from (
            select bidder, window(current_timestamp(), '10 seconds') as window, count(*) as n from bid group by 1, 2)""",
    "q15": f"select cast(ts as date) as day, {_by_rank('bidder', 'auction')} from bid group by 1",
    "q16": f"select channel, cast(ts as date) as day, {_by_rank('bidder', 'auction')} from bid group by 1, 2",
    "q17": f"""
        select auction, cast(ts as date) as day, {_by_rank()}, min(price) as least, max(price) as most, sum(price) as total,
               avg(price) as average
        from bid group by 1, 2""",
    "q18": """
        select auction, bidder, last.price, last.channel, last.ts from (
            select auction, bidder, max(struct(ts, price, channel)) as last from bid group by 1, 2)""",
    "q20": """
        select lot.id as auction, bidder, price, channel, bid.ts as left_ts, lot.ts as right_ts, initial_bid, reserve, seller,
               category, expires
        from bid join (select * from auction where category = 10) as lot
        on bid.auction = lot.id and lot.ts between bid.ts - interval 1 day and bid.ts + interval 1 day""",
}


def asked(spark: SparkSession, query: str, folder: Path) -> DataFrame:
    """The stream that answers a query, a file of each kind in each batch."""
    for kind, columns in TABLES.items():
        files = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        read = files.parquet(str(folder / kind)).withWatermark("ts", "4 seconds")
        read.createOrReplaceTempView(kind)
    return spark.sql(SQL[query])


def merged(spark: SparkSession, keys: tuple[str, ...], output: Path, frame: DataFrame) -> None:
    """Writes rows that change: what a user of Spark writes into `foreachBatch`."""
    from delta.tables import DeltaTable

    if not DeltaTable.isDeltaTable(spark, str(output)):
        frame.write.format("delta").save(str(output))
        return
    condition = " and ".join(f"old.{key} <=> new.{key}" for key in keys)
    merge = DeltaTable.forPath(spark, str(output)).alias("old").merge(frame.alias("new"), condition)
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
