"""The rows that the recipes' pages show. Each story has what its recipe is for: rows twice, out of order, late."""

from __future__ import annotations

from datetime import UTC, date, datetime
from types import ModuleType

from scripts.recipes.story import Story


def at(text: str, day: int = 1) -> datetime:
    """An instant of January 2026: `12:00` or `12:00:30`."""
    hour, minute, second = (*map(int, text.split(":")), 0)[:3]
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC)


def _countries(recipe: ModuleType) -> None:
    known = {"192.0.2.1": {"country": "NO"}, "192.0.2.2": {"country": "PT"}, "192.0.2.3": {"country": "PT"}}

    def look_up(service: str, ips: list[str]) -> list[dict[str, str] | None]:
        if "203.0.113.9" in ips:
            raise TimeoutError("timed out")
        return [known.get(ip) for ip in ips]

    recipe.look_up = look_up  # type: ignore[attr-defined]


STORIES = (
    Story(
        "dedup",
        [
            {"clicks": [("a", "/home", at("12:00:00")), ("a", "/home", at("12:00:00"))]},
            {"clicks": [("b", "/buy", at("12:00:20")), ("a", "/home", at("12:00:15"))]},
            {"clicks": [("c", "/home", at("12:01:00")), ("a", "/home", at("12:30:00"))]},
        ],
    ),
    Story(
        "windows",
        [
            {"orders": [("ann", 2.0, at("12:00:10")), ("bob", 1.0, at("12:00:40"))]},
            {"orders": [("ann", 3.0, at("12:01:30")), ("ann", 4.0, at("12:00:50"))]},
            {"orders": [("ann", 5.0, at("12:02:30")), ("bob", 1.0, at("12:00:55"))]},
            {"orders": [("bob", 7.0, at("12:00:59")), ("ann", 1.0, at("12:03:20"))]},
        ],
        final=True,
    ),
    Story(
        "sessions",
        [
            {"clicks": [("ann", "/home", at("12:00")), ("bob", "/sale", at("12:05"))]},
            {"clicks": [("ann", "/buy", at("12:20")), ("ann", "/tea", at("12:10"))]},
            {"clicks": [("bob", "/home", at("13:00")), ("ann", "/home", at("13:10"))]},
        ],
        final=True,
    ),
    Story(
        "idle",
        [
            {"clicks": [("ann", at("12:00")), ("bob", at("12:10"))]},
            {"clicks": [("ann", at("12:25")), ("bob", at("12:40"))]},
            {"clicks": [("bob", at("13:00")), ("bob", at("13:45"))]},
        ],
    ),
    Story(
        "current",
        [
            {"changes": [(1, 1, "ann@old.example", "insert"), (2, 1, "bob@old.example", "insert")]},
            {"changes": [(1, 3, "ann@new.example", "update"), (2, 3, "bob@old.example", "delete")]},
            {"changes": [(1, 2, "ann@between.example", "update"), (2, 2, "bob@late.example", "update")]},
            {"changes": [(2, 4, "bob@again.example", "insert"), (3, 1, "cy@example.org", "insert")]},
            {"changes": [(3, 2, "cy@example.org", "delete")]},
        ],
    ),
    Story(
        "joins",
        [
            {"orders": [("a", 10.0, at("12:00")), ("b", 5.0, at("12:05"))]},
            {"payments": [("a", "card", at("12:10"))]},
            {"orders": [("c", 8.0, at("12:40"))], "payments": [("c", "cash", at("12:41"))]},
        ],
    ),
    Story(
        "top",
        [
            {
                "offers": [
                    ("tea", "Ada's", 5.0, at("9:00")),
                    ("tea", "Bo's", 4.0, at("9:05")),
                    ("tea", "Cy's", 3.0, at("9:10")),
                    ("tea", "Di's", 6.0, at("9:15")),
                ]
            },
            {"offers": [("tea", "Di's", 3.5, at("10:00"))]},
            {"offers": [("tea", "Cy's", 9.0, at("11:00")), ("tea", "Bo's", 1.0, at("8:00"))]},
        ],
    ),
    Story(
        "enrichment",
        [
            {"visits": [("192.0.2.1", "/home"), ("192.0.2.2", "/home")]},
            {"visits": [("192.0.2.1", "/buy"), ("198.51.100.7", "/home")]},
            {
                "visits": [
                    ("192.0.2.2", "/buy"),
                    ("203.0.113.9", "/home"),
                    ("192.0.2.3", "/home"),
                    ("203.0.113.9", "/buy"),
                ]
            },
        ],
        parameters={"service": "https://geo.example"},
        prepare=_countries,
    ),
    Story(
        "slowly_changing",
        [
            {
                "customers": [(1, "basic", at("9:00"))],
                "orders": [(1, 10.0, at("9:30")), (2, 5.0, at("9:40"))],
            },
            {
                "customers": [(1, "gold", at("10:00"))],
                "orders": [(1, 20.0, at("10:30")), (1, 15.0, at("9:50"))],
            },
            {"customers": [(2, "basic", at("11:00"))], "orders": [(1, 1.0, at("11:05"))]},
        ],
    ),
    Story(
        "backfill",
        [
            {"readings": [("oven", 180.0, at("8:00")), ("oven", 200.0, at("20:00"))]},
            {"readings": [("oven", 190.0, at("9:00", 2)), ("oven", 210.0, at("23:30"))]},
            {"readings": [("oven", 170.0, at("7:00", 3))]},
        ],
        final=True,
    ),
    Story(
        "files",
        [
            {"sales": [("north", date(2026, 1, 1), 10.0), ("south", date(2026, 1, 1), 4.0)]},
            {"sales": [("north", date(2026, 1, 2), 2.5)]},
        ],
    ),
)
