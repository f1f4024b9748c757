"""Every rule of `docs/protocol.md` has cited tests and a way to remove it; `make rules` removes each and runs its tests."""

from __future__ import annotations

import ast

import pytest

from tests.protocol.removed_rules import RULES
from tests.protocol.rule_tests import ROOT, cited


def test_every_rule_of_the_page_is_removed_once_and_no_other() -> None:
    assert list(RULES) == list(dict.fromkeys(sorted(cited(), key=list(RULES).index)))
    assert set(RULES) == set(cited())


@pytest.mark.parametrize("rule", RULES)
def test_the_page_cites_a_test_for_each_rule_and_its_patches_still_apply(rule: str) -> None:
    assert cited()[rule], f"docs/protocol.md cites no test for {rule!r} that is there"
    for removal in RULES[rule]:
        texts: dict[str, str] = {}
        for patch in removal:
            text = texts.get(patch.file) or (ROOT / patch.file).read_text(encoding="utf-8")
            assert text.count(patch.old) == 1, f"{patch.file} has {patch.old!r} {text.count(patch.old)} times"
            texts[patch.file] = text.replace(patch.old, patch.new)
        for file, text in texts.items():
            ast.parse(text, file)
            assert text != (ROOT / file).read_text(encoding="utf-8")
