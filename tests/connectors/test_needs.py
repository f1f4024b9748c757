"""What a connector needs in the process of a run is told by `check`, and by a run before Spark starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.connectors import Source
from stateflow.errors import UsageError
from stateflow.jobs.checking import checked


class Rows(Source):
    def position(self, start: Any) -> Any:
        raise AssertionError("the source is asked, though the process cannot read it")

    plan = read = position

    def require(self) -> None:
        raise UsageError("the shop needs a password")


def kafka(**given: Any) -> Any:
    return sf.kafka("orders", **given)


@pytest.mark.parametrize(
    ("source", "target", "absent", "told"),
    [
        (None, sf.postgres("public.t"), "psycopg", "sink 'out': Postgres table public.t needs the package psycopg"),
        (None, kafka(bootstrap="b:1"), "confluent_kafka", "sink 'out': Kafka topic orders needs the package confluent_kafka"),
        (None, sf.postgres("public.t", connection="env:NOWHERE"), "", "sink 'out': .* the variable NOWHERE, which this process does not have"),
        (None, kafka(connection="env:NOWHERE"), "", "sink 'out': .* the variable NOWHERE, which this process does not have"),
        (None, kafka(connection="/no/file"), "", "sink 'out': .* the connection /no/file cannot be read"),
        (None, sf.iceberg("shop.t"), "pyiceberg.utils.config", "sink 'out': Iceberg table shop.t of catalog 'default' needs the package pyiceberg"),
        (None, sf.iceberg("shop.t", catalog="nowhere"), "", "sink 'out': .* no such catalog .* set PYICEBERG_CATALOG__NOWHERE__URI"),
        (sf.iceberg("shop.t", catalog="nowhere"), sf.memory("out"), "", "source 'rows': .* no such catalog"),
        (kafka(connection="/no/file"), sf.memory("out"), "", "source 'rows': .* the connection /no/file cannot be read"),
        (kafka(connection="env:NOWHERE"), sf.memory("out"), "", "source 'rows': .* the variable NOWHERE"),
        (Rows(), sf.memory("out"), "", "source 'rows': the shop needs a password"),
    ],
)  # fmt: skip
def test_a_need_that_is_not_met_is_told_without_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, target: Any, absent: str, told: str
) -> None:
    @sf.pipeline("shop")
    def shop(flow: sf.Flow) -> None:
        rows = flow.source("rows", source or sf.files(str(tmp_path), "json"), "id long")
        (rows.collect if source else rows.append)("out", target)

    if absent:
        monkeypatch.setitem(sys.modules, absent, None)
    (warning,) = checked(shop.build(), "shop", None).warnings
    with pytest.raises(UsageError, match=told) as refused:
        sf.Job(str(tmp_path / "root"), "shop").run(shop)
    assert str(refused.value) == warning


def test_a_need_that_is_met_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", "bootstrap.servers=b:1")

    @sf.pipeline("shop")
    def shop(flow: sf.Flow) -> None:
        rows = flow.source("rows", sf.files(str(tmp_path), "json"), "id long")
        rows.append("out", kafka(connection="env:SOMEWHERE"))

    assert checked(shop.build(), "shop", None).warnings == ()
