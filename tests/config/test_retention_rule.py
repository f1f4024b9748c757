"""The retention rule: what it says, what it refuses, and which checkpoints it keeps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.config.options import load
from stateflow.config.retention_rule import NO_RULE, RetentionRule, retention_rule

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
T0 = 20_454 * DAY
"""A midnight in UTC."""
RULE = retention_rule("all for 1 hour, hourly for 2 days, daily for 30 days")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "all for 1 hour, hourly for 2 days, daily for 30 days",
            "all for 1 hour, hourly for 2 days, daily for 30 days",
        ),
        (" Daily FOR 48 h ,weekly for 10 weeks", "daily for 2 days, weekly for 10 weeks"),
        ("none", "none"),
        ("NONE", "none"),
    ],
)
def test_a_rule_is_written_as_it_is_said(text: str, rule: str) -> None:
    assert str(retention_rule(text)) == rule
    assert retention_rule(rule) == retention_rule(text)


def test_a_rule_goes_with_a_number_of_checkpoints_and_no_rule_with_an_age(tmp_path: Path) -> None:
    load(code={"retention": "daily for 9 days", "retained_checkpoints": 9}, env={}, folder=tmp_path)
    load(code={"retention": "none", "retained_age": "1 hour"}, env={}, folder=tmp_path)


def kept(rule: RetentionRule, ages: list[int], now: int = T0) -> dict[int, str]:
    """Slots from 1, the oldest first."""
    return {
        slot: str(part)
        for slot, part in rule.kept([(n, now - age) for n, age in enumerate(ages, 1)], now).items()
    }


@pytest.mark.parametrize(
    ("what", "ages", "stay"),
    [
        ("nothing", [], {}),
        ("all that are young", [50 * MINUTE, 10 * MINUTE, 0], {1: "all", 2: "all", 3: "all"}),
        (
            "the last of each hour",
            [3 * HOUR, 150 * MINUTE, 130 * MINUTE, 90 * MINUTE],
            {3: "hourly", 4: "hourly"},
        ),
        (
            "the last of each day",
            [9 * DAY, 8 * DAY + 2 * HOUR, 8 * DAY + HOUR, 8 * DAY],
            {3: "daily", 4: "daily"},
        ),
        ("nothing beyond the longest part", [31 * DAY, 30 * DAY, 30 * DAY - 1], {3: "daily"}),
        (
            "what a job with a gap has, and nothing in its place",
            [20 * DAY, 19 * HOUR, MINUTE],
            {1: "daily", 2: "hourly", 3: "all"},
        ),
        ("what is just as old as a part says, no more", [HOUR, HOUR - 1], {2: "all"}),
        ("after a pause that is longer than the rule, nothing", [50 * DAY, 40 * DAY], {}),
        (
            "what a clock dated ahead, as young",
            [5 * HOUR, -400 * DAY, 10 * MINUTE],
            {1: "hourly", 2: "all", 3: "all"},
        ),
        (
            "of an hour that came twice, since a clock went back, the later one",
            [150 * MINUTE, 125 * MINUTE, 140 * MINUTE, MINUTE],
            {3: "hourly", 4: "all"},
        ),
    ],
)
def test_the_rule_keeps(what: str, ages: list[int], stay: dict[int, str]) -> None:
    assert {slot: part.partition(" ")[0] for slot, part in kept(RULE, ages).items()} == stay


def test_a_week_begins_on_monday() -> None:
    sunday = 20_457 * DAY  # 2026-01-04
    week = retention_rule("weekly for 10 weeks")
    assert kept(week, [DAY, 0, -DAY], sunday) == {2: "weekly for 10 weeks", 3: "weekly for 10 weeks"}


@pytest.mark.parametrize(
    ("text", "age", "both"),
    [
        ("none", timedelta(0), "none"),
        ("none", timedelta(hours=1), "all for 1 hour"),
        ("hourly for 2 days, daily for 30 days", timedelta(0), "hourly for 2 days, daily for 30 days"),
        ("hourly for 2 days, daily for 30 days", timedelta(days=2), "all for 2 days, daily for 30 days"),
        ("all for 1 hour, daily for 30 days", timedelta(hours=3), "all for 3 hours, daily for 30 days"),
        ("all for 3 hours, daily for 30 days", timedelta(hours=1), "all for 3 hours, daily for 30 days"),
        ("daily for 30 days", timedelta(days=60), "all for 60 days"),
    ],
)
def test_a_rule_beside_an_age_is_a_rule(text: str, age: timedelta, both: str) -> None:
    found = retention_rule(text).beside(age)
    assert found == retention_rule(both)
    assert str(found) == both


def test_no_rule_keeps_nothing() -> None:
    assert kept(NO_RULE, [1, 0]) == {}


CHECKPOINTS = st.lists(st.integers(-3 * HOUR, 40 * DAY), max_size=25).map(
    lambda ages: [(slot, T0 - age) for slot, age in enumerate(ages, 1)]
)
RULES = st.sampled_from(
    [
        RULE,
        retention_rule("hourly for 5 hours"),
        retention_rule("all for 2 hours, weekly for 3 weeks"),
        NO_RULE,
    ]
)


@settings(max_examples=150, deadline=None)
@given(CHECKPOINTS, RULES, st.integers(0, 40 * DAY), st.integers(0, 10))
def test_what_stays_later_is_what_would_stay_if_nothing_had_gone_before(
    observed: list[tuple[int, int]], rule: RetentionRule, later: int, more: int
) -> None:
    """With clocks that go back as well. `more` checkpoints come meanwhile."""
    stay = rule.kept(observed, T0)
    new = [(len(observed) + n, T0 + later * n // 10) for n in range(1, more + 1)]
    survivors = [each for each in observed if each[0] in stay]
    assert rule.kept(survivors + new, T0 + later) == rule.kept(observed + new, T0 + later)


@settings(max_examples=100, deadline=None)
@given(CHECKPOINTS, RULES)
def test_no_part_keeps_more_than_it_says_at_most(
    observed: list[tuple[int, int]], rule: RetentionRule
) -> None:
    past = [each for each in observed if each[1] <= T0]
    for part in rule.parts:
        if part.most is not None:
            assert len(RetentionRule((part,)).kept(past, T0)) <= part.most
