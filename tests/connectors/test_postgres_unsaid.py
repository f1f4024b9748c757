"""What a server does to rows without a word: cut them, leave them out, take two for one; and rights that show only in a commit."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.connectors import DisagreementError, IncompatibleError, UnavailableError, UsageError, tries
from stateflow.connectors.postgres import server as server_module
from stateflow.connectors.postgres.relation import Relation
from stateflow.connectors.postgres.server import connected
from stateflow.testing.sink_log import SinkLog
from tests.connectors.postgres_server import Server, variable
from tests.connectors.test_postgres_sink import PAIR, opened, rows
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Workbench, at

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
TEXT = "k string, v long"


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path, shop: Server) -> SinkLog:
    return SinkLog(spark, tmp_path)


def table(shop: Server) -> list[tuple[Any, ...]]:
    return sorted(shop.run("SELECT * FROM shop.t"))


def test_a_type_that_cuts_every_text_is_refused(log: SinkLog, shop: Server) -> None:
    shop.run("CREATE TABLE shop.t (k name PRIMARY KEY, v bigint)")
    with refused(IncompatibleError, "'k' is name"):
        opened(log, TEXT, "upsert", keys=["k"])


@pytest.mark.parametrize("kind", ["varchar(3)", "shop.short"])
@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keys": ["k"]}])
def test_blanks_at_the_end_are_not_cut(
    log: SinkLog, shop: Server, kind: str, options: dict[str, Any]
) -> None:
    shop.run("DROP DOMAIN IF EXISTS shop.short")
    shop.run("CREATE DOMAIN shop.short AS varchar(3)")
    shop.run(f"CREATE TABLE shop.t (k {kind} PRIMARY KEY, v bigint)")
    sink = opened(log, TEXT, **options)
    with refused(IncompatibleError, "5 characters", "the 3 of its column 'k'", "no row was written"):
        log.prepare(sink, rows(log, TEXT, ("ab", 0), ("ab   ", 1)))
    log.slot -= 1
    assert log.deliver(sink, rows(log, TEXT, ("ab", 0), ("ab ", 1))) == "committed"
    assert table(shop) == [("ab", 0), ("ab ", 1)]


def test_blanks_at_the_end_are_not_cut_by_a_column_that_got_shorter_since_the_decision(
    log: SinkLog, shop: Server
) -> None:
    shop.run("CREATE TABLE shop.t (k varchar(9), v bigint)")
    waiting = log.prepare(opened(log, TEXT), rows(log, TEXT, ("ab   ", 1)))
    shop.run("ALTER TABLE shop.t ALTER k TYPE varchar(3)")
    with refused(DisagreementError, "the 3 of its column 'k'"):
        log.commit(waiting)
    shop.run("ALTER TABLE shop.t ALTER k TYPE text")
    assert log.commit(waiting) == "committed"
    assert table(shop) == [("ab   ", 1)]


@pytest.mark.parametrize(
    ("kind", "schema", "rounded"),
    [
        ("timestamptz(3)", "timestamp", "timestamp(3) with time zone"),
        ("timestamp(0)", "timestamp_ntz", "timestamp(0) without time zone"),
        ("shop.second", "timestamp", "shop.second, a domain of timestamp(0) with time zone"),
        ("shop.price", "decimal(20,8)", "shop.price, a domain of numeric(6,2)"),
        ("shop.price", "int", "shop.price, a domain of numeric(6,2)"),
    ],
)
def test_a_column_that_rounds_is_refused_at_the_start(
    log: SinkLog, shop: Server, kind: str, schema: str, rounded: str
) -> None:
    shop.run("CREATE DOMAIN shop.second AS timestamptz(0)")
    shop.run("CREATE DOMAIN shop.price AS numeric(6,2)")
    shop.run(f"CREATE TABLE shop.t (v {kind})")
    with refused(IncompatibleError, "its column 'v'", rounded) as caught:
        opened(log, f"v {schema}")
    if schema.startswith("timestamp"):
        said = str(caught.value)
        shop.run(f"ALTER TABLE shop.t {said[said.index('ALTER COLUMN') :]}")
    else:
        shop.run("ALTER TABLE shop.t ALTER v TYPE numeric")
    opened(log, f"v {schema}")


def test_a_domain_that_rounds_is_no_place_for_a_record_that_waits(log: SinkLog, shop: Server) -> None:
    shop.run("CREATE DOMAIN shop.price AS numeric(6,2)")
    shop.run("CREATE TABLE shop.t (v int)")
    waiting = log.prepare(opened(log, "v int"), rows(log, "v int", (1234567,)))
    shop.run("ALTER TABLE shop.t ALTER v TYPE shop.price")
    with refused(DisagreementError, "'v' was integer and is shop.price"):
        log.commit(waiting)
    shop.run('ALTER TABLE shop.t ALTER COLUMN "v" TYPE integer')
    assert log.commit(waiting) == "committed"


DISCARDING = {
    "a trigger": (
        "CREATE FUNCTION shop.drop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.v >= 3 THEN RETURN NULL; END IF; RETURN new; END $$",
        "CREATE TRIGGER x BEFORE INSERT ON shop.t FOR EACH ROW EXECUTE FUNCTION shop.drop_it()",
    ),
    "a rule": ("CREATE RULE x AS ON INSERT TO shop.t WHERE new.v >= 3 DO INSTEAD NOTHING",),
}


@pytest.mark.parametrize("made", DISCARDING)
@pytest.mark.parametrize("since", [False, True], ids=["before the run", "since the decision"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_rows_that_the_table_leaves_out_are_counted(
    log: SinkLog, shop: Server, caplog: pytest.LogCaptureFixture, made: str, since: bool, mode: str
) -> None:
    if (made, mode) == ("a rule", "upsert"):
        pytest.skip("Postgres refuses ON CONFLICT into a table with rules")
    options = {} if mode == "append" else {"keys": ["k"], "order_by": "v"}
    shop.run("CREATE TABLE shop.t (k text PRIMARY KEY, v bigint)")

    def make() -> None:
        for statement in DISCARDING[made]:
            shop.run(statement)

    if not since:
        make()
    sink = opened(log, TEXT, mode, **options)
    waiting = log.prepare(sink, rows(log, TEXT, ("a", 1), ("b", 3), ("c", 4)))
    if since:
        make()
    with caplog.at_level(logging.WARNING):
        assert log.commit(waiting) == "committed"
        assert log.deliver(sink, rows(log, TEXT, ("d", 2))) == "committed"
    assert table(shop) == [("a", 1), ("d", 2)]
    [said] = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "shop.t" in r.getMessage()
    ]
    assert "leaves out rows by a trigger" in said
    assert "the last time 2 of slot 1 of " in said


def test_so_are_those_that_a_partition_leaves_out(
    log: SinkLog, shop: Server, caplog: pytest.LogCaptureFixture
) -> None:
    shop.run("CREATE TABLE shop.t (k text, v bigint) PARTITION BY RANGE (v)")
    shop.run("CREATE TABLE shop.first PARTITION OF shop.t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (v)")
    shop.run("CREATE TABLE shop.few PARTITION OF shop.first FOR VALUES FROM (0) TO (10)")
    function, trigger = DISCARDING["a trigger"]
    shop.run(function)
    shop.run(trigger.replace("shop.t ", "shop.few "))
    with caplog.at_level(logging.WARNING):
        log.deliver(opened(log, TEXT), rows(log, TEXT, ("a", 1), ("b", 3)))
    assert table(shop) == [("a", 1)]
    assert "the last time 1 of slot 1 of " in caplog.text


KEEPING = {
    "a trigger": (
        "CREATE FUNCTION shop.keep_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER x BEFORE DELETE ON shop.t FOR EACH ROW WHEN (old.v > 1) EXECUTE FUNCTION shop.keep_it()",
    ),
    "a policy": (
        "ALTER TABLE shop.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY these ON shop.t FOR DELETE USING (v <= 1)",
        "CREATE POLICY seen ON shop.t FOR SELECT USING (true)",
        "CREATE POLICY added ON shop.t FOR INSERT WITH CHECK (true)",
        "CREATE POLICY altered ON shop.t FOR UPDATE USING (true)",
    ),
}


@pytest.mark.parametrize("what", KEEPING)
def test_rows_that_the_table_does_not_delete_are_counted(
    log: SinkLog, shop: Server, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    for statement in (
        "CREATE TABLE shop.t (k text PRIMARY KEY, v bigint)",
        "INSERT INTO shop.t VALUES ('a', 1), ('b', 2), ('c', 3), ('d', 4)",
        *KEEPING[what],
        "DROP ROLE IF EXISTS poor",
        "CREATE ROLE poor LOGIN PASSWORD 'p'",
        "GRANT USAGE, CREATE ON SCHEMA shop TO poor",
        "GRANT ALL ON shop.t TO poor",
    ):
        shop.run(statement)
    given = {**psycopg.conninfo.conninfo_to_dict(shop.url), "user": "poor", "password": "p"}
    try:
        with (
            variable("TEST_POSTGRES", psycopg.conninfo.make_conninfo(**given)),
            caplog.at_level(logging.WARNING),
        ):
            sink = opened(log, TEXT, "upsert", keys=["k"], delete_when="v < 0")
            gone = [(key, -1) for key in ("a", "b", "c", "nowhere")]
            assert log.deliver(sink, rows(log, TEXT, *gone, ("e", 5))) == "committed"
            assert log.deliver(sink, rows(log, TEXT, ("nowhere", -1))) == "committed"
        assert table(shop) == [("b", 2), ("c", 3), ("d", 4), ("e", 5)]
        [said] = [r.getMessage() for r in caplog.records if "shop.t" in r.getMessage()]
        assert "to be deleted" in said
        assert "the last time 2 of slot 1 of " in said
    finally:
        shop.run("DROP SCHEMA shop CASCADE")
        shop.run("DROP ROLE poor")


def of_two_columns(flow: sf.Flow, bench: Workbench) -> sf.Stream:
    rows = flow.source("orders", bench.source("orders", ORDER), Order)
    return rows.transform(
        lambda frame: frame.selectExpr("sku as k", "cast(user as bigint) as v"), "k string, v bigint"
    )


def test_a_run_ends_with_what_its_table_left_out(spark: SparkSession, tmp_path: Path, shop: Server) -> None:
    bench = Workbench(spark, tmp_path)

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        few = of_two_columns(flow, bench)
        few.append("out", sf.postgres("shop.t", connection="env:TEST_POSTGRES"))

    shop.run("CREATE TABLE shop.t (k text, v bigint)")
    for statement in DISCARDING["a trigger"]:
        shop.run(statement)
    bench.rows("orders", [Order(1, "a", 1.0, at(1)), Order(3, "b", 1.0, at(1))])
    (warning,) = bench.run(orders).warnings
    assert "the last time 1 of slot " in warning
    assert table(shop) == [("a", 1)]


def followed(shop: Server, said: str) -> None:
    shop.run(said[said.index("GRANT") :].split(", or make")[0])


def test_rights_that_only_a_commit_needs_are_asked_for_at_the_start(log: SinkLog, shop: Server) -> None:
    shop.run("CREATE TABLE shop.t (id bigint, v text)")
    opened(log, PAIR)  # the table of slots is another role's
    [(database,)] = shop.run("SELECT current_database()")
    for statement in (
        "DROP ROLE IF EXISTS poor",
        "CREATE ROLE poor LOGIN PASSWORD 'p'",
        "GRANT USAGE ON SCHEMA shop TO poor",
        "GRANT INSERT ON shop.t TO poor",
        f"REVOKE TEMP ON DATABASE {database} FROM PUBLIC",
    ):
        shop.run(statement)
    given = {**psycopg.conninfo.conninfo_to_dict(shop.url), "user": "poor", "password": "p"}
    try:
        with variable("TEST_POSTGRES", psycopg.conninfo.make_conninfo(**given)):
            for what in ("temporary tables", "stateflow_slots"):
                with refused(UsageError, what, "GRANT") as caught:
                    opened(log, PAIR)
                followed(shop, str(caught.value))
            assert log.deliver(opened(log, PAIR), rows(log, PAIR, (1, "a"))) == "committed"
    finally:
        shop.run(f"GRANT TEMP ON DATABASE {database} TO PUBLIC")
        shop.run("DROP SCHEMA shop CASCADE")
        shop.run(f"REVOKE ALL ON DATABASE {database} FROM poor")
        shop.run("DROP ROLE poor")


def test_so_is_the_right_to_the_sequence_of_a_default(log: SinkLog, shop: Server) -> None:
    for statement in (
        'CREATE TABLE shop.t (id bigint, v text, "N" bigserial, i bigint GENERATED BY DEFAULT AS IDENTITY)',
        "DROP ROLE IF EXISTS poor",
        "CREATE ROLE poor LOGIN PASSWORD 'p'",
        "GRANT USAGE, CREATE ON SCHEMA shop TO poor",
        "GRANT INSERT ON shop.t TO poor",
    ):
        shop.run(statement)
    given = {**psycopg.conninfo.conninfo_to_dict(shop.url), "user": "poor", "password": "p"}
    try:
        with variable("TEST_POSTGRES", psycopg.conninfo.make_conninfo(**given)):
            with refused(UsageError, "Postgres table shop.t", "'N'", "t_N_seq", "GRANT USAGE") as caught:
                opened(log, PAIR)
            opened(log, "id long, v string, N long")  # asks the sequence for nothing
            followed(shop, str(caught.value))
            assert log.deliver(opened(log, PAIR), rows(log, PAIR, (1, "a"))) == "committed"
    finally:
        shop.run("DROP SCHEMA shop CASCADE")
        shop.run("DROP ROLE poor")


def test_a_server_that_only_reads_is_waited_for_and_no_row_is_blamed(
    log: SinkLog, shop: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "PAUSES", (0.01,))
    shop.run("CREATE TABLE shop.t (id bigint, v text)")
    sink = opened(log, PAIR)
    waiting = log.prepare(sink, rows(log, PAIR, (1, "a")))
    given = psycopg.conninfo.conninfo_to_dict(shop.url)
    standby = psycopg.conninfo.make_conninfo(**given, options="-c default_transaction_read_only=on")
    with variable("TEST_POSTGRES", standby):
        with refused(UnavailableError, "read-only", "run again"):
            log.commit(waiting)
        shop.run("DROP TABLE shop.stateflow_slots")
        with refused(UnavailableError, "read-only", "run again"):
            opened(log, PAIR)
    assert log.commit(waiting) == "committed"
    assert table(shop) == [(1, "a")]


def test_keys_that_are_equal_to_the_servers_collation_alone_are_refused(log: SinkLog, shop: Server) -> None:
    shop.run("CREATE COLLATION shop.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    shop.run("CREATE TABLE shop.t (k text COLLATE shop.ci PRIMARY KEY, v bigint)")
    with refused(IncompatibleError, "collation of its key column 'k'", "ALTER TABLE") as caught:
        opened(log, TEXT, "upsert", keys=["k"], order_by="v")
    said = str(caught.value)
    shop.run(said[said.index("ALTER TABLE") : said.index(", and let")])
    sink = opened(log, TEXT, "upsert", keys=["k"], order_by="v")
    assert log.deliver(sink, rows(log, TEXT, ("a", 1), ("A", 2))) == "committed"
    assert table(shop) == [("A", 2), ("a", 1)]


LONG = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FFF), k=3000)))
"""No compression makes it short enough for an index."""
REFUSING = {
    "an index": (("TABLE shop.t (k text, v bigint)", "INDEX ON shop.t (k)"), (LONG, 1), "index row"),
    "its own index": (("TABLE shop.t (k text PRIMARY KEY, v bigint)",), (LONG, 1), "index row"),
    "a further column of an index": (
        ("TABLE shop.t (k text, v bigint)", "INDEX ON shop.t (v) INCLUDE (k)"),
        (LONG, 1),
        "index row",
    ),
    "an index of documents": (
        ("TABLE shop.t (k jsonb, v bigint)", "INDEX ON shop.t (k)"),
        (f'["{LONG}"]', 1),
        "index row",
    ),
    "an expression of an index": (
        ("TABLE shop.t (k text, v bigint)", "INDEX ON shop.t ((100 / v))"),
        ("a", 0),
        "division by zero",
    ),
    "a condition of an index": (
        ("TABLE shop.t (k text, v bigint)", "INDEX ON shop.t (v) WHERE 100 / v > 1"),
        ("a", 0),
        "division by zero",
    ),
    "a generated column": (
        ("TABLE shop.t (k text, v bigint, r bigint GENERATED ALWAYS AS (100 / v) STORED)",),
        ("a", 0),
        "division by zero",
    ),
    "a domain of a column that is not written": (
        ("DOMAIN shop.need AS text NOT NULL", "TABLE shop.t (k text, v bigint, w shop.need)"),
        ("a", 1),
        "does not allow null values",
    ),
    "a domain of a limited text": (
        ("DOMAIN shop.code AS varchar(9) CHECK (value <> 'bad')", "TABLE shop.t (k shop.code, v bigint)"),
        ("bad", 1),
        "violates check constraint",
    ),
    "a default": (
        ("TABLE shop.t (k text, v bigint, w int DEFAULT ('x' || pg_backend_pid())::int)",),
        ("a", 1),
        "invalid input syntax",
    ),
    "a column that stays in its row": (
        ("TABLE shop.t (k text, v bigint); ALTER TABLE shop.t ALTER k SET STORAGE PLAIN",),
        (LONG, 1),
        "row is too big",
    ),
    "the bounds of a partition": (
        (
            "TABLE shop.whole (k text, v bigint) PARTITION BY RANGE (v)",
            "TABLE shop.t PARTITION OF shop.whole FOR VALUES FROM (0) TO (10)",
        ),
        ("a", 10),
        "violates partition constraint",
    ),
}


@pytest.mark.parametrize("what", REFUSING)
def test_rows_that_a_table_can_never_take_are_refused_before_the_decision(
    log: SinkLog, shop: Server, what: str
) -> None:
    made, bad, why = REFUSING[what]
    for statement in made:
        shop.run(f"CREATE {statement}")
    own = what == "its own index"
    sink = opened(log, TEXT, "upsert", keys=["k"]) if own else opened(log, TEXT)
    with refused(IncompatibleError, "Postgres table shop.t refuses", why, "no row was written"):
        log.prepare(sink, rows(log, TEXT, bad))
    assert table(shop) == []


@pytest.mark.parametrize("later", ["", " DEFERRABLE INITIALLY DEFERRED"])
def test_a_row_to_which_another_table_points_is_not_deleted_by_a_decided_record(
    log: SinkLog, shop: Server, later: str
) -> None:
    shop.run("CREATE TABLE shop.t (k text PRIMARY KEY, v bigint)")
    shop.run(f"CREATE TABLE shop.part (k text REFERENCES shop.t{later})")
    sink = opened(log, TEXT, "upsert", keys=["k"], delete_when="v < 0")
    log.deliver(sink, rows(log, TEXT, ("a", 1), ("b", 1)))
    shop.run("INSERT INTO shop.part VALUES ('a')")
    with refused(
        IncompatibleError, "Postgres table shop.t refuses", "foreign key", '"part"', "leave such rows out"
    ):
        log.prepare(sink, rows(log, TEXT, ("a", -1), ("b", -1)))
    assert table(shop) == [("a", 1), ("b", 1)]

    log.deliver(sink, rows(log, TEXT, ("b", -1)))
    shop.run("DELETE FROM shop.part")
    log.deliver(sink, rows(log, TEXT, ("a", -1)))
    assert table(shop) == []


@pytest.fixture
def published(shop: Server) -> Iterator[Callable[[str], None]]:
    """Makes a publication."""

    def publish(what: str) -> None:
        shop.run(f"CREATE PUBLICATION changes FOR {what}")

    yield publish
    shop.run("DROP PUBLICATION IF EXISTS changes")


@pytest.mark.parametrize("of", ["TABLE shop.t", "ALL TABLES"])
@pytest.mark.parametrize(
    "made",
    [
        ("TABLE shop.t (k text, v bigint)", 'UNIQUE INDEX "Of keys" ON shop.t (k)'),
        ("TABLE shop.t (k text NOT NULL UNIQUE, v bigint PRIMARY KEY DEFERRABLE)",),
        ("TABLE shop.t (k text PRIMARY KEY, v bigint); ALTER TABLE shop.t REPLICA IDENTITY NOTHING",),
        (
            "TABLE shop.t (k text, v bigint, UNIQUE (k)) PARTITION BY HASH (k)",
            "TABLE shop.first PARTITION OF shop.t FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "TABLE shop.second PARTITION OF shop.t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ),
    ],
)
def test_an_upsert_into_a_published_table_needs_a_replica_identity(
    log: SinkLog, shop: Server, published: Callable[[str], None], made: tuple[str, ...], of: str
) -> None:
    for statement in made:
        shop.run(f"CREATE {statement}")
    opened(log, TEXT, "upsert", keys=["k"])  # nobody follows it
    published(of)
    tables = ["shop.first", "shop.second"] if "PARTITION" in made[-1] else ["shop.t"]
    for each in tables:
        with refused(IncompatibleError, "Postgres table shop.t", "changes", f"ALTER TABLE {each} ") as caught:
            opened(log, TEXT, "upsert", keys=["k"])
        said = str(caught.value)
        shop.run(said[said.index("ALTER TABLE") :])
    sink = opened(log, TEXT, "upsert", keys=["k"], delete_when="v < 0")
    log.deliver(sink, rows(log, TEXT, *((key, n) for n, key in enumerate("abcd"))))
    log.deliver(sink, rows(log, TEXT, ("a", 7), ("b", -1)))
    assert table(shop) == [("a", 7), ("c", 2), ("d", 3)]


def test_a_table_that_is_published_while_a_job_runs_stops_it_before_the_decision(
    log: SinkLog, shop: Server, published: Callable[[str], None]
) -> None:
    shop.run("CREATE TABLE shop.t (k text UNIQUE, v bigint)")
    sink = opened(log, TEXT, "upsert", keys=["k"])
    published("TABLE shop.t")
    with refused(
        IncompatibleError, "Postgres table shop.t", "changes", "REPLICA IDENTITY USING INDEX t_k_key"
    ):
        log.prepare(sink, rows(log, TEXT, ("a", 1)))


@pytest.mark.parametrize(
    ("of", "options"),
    [
        ("TABLE shop.t WITH (publish = 'insert')", {"delete_when": "v < 0"}),
        ("TABLE shop.t WITH (publish = 'delete')", {}),
        ("TABLE shop.other", {"delete_when": "v < 0"}),
    ],
)
def test_a_publication_that_takes_no_changes_of_the_upsert_asks_for_nothing(
    log: SinkLog, shop: Server, published: Callable[[str], None], of: str, options: dict[str, str]
) -> None:
    shop.run("CREATE TABLE shop.t (k text UNIQUE, v bigint)")
    shop.run("CREATE TABLE shop.other (k text)")
    published(of)
    sink = opened(log, TEXT, "upsert", keys=["k"], **options)
    log.deliver(sink, rows(log, TEXT, ("a", 1), ("b", 1)))
    log.deliver(sink, rows(log, TEXT, ("a", 2)))
    assert table(shop) == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("of", ["TABLE shop.t WHERE (v > 3)", "TABLE shop.t (v)"])
@pytest.mark.parametrize("options", [{}, {"delete_when": "v < 0"}])
def test_a_publication_that_cannot_tell_of_all_changes_is_refused_at_the_start(
    log: SinkLog, shop: Server, published: Callable[[str], None], of: str, options: dict[str, str]
) -> None:
    shop.run("CREATE TABLE shop.t (k text PRIMARY KEY, v bigint)")
    published(of)
    with refused(
        IncompatibleError, "Postgres table shop.t", 'ALTER TABLE "shop"."t" ', "IDENTITY FULL;"
    ) as caught:
        opened(log, TEXT, "upsert", keys=["k"], **options)
    said = str(caught.value)
    if "WHERE" in of:
        shop.run(said[said.index("ALTER TABLE") : said.index(";")])
    else:
        shop.run("ALTER PUBLICATION changes SET TABLE shop.t (k, v)")
    sink = opened(log, TEXT, "upsert", keys=["k"], **options)
    log.deliver(sink, rows(log, TEXT, ("a", 1), ("b", 9)))
    log.deliver(sink, rows(log, TEXT, ("a", 2)))
    assert table(shop) == [("a", 2), ("b", 9)]


@pytest.mark.parametrize(
    "kind", ["smallserial", "smallint GENERATED ALWAYS AS IDENTITY", "int DEFAULT nextval('shop.down')"]
)
def test_a_sequence_that_is_at_its_end_fails_the_batch(log: SinkLog, shop: Server, kind: str) -> None:
    shop.run("CREATE SEQUENCE shop.down INCREMENT BY -2 MINVALUE -9 MAXVALUE -1")  # five numbers
    shop.run(f"CREATE TABLE shop.t (k text, v bigint, n {kind})")
    if "down" not in kind:
        shop.run("SELECT setval('shop.t_n_seq', 32762)")
    sink = opened(log, TEXT)
    assert log.deliver(sink, rows(log, TEXT, ("a", 1), ("b", 2), ("c", 3))) == "committed"
    sequence = "shop.down" if "down" in kind else "shop.t_n_seq"
    with refused(
        IncompatibleError, "Postgres table shop.t", sequence, "'n' has 2 ", "3 rows", "ALTER SEQUENCE"
    ):
        log.prepare(sink, rows(log, TEXT, ("d", 4), ("e", 5), ("f", 6)))
    log.slot -= 1
    assert log.deliver(sink, rows(log, TEXT, ("d", 4), ("e", 5))) == "committed"
    assert len(table(shop)) == 5


@pytest.mark.parametrize("cache", [1, 4])
def test_a_trial_leaves_a_sequence_the_numbers_that_the_commit_needs(
    log: SinkLog, shop: Server, cache: int
) -> None:
    identity = f"smallint GENERATED BY DEFAULT AS IDENTITY (CACHE {cache} MAXVALUE 11)"
    shop.run(f"CREATE TABLE shop.t (k text, v bigint CHECK (v > 0), n {identity})")
    sink = opened(log, TEXT)
    six = [(key, 1) for key in "abcdef"]
    with refused(IncompatibleError, "shop.t_n_seq", "'n' has 11 ", "6 rows", "on trial", "ALTER SEQUENCE"):
        log.prepare(sink, rows(log, TEXT, *six))
    log.slot -= 1
    # A trial of five takes eight where a session takes four at once, and three are left.
    if cache > 1:
        with refused(IncompatibleError, "shop.t_n_seq", "5 rows"):
            log.prepare(sink, rows(log, TEXT, *six[:5]))
        log.slot -= 1
    assert log.deliver(sink, rows(log, TEXT, *six[: 5 if cache == 1 else 4])) == "committed"


@pytest.mark.parametrize(
    "kind",
    [
        "bigint GENERATED BY DEFAULT AS IDENTITY (INCREMENT BY -1)",
        "bigint GENERATED ALWAYS AS IDENTITY (MINVALUE -9223372036854775808 START -9223372036854775808)",
    ],
)
def test_a_sequence_of_more_numbers_than_a_bigint_holds_numbers_rows(
    log: SinkLog, shop: Server, kind: str
) -> None:
    shop.run(f"CREATE TABLE shop.t (k text, v bigint, n {kind})")
    assert log.deliver(opened(log, TEXT), rows(log, TEXT, ("a", 1))) == "committed"


def test_rows_that_only_delete_take_no_number_of_a_sequence(log: SinkLog, shop: Server) -> None:
    shop.run(
        "CREATE TABLE shop.t (k text PRIMARY KEY, v bigint, n int GENERATED ALWAYS AS IDENTITY (MAXVALUE 2))"
    )
    sink = opened(log, TEXT, "upsert", keys=["k"], delete_when="v < 0", order_by="v")
    # Of two rows of a key the highest is inserted.
    assert log.deliver(sink, rows(log, TEXT, ("a", 1), ("a", 0), ("b", 2))) == "committed"
    assert log.deliver(sink, rows(log, TEXT, ("a", -1))) == "committed"
    assert [row[0] for row in table(shop)] == ["b"]


def test_rows_of_a_common_table_are_not_written_on_trial(log: SinkLog, shop: Server) -> None:
    shop.run(
        "CREATE TABLE shop.t (k text PRIMARY KEY, v bigint, n bigserial, at timestamptz DEFAULT now(), w text DEFAULT 'x', "
        "u uuid DEFAULT gen_random_uuid())"
    )
    sink = opened(log, TEXT, "upsert", keys=["k"])
    for key in ("a", "b", "c"):
        log.deliver(sink, rows(log, TEXT, (key, 0)))
    # A trial would take a number of the sequence.
    assert shop.run("SELECT k, n FROM shop.t ORDER BY 1") == [("a", 1), ("b", 2), ("c", 3)]


def advised(said: str, end: str) -> str:
    """The statement of a refusal that lets an index go."""
    return said[said.index("DROP INDEX") : said.index(end)]


def test_a_unique_index_with_such_a_collation_of_its_own_is_refused(log: SinkLog, shop: Server) -> None:
    shop.run("CREATE COLLATION shop.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    shop.run("CREATE TABLE shop.t (k text, v bigint)")
    shop.run('CREATE UNIQUE INDEX "by K" ON shop.t (k COLLATE shop.ci) INCLUDE (v)')
    shop.run("CREATE UNIQUE INDEX fit ON shop.t (k)")  # ON CONFLICT takes all that there are
    with refused(IncompatibleError, "collation of its unique index", "by K") as caught:
        opened(log, TEXT, "upsert", keys=["k"])
    shop.run(advised(str(caught.value), ", and let"))
    shop.run("DROP INDEX shop.fit")
    with refused(IncompatibleError, "CREATE UNIQUE INDEX"):
        opened(log, TEXT, "upsert", keys=["k"])
    shop.run("CREATE UNIQUE INDEX fit ON shop.t (k)")
    sink = opened(log, TEXT, "upsert", keys=["k"])
    assert log.deliver(sink, rows(log, TEXT, ("AB", 1))) == "committed"
    waiting = log.prepare(sink, rows(log, TEXT, ("ab", 2)))
    shop.run("CREATE UNIQUE INDEX later ON shop.t (k COLLATE shop.ci)")
    with refused(DisagreementError, "unique index shop.later", "abandon orders") as caught:
        log.commit(waiting)
    shop.run(advised(str(caught.value), " and run again"))
    assert log.commit(waiting) == "committed"
    assert table(shop) == [("AB", 1), ("ab", 2)]


@pytest.mark.parametrize("kind", ["text", "varchar(4)"])
def test_texts_are_in_sparks_order_whatever_the_language_of_the_database(
    log: SinkLog, shop: Server, kind: str
) -> None:
    shop.run(
        "CREATE DATABASE english TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"
    )
    given = psycopg.conninfo.conninfo_to_dict(shop.url)
    english = Server(psycopg.conninfo.make_conninfo(**{**given, "dbname": "english"}))
    try:
        english.run(f"CREATE SCHEMA shop; CREATE TABLE shop.t (k bigint PRIMARY KEY, v {kind})")
        assert english.run("SELECT 'B' > 'a'") == [(True,)]
        with variable("TEST_POSTGRES", english.url):
            schema = "k long, v string"
            sink = opened(log, schema, "upsert", keys=["k"], order_by="v")
            assert log.deliver(sink, rows(log, schema, (1, "a"), (1, "B"))) == "committed"
        assert english.run("SELECT v FROM shop.t") == [("a",)]
    finally:
        shop.run("DROP DATABASE english WITH (FORCE)")


def test_an_order_by_several_values_at_once_is_refused_at_the_start(log: SinkLog, shop: Server) -> None:
    shop.run("CREATE TABLE shop.t (k bigint PRIMARY KEY, v jsonb)")
    with refused(UsageError, "order_by='v'", "array<bigint>", "transform()"):
        opened(log, "k long, v array<long>", "upsert", keys=["k"], order_by="v")


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("char(4)", "ab", "ab "),
        ("uuid", "5b1d8c5e-5f5e-4c1a-9d0e-0a0b0c0d0e0f", "5B1D8C5E-5F5E-4C1A-9D0E-0A0B0C0D0E0F"),
        ("inet", "10.0.0.1", "10.0.0.1/32"),
        ("shop.code", "ab", "ab "),
    ],
)
def test_a_key_that_the_table_keeps_as_another_one_is_refused_before_the_decision(
    log: SinkLog, shop: Server, kind: str, one: str, other: str
) -> None:
    shop.run("CREATE DOMAIN shop.code AS char(4)")
    shop.run(f"CREATE TABLE shop.t (k {kind} PRIMARY KEY, v bigint)")
    for options in ({}, {"order_by": "v"}):
        sink = opened(log, TEXT, "upsert", keys=["k"], **options)
        with refused(
            IncompatibleError, "Postgres table shop.t", "'k'", repr(other), repr(one), "transform()"
        ):
            log.prepare(sink, rows(log, TEXT, (other, 1)))
        log.slot -= 1
        assert log.deliver(sink, rows(log, TEXT, (one, 2))) == "committed"
    assert [v for _, v in table(shop)] == [2]


@pytest.mark.parametrize("kind", ["citext", "jsonb"])
def test_a_key_column_to_which_different_texts_are_equal_is_refused_at_the_start(
    log: SinkLog, shop: Server, kind: str
) -> None:
    shop.run("CREATE EXTENSION IF NOT EXISTS citext SCHEMA public")
    shop.run(f"CREATE TABLE shop.t (k {kind} PRIMARY KEY, v bigint)")
    with refused(IncompatibleError, "its key column 'k'", kind, "ALTER TABLE") as caught:
        opened(log, TEXT, "upsert", keys=["k"])
    said = str(caught.value)
    shop.run(said[said.index("ALTER TABLE") : said.index(", and let")])
    sink = opened(log, TEXT, "upsert", keys=["k"])
    assert log.deliver(sink, rows(log, TEXT, ('{"a":1}', 1), ('{"a":1.0}', 2))) == "committed"
    assert [v for _, v in table(shop)] == [2, 1]


def test_a_key_column_that_got_such_a_type_since_the_decision_stops_the_commit(
    log: SinkLog, shop: Server
) -> None:
    shop.run("CREATE TABLE shop.t (k text PRIMARY KEY, v bigint)")
    waiting = log.prepare(opened(log, TEXT, "upsert", keys=["k"]), rows(log, TEXT, ("ab", 1), ("ab ", 2)))
    shop.run("ALTER TABLE shop.t ALTER k TYPE char(4)")
    with refused(DisagreementError, "key column 'k'", "character(4)", "ALTER COLUMN") as caught:
        log.commit(waiting)
    said = str(caught.value)
    shop.run(f"ALTER TABLE shop.t {said[said.index('ALTER COLUMN') : said.index(' and run again')]}")
    assert log.commit(waiting) == "committed"
    assert table(shop) == [("ab", 1), ("ab ", 2)]


def test_one_table_under_two_addresses_is_one_place(
    spark: SparkSession, tmp_path: Path, shop: Server
) -> None:
    bench = Workbench(spark, tmp_path)
    given = psycopg.conninfo.conninfo_to_dict(shop.url)
    other = psycopg.conninfo.make_conninfo(**{**given, "host": "localhost"})

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        rows.append("one", sf.postgres("shop.t", connection="env:TEST_POSTGRES", create=True))
        rows.append("other", sf.postgres("shop.t", connection="env:TEST_OTHER"))

    bench.rows("orders", [Order(1, "a", 1.0, at(1))])
    with variable("TEST_OTHER", other), refused(UsageError, "'one'", "'other'", "one place"):
        bench.run(orders)
    assert shop.run("SELECT * FROM shop.t") == []


def test_so_are_a_table_and_a_partition_of_it(spark: SparkSession, tmp_path: Path, shop: Server) -> None:
    bench = Workbench(spark, tmp_path)
    shop.run("CREATE TABLE shop.t (k text, v bigint) PARTITION BY RANGE (v)")
    shop.run("CREATE TABLE shop.first PARTITION OF shop.t FOR VALUES FROM (0) TO (10)")

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        few = of_two_columns(flow, bench)
        few.append("whole", sf.postgres("shop.t", connection="env:TEST_POSTGRES"))
        few.append("part", sf.postgres("shop.first", connection="env:TEST_POSTGRES"))

    bench.rows("orders", [Order(1, "a", 1.0, at(1))])
    with refused(UsageError, "'whole'", "'part'", "one place"):
        bench.run(orders)
    assert shop.run("SELECT * FROM shop.t") == []


def test_a_statement_that_takes_too_long_is_no_row_that_is_refused(
    log: SinkLog, shop: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tries, "PAUSES", (0.0,))
    shop.run("CREATE TABLE shop.t (k text PRIMARY KEY, v bigint CHECK (v > 0))")
    sink = opened(log, TEXT)
    waiting = log.prepare(sink, rows(log, TEXT, ("a", 1)))
    limited = f"{shop.url}?options=-c%20statement_timeout%3D300"
    with variable("TEST_POSTGRES", limited), psycopg.connect(shop.url) as other:
        other.execute("LOCK TABLE shop.t IN ACCESS EXCLUSIVE MODE")
        with refused(UnavailableError, "Postgres table shop.t", "a longer statement_timeout "):
            log.commit(waiting)
        with refused(UnavailableError, "Postgres table shop.t", "a longer statement_timeout "):
            sink.check(waiting, log.at(), log.stage)
    assert log.commit(waiting) == "committed"


def test_a_run_that_waits_for_a_lock_of_another_session_names_it_and_ends(
    log: SinkLog, shop: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tries, "PAUSES", (0.0,))
    monkeypatch.setattr(server_module, "LOOK_S", 0.1)
    sink = opened(log, TEXT, create=True)
    assert log.deliver(sink, rows(log, TEXT, ("a", 1))) == "committed"
    waiting = log.prepare(sink, rows(log, TEXT, ("b", 2)))
    caplog.clear()
    limited = f"{shop.url}?options=-c%20lock_timeout%3D2s"
    # As a driver does whose machine froze in the middle of a commit.
    with closing(psycopg.connect(shop.url, application_name="frozen")) as old:
        old.execute("SELECT * FROM shop.stateflow_slots FOR UPDATE")
        with (
            variable("TEST_POSTGRES", limited),
            refused(
                UnavailableError, "shop.t", "'frozen'", f"pid {old.info.backend_pid}", "lock_timeout"
            ) as caught,
        ):
            log.commit(waiting)
        assert len([each for each in caplog.records if "'frozen'" in each.getMessage()]) == 1
        said = str(caught.value)
        shop.run(said[said.index("SELECT") : said.index(", and run again")])
        assert log.commit(waiting) == "committed"
        assert table(shop) == [("a", 1), ("b", 2)]


def test_a_short_wait_for_a_lock_is_no_line(
    log: SinkLog, shop: Server, caplog: pytest.LogCaptureFixture
) -> None:
    sink = opened(log, TEXT, create=True)
    waiting = log.prepare(sink, rows(log, TEXT, ("a", 1)))
    with psycopg.connect(shop.url) as old:
        old.execute("LOCK TABLE shop.t IN ACCESS EXCLUSIVE MODE")
        releasing = threading.Timer(1.0, old.commit)
        releasing.start()
        caplog.clear()
        assert log.commit(waiting) == "committed"
        releasing.join()
    assert not [each for each in caplog.records if "shop.t" in each.getMessage()]


def test_a_transaction_has_limits_that_its_connection_may_set_itself_and_a_pooler_hands_none_on(
    shop: Server,
) -> None:
    def shown(url: str) -> list[str]:
        with variable("TEST_POSTGRES", url), connected("env:TEST_POSTGRES", "table t") as connection:
            names = "current_setting('lock_timeout'), current_setting('tcp_keepalives_idle')"
            inside = connection.execute(f"SELECT {names}").fetchone()
            connection.commit()
            behind = connection.execute(f"SELECT {names}").fetchone()
        with psycopg.connect(url) as plain:
            assert plain.execute(f"SELECT {names}").fetchone() == behind
        return list(inside or ())

    assert shown(shop.url) == ["1min", "30"]
    assert shown(f"{shop.url}?options=-c%20lock_timeout%3D0%20-c%20tcp_keepalives_idle%3D7") == ["0", "7"]


def test_tables_that_a_run_makes_leave_the_limits_of_its_transaction(shop: Server) -> None:
    with connected("env:TEST_POSTGRES", "table t") as connection:
        Relation(connection, "shop", "t").make_slots("env:TEST_POSTGRES", "table t")
        assert connection.execute("SHOW lock_timeout").fetchone() == ("1min",)
    assert shop.run("SELECT count(*) FROM shop.stateflow_slots") == [(0,)]
