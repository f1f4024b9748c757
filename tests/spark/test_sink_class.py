"""What every sink's class has by itself. Without Spark."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from stateflow.connectors import CommitRequest, Sink, SinkKind


class _Zipped(Sink):
    declared: ClassVar[SinkKind] = SinkKind(
        "zipped",
        "append",
        "a folder",
        lambda target: True,
        f"{__name__}:_Zipped",
        options=frozenset({"level", "keys"}),
    )

    def open(self, spark: Any, schema: Any) -> None: ...

    def prepare(self, frame: Any, at: Any, stager: Any) -> Any: ...

    @staticmethod
    def commit(request: CommitRequest) -> Any: ...


@pytest.mark.parametrize("options", [{}, {"level": 9}, {"keys": "user"}])
def test_options_of_a_kind_of_its_own_come_to_its_class_as_they_were_given(options: dict[str, Any]) -> None:
    sink = _Zipped("out", options, "at_least_once")
    assert (sink.target, sink.options, sink.delivery) == ("out", options, "at_least_once")
    assert sink.upsert.keys == (("user",) if "keys" in options else ())
