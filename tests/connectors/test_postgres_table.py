"""Tables of Postgres as users name them: where they are, and that no password comes into a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

import stateflow as sf
from stateflow.connectors import UnavailableError, UsageError
from stateflow.connectors.postgres.columns import Column, fits
from stateflow.connectors.postgres.server import cannot_connect, is_passing, trying_again
from stateflow.connectors.postgres.table import conninfo, names_of_table
from tests.refusals.refusal import refused


@dataclass
class Order:
    id: int
    amount: float


@pytest.mark.parametrize(
    ("connection", "place"),
    [
        ("postgresql://etl@db.example/shop", "postgres://db.example:5432/shop.public.orders"),
        ("postgres://db.example:5433/shop?sslmode=require", "postgres://db.example:5433/shop.public.orders"),
        (
            "postgresql://etl@a.example:5433,b.example:5434/shop?target_session_attrs=read-write",
            "postgres://a.example,b.example:5433,5434/shop.public.orders",
        ),
        (
            "postgresql://a.example,[::1]:5433/shop",
            "postgres://a.example,::1:5432,5433/shop.public.orders",
        ),
        ("host=db.example dbname=shop user=etl", "postgres://db.example:5432/shop.public.orders"),
        ("service=shop", "postgres://service:shop/public.orders"),
        ("env:SHOP", "postgres://env:SHOP/public.orders"),
        ("", "postgres://environment/public.orders"),
    ],
)
def test_a_table_has_one_place_however_its_server_is_named(connection: str, place: str) -> None:
    assert sf.postgres("public.orders", connection=connection).place == place
    assert sf.postgres('Public."orders"', connection=connection).place == place


def test_names_fold_as_in_sql() -> None:
    assert names_of_table('Shop."My ""T"') == ("shop", 'My "T')


def test_a_variable_has_the_connection_where_the_driver_runs() -> None:
    assert conninfo("env:SHOP", {"SHOP": "postgresql://u:p@h/d"}) == "postgresql://u:p@h/d"
    assert conninfo("service=shop", {}) == "service=shop"


def test_a_dry_run_writes_its_upserts_into_a_folder_with_their_keys(tmp_path: Any) -> None:
    from stateflow.pipelines.redirected import RedirectedPipeline

    def shop(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files("/in", "json"), Order)
        orders.upsert("out", sf.postgres("public.orders"), keys="id", order_by="amount")

    [sink] = RedirectedPipeline("shop", shop, folder=tmp_path).build().sinks
    assert (sink.sink_kind.name, sink.options["keys"], sink.options["order_by"]) == (
        "delta_upsert",
        ("id",),
        "amount",
    )
    assert sink.output == str(tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "base", "type_", "fit"),
    [
        ("int", "int8", "bigint", True),
        ("bigint", "int4", "integer", False),
        ("bigint", "numeric", "numeric", True),
        ("bigint", "numeric", "numeric(6,2)", False),
        ("decimal(6,2)", "numeric", "numeric(6,2)", True),
        ("decimal(6,2)", "numeric", "numeric(6,3)", False),
        ("decimal(6,2)", "numeric", "numeric", True),
        ("double", "float4", "real", False),
        ("string", "jsonb", "jsonb", True),
        ("string", "int4", "integer", False),
        ("array<int>", "jsonb", "jsonb", True),
        ("array<int>", "_int4", "integer[]", False),
        ("interval day to second", "interval", "interval", False),
        ("timestamp", "timestamptz", "timestamp with time zone", True),
        ("timestamp", "timestamptz", "timestamp(6) with time zone", True),
        ("timestamp", "timestamptz", "timestamp(3) with time zone", False),
        ("timestamp_ntz", "timestamp", "timestamp(0) without time zone", False),
    ],
)
def test_a_column_fits_if_it_holds_every_value(kind: str, base: str, type_: str, fit: bool) -> None:
    assert fits(kind, Column("c", type_, base)) is fit


def test_what_passes_is_tried_again_and_what_does_not_is_not() -> None:
    broken, paused = (
        list[psycopg.Error]([psycopg.OperationalError("gone"), psycopg.errors.DeadlockDetected("locked")]),
        list[float](),
    )

    def act() -> int:
        if broken:
            raise broken.pop()
        return 5

    assert trying_again("table t", act, paused.append) == 5
    assert paused == [0.2, 0.5]
    broken[:] = [psycopg.OperationalError("gone")] * 9
    with refused(UnavailableError, "table t broke off", "gone", "run again"):
        trying_again("table t", act, paused.append)
    limits: dict[type[psycopg.Error], str] = {
        psycopg.errors.QueryCanceled: "statement_timeout",
        psycopg.errors.IdleInTransactionSessionTimeout: "idle_in_transaction_session_timeout",
        psycopg.errors.IdleSessionTimeout: "idle_session_timeout",
    }
    for limit, setting in limits.items():
        broken[:] = [limit("too long")] * 9
        with refused(UnavailableError, "table t broke off", "too long", f"a longer {setting} "):
            trying_again("table t", act, paused.append)
    broken[:] = [psycopg.errors.CheckViolation("no")]
    with pytest.raises(psycopg.errors.CheckViolation):
        trying_again("table t", act, paused.append)
    assert not is_passing(ValueError())
    assert isinstance(cannot_connect("t", 'FATAL: database "x" does not exist'), UsageError)
    assert isinstance(cannot_connect("t", "Connection refused"), UnavailableError)
