"""Names that are not known here: what was meant, or what another system's word is called.

Whatever has names asks `suggestion`: the module, streams, contexts, process classes and keyword arguments. Each table has the words
of Spark, Flink, Kafka Streams and Quix; a test tries what it tells to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from stateflow.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

MODULE: Mapping[str, str] = {
    **dict.fromkeys(("average", "avg"), "mean"),
    **dict.fromkeys(("std", "stddev_samp"), "stddev"),
    **dict.fromkeys(("var", "var_samp"), "variance"),
    **dict.fromkeys(("percentile", "percentile_approx", "approx_percentile"), "quantile"),
    "median": "quantile('column', 0.5)",
    **dict.fromkeys(("approx_count_distinct", "approxCountDistinct"), "count_distinct('column', approximate=True)"),
    **dict.fromkeys(("countDistinct", "nunique"), "count_distinct"),
    "first_value": "first",
    "last_value": "last",
    **dict.fromkeys(("collect_list", "array_agg", "Collect"), "collect('column', 100)"),
    **dict.fromkeys(("tumble", "window", "tumbling_window", "TumblingEventTimeWindows"), "tumbling"),
    **dict.fromkeys(("hop", "sliding", "hopping_window", "sliding_window", "SlidingEventTimeWindows"), "hopping"),
    **dict.fromkeys(("session_window", "EventTimeSessionWindows"), "session"),
    **dict.fromkeys(("tumbling_count_window", "countWindow"), "count_window"),
    "cumulate": "cumulative",
    **dict.fromkeys(("KeyedProcessFunction", "ProcessFunction", "StatefulProcessor", "KeyedBroadcastProcessFunction"), "KeyedProcess"),
    **dict.fromkeys(("CoProcessFunction", "KeyedCoProcessFunction", "CoFlatMapFunction"), "ConnectedProcess"),
    "ProcessWindowFunction": "WindowProcess",
    "OutputTag": "output('late', Order)",
    **{f"{kind}StateDescriptor": f"{kind}State" for kind in ("Value", "List", "Map", "Reducing", "Aggregating")},
    **dict.fromkeys(("StateTtlConfig", "TTLConfig"), "ttl"),
}  # fmt: skip
"""Names of `stateflow`, by what others call them."""

_KEYS = ".key_by('column')"
_WITHIN = "within=('-10 minutes', '0 minutes')"


def _of_a_stream(step: str) -> Mapping[str, str]:
    return {"a stream": step}


def _of_a_keyed_stream(step: str, windowed: str = "") -> Mapping[str, str]:
    return {
        "a stream": f"{_KEYS}{step}",
        "a keyed stream": step,
        **({"a windowed stream": windowed} if windowed else {}),
    }


def _join(options: str) -> Mapping[str, str]:
    return _of_a_keyed_stream(
        f".join('uid', right, Output, {_WITHIN}{options})", f".join('uid', right, Output{options})"
    )


_GROUPED = _of_a_stream(_KEYS)
_ROWS = _of_a_stream(".transform(lambda rows: ...), where `rows` is a DataFrame")
_ONCE = _of_a_stream(".deduplicate('uid', by='column', within='1 day')")
_TIME = _of_a_stream("flow.source(..., event_time='column', watermark='10 minutes')")
_SINK = _of_a_stream(".append('uid', sf.delta(path)) or another sink")
_SUM = ".aggregate('uid', Output, total=sf.sum('column'))"
_SUMS = _of_a_keyed_stream(_SUM, _SUM)
_PROCESS = _of_a_keyed_stream(".process('uid', KeyedProcessClass)", ".process('uid', WindowProcessClass)")
_FULL, _INNER = _join(", how='full'"), _join("")
_RANKED = _of_a_keyed_stream(".top('uid', 10, by='-amount')")


def _window(window: str) -> Mapping[str, str]:
    return _of_a_keyed_stream(f".window({window})")


STEPS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(
        ("filter", "where", "select", "selectExpr", "withColumn", "withColumns", "withColumnRenamed", "drop", "map", "flat_map",
         "flatMap", "mapInArrow", "mapInPandas", "explode", "alias", "cast", "apply"),
        _ROWS,
    ),
    **dict.fromkeys(("groupBy", "group_by", "groupby", "keyBy", "key", "groupByKey", "group_by_key"), _GROUPED),
    **dict.fromkeys(("dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "distinct"), _ONCE),
    **dict.fromkeys(("withWatermark", "with_watermark", "assign_timestamps_and_watermarks"), _TIME),
    **dict.fromkeys(("write", "writeStream", "write_stream", "sink_to", "add_sink", "foreachBatch", "to_topic"), _SINK),
    **dict.fromkeys(("agg", "sum", "count", "reduce"), _SUMS),
    **dict.fromkeys(("transformWithState", "transformWithStateInPandas", "applyInPandasWithState", "update"), _PROCESS),
    **dict.fromkeys(("intervalJoin", "interval_join", "join_interval", "innerJoin", "inner_join"), _INNER),
    **dict.fromkeys(("leftJoin", "left_join"), _join(", how='left'")),
    **dict.fromkeys(("rightJoin", "right_join"), _join(", how='right'")),
    **dict.fromkeys(("outerJoin", "outer_join", "fullJoin", "full_join"), _FULL),
    **dict.fromkeys(("coGroup", "co_group", "cogroup"), _of_a_keyed_stream(".connect(right).process('uid', ConnectedProcessClass)")),
    "join_lookup": _of_a_keyed_stream(".enrich('uid', look_up, Output)"),
    **dict.fromkeys(("tumbling_window", "tumble", "timeWindow", "time_window"), _window("sf.tumbling('10 minutes')")),
    **dict.fromkeys(("hopping_window", "sliding_window", "hop"), _window("sf.hopping('10 minutes', '1 minute')")),
    "session_window": _window("sf.session('10 minutes')"),
    **dict.fromkeys(("tumbling_count_window", "countWindow", "count_window"), _window("sf.count_window(100)")),
    **dict.fromkeys(("row_number", "rank", "over"), _RANKED),
    **dict.fromkeys(("getSideOutput", "get_side_output", "side_output"), _of_a_stream(".side('late')")),
}  # fmt: skip
"""Steps by what others call them, and by the kind of stream that is asked: what to write there."""

CONTEXT: Mapping[str, str] = {
    **dict.fromkeys(
        ("timestamp", "event_time"), "a column of the row, such as row.ts; in a timer's handler it is the argument `at`"
    ),
    **dict.fromkeys(
        ("timer_service", "timerService", "register_event_time_timer", "registerTimer", "register_timer"),
        "a timer of the class: declare due = sf.Timer('event'), then call self.due.set(at)",
    ),
    **dict.fromkeys(
        ("get_state", "getState", "state", "get_value_state", "getValueState"),
        "a state of the class: declare total = sf.ValueState(float, 0.0), then use self.total.value",
    ),
    **dict.fromkeys(("output", "side_output", "sideOutput"), "ctx.emit(output, row)"),
    **dict.fromkeys(("collect", "forward", "out"), "what the method gives back: yield row"),
    **dict.fromkeys(("current_key", "get_current_key", "getCurrentKey"), "ctx.key"),
    **dict.fromkeys(
        ("current_watermark", "currentWatermark", "get_current_watermark", "getCurrentWatermarkInMs"), "ctx.watermark"
    ),
    **dict.fromkeys(
        ("current_processing_time", "currentProcessingTime", "processing_time", "getCurrentProcessingTimeInMs"), "ctx.now"
    ),
}  # fmt: skip
"""What user code asks its context for, by what others call it."""

METHODS: Mapping[str, str] = {
    **dict.fromkeys(("process_element", "processElement", "handleInputRows"), "process"),
    **dict.fromkeys(("process_element1", "processElement1"), "process_left"),
    **dict.fromkeys(("process_element2", "processElement2"), "process_right"),
    **dict.fromkeys(("process_broadcast_element", "processBroadcastElement"), "process_broadcast"),
}
"""Methods of process classes, by what others call them."""

TIMER_METHODS = frozenset(
    ("on_timer", "onTimer", "on_timers", "handle_timer", "handleExpiredTimer", "handle_expired_timer")
)
"""The methods that other systems have for timers."""

OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("allowed_lateness", "allowedLateness", "grace", "grace_ms", "grace_period"), ".window(..., lateness='5 minutes')"
    ),
    **dict.fromkeys(("outputMode", "output_mode"), "emit= of .window(...).aggregate()"),
    **dict.fromkeys(("on", "cond", "left_on", "right_on"), ".key_by('column') of both inputs"),
    **dict.fromkeys(("condition", "predicate"), "where='left_price < right_price'"),
    **dict.fromkeys(("partition_by", "partitionBy"), "sf.delta(path, partition_by=['column'])"),
    "per_batch": "sf.delta(path, options={'maxFilesPerTrigger': '100'})",
    **{name: f"options={{{name!r}: {value!r}}}" for name, value in
       {"maxFilesPerTrigger": "100", "maxBytesPerTrigger": "1g", "startingVersion": "7", "startingTimestamp": "2026-01-01"}.items()},
    **dict.fromkeys(("readChangeFeed", "readChangeData"), "sf.delta(path, changes=True)"),
    "final": "drain=True",
    **dict.fromkeys(("delayThreshold", "delay", "max_out_of_orderness"), "watermark= of flow.source()"),
}  # fmt: skip
"""Keyword arguments, by what others call them."""

JOINS: Mapping[str, str] = {
    **dict.fromkeys(("outer", "full_outer", "fullouter"), "full"),
    **dict.fromkeys(("left_outer", "leftouter"), "left"),
    **dict.fromkeys(("right_outer", "rightouter"), "right"),
    **dict.fromkeys(("left_semi", "leftsemi"), "semi"),
    **dict.fromkeys(("left_anti", "leftanti"), "anti"),
}
"""Kinds of joins, by what others call them."""


def suggestion(name: str, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """The end of a sentence about an unknown name: what to write instead. Empty when nothing is like it."""
    if elsewhere and name in elsewhere:
        return f": that is {elsewhere[name]}"
    alike = get_close_matches(name, list(known), 1)
    return f": did you mean {alike[0]}?" if alike else ""


class NoSuchName(UsageError, AttributeError):
    """An AttributeError, so that `hasattr` answers as ever."""


class NoSuchOption(UsageError, TypeError):
    """A TypeError, as of any function."""


class Named:
    """An object that, asked for a name it does not have, says which one was meant."""

    _called: ClassVar[str]
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # With it, type checkers would take any name.

        def __getattr__(self, name: str) -> NoReturn:
            known = [] if name.startswith("_") else [each for each in dir(self) if not each.startswith("_")]
            raise NoSuchName(f"{self._called} has no {name!r}{suggestion(name, known, self._elsewhere)}")


def with_options(function: F) -> F:
    """A function that, given a keyword argument it does not have, says which one was meant."""
    parameters = signature(function).parameters.values()
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return function
    known = frozenset(each.name for each in parameters if each.kind is not Parameter.POSITIONAL_ONLY)

    @wraps(function)
    def called(*positional: Any, **given: Any) -> Any:
        if not given.keys() <= known:
            name = min(given.keys() - known)
            of = type(positional[0]).__name__ if function.__name__ == "__init__" else function.__name__
            options = known - {"self"}
            raise NoSuchOption(f"{of}() has no option {name!r}{suggestion(name, options, OPTIONS)}")
        return function(*positional, **given)

    return called  # type: ignore[return-value]
