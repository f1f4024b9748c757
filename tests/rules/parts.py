"""Every part of the code whose rules are removed by `make rules`, by its name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.protocol import removed_rules
from tests.protocol.rule_tests import cited
from tests.rules import batches, operators, sinks, values
from tests.rules.removal import Rule


def _of_the_page() -> tuple[Rule, ...]:
    tests = cited()
    return tuple(
        Rule(sentence, removals, tuple(tests.get(sentence, ())))
        for sentence, removals in removed_rules.RULES.items()
    )


PARTS: Mapping[str, tuple[Rule, ...]] = {
    "protocol": _of_the_page(),
    "operators": operators.RULES,
    "values": values.RULES,
    "sinks": sinks.RULES,
    "batches": batches.RULES,
}
