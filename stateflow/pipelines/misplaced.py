"""A step that is asked of the wrong kind of stream, or that has another name elsewhere: the error says what it is here."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from stateflow.errors import UsageError

_ROWS = ".transform(lambda rows: ...), where `rows` is a DataFrame"
_KEYS = ".key_by('column')"
_ONCE = ".deduplicate('uid', by='column', within='1 day')"
_TIME = "flow.source(..., event_time='column', watermark='10 minutes')"
_SINK = ".append('uid', sf.delta(path)) or another sink"
_HERE = {
    **dict.fromkeys(
        ("filter", "where", "select", "selectExpr", "withColumn", "withColumnRenamed", "drop", "map", "flat_map", "flatMap",
         "mapInArrow", "mapInPandas", "explode", "alias", "cast", "apply"),
        _ROWS,
    ),
    **dict.fromkeys(("groupBy", "group_by", "groupby", "keyBy", "key"), _KEYS),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "distinct"), _ONCE),
    **dict.fromkeys(("withWatermark", "with_watermark", "assign_timestamps_and_watermarks"), _TIME),
    **dict.fromkeys(("write", "writeStream", "write_stream", "sink_to", "add_sink", "foreachBatch", "to_topic"), _SINK),
    **dict.fromkeys(("agg", "sum", "count", "reduce"), f"{_KEYS}.aggregate('uid', Output, total=sf.sum('column'))"),
    **dict.fromkeys(("transformWithState", "transformWithStateInPandas", "applyInPandasWithState", "update"),
                    f"{_KEYS}.process('uid', KeyedProcessClass)"),
}  # fmt: skip
"""What Spark, Flink and others call a step, and what it is here."""


class NoSuchStep(UsageError, AttributeError):
    """An AttributeError, so that `hasattr` answers as ever."""


class Steps:
    """A kind of stream that knows which steps the other kinds have."""

    _called: ClassVar[str]
    _kinds: ClassVar[list[tuple[type[Steps], str]]] = []

    def __init_subclass__(cls, *, called: str, comes: str, **more: Any) -> None:
        """`comes` says where in a flow such a stream is."""
        super().__init_subclass__(**more)
        cls._called = called
        Steps._kinds.append((cls, comes))

    if not TYPE_CHECKING:  # With it, type checkers would take any name for a step.

        def __getattr__(self, name: str) -> NoReturn:
            raise NoSuchStep(_misplaced(type(self), name))


def _misplaced(kind: type[Steps], name: str) -> str:
    for other, comes in Steps._kinds:
        if not name.startswith("_") and callable(getattr(other, name, None)):
            return f"{name} is a step of {other._called}, and this is {kind._called}: ask it {comes}"
    if name in _HERE:
        return f"{kind._called} has no {name!r}: that is {_HERE[name]}"
    steps = [step for step in dir(kind) if not step.startswith("_") and callable(getattr(kind, step))]
    alike = get_close_matches(name, steps, 1)
    meant = f": did you mean {alike[0]}?" if alike else ""
    return f"{kind._called} has no {name!r}{meant}"
