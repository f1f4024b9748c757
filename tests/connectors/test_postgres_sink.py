"""Rows into a real Postgres: once, or not at all, with a sentence."""

from __future__ import annotations

import datetime
import json
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors import (
    DisagreementError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    Sink,
    UnavailableError,
    UsageError,
    tries,
)
from stateflow.connectors.postgres import sink as sink_module
from stateflow.spark.sinks.kinds import delivered
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.connectors.fed import FedJob
from tests.connectors.postgres_server import Server, variable
from tests.refusals.refusal import refused

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
IN = "env:TEST_POSTGRES"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path, shop: Server) -> SinkLog:
    return SinkLog(spark, tmp_path)


def opened(
    log: SinkLog,
    schema: str,
    mode: str = "append",
    create: bool = False,
    table: str = "shop.t",
    **options: Any,
) -> Sink:
    sink = make_sink("totals", mode, sf.postgres(table, connection=IN, create=create), options)
    sink.open(log.spark, log.spark.createDataFrame([], schema).schema)
    return sink


def rows(log: SinkLog, schema: str, *values: tuple[Any, ...]) -> DataFrame:
    return log.spark.createDataFrame(list(values), schema).coalesce(1)


PAIR = "id long, v string"


def table(database: Server, what: str = "id, v", name: str = "shop.t") -> list[tuple[Any, ...]]:
    return database.run(f"SELECT {what} FROM {name} ORDER BY 1, 2")


def follow(database: Server, refusal: pytest.ExceptionInfo[Exception], end: str) -> None:
    """Runs the statement that a refusal advises."""
    said = str(refusal.value)
    database.run(said[said.index("UPDATE") : said.index(end)])


def test_rows_of_each_slot_come_once_however_often_they_are_committed(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, create=True)
    first = log.prepare(sink, rows(log, PAIR, (1, "a"), (2, None)))
    assert table(database) == []  # nobody sees what is not decided
    assert [log.commit(first), log.commit(first)] == ["committed", "already"]
    assert table(database) == [(1, "a"), (2, None)]
    assert log.deliver(sink, rows(log, PAIR, (3, ""))) == "committed"
    assert delivered(log.spark, log.recorded(first), log.name) == {"totals": True}
    assert log.deliver(sink, rows(log, PAIR)) == "none"
    assert table(database) == [(1, "a"), (2, None), (3, "")]
    assert delivered(log.spark, log.recorded(log.prepare(sink, rows(log, PAIR, (4, "d")))), log.name) == {
        "totals": False
    }


def test_no_record_has_the_password(log: SinkLog, database: Server) -> None:
    prepared = log.prepare(opened(log, PAIR, create=True), rows(log, PAIR, (1, "a")))
    password = psycopg.conninfo.conninfo_to_dict(database.url)["password"]
    assert prepared.payload["connection"] == IN
    assert str(password) not in json.dumps(prepared.payload) + prepared.target
    assert prepared.target == "postgres://env:TEST_POSTGRES/shop.t"


def test_every_type_comes_back_as_it_was(log: SinkLog, database: Server) -> None:
    schema = (
        "a tinyint, b smallint, c int, d bigint, e float, f double, g boolean, h string, i date, j timestamp, k timestamp_ntz, l binary, "
        "m decimal(12,3), n struct<x: int, y: array<string>>, o map<string, int>"
    )
    when = datetime.datetime(2025, 3, 1, 12, 30, 5, 123456)
    odd = 'a,"b"\n\\.\\N \t'
    values = (
        1, 2, 3, 4, 1.5, float("nan"), True, odd, datetime.date(2025, 1, 2), when.replace(tzinfo=datetime.UTC), when, b"\x00\xff",
        Decimal("12.345"), (1, ["x", None]), {"k": 1},
    )  # fmt: skip
    sink = opened(log, schema, create=True)
    log.deliver(sink, rows(log, schema, values, (None,) * 15))
    found = database.run("SELECT * FROM shop.t WHERE a IS NOT NULL")[0]
    assert found[:5] == values[:5]
    assert str(found[5]) == "nan"
    assert (found[6:9], found[10:13]) == (values[6:9], values[10:13])
    assert found[9].astimezone(datetime.UTC) == values[9]
    assert found[13:] == ({"x": 1, "y": ["x", None]}, {"k": 1})
    assert database.run("SELECT * FROM shop.t WHERE a IS NULL") == [(None,) * 15]


