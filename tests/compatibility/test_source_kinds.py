"""A source that becomes another kind under its uid: each pair, told without Spark, and the refusal of a run that has opened it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.compatibility.flows import check_flow, compare
from stateflow.connectors import Position, Source
from stateflow.errors import IncompatibleError
from stateflow.format.records import LeftTopic, SourceState
from stateflow.format.source_offsets import NOTHING, SourceLeaves, check_same_source
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from tests.jobs.log import record
from tests.refusals.refusal import refused


@dataclass
class Order:
    user: int


class Shop(Source):
    def position(self, start: Position | None) -> Position:
        return {"id": 0}

    def plan(self, start: Position, end: Position) -> list[Any]:
        return []

    def read(self, part: Any) -> list[Any]:
        return []


DELTA_LINE = (
    '{"sourceVersion":1,"reservoirId":"d6c7","reservoirVersion":8,"index":-1,"isStartingVersion":false}'
)
ICEBERG_LINE = '{"table":"7a","snapshot":"12"}'
RATE_LINE = '{"offset":7,"timestamp":1700000000000}'
KAFKA_LINE = '{"orders":{"0":12}}'

READ = {
    "delta": SourceState(lines=(DELTA_LINE,), kind="delta"),
    "file": SourceState(lines=('{"logOffset":3}',), kind="file"),
    "kafka": SourceState(lines=(KAFKA_LINE,), kind="kafka", topic_ids={"0/orders": "x"}),
    "iceberg": SourceState(lines=(ICEBERG_LINE,), kind="iceberg"),
    "package": SourceState(lines=('{"id":41}',), kind="package"),
    "rate": SourceState(lines=(RATE_LINE,), kind="other"),
}
NOW = {
    "delta": sf.delta("/nowhere"),
    "changes": sf.delta("/nowhere", changes=True),
    "file": sf.files("/nowhere", "json"),
    "kafka": sf.kafka("orders", bootstrap="broker:9092"),
    "iceberg": sf.iceberg("db.orders"),
    "package": Shop(),
}
SAME = {(name, name) for name in READ} | {("delta", "changes")}
UNTOLD = {("rate", "package"), ("rate", "iceberg")}
"""Records of older releases call the positions of packages what they call those of other streams of Spark's."""
WORDS = {
    "delta": "a delta offset",
    "file": "a file offset",
    "kafka": "a kafka offset",
    "iceberg": "an iceberg position",
    "package": "a position of a package's source",
    "rate": "an offset of another kind",
}


def flow(source: Any) -> Flow:
    rows = None if source is NOW["changes"] else Order

    def declare(flow: Flow) -> None:
        flow.source("src", source, rows).collect("out", sf.memory("x"))

    return Pipeline("job", declare).build()


@pytest.mark.parametrize("now", NOW)
@pytest.mark.parametrize("before", READ)
def test_a_source_of_another_kind_does_not_fit_what_the_record_says_of_it(before: str, now: str) -> None:
    of_before = record(sources={"src": READ[before]})
    check = compare(flow(NOW[now]), "job", of_before)
    if (before, now) in SAME | UNTOLD:
        assert check.compatible
        assert check.sources == {"src": "continues"}
        return
    assert not check.compatible
    assert check.sources == {"src": "incompatible"}
    (sentence,) = check.problems
    kind = "delta" if now == "changes" else now
    assert (
        f"source 'src' is now a{'n' * (kind == 'iceberg')} {kind} source but the checkpoint holds {WORDS[before]}"
        in sentence
    )
    assert "give it a new uid" in sentence
    assert "operators behind it" in sentence
    with refused(IncompatibleError, sentence):
        check_flow(flow(NOW[now]), of_before)


def test_a_topic_that_a_source_names_no_more_is_told_and_one_in_its_place_has_to_be_meant() -> None:
    def naming(*topics: str) -> Flow:
        return flow(sf.kafka(*topics, bootstrap="broker:9092"))

    read = SourceState(lines=('{"orders":{"0":12},"returns":{"0":3}}',), kind="kafka")
    before = record(sources={"src": read})
    [told] = compare(naming("orders"), "job", before).warnings
    for named in ("'src'", "'returns'", "does not name any more", "goes on there"):
        assert named in told
    assert compare(naming("orders", "returns", "gifts"), "job", before).warnings == ()
    swapped = naming("orders", "back")
    with refused(IncompatibleError, "'src'", "'returns'", "'back'", "--allow-non-restored-state"):
        check_flow(swapped, before)
    assert not compare(swapped, "job", before).compatible
    allowed = naming("orders", "back")
    allowed.allow_non_restored_state = True
    check_flow(allowed, before)
    assert compare(allowed, "job", before).compatible
    # One that was left before is none of today's, and no new one when it comes back.
    left = msgspec.structs.replace(
        read, lines=('{"orders":{"0":12}}',), left={"0/returns": LeftTopic({"0": 3})}
    )
    gone = record(sources={"src": left})
    assert compare(naming("orders"), "job", gone).warnings == ()
    check_flow(naming("returns"), gone)
    # Nothing was read of it.
    empty = record(sources={"src": SourceState(lines=('{"orders":{"0":0}}',), kind="kafka")})
    assert compare(naming("gifts"), "job", empty).warnings == ()


def test_a_stream_of_spark_s_is_known_once_it_is_open() -> None:
    function = flow(lambda spark: None)
    for before, state in READ.items():
        assert compare(function, "job", record(sources={"src": state})).compatible
        opened = SourceLeaves("src", 1, ("other",))
        if before == "rate":
            check_same_source(opened, state)
        else:
            with refused(IncompatibleError, "'src' is now another stream of Spark's", WORDS[before]):
                check_same_source(opened, state)


@pytest.mark.parametrize("now", ["package", "iceberg", "other"])
def test_positions_of_older_records_that_only_look_like_kafka_s_go_on(now: str) -> None:
    check_same_source(SourceLeaves("src", 1, (now,)), SourceState(lines=(KAFKA_LINE,), kind="kafka"))


def test_a_source_that_has_read_nothing_may_become_another() -> None:
    assert compare(
        flow(NOW["delta"]), "job", record(sources={"src": SourceState(lines=(NOTHING,))})
    ).compatible


def test_one_stream_does_not_fit_what_several_have_read() -> None:
    two = SourceState(lines=(DELTA_LINE, DELTA_LINE), kind="delta")
    (sentence,) = compare(flow(NOW["delta"]), "job", record(sources={"src": two})).problems
    assert "'src' now consists of 1 streams but the checkpoint holds offsets for 2" in sentence
