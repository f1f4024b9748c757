"""Every row of the tables in this folder is refused as it says. To add a refusal, add a row to the file of its area."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.refusals.refusal import Refusal, lacking, played, raised, refused

NO_TABLES = ("refusal.py", "test_refusals.py")
AREAS: dict[str, tuple[Refusal, ...]] = {
    path.stem: tuple(import_module(f"tests.refusals.{path.stem}").REFUSALS)
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if path.name not in NO_TABLES
}
ROWS = [
    pytest.param(row, id=f"{area}-{number}: {', '.join(row.named)[:60]}")
    for area, rows in AREAS.items()
    for number, row in enumerate(rows)
]
ILL_FORMED = re.compile(r"\n|\.$| {2}|<[^<>]* at 0x")
"""No message has several lines, ends in a full stop, or shows where an object is in memory."""


def problem_of(row: Refusal) -> str:
    """What is wrong about the answer to a row's call; nothing if it is refused as the row says."""
    error = played(row)
    message = str(error)
    if type(error) is not row.error:
        return f"{type(error).__name__}, and not {row.error.__name__}: {message}"
    if missing := lacking(message, row.named):
        return f"{missing} are not named in: {message}"
    if row.hidden and row.hidden in message:
        return f"{row.hidden} is repeated in: {message}"
    return f"the form of: {message}" if ILL_FORMED.search(message) else ""


@pytest.mark.parametrize("row", ROWS)
def test_a_call_is_refused_with_its_error_and_what_it_names(row: Refusal) -> None:
    assert row.named
    assert not problem_of(row)


@cache
def messages(area: str) -> tuple[str, ...]:
    return tuple(str(played(row)) for row in AREAS[area])


@pytest.mark.parametrize("area", AREAS)
def test_no_row_would_take_the_refusal_of_another_one_for_its_own(area: str) -> None:
    said = list(zip(AREAS[area], messages(area), strict=True))
    assert not [
        f"{', '.join(row.named)} would do for: {message}"
        for row, own in said
        for other, message in said
        if other.named != row.named and message != own and not lacking(message, row.named)
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Refusal(ValueError, ("'x'",), lambda: raised(KeyError("'x'"))), "KeyError, and not ValueError"),
        (Refusal(OSError, ("'x'",), lambda: raised(FileNotFoundError("'x'"))), "and not OSError"),
        (Refusal(ValueError, ("'x'", "y"), lambda: raised(ValueError("'x' is bad"))), "['y'] are not named"),
        (Refusal(ValueError, ("x",), lambda: raised(ValueError("x of me")), hidden="me"), "me is repeated"),
        (Refusal(ValueError, ("x",), lambda: raised(ValueError("x.\nWhy?"))), "the form of"),
        (Refusal(ValueError, ("x",), lambda: raised(ValueError("x"))), ""),
    ],
)
def test_a_row_that_is_wrong_would_be_noticed(row: Refusal, problem: str) -> None:
    assert problem in problem_of(row)
    assert bool(problem) is bool(problem_of(row))


def test_a_call_that_nobody_refuses_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="nobody refused it"):
        played(Refusal(ValueError, ("x",), lambda: None))


def test_what_is_not_named_in_a_test_of_its_own_would_be_noticed() -> None:
    with refused(ValueError, "'x'", "y") as caught:
        raised(ValueError("y is no 'x'"))
    assert str(caught.value) == "y is no 'x'"
    with pytest.raises(AssertionError, match="are not named"), refused(ValueError, "'x'", "z"):
        raised(ValueError("y is no 'x'"))