def test_an_upsert_replaces_and_deletes_by_key(log: SinkLog, database: Server) -> None:
    schema = "id long, v string, at int, op string"
    database.run(
        "CREATE TABLE shop.t (id bigint PRIMARY KEY, v text, at int, op text, own text DEFAULT 'mine')"
    )
    sink = opened(log, schema, "upsert", keys=["id"], order_by="at", delete_when="op = 'd'")
    log.deliver(
        sink, rows(log, schema, (1, "a", 1, "u"), (1, "b", 2, "u"), (2, "x", 1, "u"), (3, "y", 1, "u"))
    )
    database.run("UPDATE shop.t SET own = 'kept' WHERE id = 1")
    log.deliver(
        sink,
        rows(
            log,
            schema,
            (1, "c", 3, "u"),
            (2, "", 9, "d"),
            (2, "late", 4, "u"),
            (3, "", 5, "d"),
            (3, "again", 6, "u"),
            (7, "", 1, "d"),
        ),
    )
    assert table(database, "id, v, own") == [(1, "c", "kept"), (3, "again", "mine")]


@pytest.mark.parametrize("create", [False, True])
def test_a_column_with_a_name_that_the_server_would_cut_is_refused(
    log: SinkLog, database: Server, create: bool
) -> None:
    kept, cut = "ü" * 31 + "a", "ü" * 31 + "ab"
    if not create:
        database.run(f"CREATE TABLE shop.t (id bigint, {kept} text)")
    with refused(IncompatibleError, "Postgres table shop.t", repr(cut), "63 bytes", "transform()"):
        opened(log, f"id long, `{cut}` string", create=create)
    assert (database.run("SELECT to_regclass('shop.t')") == [(None,)]) == create
    assert log.deliver(
        opened(log, f"id long, `{kept}` string", create=create),
        rows(log, f"id long, `{kept}` string", (1, "a")),
    )


def test_a_table_is_not_made_with_a_name_that_the_server_would_cut(log: SinkLog, database: Server) -> None:
    kept = "e" * 63
    with refused(UsageError, f"shop.{kept}_a", repr(f"{kept}_a"), "63 bytes", "a shorter one"):
        opened(log, PAIR, create=True, table=f"shop.{kept}_a")
    assert database.run("SELECT 1 FROM pg_class WHERE relname LIKE 'eee%'") == []
    opened(log, PAIR, create=True, table=f"shop.{kept}")
    assert log.deliver(opened(log, PAIR, table=f"shop.{kept}_a"), rows(log, PAIR, (1, "a"))) == "committed"


def test_the_content_decides_between_equals_whatever_its_columns_are_called(
    log: SinkLog, database: Server
) -> None:
    schema = "id long, s int, t int"
    sink = opened(log, schema, "upsert", create=True, keys=["id"], order_by="s")
    log.deliver(sink, rows(log, schema, (1, 1, 1), (1, 1, 2), (2, 1, 2), (2, 1, 1)))
    assert table(database, "id, s, t") == [(1, 1, 2), (2, 1, 2)]


def test_an_upsert_makes_a_table_with_its_key(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, "upsert", create=True, keys=["id"])
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    log.deliver(sink, rows(log, PAIR, (1, "b")))
    assert table(database) == [(1, "b")]


