"""Every state of the protocol in miniature: sound with all its rules, unsound without any one of them."""

from __future__ import annotations

import pytest

from tests.protocol.model import RULES, Actor, State, begin, explore


def owner(name: str) -> Actor:
    """A run of epoch 1 that owns the job and starts a batch."""
    return Actor(name, "run", "settle", epoch=1)


def claimer(name: str) -> Actor:
    return Actor(name, "run", "claim")


def collector(name: str) -> Actor:
    return Actor(name, "collect", "list")


def pinner(name: str) -> Actor:
    return Actor(name, "pin", "pin")


def restorer(name: str) -> Actor:
    return Actor(name, "restore", "pin")


CASTS: dict[str, State] = {
    "two runs and a collector": begin(owner("A"), claimer("B"), collector("GC")),
    "three runs": begin(owner("A"), claimer("B"), claimer("C")),
    "two claims": begin(claimer("B"), claimer("C")),
    "a pinner and two collectors": begin(pinner("P"), collector("GC1"), collector("GC2")),
    "a pinner, a run and a collector": begin(pinner("P"), owner("A"), collector("GC")),
    "a restore and a collector": begin(restorer("R"), collector("GC")),
}


@pytest.mark.parametrize("cast", CASTS)
def test_with_every_rule_no_state_is_unsound(cast: str) -> None:
    states, violation = explore(CASTS[cast])
    assert violation is None
    assert states > 10


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_without_a_rule_some_state_is_unsound(rule: str) -> None:
    violations = [violation for start in CASTS.values() if (violation := explore(start, off=rule)[1])]
    assert violations
