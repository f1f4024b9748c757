"""Columnar operators as users write them: several states, entries that are due, side outputs, two inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import stateflow as sf

MINUTE = 60_000_000


@dataclass
class Click:
    user: int
    page: str
    ts: datetime


@dataclass
class Minute:
    user: int
    page: str
    end: datetime
    clicks: int


LATE = sf.output("late", Click)


class PerMinute(sf.ColumnarOperator):
    """Clicks per user, page and minute, put out when the watermark has reached the minute's end."""

    states: Mapping[str, Any] = {
        "open": sf.columns({"clicks": int}, by={"page": str}, timed=True),
        "ever": sf.columns({"clicks": int}),
    }

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: sf.ColumnarContext) -> Any:
        ctx.metrics.counter("tables").inc()
        yield LATE.name, rows.filter(ctx.late)
        rows = rows.filter(pc.invert(ctx.late))
        micros = rows["ts"].cast(pa.int64())
        end = pc.multiply(pc.add(pc.divide(micros, MINUTE), 1), MINUTE)
        counts = (
            rows.select(["user", "page"])
            .append_column("end", end)
            .group_by(["user", "page", "end"])
            .aggregate([([], "count_all")])
        )
        where = {"by": counts["page"], "at": counts["end"]}
        before = states["open"].get(counts["user"], **where)
        clicks = pc.add(pc.fill_null(before["clicks"], 0), counts["count_all"])
        states["open"].put(counts["user"], pa.table({"clicks": clicks}), **where)
        users = rows.group_by("user").aggregate([([], "count_all")])
        ever = pc.add(pc.fill_null(states["ever"].get(users["user"])["clicks"], 0), users["count_all"])
        states["ever"].put(users["user"], pa.table({"clicks": ever}))

    def fire(self, states: Mapping[str, Any], ctx: sf.ColumnarContext) -> Iterator[pa.Table]:
        if ctx.watermark_micros is None:
            return
        for due in states["open"].due(ctx.watermark_micros):
            yield due.rename_columns(["user", "end", "page", "clicks"])
        states["open"].delete_due(ctx.watermark_micros)


def per_minute(clicks: list[Click], until: datetime | None) -> list[Minute]:
    """What comes out for these clicks, all on time, until the watermark."""
    counts: dict[tuple[int, str, int], int] = {}
    for click in clicks:
        micros = round(click.ts.timestamp() * 1e6)
        key = (click.user, click.page, (micros // MINUTE + 1) * MINUTE)
        counts[key] = counts.get(key, 0) + 1
    made = [
        Minute(user, page, datetime.fromtimestamp(end / 1e6, tz=clicks[0].ts.tzinfo), n)
        for (user, page, end), n in counts.items()
    ]
    return [row for row in made if until is not None and row.end <= until]


def matched(left: pa.Table, right: pa.Table, state: Any, ctx: sf.ColumnarContext) -> pa.Table:
    """Each click with the name that its user has by then: names are kept, clicks are not."""
    state.put(right["id"], right.select(["name"]))
    return pa.table({"page": left["page"], "name": state.get(left["user"])["name"]})