def test_a_key_twice_or_without_value_is_refused_before_anything_is_written(
    log: SinkLog, database: Server
) -> None:
    sink = opened(log, PAIR, "upsert", create=True, keys=["id"])
    with refused(IncompatibleError, "2 rows of one batch", "the key id=1", "Postgres table shop.t"):
        log.prepare(sink, rows(log, PAIR, (1, "a"), (1, "b")))
    with refused(IncompatibleError, "1 of the rows", "the key column 'id'"):
        log.prepare(sink, rows(log, PAIR, (None, "a")))


@pytest.mark.parametrize(
    ("declared", "bad", "why"),
    [
        ("id bigint, v text CHECK (v <> 'bad')", (1, "bad"), "violates check constraint"),
        ("id bigint, v text NOT NULL DEFAULT ''", (1, None), "not-null"),
        ("id bigint PRIMARY KEY, v text", (5, "again"), "duplicate key"),
        ("id bigint, v varchar(3)", (1, "long"), "longer than the 3"),
        ("id bigint, v uuid", (1, "no uuid"), "invalid input syntax for type uuid"),
        ("id bigint, v text", (1, "a\0b"), "invalid byte sequence"),
        (
            "id bigint, v text REFERENCES shop.other (v) DEFERRABLE INITIALLY DEFERRED",
            (1, "nobody"),
            "foreign key",
        ),
    ],
)
def test_rows_that_the_table_refuses_are_refused_before_the_decision(
    log: SinkLog, database: Server, declared: str, bad: tuple[Any, ...], why: str
) -> None:
    database.run("CREATE TABLE shop.other (v text PRIMARY KEY)")
    database.run(f"CREATE TABLE shop.t ({declared})")
    if "PRIMARY KEY" in declared:
        database.run("INSERT INTO shop.t VALUES (5, 'there')")
    before = table(database)
    with refused(IncompatibleError, "Postgres table shop.t refuses", why, "no row was written"):
        log.prepare(opened(log, PAIR), rows(log, PAIR, bad))
    assert table(database) == before


