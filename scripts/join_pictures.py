"""Writes the pictures of docs/joins.md: the same rows through several joins, each in the test harness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import stateflow as sf
from scripts.pictures import with_picture
from stateflow.testing import ColumnarHarness

PAGE = Path(__file__).resolve().parents[1] / "docs" / "joins.md"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Join = Callable[[sf.KeyedStream, sf.KeyedStream], Any]


@dataclass(frozen=True)
class Step:
    """A batch of rows of one key, by name the minute after noon of each; then the watermark stands at a minute."""

    left: Mapping[str, int]
    right: Mapping[str, int]
    watermark: int


def pairs() -> Iterator[Sequence[str]]:
    """Clicks, and the views of the ten minutes before each."""
    output = "left_name string, right_name string"
    joins: list[Join] = [
        lambda left, right, how=how: left.join(  # type: ignore[misc]
            "op",
            right,
            None if how in ("semi", "anti") else output,
            within=("-10 minutes", "0 minutes"),
            how=how,
        )
        for how in PAIRS
    ]
    steps = [
        Step({"c1": 5}, {}, 0),
        Step({}, {"v1": 1, "v2": 4}, 4),
        Step({"c2": 20}, {"v3": 8}, 10),
        Step({}, {}, 18),
        Step({}, {}, 20),
    ]
    yield from _lines(joins, steps)


def versions() -> Iterator[Sequence[str]]:
    """Views, each with a price."""
    output = "left_name string, right_name string"
    joins: list[Join] = [
        lambda left, right: left.join_asof("op", right, output),
        lambda left, right: left.join_asof("op", right, output, wait=False),
        lambda left, right: left.join_latest("op", right, output),
    ]
    steps = [Step({"v1": 5}, {"p1": 0}, 2), Step({}, {"p2": 4}, 6), Step({"v2": 10}, {"p3": 30}, 20)]
    yield from _lines(joins, steps)


def in_windows() -> Iterator[Sequence[str]]:
    """Clicks and views of one window."""
    output = "left_name string, right_name string, window_start timestamp, window_end timestamp"
    joins: list[Join] = [
        lambda left, right, window=window: left.window(window).join("op", right, output)  # type: ignore[misc]
        for window in WINDOWS.values()
    ]
    steps = [
        Step({"c1": 2}, {"v1": 8}, 0),
        Step({"c2": 5}, {}, 10),
        Step({"c3": 30}, {"v2": 14}, 18),
        Step({}, {"v3": 31}, 36),
    ]
    yield from _lines(joins, steps)


def _lines(joins: Sequence[Join], steps: Sequence[Step]) -> Iterator[Sequence[str]]:
    """What goes into all joins, and what comes out of each."""
    harnesses = [_harness(join) for join in joins]
    for step in steps:
        inputs = [[_row(*each) for each in side.items()] for side in (step.left, step.right)]
        mark = _minute(step.watermark)
        outs = [harness.both(*inputs) + harness.advance(mark) for harness in harnesses]
        yield (
            *(", ".join(f"{row['name']} {row['ts']:%H:%M}" for row in rows) for rows in inputs),
            f"{mark:%H:%M}",
            *(", ".join(sorted(map(_said, out))) for out in outs),
        )


def _harness(join: Join) -> ColumnarHarness:
    @sf.pipeline("picture")
    def picture(flow: sf.Flow) -> None:
        left, right = (
            flow.source(uid, sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds").key_by("key")
            for uid in ("left", "right")
        )
        join(left, right)

    return ColumnarHarness.of(picture.build(), "op")


def _row(name: str, minute: int) -> dict[str, Any]:
    return {"key": "k", "name": name, "ts": _minute(minute)}


def _minute(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def _said(row: dict[str, Any]) -> str:
    """`c1 + v1`, or `c2 + none`; of a semi or anti join the left row alone."""
    if "name" in row:
        return str(row["name"])
    pair = f"{row['left_name'] or 'none'} + {row['right_name'] or 'none'}"
    return (
        f"{pair} ({row['window_start']:%H:%M} to {row['window_end']:%H:%M})"
        if "window_start" in row
        else pair
    )


ROWS = "key string, name string, ts timestamp"
WINDOWS = {
    'sf.tumbling("10 minutes")': sf.tumbling("10 minutes"),
    'sf.hopping("10 minutes", "5 minutes")': sf.hopping("10 minutes", "5 minutes"),
    'sf.session("4 minutes")': sf.session("4 minutes"),
}
PAIRS = ("inner", "left", "full", "semi", "anti")
PICTURES: Mapping[str, tuple[Sequence[str], Callable[[], Iterator[Sequence[str]]]]] = {
    "pairs": (("clicks", "views", "watermark", *(f"`{how}`" for how in PAIRS)), pairs),
    "versions": (("views", "prices", "watermark", "`join_asof`", "with `wait=False`", "`join_latest`"), versions),
    "windows": (("clicks", "views", "watermark", *(f"`{window}`" for window in WINDOWS)), in_windows),
}  # fmt: skip


def drawn(text: str) -> str:
    """The page with its pictures as they are today."""
    for name, (headings, draw) in PICTURES.items():
        text = with_picture(text, name, headings, draw())
    return text


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
