"""Pipelines with their data, and a plain computation of what is right: what a mistake is measured by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "recipes"

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]


@dataclass(frozen=True)
class Case:
    """A recipe with the files that each of its runs finds, and what a plain computation makes of all rows."""

    recipe: str
    files: Mapping[str, Sequence[Sequence[Row]]]
    """By the parameter that names the folder: the rows of a file for each run."""
    outputs: Sequence[str]
    """The tables, as parameter and suffix."""
    truth: Callable[[Tables], dict[str, list[Row]]]
    """From all rows of each folder to the rows of each table that counts."""
    format: str = "json"

    @property
    def text(self) -> str:
        return (RECIPES / f"{self.recipe}.py").read_text(encoding="utf-8")

    @property
    def runs(self) -> int:
        return max(len(files) for files in self.files.values())

    def rows(self) -> dict[str, list[Row]]:
        return {folder: [row for file in files for row in file] for folder, files in self.files.items()}


def at(text: str, day: int = 1) -> datetime:
    return datetime.fromisoformat(f"2026-01-{day:02d}T{text}:00+00:00").astimezone(UTC)


def _grouped(rows: Sequence[Row], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return iter(groups.items())


def _floor(time: datetime, by: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (time - epoch) // by * by


def _total(rows: Sequence[Row], name: str) -> float | None:
    """As in SQL: of no values there is no sum."""
    values = [row[name] for row in rows if row[name] is not None]
    return sum(values) if values else None


def windows(tables: Tables) -> dict[str, list[Row]]:
    minute = timedelta(minutes=1)
    rows = [{**row, "window_start": _floor(row["ts"], minute)} for row in tables["input"]]
    return {
        "output": [
            {"user": user, "window_start": start, "orders": len(of), "total": _total(of, "amount")}
            for (user, start), of in _grouped(rows, "user", "window_start")
        ]
    }


def sessions(tables: Tables) -> dict[str, list[Row]]:
    gap, out = timedelta(minutes=30), []
    for (user,), of in _grouped(tables["input"], "user"):
        visits: list[list[Row]] = []
        for row in sorted(of, key=lambda row: row["ts"]):
            if visits and row["ts"] - visits[-1][-1]["ts"] < gap:
                visits[-1].append(row)
            else:
                visits.append([row])
        out += [
            {
                "user": user,
                "window_start": visit[0]["ts"],
                "window_end": visit[-1]["ts"] + gap,
                "clicks": len(visit),
                "entry": visit[0]["page"],
                "exit": visit[-1]["page"],
            }
            for visit in visits
        ]
    return {"output": out}


def dedup(tables: Tables) -> dict[str, list[Row]]:
    return {"output": [of[0] for _, of in _grouped(tables["input"], "id")]}


def current(tables: Tables) -> dict[str, list[Row]]:
    newest = [max(of, key=lambda row: row["version"]) for _, of in _grouped(tables["input"], "id")]
    return {"output": [row for row in newest if row["op"] != "delete"]}


def top(tables: Tables) -> dict[str, list[Row]]:
    offers = [max(of, key=lambda row: row["ts"]) for _, of in _grouped(tables["input"], "product", "shop")]
    out = []
    for _, of in _grouped(offers, "product"):
        best = sorted(of, key=lambda row: (row["price"] is None, row["price"]))[:3]
        out += [{**row, "rank": rank} for rank, row in enumerate(best, 1)]
    return {"output": out}


def joins(tables: Tables) -> dict[str, list[Row]]:
    out = []
    for order in tables["orders"]:
        paid = [
            payment["method"]
            for payment in tables["payments"]
            if payment["order"] == order["id"]
            and timedelta(0) <= payment["ts"] - order["ts"] <= timedelta(minutes=30)
        ]
        out += [{"id": order["id"], "amount": order["amount"], "method": method} for method in paid or [None]]
    return {"output": out}


def slowly_changing(tables: Tables) -> dict[str, list[Row]]:
    out = []
    for order in tables["orders"]:
        known = [c for c in tables["customers"] if c["id"] == order["customer"] and c["since"] <= order["ts"]]
        tier = max(known, key=lambda customer: customer["since"])["tier"] if known else None
        out.append({**order, "tier": tier})
    return {"output": out}


def backfill(tables: Tables) -> dict[str, list[Row]]:
    rows = [{**row, "window_start": _floor(row["ts"], timedelta(days=1))} for row in tables["input"]]
    out = []
    for (sensor, start), of in _grouped(rows, "sensor", "window_start"):
        known = [row["celsius"] for row in of if row["celsius"] is not None]
        mean = sum(known) / len(known) if known else None
        out.append({"sensor": sensor, "window_start": start, "readings": len(of), "mean": mean})
    return {"output": out}


def files(tables: Tables) -> dict[str, list[Row]]:
    return {
        "output": [
            {"shop": shop, "sales": len(of), "total": _total(of, "amount")}
            for (shop,), of in _grouped(tables["input"], "shop")
        ]
    }


def _orders(*rows: tuple[str, float, str]) -> list[Row]:
    return [{"user": user, "amount": amount, "ts": at(time)} for user, amount, time in rows]


CASES = {
    case.recipe: case
    for case in (
        Case(
            "windows",
            {
                "input": [
                    _orders(("ann", 2.5, "12:00"), ("bob", 1.0, "12:00"), ("ann", 0.5, "12:00")),
                    _orders(("ann", 4.25, "12:01"), ("bob", 3.0, "12:05")),
                ]
            },
            ["output", "output-late"],
            windows,
        ),
        Case(
            "sessions",
            {
                "input": [
                    [
                        {"user": "ann", "page": "/home", "ts": at("12:00")},
                        {"user": "ann", "page": "/tea", "ts": at("12:20")},
                        {"user": "bob", "page": "/sale", "ts": at("12:05")},
                    ],
                    [
                        {"user": "ann", "page": "/buy", "ts": at("12:40")},
                        {"user": "bob", "page": "/home", "ts": at("13:00")},
                    ],
                ]
            },
            ["output"],
            sessions,
        ),
        Case(
            "dedup",
            {
                "input": [
                    [
                        {"id": "a", "page": "/home", "ts": at("12:00")},
                        {"id": "a", "page": "/home", "ts": at("12:00")},
                    ],
                    [
                        {"id": "b", "page": "/buy", "ts": at("12:10")},
                        {"id": "a", "page": "/home", "ts": at("12:20")},
                    ],
                ]
            },
            ["output"],
            dedup,
        ),
        Case(
            "current",
            {
                "input": [
                    [
                        {"id": 1, "version": 1, "email": "ann@old.example", "op": "insert"},
                        {"id": 2, "version": 1, "email": "bob@old.example", "op": "insert"},
                        {"id": 3, "version": 2, "email": "cy@old.example", "op": "insert"},
                    ],
                    [
                        {"id": 1, "version": 3, "email": "ann@new.example", "op": "update"},
                        {"id": 2, "version": 4, "email": "bob@old.example", "op": "delete"},
                        {"id": 3, "version": 1, "email": "cy@first.example", "op": "insert"},
                    ],
                ]
            },
            ["output"],
            current,
        ),
        Case(
            "top",
            {
                "input": [
                    [
                        {"product": "tea", "shop": "Ada's", "price": 5.0, "ts": at("09:00")},
                        {"product": "tea", "shop": "Bo's", "price": 4.0, "ts": at("09:05")},
                        {"product": "tea", "shop": "Cy's", "price": 3.0, "ts": at("09:10")},
                        {"product": "tea", "shop": "Di's", "price": 6.0, "ts": at("09:15")},
                    ],
                    [
                        {"product": "tea", "shop": "Di's", "price": 3.5, "ts": at("10:00")},
                        {"product": "jam", "shop": "Bo's", "price": 2.0, "ts": at("10:00")},
                    ],
                ]
            },
            ["output"],
            top,
        ),
        Case(
            "joins",
            {
                "orders": [
                    [
                        {"id": "a", "amount": 10.0, "ts": at("12:00")},
                        {"id": "b", "amount": 5.5, "ts": at("12:05")},
                    ],
                    [{"id": "c", "amount": 8.0, "ts": at("12:40")}],
                ],
                "payments": [
                    [{"order": "a", "method": "card", "ts": at("12:10")}],
                    [{"order": "c", "method": "cash", "ts": at("12:41")}],
                ],
            },
            ["output"],
            joins,
        ),
        Case(
            "slowly_changing",
            {
                "customers": [
                    [{"id": 1, "tier": "basic", "since": at("09:00")}],
                    [{"id": 1, "tier": "gold", "since": at("10:00")}],
                ],
                "orders": [
                    [
                        {"customer": 1, "amount": 10.0, "ts": at("09:30")},
                        {"customer": 2, "amount": 5.0, "ts": at("09:40")},
                    ],
                    [{"customer": 1, "amount": 20.5, "ts": at("10:30")}],
                ],
            },
            ["output"],
            slowly_changing,
        ),
        Case(
            "backfill",
            {
                "input": [
                    [
                        {"sensor": "oven", "celsius": 180.5, "ts": at("08:00")},
                        {"sensor": "oven", "celsius": 200.0, "ts": at("20:00")},
                    ],
                    [{"sensor": "oven", "celsius": 190.0, "ts": at("09:00", 2)}],
                ]
            },
            ["output"],
            backfill,
        ),
        Case(
            "files",
            {
                "input": [
                    [
                        {"shop": "north", "day": "2026-01-01", "amount": 10.5},
                        {"shop": "south", "day": "2026-01-01", "amount": 4.0},
                    ],
                    [{"shop": "north", "day": "2026-01-02", "amount": 2.5}],
                ]
            },
            ["output"],
            files,
            format="csv",
        ),
    )
}
