"""Names in docstrings, and on the pages about the code, are there."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for folder in ("stateflow", "plugins", "demo", "scripts") for path in (ROOT / folder).rglob("*.py")
)
PAGES = ("architecture", "checks", "protocol", "spark-internals", "testing", "walk")
"""Of docs/. Other pages also name what belongs to other programs."""
BEGINS_A_SENTENCE = re.compile(r"(?:\A|[.:;]\s+)`([A-Za-z_]\w*)`(?=[ :,])")
"""So docstrings speak of a parameter, and of a neighbour in the file."""
OF_CODE = re.compile(r"\b(?:[A-Z][A-Z0-9]*_[A-Z0-9_]+|[a-z]+_[a-z_0-9]+|[A-Z][a-z]+[A-Z]\w+|_[A-Za-z]\w+)\b")
"""Words that only code has: LONGEST_LINE, save_entries, BatchLoop, _pending."""


def is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def words_of_code(source: str, tree: ast.Module) -> set[str]:
    """All words of a file but those of its docstrings."""
    lines = source.split("\n")
    for node in ast.walk(tree):
        if is_text(node):
            assert isinstance(node, ast.Expr)
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return set(re.findall(r"\w+", "\n".join(lines)))


def unknown_names(source: str) -> Iterator[str]:
    """Names that the docstring of a function begins a sentence with, and that its file does not have."""
    tree = ast.parse(source)
    words = words_of_code(source, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for name in BEGINS_A_SENTENCE.findall(ast.get_docstring(node) or ""):
                if name not in words:
                    yield f"line {node.lineno}, {node.name}: {name}"


def test_docstrings_speak_of_names_that_their_file_has() -> None:
    """If this fails: take the name out, or write where it is: `room.name`."""
    unknown = {
        str(path.relative_to(ROOT)): list(unknown_names(path.read_text(encoding="utf-8"))) for path in FILES
    }
    assert len(unknown) > 500
    assert {path: names for path, names in unknown.items() if names} == {}


def test_a_parameter_that_is_gone_is_noticed() -> None:
    source = '''def saved(refs: list[str]) -> list[str]:
    """The references. Saves only what `refs` lacks.

    `known` must come from the parent record.
    """
    return refs
'''
    assert list(unknown_names(source)) == ["line 1, saved: known"]
    assert list(unknown_names(source.replace("`known`", "`refs`"))) == []


@cache
def words_of_the_project() -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    words: set[str] = set()
    for name in listed.split("\0"):
        path = ROOT / name
        if not name.startswith("docs/") and name != "CHANGELOG.md" and path.is_file():
            words.update(re.findall(r"\w+", name))
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="ignore")))
    return words


@pytest.mark.parametrize("page", PAGES)
def test_a_page_about_the_code_names_what_is_there(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    named = {word for code in re.findall(r"`([^`\n]+)`", text) for word in OF_CODE.findall(code)}
    assert named - words_of_the_project() == set()
