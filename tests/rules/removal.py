"""A rule of the code, the patches that remove it, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """A text that the file has once, and what takes its place."""

    file: str
    old: str
    new: str


Removal = tuple[Patch, ...]


@dataclass(frozen=True)
class Rule:
    sentence: str
    removals: tuple[Removal, ...]
    """Each of them must make some test fail: a rule with tests of several kinds may have several."""
    tests: tuple[str, ...]
    """As pytest names them."""


def rule(sentence: str, file: str, old: str, new: str, *tests: str) -> Rule:
    """A rule that one patch removes; `file` is below `stateflow/`, and the tests below `tests/`."""
    return Rule(
        sentence, ((Patch(f"stateflow/{file}", old, new),),), tuple(f"tests/{test}" for test in tests)
    )
