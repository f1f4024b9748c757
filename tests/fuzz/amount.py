"""How many inputs: 2,000 in all in `make test`, the same ones each time; 100,000 others in the long form, `make fuzz`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from tests.fuzz.case import Case
from tests.fuzz.targets import TARGETS
from tests.fuzz.watch import Held

SHORT, LONG = 2_000, 100_000
SHARES = {
    "bodies": 10.0,
    "values": 6.0,
    "schemas": 6.0,
    "segments": 2.0,
    "offsets": 2.0,
    "paths": 2.0,
    "entries": 2.0,
    "keys": 2.0,
    **dict.fromkeys(("read", "verify", "query", "claim", "change", "restore"), 0.5),
    **dict.fromkeys(("show", "pages"), 0.25),
    **dict.fromkeys(("read foreign", "query foreign", "restore foreign", "dispose foreign"), 0.5),
    **{
        f"{verb} on a disk": 0.25
        for verb in (
            *("verify", "change", "claim", "restore"),
            *("read foreign", "query foreign", "restore foreign", "dispose foreign"),
        )
    },
}
"""A decoder takes a millisecond, a restore fifty: each has so large a share of the inputs."""


def inputs(name: str, total: int) -> int:
    """How many of so many inputs this target gets."""
    return math.ceil(total * SHARES[name] / sum(SHARES.values()))


def played(
    name: str,
    held: Held,
    count: int = 0,
    *,
    seed: str = "",
    before: Callable[[Case], None] = lambda case: None,
    after: Callable[[Case, str], None] = lambda case, outcome: None,
) -> None:
    """Plays inputs of a target, without a seed always the same ones; tells before and after each, with what came of it.

    A failure shows the smallest input that fails, which then belongs into the corpus.
    """
    target = TARGETS[name]

    @settings(
        max_examples=count or inputs(name, SHORT),
        derandomize=not seed,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(target.cases)
    def each(case: Any) -> None:
        before(case)
        try:
            outcome = target.play(held, case)
        except BaseException as error:
            error.add_note(f"as a file of tests/fuzz/corpus: {case.dump()}")
            raise
        after(case, outcome)

    (seeded(seed)(each) if seed else each)()
