"""Writes the pictures of docs/operators.md, of what comes out when: each is a run of the operator in the test harness."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import stateflow as sf
from scripts.pictures import with_picture
from stateflow.testing import ColumnarHarness

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HEADINGS = ("what comes in", "what comes out")
ROWS = "key string, item string, value double, ts timestamp"


def harness(declare: Callable[[Any], Any]) -> ColumnarHarness:
    @sf.pipeline("picture")
    def picture(flow: sf.Flow) -> None:
        declare(flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds"))

    return ColumnarHarness.of(picture.build(), "op")


def row(item: str, value: float, second: int = 0) -> dict[str, Any]:
    return {"key": "k", "item": item, "value": value, "ts": NOON + timedelta(seconds=second)}


def top() -> list[tuple[str, str]]:
    listed = harness(lambda rows: rows.key_by("key").top("op", 2, by="-value", per="item"))
    batches = [[row("tea", 20), row("jam", 10)], [row("rum", 30)], [row("tea", 40), row("jam", 15)]]
    return [
        (_said(batch), "; ".join(f"{c['_op']} {c['item']} {c['value']:g}, rank {c['rank']}" for c in listed.rows(*batch)))
        for batch in batches
    ]  # fmt: skip


def count() -> list[tuple[str, str]]:
    output = "key string, n long, sum double"
    counted = harness(
        lambda rows: rows.key_by("key").window(sf.count_window(3)).aggregate("op", output, n=sf.count(), sum=sf.sum("value"))
    )  # fmt: skip
    return _timed(counted, lambda out: f"{out['n']} rows, sum {out['sum']:g}")


class Said(sf.WindowProcess[str, Any, Any]):
    def process(
        self, key: str, window: sf.WindowBounds, rows: list[Any], ctx: sf.ColumnarContext
    ) -> list[tuple[str]]:
        return [(" > ".join(each.item for each in rows),)]


def code() -> list[tuple[str, str]]:
    said = harness(
        lambda rows: rows.key_by("key").window(sf.session("10 seconds")).process("op", Said, output="path string")
    )  # fmt: skip
    return _timed(said, lambda out: str(out["path"]))


def _timed(run: ColumnarHarness, said: Callable[[dict[str, Any]], str]) -> list[tuple[str, str]]:
    """Rows and watermarks in turn, by the seconds of one minute."""
    out = [
        (f"{_timed_rows(batch)}", "; ".join(map(said, run.rows(*batch))))
        for batch in ([row("tea", 1, 5), row("jam", 2, 2)], [row("rum", 3, 9), row("ale", 4, 7)])
    ]
    for second in (7, 9, 19, 30):
        found = run.advance(NOON + timedelta(seconds=second))
        out.append((f"watermark :{second:02}", "; ".join(map(said, found))))
    return out


def _timed_rows(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['item']} {each['value']:g} at :{each['ts'].second:02}" for each in rows)


def _said(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['item']} {each['value']:g}" for each in rows)


PICTURES: dict[str, Callable[[], list[tuple[str, str]]]] = {"count": count, "code": code, "top": top}


def drawn(text: str) -> str:
    """The page with its pictures as they are today."""
    for name, draw in PICTURES.items():
        text = with_picture(text, name, HEADINGS, [(into, out or "nothing") for into, out in draw()])
    return text


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
