"""User code tested without Spark, in milliseconds: feed rows and time, look at output, state and timers.

harness = KeyedHarness(Balance)
harness.rows(Order(1, "a", 2.5, at))
assert harness.output == [Total(1, 2.5)]
assert harness.state(1).total.value == 2.5
harness.advance(at + timedelta(hours=2))

`ColumnarHarness` is the same for columnar operators, `PartitionHarness` for those without keys. `FlowHarness` runs a whole pipeline, and
needs Spark for it. `SinkConformance` and `SourceConformance` have the promises of a sink and of a source as tests, for whoever writes one. Each is loaded when it is first used: a
test of one class does not pay for pandas or Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateflow.testing.columnar import ColumnarHarness
    from stateflow.testing.conformance import SinkConformance
    from stateflow.testing.flow import FlowHarness
    from stateflow.testing.keyed import KeyedHarness
    from stateflow.testing.partition import PartitionHarness
    from stateflow.testing.source_conformance import SourceConformance

__all__ = [
    "ColumnarHarness",
    "FlowHarness",
    "KeyedHarness",
    "PartitionHarness",
    "SinkConformance",
    "SourceConformance",
]

_ROOMS = {
    "ColumnarHarness": "columnar",
    "FlowHarness": "flow",
    "KeyedHarness": "keyed",
    "PartitionHarness": "partition",
    "SinkConformance": "conformance",
    "SourceConformance": "source_conformance",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'stateflow.testing' has no attribute {name!r}")
        value = getattr(import_module(f"stateflow.testing.{_ROOMS[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
