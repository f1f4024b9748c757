"""`where=` of every kind of join in runs: what comes out is what comparing every two rows gives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from tests.spark.pipelines import Workbench, at
from tests.spark.test_chains import counted

pytestmark = pytest.mark.system

ONE, TWO = "k bigint, a bigint, ts timestamp", "k bigint, b bigint, at timestamp"
OUT = "k bigint, a bigint, b bigint"
WHERE = "a < b"
SIZE, GAP = timedelta(minutes=5), timedelta(minutes=2)
LEAST, MOST = timedelta(minutes=-3), timedelta(minutes=4)
Row = dict[str, Any]
Together = Callable[[Row, Row], bool]


def declared(one: sf.KeyedStream, two: sf.KeyedStream) -> dict[str, sf.Stream]:
    lone, within = "k bigint, a bigint", ("-3 minutes", "4 minutes")
    tumbling = one.window(sf.tumbling("5 minutes"))
    return {
        "inner": one.join("inner", two, OUT, within=within, where=WHERE),
        "left": one.join("left", two, OUT, within=within, how="left", where=WHERE),
        "full": one.join("full", two, OUT, within=within, how="full", where=WHERE),
        "anti": one.join("anti", two, lone, within=within, how="anti", where=WHERE),
        "window-full": tumbling.join("window-full", two, OUT, how="full", where=WHERE),
        "window-semi": tumbling.join("window-semi", two, lone, how="semi", where=WHERE),
        "session-left": one.window(sf.session("2 minutes")).join(
            "session-left", two, OUT, how="left", where=WHERE
        ),
        "as-of": one.join_asof("as-of", two, OUT, where=WHERE),
        "latest": one.join_latest("latest", two, OUT, how="inner", where=WHERE),
    }


def wanted(parts: list[tuple[list[Row], list[Row]]]) -> dict[str, list[Row]]:
    lefts, rights = ([row for part in parts for row in part[side]] for side in (0, 1))
    in_session = sessions([*lefts, *rights])

    def near(left: Row, right: Row) -> bool:
        return LEAST <= right["at"] - left["ts"] <= MOST

    def one_window(left: Row, right: Row) -> bool:
        return (left["ts"] - at(0)) // SIZE == (right["at"] - at(0)) // SIZE

    def one_session(left: Row, right: Row) -> bool:
        return in_session[left["k"], left["ts"]] == in_session[right["k"], right["at"]]

    def valid(left: Row) -> Row | None:
        return newest(right for right in rights if right["k"] == left["k"] and right["at"] <= left["ts"])

    def known(left: Row, part: int) -> Row | None:
        return newest(r for came in parts[: part + 1] for r in came[1] if r["k"] == left["k"])

    as_of = [(left, fulfils(left, valid(left))) for left in lefts]
    latest = [(left, fulfils(left, known(left, n))) for n, part in enumerate(parts) for left in part[0]]
    return {
        "inner": pairs(lefts, rights, near, "inner"),
        "left": pairs(lefts, rights, near, "left"),
        "full": pairs(lefts, rights, near, "full"),
        "anti": pairs(lefts, rights, near, "anti"),
        "window-full": pairs(lefts, rights, one_window, "full"),
        "window-semi": pairs(lefts, rights, one_window, "semi"),
        "session-left": pairs(lefts, rights, one_session, "left"),
        "as-of": [joined(left, right) for left, right in as_of],
        "latest": [joined(left, right) for left, right in latest if right is not None],
    }


def pairs(lefts: list[Row], rights: list[Row], together: Together, how: str) -> list[Row]:
    found = [
        (n, m)
        for n, left in enumerate(lefts)
        for m, right in enumerate(rights)
        if left["k"] == right["k"] and together(left, right) and left["a"] < right["b"]
    ]
    with_left, with_right = {n for n, _ in found}, {m for _, m in found}
    if how in ("semi", "anti"):
        return [
            {"k": r["k"], "a": r["a"]} for n, r in enumerate(lefts) if (n in with_left) == (how == "semi")
        ]
    rows = [joined(lefts[n], rights[m]) for n, m in found]
    if how in ("left", "full"):
        rows += [joined(left, None) for n, left in enumerate(lefts) if n not in with_left]
    if how == "full":
        rows += [joined(None, right) for m, right in enumerate(rights) if m not in with_right]
    return rows


def joined(left: Row | None, right: Row | None) -> Row:
    key = (left or right or {})["k"]
    return {"k": key, "a": left and left["a"], "b": right and right["b"]}


def fulfils(left: Row, right: Row | None) -> Row | None:
    return right if right is not None and left["a"] < right["b"] else None


def newest(rows: Iterator[Row]) -> Row | None:
    return max(rows, key=lambda row: row["at"], default=None)


def sessions(rows: list[Row]) -> dict[tuple[int, datetime], int]:
    """By key and time the number of the session, which both inputs make together."""
    numbers: dict[tuple[int, datetime], int] = {}
    number, before = 0, None
    for key, time in sorted((row["k"], row.get("ts") or row["at"]) for row in rows):
        if before is None or before[0] != key or time - before[1] > GAP:
            number += 1
        numbers[key, time], before = number, (key, time)
    return numbers


def test_where_in_every_kind_of_join_is_what_comparing_every_two_rows_gives(bench: Workbench) -> None:
    targets = {}

    @sf.pipeline("conditions")
    def conditions(flow: sf.Flow) -> None:
        one = flow.source("one", bench.source("one", ONE), ONE, event_time="ts", watermark="1 minute")
        two = flow.source("two", bench.source("two", TWO), TWO, event_time="at", watermark="1 minute")
        for uid, stream in declared(one.key_by("k"), two.key_by("k")).items():
            targets[uid] = sf.memory(f"conditions-{uid}")
            stream.collect(f"{uid}-out", targets[uid])

    chance = random.Random(5)
    parts: list[tuple[list[Row], list[Row]]] = []
    for part in range(2):
        # No two rows of an input have the same time, and none comes late.
        lefts, rights = (
            [
                {"k": chance.randrange(3), value: chance.randrange(6), time: at(part * 20 + n + shift)}
                for n in range(20)
            ]
            for value, time, shift in (("a", "ts", 0.5), ("b", "at", 0.25))
        )
        parts.append((lefts, rights))
    conditions.build()
    for target in targets.values():
        target.clear()
    for number, (lefts, rights) in enumerate(parts):
        bench.rows("one", lefts)
        bench.rows("two", rights)
        bench.run(conditions, parallelism=2, drain=number == len(parts) - 1)

    expected = {uid: counted(rows) for uid, rows in wanted(parts).items()}
    without = {uid: rows for uid, rows in expected.items() if not rows}
    assert without == {}
    found: dict[str, Counter[str]] = {uid: counted(target.rows) for uid, target in targets.items()}
    assert found == expected
