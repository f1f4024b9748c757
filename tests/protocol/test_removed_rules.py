"""Every rule of `docs/protocol.md` has cited tests and a way to remove it."""

from __future__ import annotations

from tests.protocol.removed_rules import RULES
from tests.protocol.rule_tests import cited


def test_every_rule_of_the_page_is_removed_once_and_no_other() -> None:
    assert list(RULES) == list(dict.fromkeys(sorted(cited(), key=list(RULES).index)))
    assert set(RULES) == set(cited())


def test_the_page_cites_a_test_for_each_rule() -> None:
    assert [rule for rule, tests in cited().items() if not tests] == []
