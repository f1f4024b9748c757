"""Joins through Spark: what reaches the tables is what a computation over the whole input gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

import stateflow as sf
from tests.spark.pipelines import Workbench, at

pytestmark = pytest.mark.system


@dataclass
class Click:
    ad: str | None
    price: float
    ts: datetime


@dataclass
class View:
    name: str | None
    page: str
    ts: datetime


@dataclass
class Paid:
    ad: str | None
    price: float
    page: str | None
    left_ts: datetime


@dataclass
class Kind:
    ad: str | None
    ts: datetime
    kind: str | None


def kinds(ads: list[str]) -> list[dict[str, str]]:
    if "c" in ads:
        raise ValueError("no kind of this name")
    return [{"kind": ad.upper()} for ad in ads]


CLICK, VIEW = "ad string, price double, ts timestamp", "name string, page string, ts timestamp"
ADS = ("a", "b", "c", None)


def clicks(batch: int) -> list[Click]:
    made = [Click(ADS[n % 4], n / 4, at(batch * 10 + n / 3)) for n in range(30)]
    return [*made, Click("a", -1.0, at(batch * 10 - 9))]


def views(batch: int) -> list[View]:
    return [View(ADS[n % 4 if n % 3 else 3], f"/{n}", at(batch * 10 + n / 4 + 0.1)) for n in range(40)]


def test_pairs_and_rows_without_a_partner_reach_the_table_once(bench: Workbench) -> None:
    paid, late, valid, same, kind, failed = (
        str(bench.folder / name) for name in ("paid", "late", "valid", "same", "kind", "failed")
    )

    @sf.pipeline("joins")
    def joins(flow: sf.Flow) -> None:
        left = flow.source(
            "clicks", bench.source("clicks", CLICK), Click, event_time="ts", watermark="1 minute"
        )
        right = flow.source("views", bench.source("views", VIEW), View, event_time="ts", watermark="1 minute")
        joined = left.key_by("ad").join(
            "paid", right.key_by("name"), Paid, within=("-2 minutes", "30 seconds"), how="left",
            where="price < 5 OR right_ts < left_ts",
        )  # fmt: skip
        joined.append("p", sf.delta(paid))
        joined.side("late_left").append("l", sf.delta(late))
        clicked, seen = left.key_by("ad"), right.key_by("name")
        clicked.join_asof("valid", seen, Paid).append("v", sf.delta(valid))
        per_minute = clicked.window(sf.tumbling("1 minute")).join("same", seen, Paid)
        per_minute.append("s", sf.delta(same))
        answered = clicked.enrich("kind", kinds, Kind, retries=0, on_error="dead_letter")
        answered.append("k", sf.delta(kind))
        answered.dead_letters.append("f", sf.delta(failed))

    for batch in range(3):
        bench.rows("clicks", clicks(batch))
        bench.rows("views", views(batch))
    bench.run(joins, stop_after=1)
    # The rest is joined by tasks that share the waiting rows in another way.
    bench.run(joins, parallelism=3, drain=True)
    spark = bench.spark
    late_rows = spark.read.format("delta").load(late).toArrow().to_pylist()
    assert [row["ts"] for row in sorted(late_rows, key=lambda r: r["ts"])] == [at(1), at(11)]
    lefts = [c for n in range(3) for c in clicks(n) if n == 0 or c.price >= 0]
    rights = [v for n in range(3) for v in views(n)]
    wanted = []
    for click in lefts:
        mine = [
            v.page
            for v in rights
            if v.name is not None
            and v.name == click.ad
            and timedelta(minutes=-2) <= v.ts - click.ts <= timedelta(seconds=30)
            and (click.price < 5 or v.ts < click.ts)
        ]
        wanted += [(click.ad, click.price, page, click.ts) for page in mine or [None]]
    found = [tuple(row.values()) for row in spark.read.format("delta").load(paid).toArrow().to_pylist()]
    # The newest clicks wait still: a view of theirs may come.
    waiting = [row for row in wanted if row not in found]
    assert sorted(found, key=repr) == sorted([row for row in wanted if row in found], key=repr)
    assert all(row[2] is None and row[3] > at(28) for row in waiting)
    newest = {
        c.ts: max((v for v in rights if v.name == c.ad and v.ts <= c.ts), key=lambda v: v.ts, default=None)
        for c in lefts
    }
    versions = [tuple(row.values()) for row in spark.read.format("delta").load(valid).toArrow().to_pylist()]
    assert len(versions) > 60
    for ad, price, page, ts in versions:
        known = None if ad is None else newest[ts]
        assert (price, page) == (next(c.price for c in lefts if c.ts == ts), known and known.page)
    together = {
        (c.ad, c.price, v.page, c.ts)
        for c in lefts
        for v in rights
        if c.ad is not None and v.name == c.ad and minute(c.ts) == minute(v.ts)
    }
    pairs = [tuple(row.values()) for row in spark.read.format("delta").load(same).toArrow().to_pylist()]
    assert len(pairs) == len(set(pairs)) > 20
    assert {pair for pair in together if pair[3] < at(28)} <= set(pairs) <= together
    answers = [tuple(row.values()) for row in spark.read.format("delta").load(kind).toArrow().to_pylist()]
    every = [click for n in range(3) for click in clicks(n)]
    wanted_kinds = [(c.ad, c.ts, c.ad and c.ad.upper()) for c in every if c.ad != "c"]
    assert sorted(answers, key=repr) == sorted(wanted_kinds, key=repr)
    letters = spark.read.format("delta").load(failed).toArrow().to_pylist()
    assert {(letter["key"], letter["error"]) for letter in letters} == {
        ("'c'", "ValueError: no kind of this name")
    }
    rows = [row for letter in letters for row in json.loads(letter["rows"])]
    assert sorted((row["ad"], row["price"]) for row in rows) == sorted(
        (c.ad, c.price) for c in every if c.ad == "c"
    )


def minute(ts: datetime) -> datetime:
    return ts.replace(second=0, microsecond=0)
