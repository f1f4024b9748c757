"""What `docs/checks.md` says is found when: each row names a test that is there, and no refusal is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "checks.md"
MOMENTS = ("class", "build", "check", "start", "batch")
ROW = re.compile(r"\| (\w+) \| (.+) \| `([\w/]+\.py)::(\w+)` \|")


def rows() -> list[tuple[str, str, str, str]]:
    refusals = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
    lines = [line for line in refusals.splitlines() if line.startswith("|")][2:]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found, strict=True) if row is None]
    return [(row[1], row[2], row[3], row[4]) for row in found if row is not None]


def names(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[3])
def test_every_row_names_a_test_that_is_there(row: tuple[str, str, str, str]) -> None:
    when, what, file, test = row
    assert when in MOMENTS
    assert what.strip()
    assert test in names(file)


def test_the_moments_come_in_their_order_and_none_is_missing() -> None:
    told = [when for when, *_ in rows()]
    assert list(dict.fromkeys(told)) == list(MOMENTS)
    assert sorted(told, key=MOMENTS.index) == told


@pytest.mark.parametrize("file", ["pipelines/test_class_checks.py", "pipelines/test_step_checks.py"])
def test_every_refusal_of_a_class_and_of_a_flow_is_on_the_page(file: str) -> None:
    refusals = {name for name in names(file) if re.match(r"test_.*(refused|_may_not_)", name)}
    assert refusals
    assert refusals <= {test for _, _, where, test in rows() if where == file}


def test_the_guide_leads_to_the_page() -> None:
    assert "](checks.md)" in (PAGE.parent / "user-guide.md").read_text(encoding="utf-8")
