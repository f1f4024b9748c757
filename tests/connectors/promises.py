"""Which promises of the kit a class of tests tries: those that its neighbour's code does not keep for it."""

from __future__ import annotations

from collections.abc import Set

from stateflow.testing import SinkConformance


def only(tests: type[SinkConformance], promises: Set[str]) -> None:
    """Leaves the tests of these names, and takes the kit's other ones out."""
    for name in {name for name in dir(SinkConformance) if name.startswith("test_")} - promises:
        setattr(tests, name, None)
