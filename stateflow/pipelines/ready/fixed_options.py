"""The options of ready-made operators that their state was made with, as text that a record keeps.

Another value of such an option would read the state wrongly, and nobody would notice: the columns of the state stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from stateflow.format.records import OPTION_AGGREGATE
from stateflow.pipelines.ready.aggregates import Aggregated
from stateflow.pipelines.ready.windows import STRICT, Counted, Cumulative, Session, Sliding, Window
from stateflow.quantities import written_duration
from stateflow.state.expiry.ttl import micros

NONE = "none"
LATENESS = "lateness"


def listed(columns: Iterable[str]) -> str:
    return ", ".join(columns) or NONE


def duration(micros: int | None) -> str:
    return NONE if micros is None else written_duration(timedelta(microseconds=micros))


def signed(micros: int) -> str:
    return duration(micros) if micros >= 0 else f"-{duration(-micros)}"


def window_text(window: Window) -> str:
    match window:
        case Session():
            return f"session({duration(window.gap)})"
        case Counted():
            return f"count_window({window.n})"
        case Sliding() if window.size == window.every:
            text = f"tumbling({duration(window.size)}"
        case Sliding():
            text = f"hopping({duration(window.size)}, every {duration(window.every)}"
        case Cumulative():
            text = f"cumulative({duration(window.size)}, every {duration(window.every)}"
        case _:
            return type(window).__name__
    return f"{text}, offset {duration(window.offset)})" if window.offset else f"{text})"


def windowing(window: Window, time: str, lateness: int) -> dict[str, str]:
    return {"window": window_text(window), "event time": time, LATENESS: duration(lateness)}


def strictness(late: str) -> dict[str, str]:
    """The option fits any state: it only decides which rows come into windows from now on."""
    return {"late": late} if late == STRICT else {}


def waits_no_longer(option: str, before: str, lateness: int) -> bool:
    """Whether rows may be at most as late as before. With more lateness, windows that are closed would begin anew."""
    return option == LATENESS and lateness <= (0 if before == "0" else micros(before))


def aggregate_options(aggregates: Iterable[Aggregated]) -> dict[str, str]:
    """By aggregate, what it keeps of the rows. What it only reads from that, such as a quantile's share, may change."""
    aggregates = tuple(aggregates)
    kept = {f"kind of values in aggregate {each.name!r}": each.form for each in aggregates if each.form}
    return {aggregate_option(each.name): _aggregate_text(each) for each in aggregates} | kept


def aggregate_option(name: str) -> str:
    return f"{OPTION_AGGREGATE}{name!r}"


def _aggregate_text(each: Aggregated) -> str:
    aggregate = each.aggregate
    arguments = [aggregate.column] if aggregate.column else []
    if aggregate.kind == "quantile":
        arguments.append(f"accuracy {aggregate.accuracy:g}")
    if aggregate.kind == "collect":
        arguments.append(f"limit {aggregate.limit}")
    text = f"{aggregate.kind}({', '.join(arguments)})"
    if aggregate.is_ordered:
        text += f" by {listed(each.order)}"
    return f"{text} where {aggregate.where}" if aggregate.where else text
