"""How many inputs: 2,000 in all in `make test`, the same ones each time; 100,000 others in the long form, `make fuzz`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.case import Case

SHORT, LONG = 2_000, 100_000
IS_LONG = bool(os.environ.get("STATEFLOW_LONG"))
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


def inputs(name: str) -> int:
    """How many inputs this target gets."""
    total = int(os.environ.get("STATEFLOW_FUZZ_INPUTS") or (LONG if IS_LONG else SHORT))
    return math.ceil(total * SHARES[name] / sum(SHARES.values()))


def played(name: str, cases: st.SearchStrategy[Case], play: Callable[[Case], object]) -> None:
    """Plays the target's inputs. A failure shows the smallest one that fails, which then belongs into the corpus."""

    @settings(
        max_examples=inputs(name),
        derandomize=not IS_LONG,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def each(case: Any) -> None:
        try:
            play(case)
        except BaseException as error:
            error.add_note(f"as a file of tests/fuzz/corpus: {case.dump()}")
            raise

    each()