@pytest.mark.parametrize(
    ("made", "schema", "error", "why"),
    [
        ("", PAIR, NotFoundError, "Postgres table shop.t is not there: make it, or let a run make it with .*create=True"),
        ("VIEW shop.t AS SELECT 1 AS id", PAIR, UsageError, "is no table but a view"),
        ("TABLE shop.t (id bigint)", PAIR, IncompatibleError, r"has no column 'v' \(ALTER TABLE ... ADD COLUMN \"v\" text\)"),
        ("TABLE shop.t (id int, v text)", PAIR, IncompatibleError, "column 'id' is integer, which does not hold every bigint"),
        ("TABLE shop.t (id bigint, v text, w int NOT NULL)", PAIR, IncompatibleError, "column 'w' takes no nulls and has no default"),
        ("TABLE shop.t (id bigint GENERATED ALWAYS AS IDENTITY, v text)", PAIR, IncompatibleError, "'id' is an identity column"),
        ("TABLE shop.t (id numeric(6,2), v text)", PAIR, IncompatibleError, "column 'id' is numeric"),
        ("TABLE shop.t (id decimal(6,2), v text)", "id decimal(8,2), v string", IncompatibleError, "does not hold every decimal"),
        ("TABLE shop.t (id bigint, v timestamp)", "id long, v timestamp", IncompatibleError, "has times without a zone"),
        ("TABLE shop.t (id bigint, v text[])", "id long, v array<string>", IncompatibleError, "does not hold every array<string>"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_at_the_start(
    log: SinkLog, database: Server, made: str, schema: str, error: type[Exception], why: str
) -> None:
    if made:
        database.run(f"CREATE {made}")
    with pytest.raises(error, match=why):
        opened(log, schema)


def test_an_upsert_needs_an_index_that_keeps_one_row_per_key(log: SinkLog, database: Server) -> None:
    database.run("CREATE TABLE shop.t (id bigint, v text)")
    with refused(IncompatibleError, "no unique index of id") as caught:
        opened(log, PAIR, "upsert", keys=["id"])
    database.run(
        str(caught.value).partition("CREATE UNIQUE")[1] + str(caught.value).partition("CREATE UNIQUE")[2]
    )
    opened(log, PAIR, "upsert", keys=["id"])


def test_a_schema_that_is_missing_and_rights_that_are_missing_are_told_with_the_statement(
    log: SinkLog, database: Server
) -> None:
    with refused(IncompatibleError, 'CREATE SCHEMA "nowhere" first'):
        opened(log, PAIR, create=True, table="nowhere.t")
    database.run("DROP ROLE IF EXISTS poor")
    database.run("CREATE ROLE poor LOGIN PASSWORD 'p'")
    database.run("CREATE TABLE shop.t (id bigint, v text)")
    given = {**psycopg.conninfo.conninfo_to_dict(database.url), "user": "poor", "password": "p"}
    with variable("TEST_POSTGRES", psycopg.conninfo.make_conninfo(**given)):
        for right in ("USAGE", "INSERT", "CREATE"):
            with refused(UsageError, "Postgres table shop.t", f"GRANT {right}") as caught:
                opened(log, PAIR)
            statement = str(caught.value)[str(caught.value).index("GRANT") :].split(", or make")[0]
            database.run(statement.replace("to the role", "TO poor"))
        opened(log, PAIR)
        assert log.deliver(opened(log, PAIR), rows(log, PAIR, (1, "a"))) == "committed"
    database.run("DROP SCHEMA shop CASCADE")
    database.run("DROP ROLE poor")


def test_a_server_that_is_away_is_told_so_and_waited_for(
    log: SinkLog, database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(log, PAIR, create=True)
    prepared = log.prepare(sink, rows(log, PAIR, (1, "a")))
    monkeypatch.setattr(tries, "PAUSES", (0.01,))
    with variable("TEST_POSTGRES", "postgresql://airflow@127.0.0.1:9/airflow"):
        with refused(UnavailableError, "Postgres table shop.t", "refused", "start the server, and run again"):
            opened(log, PAIR)
        with pytest.raises(UnavailableError):
            log.commit(prepared)
    with variable("TEST_POSTGRES", f"{database.url}-no"), refused(UsageError, "does not exist"):
        opened(log, PAIR)
    with (
        variable("TEST_POSTGRES", ""),
        refused(UsageError, "the variable TEST_POSTGRES", "does not have"),
    ):
        opened(log, PAIR)
    assert log.commit(prepared) == "committed"


@pytest.mark.parametrize(
    "moment", ["connected", "lock_slot", "copy", "write", "take_slot", "commit", "after"]
)
def test_a_connection_that_breaks_at_any_call_loses_and_doubles_nothing(
    log: SinkLog, database: Server, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The server kills the session before each call of the commit, and once after the transaction is in."""
    sink = opened(log, PAIR, create=True)
    prepared = log.prepare(sink, rows(log, PAIR, (1, "a")))
    monkeypatch.setattr(tries, "PAUSES", (0.01, 0.01, 0.01))
    broken: list[str] = []
    taken: list[int] = []

    def kill() -> None:
        if not broken:
            broken.append(moment)
            database.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stateflow'"
            )

    def before(owner: type[Any], name: str) -> None:
        act = getattr(owner, name)

        def breaking(*given: Any, **options: Any) -> Any:
            if moment == name or (moment == "connected" and name == "oid"):
                kill()
            found = act(*given, **options)
            if name == "take_slot":
                taken.append(id(given[0].connection))
            if moment == "after" and name == "commit" and id(given[0]) in taken and not broken:
                kill()
                raise psycopg.OperationalError("the connection is lost")
            return found

        monkeypatch.setattr(owner, name, breaking)

    for owner, name in (
        (sink_module.Relation, "lock_slot"), (sink_module.Load, "copy"), (sink_module.Load, "write"),
        (sink_module.Relation, "take_slot"), (psycopg.Connection, "commit"), (sink_module.Relation, "oid"),
    ):  # fmt: skip
        before(owner, name)
    assert log.commit(prepared) in ("committed", "already")
    assert broken == [moment]
    assert table(database) == [(1, "a")]
    assert log.commit(prepared) == "already"


def test_of_two_runs_that_both_believe_to_be_the_newest_one_commits_a_slot(
    log: SinkLog, database: Server
) -> None:
    sink = opened(log, PAIR, create=True)
    prepared = log.prepare(sink, rows(log, PAIR, *((k, "a") for k in range(100))))
    outcomes: list[str] = []

    def commit() -> None:
        outcomes.append(log.commit(prepared))

    threads = [threading.Thread(target=commit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["already"] * 7 + ["committed"]
    assert database.run("SELECT count(*) FROM shop.t") == [(100,)]


def test_a_zombie_with_an_older_slot_is_fenced_and_writes_nothing(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, create=True)
    old = log.prepare(sink, rows(log, PAIR, (1, "a")))
    log.commit(old)
    log.deliver(sink, rows(log, PAIR, (2, "b")))

    def fenced() -> None:
        raise FencedError("epoch 3 has taken over")

    log.still_owner = fenced
    with pytest.raises(FencedError):
        log.commit(old, 1)
    assert table(database) == [(1, "a"), (2, "b")]


def test_a_run_that_is_fenced_while_it_holds_the_slot_writes_nothing(log: SinkLog, database: Server) -> None:
    prepared = log.prepare(opened(log, PAIR, create=True), rows(log, PAIR, (1, "a")))
    asked: list[int] = []

    def fenced_late() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise FencedError("epoch 3 has taken over")

    log.still_owner = fenced_late
    with pytest.raises(FencedError):
        log.commit(prepared)
    assert table(database) == []


def test_a_table_or_a_log_of_another_time_is_refused(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, create=True)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    second = log.prepare(sink, rows(log, PAIR, (2, "b")))
    log.writer = "copy"  # a copy of the log decides another record for the slot
    log.commit(second)
    log.writer = "w"
    with refused(DisagreementError, "put back from a copy"):
        log.commit(second)
    database.run("UPDATE shop.stateflow_slots SET slot = 1, mark = 0")
    with refused(DisagreementError, "has slot 1"):
        log.prepare(sink, rows(log, PAIR, (3, "c")))


def test_a_table_that_was_made_anew_is_refused_with_the_statement_that_accepts_it(
    log: SinkLog, database: Server
) -> None:
    sink = opened(log, PAIR, create=True)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    waiting = log.prepare(sink, rows(log, PAIR, (2, "b")))
    database.run("DROP TABLE shop.t")
    with refused(DisagreementError, "dropped or made anew", "put the old one back"):
        log.commit(waiting)
    log.slot -= 1
    sink = opened(log, PAIR, create=True)
    with refused(DisagreementError, "was made anew since slot") as caught:
        log.prepare(sink, rows(log, PAIR, (2, "b")))
    follow(database, caught, "; or give it")
    log.slot -= 1
    assert log.deliver(sink, rows(log, PAIR, (2, "b"))) == "committed"
    assert table(database) == [(2, "b")]


def test_a_waiting_record_goes_into_a_table_that_somebody_has_accepted(
    log: SinkLog, database: Server
) -> None:
    sink = opened(log, PAIR, create=True)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    waiting = log.prepare(sink, rows(log, PAIR, (2, "b")))
    database.run("ALTER TABLE shop.t RENAME TO old")
    database.run("CREATE TABLE shop.t AS TABLE shop.old")
    ways = ("was made anew since slot", "a new sink uid", f"stateflow abandon orders {log.slot}")
    with refused(DisagreementError, *ways) as caught:
        log.commit(waiting)
    follow(database, caught, "; or give it")
    assert log.commit(waiting) == "committed"
    assert table(database) == [(1, "a"), (2, "b")]


def test_a_table_that_takes_the_place_of_another_during_the_commit_gets_no_rows(
    log: SinkLog, database: Server
) -> None:
    sink = opened(log, PAIR, create=True)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    waiting = log.prepare(sink, rows(log, PAIR, (2, "b")))
    with psycopg.connect(database.url) as swap:
        swap.execute("CREATE TABLE shop.copy AS TABLE shop.t")
        swap.execute("ALTER TABLE shop.t RENAME TO old")
        swap.execute("ALTER TABLE shop.copy RENAME TO t")
        swapping = threading.Thread(target=commit_when_awaited, args=(database, swap))
        swapping.start()
        with refused(DisagreementError, "was made anew since slot", "abandon orders 2"):
            log.commit(waiting)
        swapping.join()
    for name in ("shop.t", "shop.old"):
        assert table(database, name=name) == [(1, "a")]
    database.run("ALTER TABLE shop.t RENAME TO copy")
    database.run("ALTER TABLE shop.old RENAME TO t")
    assert log.commit(waiting) == "committed"
    assert table(database) == [(1, "a"), (2, "b")]


def commit_when_awaited(database: Server, connection: psycopg.Connection[Any]) -> None:
    """Ends a transaction as soon as somebody waits for one of its locks."""
    for _ in range(600):
        if database.run("SELECT 1 FROM pg_locks WHERE NOT granted"):
            break
        time.sleep(0.05)
    connection.commit()


def test_a_table_that_was_put_back_together_with_the_job_goes_on(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, create=True)
    for number in (1, 2):
        log.deliver(sink, rows(log, PAIR, (number, "a")))
    database.run("DELETE FROM shop.t WHERE id = 2")
    database.run("UPDATE shop.stateflow_slots SET slot = 1, mark = 0")
    with refused(DisagreementError, "if it is right as it was at slot 1", "restore the job") as caught:
        log.prepare(sink, rows(log, PAIR, (3, "c")))
    follow(database, caught, ", or give")
    log.slot -= 1
    log.deliver(sink, rows(log, PAIR, (3, "c")))
    assert table(database) == [(1, "a"), (3, "c")]


@pytest.mark.parametrize(
    ("kind", "change", "value", "loses"),
    [
        ("double", "numeric(3,0)", 2.5, True),
        ("double", "integer", 2.5, True),
        ("double", "real", 0.1, True),
        ("decimal(5,2)", "numeric(5,1)", Decimal("1.25"), True),
        ("decimal(5,2)", "numeric(7,3)", Decimal("1.25"), False),
        ("int", "bigint", 7, False),
        ("int", "text", 7, False),
        ("bigint", "double precision", 2**53 + 1, True),
    ],
)
def test_a_column_that_was_altered_since_the_decision_loses_nothing_of_a_value(
    log: SinkLog, database: Server, kind: str, change: str, value: Any, loses: bool
) -> None:
    schema = f"id long, v {kind}"
    sink = opened(log, schema, create=True)
    [(was,)] = database.run(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'shop.t'::regclass AND attname = 'v'"
    )
    waiting = log.prepare(sink, rows(log, schema, (1, value)))
    database.run(f"ALTER TABLE shop.t ALTER v TYPE {change}")
    if loses:
        with refused(DisagreementError, "'v'", was, "abandon orders 1") as caught:
            log.commit(waiting)
        said = str(caught.value)
        assert f'ALTER COLUMN "v" TYPE {was}' in said
        database.run(f'ALTER TABLE shop.t ALTER COLUMN "v" TYPE {was}')
    assert log.commit(waiting) == "committed"
    assert [type(value)(v) for _, v in table(database)] == [value]


def test_a_table_that_is_gone_is_not_made_anew(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, create=True)
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    database.run("DROP TABLE shop.t")
    sink.last_commit = log.at()
    with refused(DisagreementError, "table shop.t is gone", "slot 1 of sink 'totals'", "job 'orders'"):
        sink.open(log.spark, rows(log, PAIR, (1, "a")).schema)
    assert database.run("SELECT to_regclass('shop.t')") == [(None,)]


def test_a_key_may_be_named_in_capitals_where_the_table_is_made(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, "upsert", create=True, keys=["ID"])
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    log.deliver(sink, rows(log, PAIR, (1, "b")))
    assert table(database) == [(1, "b")]


def test_writers_are_those_whose_rows_the_table_of_now_has(log: SinkLog, database: Server) -> None:
    sink = opened(log, PAIR, create=True)
    assert sink.writers(log.spark) == {}
    log.deliver(sink, rows(log, PAIR, (1, "a")))
    named = {log.at().app_id: log.name}
    assert sink.writers(log.spark) == named
    opened(log, PAIR, create=True, table="shop.other")
    assert opened(log, PAIR, table="shop.other").writers(log.spark) == {}
    database.run("DELETE FROM shop.t")
    assert sink.writers(log.spark) == {}
    database.run("INSERT INTO shop.t VALUES (2, 'b')")
    assert sink.writers(log.spark) == named
    database.run("DROP TABLE shop.t")
    database.run("CREATE TABLE shop.t AS SELECT 3::bigint AS id, 'c' AS v")
    assert sink.writers(log.spark) == {}


def test_rows_that_the_table_refuses_after_the_decision_wait_until_it_is_right(
    log: SinkLog, database: Server
) -> None:
    sink = opened(log, PAIR, create=True)
    prepared = log.prepare(sink, rows(log, PAIR, (1, "a")))
    database.run("ALTER TABLE shop.t ADD CHECK (v <> 'a')")
    with refused(DisagreementError, "is decided", "Postgres table shop.t", "stateflow abandon orders 1"):
        log.commit(prepared)
    database.run("ALTER TABLE shop.t DROP CONSTRAINT t_v_check")
    assert log.commit(prepared) == "committed"
    assert table(database) == [(1, "a")]


def test_names_in_capitals_and_with_quotes_are_as_in_sql(log: SinkLog, database: Server) -> None:
    database.run('CREATE TABLE shop."Odd ""t" ("Id" bigint PRIMARY KEY, v text)')
    sink = opened(log, "iD long, V string", "upsert", table='shop."Odd ""t"', keys=["ID"])
    log.deliver(sink, rows(log, "iD long, V string", (1, "a")))
    assert table(database, '"Id", v', 'shop."Odd ""t"') == [(1, "a")]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_feed_is_in_the_table_once_and_tells_a_restore(
    spark: SparkSession, log: SinkLog, database: Server, tmp_path: Path, mode: str
) -> None:
    now = {"keys": "user", "delete_when": "kind in ('delete', 'expire')", "order_by": "slot"}
    target = sf.postgres("shop.changes", connection=IN, create=True)
    job = FedJob(spark, tmp_path, target, mode, **(now if mode == "upsert" else {}))
    first = job.batch(1, 2)
    second = job.batch(2, 3)
    plan = job.restored(first, rewind_sinks=True)
    assert [sink.note.partition(":")[0] for sink in plan.sinks] == [
        f"cannot be taken back and keeps its rows of the feed up to slot {second}"
    ]
    restored = int(plan.apply().checkpoint)
    job.forget_input()
    third = job.batch(3)
    found = database.run('SELECT "user", slot, kind, before, after FROM shop.changes ORDER BY 2, 1')
    if mode == "upsert":
        assert found == [
            (1, first, "put", None, 1.0),
            (2, restored, "restore", 4.0, 2.0),
            (3, third, "put", None, 3.0),
        ]
        return
    assert found == [
        (1, first, "put", None, 1.0), (2, first, "put", None, 2.0),
        (2, second, "put", 2.0, 4.0), (3, second, "put", None, 3.0),
        (2, restored, "restore", 4.0, 2.0), (3, restored, "delete", 3.0, None),
        (3, third, "put", None, 3.0),
    ]  # fmt: skip
