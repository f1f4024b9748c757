"""A key whose state has expired keeps its timers, and a key without state and timers leaves no byte."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.format.encoding import split
from stateflow.state.expiry.ttl import Ttl
from tests.operators.expiring import BACKENDS, SECOND, Expiring


def reminding(ttl: Ttl | str | None) -> type[Any]:
    class Reminding(sf.KeyedProcess[int, tuple[str, int], Any]):
        value = sf.ValueState(int, ttl=ttl)
        per = sf.MapState(int, int, ttl=ttl, namespace=str)
        remind = sf.Timer("processing")
        each = sf.Timer("processing", many=True, namespace=str)

        def process(self, key: int, rows: Iterator[tuple[str, int]], ctx: sf.Context) -> None:
            for name, seconds in rows:
                self.value.value = seconds
                self.per.at(name)[1] = seconds
                self.remind.set(instant(seconds))
                self.each.under(name).set(instant(seconds + 1))

        @remind.fires
        def reminded(self, key: int, at: Any, ctx: sf.Context) -> Iterator[Any]:
            yield key, "remind", self.value.value

        @each.fires
        def reminded_each(self, key: int, at: Any, ctx: sf.Context) -> Iterator[Any]:
            yield key, ctx.namespace, len(self.per.at(ctx.namespace))

    return Reminding


def instant(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_a_timer_outlives_the_state_of_its_key_and_then_nothing_is_left(tmp_path: Path, kind: str) -> None:
    job = Expiring(tmp_path / "job", kind, "10 seconds", reminding)
    states = {job.schemas[name].id for name in ("value", "per")}
    job.batch({key: [("a", 100), ("b", 100)] for key in range(5)}, 10 * SECOND)
    assert len(job.contents()) > 0
    assert job.batch({}, 20 * SECOND) == []
    assert job.expired == 15, "a value and two entries of maps per key"
    left = {split(key).state_id for key in job.contents()}
    assert not left & {*states, *(job.schemas[name].expiry_index for name in ("value", "per"))}
    fired = job.batch({}, 100 * SECOND)
    assert sorted(fired) == [(key, "remind", None) for key in range(5)]
    fired = job.batch({}, 101 * SECOND)
    assert sorted(fired) == [(key, name, 0) for key in range(5) for name in "ab"]
    assert job.contents() == {}
