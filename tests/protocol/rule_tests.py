"""The rules of `docs/protocol.md` and the tests that the page cites for each, as pytest names them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "protocol.md"
FILES = {
    "Recovery is a function of what is observed": ["tests/checkpoint/test_recovery.py"],
    "Every file has a size and checksums in the record": ["tests/checkpoint/test_verify.py"],
}
"""Rules whose tests the page cites by their file alone."""
_HEADING = re.compile(r"^#{2,3} (\d+\. )?(.+)$", re.MULTILINE)
_CITED = re.compile(r"\*([^*|]+)\*")


def cited() -> dict[str, list[str]]:
    """By rule, in the order of the page: the tests that are cited for it."""
    rules: dict[str, list[str]] = {}
    for number, heading, text in _sections(PAGE.read_text(encoding="utf-8")):
        rows = [line for line in text.splitlines() if line.startswith("|")]
        prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
        if number or heading == "Abandoning":
            rules[heading] = [*_tests(prose), *FILES.get(heading, [])] or [
                t for row in rows for t in _tests(row)
            ]
        if rows and rows[0].startswith("| without "):
            for row in rows[2:]:
                rules[row.split(" | ")[0].removeprefix("| ")] = _tests(row)
    return rules


def _sections(page: str) -> list[tuple[bool, str, str]]:
    """Whether the heading has a number, the heading, and the text below it."""
    found = list(_HEADING.finditer(page))
    ends = [match.start() for match in found[1:]] + [len(page)]
    return [
        (bool(match[1]), match[2], page[match.end() : end]) for match, end in zip(found, ends, strict=True)
    ]


def _tests(text: str) -> list[str]:
    without_code = re.sub(r"`[^`]*`|\*\*[^*]*\*\*", "", text)
    return [
        known()[name] for each in _CITED.findall(without_code) for name in _names(each) if name in known()
    ]


def _names(sentence: str) -> tuple[str, str]:
    """The test of a sentence; the apostrophe in it is left out, or stands for a gap."""
    plain = sentence.lower().replace("'", ""), sentence.lower()
    first, second = ("test_" + re.sub(r"[^a-z0-9]+", "_", each).strip("_") for each in plain)
    return (first, second) if first != second else (first, "")


@cache
def known() -> dict[str, str]:
    """Every test of the repository by its name."""
    nodes: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                nodes[node.name] = f"{file}::{node.name}"
            elif isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        nodes[inner.name] = f"{file}::{node.name}::{inner.name}"
    return nodes
