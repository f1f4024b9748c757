"""The watermark of a source that is held per partition: which partition holds it, and what a batch makes of their times. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.format.records import PartitionTime, SourceState
from stateflow.pipelines.flow import Flow
from stateflow.spark.inputs.observations import Observation
from stateflow.spark.inputs.partition_times import advanced_partitions, kept_awake, lowest_partition
from stateflow.spark.inputs.silence import found_nothing, is_idle
from stateflow.spark.inputs.watermark import Holder, advanced, holder_of, watermark_of
from tests.refusals.refusal import refused

SECOND = 1_000_000
HOUR = 3600 * SECOND
DELAY = 600 * SECOND
IDLE = 300 * SECOND
NAMES = [f"orders/{number}" for number in range(4)]
LINE = '{"orders":{"0":9,"1":9,"2":9,"3":9}}'


@dataclass
class Order:
    user: int
    ts: datetime


def flow_of(*uids: str) -> Flow:
    @sf.pipeline("marks")
    def made(flow: sf.Flow) -> None:
        for uid in uids:
            topic = sf.kafka("orders", bootstrap="broker:9092")
            rows = flow.source(uid, topic, Order, event_time="ts", watermark=sf.per_partition("10 minutes"))
            rows.append(f"out-{uid}", sf.delta(f"/nowhere/{uid}"))

    return made.build()


ORDERS = flow_of("orders")
moments = st.integers(0, 100 * HOUR)
times = st.builds(PartitionTime, event_time=st.none() | moments, active=moments, silent=moments)
partitions = st.dictionaries(st.sampled_from(NAMES), times, max_size=len(NAMES))
batches = st.lists(
    st.dictionaries(st.sampled_from(NAMES), st.none() | moments, max_size=len(NAMES)), max_size=8
)


def state(**by_number: tuple[int | None, int]) -> SourceState:
    """`p0=(event time, active)`, as of when one of them had rows last."""
    active = max(at for _, at in by_number.values())
    own = {
        f"orders/{name[1:]}": PartitionTime(event_time, at, active - at)
        for name, (event_time, at) in by_number.items()
    }
    known = [each.event_time for each in own.values() if each.event_time is not None]
    newest = max(known, default=None)
    return SourceState((LINE,), event_time=newest, active=active, partitions=own, looked=active)


def at(sources: Mapping[str, SourceState], now: int) -> dict[str, SourceState]:
    """Somebody has looked into all of them until `now`."""
    return found_nothing(sources, dict.fromkeys(sources, now))


def mark(source: SourceState, now: int, before: int | None = None, idle: int = IDLE) -> int | None:
    return watermark_of(ORDERS, at({"orders": source}, now), before, idle)


def test_the_partition_that_is_furthest_behind_holds_the_watermark() -> None:
    both = state(p0=(10 * HOUR, 900 * SECOND), p1=(2 * HOUR, 900 * SECOND))
    assert mark(both, 901 * SECOND) == 2 * HOUR - DELAY
    assert mark(both, 901 * SECOND, before=5 * HOUR) == 5 * HOUR, "it never goes back"
    assert holder_of(ORDERS, at({"orders": both}, 901 * SECOND), IDLE) == Holder(
        "orders", 900 * SECOND, "orders/1"
    )


def test_a_partition_without_rows_for_the_timeout_no_longer_holds_it() -> None:
    both = state(p0=(10 * HOUR, 900 * SECOND), p1=(2 * HOUR, 600 * SECOND))
    assert mark(both, 900 * SECOND) == 2 * HOUR - DELAY
    assert mark(both, 901 * SECOND) == 10 * HOUR - DELAY
    assert mark(both, 901 * SECOND, idle=0) == 2 * HOUR - DELAY, "0 is never"
    assert holder_of(ORDERS, at({"orders": both}, 901 * SECOND), IDLE) is None


def test_where_all_are_idle_the_one_furthest_ahead_counts() -> None:
    both = state(p0=(10 * HOUR, 600 * SECOND), p1=(2 * HOUR, 600 * SECOND))
    assert mark(both, 901 * SECOND) == 10 * HOUR - DELAY


def test_a_partition_that_lags_by_less_than_the_delay_is_not_named() -> None:
    both = state(p0=(10 * HOUR, 900 * SECOND), p1=(10 * HOUR - DELAY, 900 * SECOND))
    assert mark(both, 901 * SECOND) == 10 * HOUR - 2 * DELAY
    assert holder_of(ORDERS, at({"orders": both}, 901 * SECOND), IDLE) is None


def test_of_several_sources_the_partition_of_the_lowest_is_named() -> None:
    two = flow_of("a", "b")
    ahead = state(p0=(20 * HOUR, 900 * SECOND), p1=(15 * HOUR, 900 * SECOND))
    behind = state(p0=(10 * HOUR, 900 * SECOND), p1=(2 * HOUR, 900 * SECOND))
    sources = at({"a": ahead, "b": behind}, 901 * SECOND)
    assert watermark_of(two, sources, None, IDLE) == 2 * HOUR - DELAY
    assert holder_of(two, sources, IDLE) == Holder("b", 900 * SECOND, "orders/1")


def test_a_record_that_knows_no_partitions_goes_by_the_source() -> None:
    """As the first batch does after the pipeline began to say so."""
    assert mark(SourceState((LINE,), event_time=10 * HOUR, active=0), SECOND) == 10 * HOUR - DELAY


def test_a_batch_moves_the_partitions_that_had_rows_and_forgets_those_that_are_gone() -> None:
    before = state(p0=(10 * HOUR, 5), p1=(2 * HOUR, 5), p9=(HOUR, 5))
    seen = Observation(3, 9 * HOUR, partitions={"orders/0": 9 * HOUR, "orders/2": None, "orders/3": HOUR})
    after = advanced({"orders": before}, {"orders": seen}, 7)["orders"]
    assert after.partitions == {
        "orders/0": PartitionTime(10 * HOUR, 7),
        "orders/1": PartitionTime(2 * HOUR, 5),
        "orders/2": PartitionTime(None, 7),
        "orders/3": PartitionTime(HOUR, 7),
    }


def test_a_pipeline_that_says_so_no_more_forgets_the_partitions() -> None:
    before = state(p0=(10 * HOUR, 5))
    assert advanced({"orders": before}, {"orders": Observation(1, 11 * HOUR)}, 7)["orders"].partitions == {}
    assert advanced({"orders": before}, {}, 7)["orders"] == before


def test_a_source_that_waits_for_another_one_has_no_idle_partition() -> None:
    before = at({"orders": state(p0=(10 * HOUR, 5), p1=(2 * HOUR, 5))}, HOUR)
    assert watermark_of(ORDERS, before, None, IDLE) == 10 * HOUR - DELAY
    after = advanced(before, {}, 100 * HOUR, ["orders"], before=before, looked={"orders": 100 * HOUR})
    assert watermark_of(ORDERS, after, None, IDLE) == 2 * HOUR - DELAY
    assert after["orders"].looked == HOUR, "nobody has looked into it"


@given(partitions, st.sampled_from([0, IDLE]))
def test_it_is_the_lowest_that_is_not_idle_or_the_highest(known: dict[str, PartitionTime], idle: int) -> None:
    name = lowest_partition(known, idle)
    timed = [each for each in known.values() if each.event_time is not None]
    awake = [each.event_time for each in timed if not is_idle(each.silent, idle)]
    if not timed:
        assert name is None
        return
    assert name is not None
    expected = min(awake) if awake else max(each.event_time for each in timed)  # type: ignore[type-var]
    assert known[name].event_time == expected


@given(batches, moments)
def test_the_watermark_never_goes_back_whatever_partitions_come(
    seen: list[dict[str, int | None]], began: int
) -> None:
    source, watermark, now = SourceState((LINE,)), None, began
    for own in seen:
        now += 120 * SECOND
        found = [time for time in own.values() if time is not None]
        batch = {"orders": Observation(len(own), max(found, default=None), partitions=own)}
        source = advanced({"orders": source}, batch, now)["orders"]
        after = mark(source, now, watermark)
        assert watermark is None or (after is not None and after >= watermark)
        watermark = after


@given(batches, moments)
def test_no_row_is_late_in_a_partition_whose_own_rows_are_in_order(
    seen: list[dict[str, int | None]], began: int
) -> None:
    """Of partitions that have had rows before, and none is idle: each goes on from where it is."""
    reached: dict[str, int] = {}
    source, now = SourceState((LINE,)), began
    for own in [dict.fromkeys(NAMES, 0), *seen]:
        watermark, now = mark(source, now, idle=0), now + SECOND
        times = {name: reached.get(name, 0) + (step or 0) for name, step in own.items()}
        assert watermark is None or all(time > watermark for time in times.values())
        reached |= times
        batch = {"orders": Observation(len(own), max(times.values(), default=None), partitions=times)}
        source = advanced({"orders": source}, batch, now)["orders"]


@given(partitions, st.dictionaries(st.sampled_from(NAMES), st.none() | moments), moments)
def test_no_partition_goes_back_and_the_order_of_batches_does_not_matter(
    known: dict[str, PartitionTime], seen: dict[str, int | None], now: int
) -> None:
    after = advanced_partitions(known, seen, NAMES, now)
    assert set(after) == {*known, *seen}
    for name, each in known.items():
        assert (after[name].event_time or 0) >= (each.event_time or 0)
    assert advanced_partitions(after, seen, NAMES, now) == after, "a batch that is tried again says the same"
    assert {each.active for each in kept_awake(after, now).values()} <= {now}


def test_only_a_source_with_partitions_takes_it() -> None:
    def build(source: object, mark: object = sf.per_partition(timedelta(minutes=10))) -> None:
        @sf.pipeline("refused")
        def made(flow: sf.Flow) -> None:
            orders = flow.source("orders", source, Order, event_time="ts", watermark=mark)  # type: ignore[arg-type]
            orders.append("out", sf.delta("/out"))

        made.build()

    for source in (sf.delta("/orders"), lambda spark: spark):
        with refused(
            UsageError,
            "source 'orders'",
            "watermark=sf.per_partition",
            "goes by the partitions of topics",
            "or say watermark='10 minutes'",
        ):
            build(source)
        build(source, "10 minutes")
    build(sf.kafka("orders", bootstrap="broker:9092"))


@pytest.mark.parametrize("delay", ["-1 minutes", None])
def test_its_delay_is_a_duration(delay: Any) -> None:
    @sf.pipeline("refused")
    def made(flow: sf.Flow) -> None:
        topic = sf.kafka("orders", bootstrap="broker:9092")
        flow.source("orders", topic, Order, event_time="ts", watermark=sf.per_partition(delay))

    with refused(UsageError, "source 'orders': watermark is"):
        made.build()
