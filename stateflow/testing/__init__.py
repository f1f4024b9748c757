"""User code tested without Spark, in milliseconds: feed rows and time, look at output, state and timers.

harness = KeyedHarness(Balance)
harness.rows(Order(1, "a", 2.5, at))
assert harness.output == [Total(1, 2.5)]
assert harness.state(1).total.value == 2.5
harness.advance(at + timedelta(hours=2))

`ColumnarHarness` is the same for columnar operators, `PartitionHarness` for those without keys. `FlowHarness` runs a whole pipeline, and
needs Spark for it.
"""

from stateflow.testing.columnar import ColumnarHarness
from stateflow.testing.flow import FlowHarness
from stateflow.testing.keyed import KeyedHarness
from stateflow.testing.partition import PartitionHarness

__all__ = ["ColumnarHarness", "FlowHarness", "KeyedHarness", "PartitionHarness"]
