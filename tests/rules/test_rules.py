"""Every rule has tests that are there and a way to remove it; `make rules` removes each and runs its tests."""

from __future__ import annotations

import ast
from itertools import groupby

import pytest

from tests.protocol.rule_tests import ROOT, known
from tests.rules.parts import PARTS
from tests.rules.removal import Rule

RULES = [pytest.param(rule, id=f"{part}: {rule.sentence}") for part, rules in PARTS.items() for rule in rules]


def test_each_sentence_is_said_once_and_every_part_has_twenty() -> None:
    sentences = [rule.sentence for rules in PARTS.values() for rule in rules]
    assert [s for s, same in groupby(sorted(sentences)) if len(list(same)) > 1] == []
    assert {part for part, rules in PARTS.items() if len(rules) < 20} == set()


@pytest.mark.parametrize("rule", RULES)
def test_the_patches_of_a_rule_still_apply(rule: Rule) -> None:
    for removal in rule.removals:
        texts: dict[str, str] = {}
        for patch in removal:
            text = texts.get(patch.file) or (ROOT / patch.file).read_text(encoding="utf-8")
            assert text.count(patch.old) == 1, f"{patch.file} has {patch.old!r} {text.count(patch.old)} times"
            texts[patch.file] = text.replace(patch.old, patch.new)
        for file, text in texts.items():
            ast.parse(text, file)
            assert text != (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES)
def test_the_tests_of_a_rule_are_there(rule: Rule) -> None:
    assert rule.tests, f"{rule.sentence!r} has no test"
    nodes = set(known().values())
    for test in rule.tests:
        name = test.partition("[")[0]
        assert name in nodes if "::" in name else (ROOT / name).is_file(), f"there is no {test}"
