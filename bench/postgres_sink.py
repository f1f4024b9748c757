"""A table of Postgres as a sink, exactly once, beside Spark's JDBC writer with the statement that its users add: in turn, in one session."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.measurement import Measurement, Results, Section, Workplace, at_most, median
from bench.sink_beside import STEPS, rows_and_ratios

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIDES = ("in_turn",)
DRIVER = "org.postgresql:postgresql:42.7.8"
COLUMNS = "id bigint primary key, name text, amount double precision, at timestamptz"
NAMES = ("id", "name", "amount", "at")
VARIABLE = "BENCH_POSTGRES"


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    """Rows of the table."""
    rows: int
    """Of a batch, spread over the keys."""
    warm_up: int
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    import stateflow as sf
    from bench import sides
    from bench.peers.environments import jars_of
    from stateflow.testing.sink_log import SinkLog, make_sink
    from tests.connectors.postgres_server import server

    spent: dict[str, list[float]] = {name: [] for name in STEPS}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        began = time.monotonic()
        outcome = act()
        spent[name].append(time.monotonic() - began)
        return outcome

    with server() as running:
        for name in ("ours", "theirs"):
            running.run(f"create table {name} ({COLUMNS})")
            running.run(
                f"insert into {name} select id, 'user-' || id, 0, now() from generate_series(0, {size.keys - 1}) as id"
            )
        spark = sides.session(**{"spark.jars": ",".join(jars_of("postgres", DRIVER))})
        log = SinkLog(spark, workplace.folder / "root", job=str(uuid.uuid4()))
        os.environ[VARIABLE] = running.url
        sink = make_sink(
            "out", "upsert", sf.postgres("public.ours", connection=f"env:{VARIABLE}"), {"keys": "id"}
        )
        address = urlsplit(running.url)
        jdbc = f"jdbc:postgresql://{address.hostname}:{address.port}{address.path}"
        rights = {
            "user": address.username or "",
            "password": address.password or "",
            "driver": "org.postgresql.Driver",
        }

        def theirs(frame: DataFrame) -> None:
            frame.write.option("truncate", True).jdbc(jdbc, "staged", "overwrite", rights)
            changes = ", ".join(f"{name} = excluded.{name}" for name in NAMES[1:])
            running.run(f"insert into theirs select * from staged on conflict (id) do update set {changes}")

        for number in range(size.warm_up + size.measured):
            workplace.say(f"batch {number + 1}")
            read = str(workplace.folder / f"rows-{number}")
            spark.range(0, size.rows, 1, 2).selectExpr(
                f"(id * {size.keys // size.rows} + {number}) AS id",
                f"concat('user-', id, '-{number}') AS name",
                "id * 0.37D AS amount",
                "timestamp_micros(1767323045000000 + id) AS at",
            ).write.parquet(read)
            if not number:
                sink.open(spark, spark.read.parquet(read).schema)
            prepared = timed("prepare", lambda read=read: log.prepare(sink, spark.read.parquet(read)))
            timed("commit", lambda prepared=prepared: log.commit(prepared))
            timed("spark", lambda read=read: theirs(spark.read.parquet(read)))
        [[differing]] = running.run(
            "select count(*) from ours full join theirs using (id) where ours.name is distinct from theirs.name"
        )
        if differing:
            raise AssertionError(f"{differing} rows of the two tables differ")
    return {name: each[size.warm_up :] for name, each in spent.items()}


def section(results: Results, size: Size) -> Section:
    rows, ratios = rows_and_ratios(results, "of it the commit", "Spark's JDBC writer and the statement")
    text = (
        f"{size.rows:,} rows upserted into a table of {size.keys:,}, keys spread over all of it; the server runs on the same machine. Spark's JDBC writer has no "
        "upsert: it writes a staging table, from which its user's statement takes the rows (`ON CONFLICT DO UPDATE`), and a batch that failed "
        f"between the two is written again. Both in turn; the ratio of a pair is {min(ratios):.2f} to {max(ratios):.2f}."
    )
    target = at_most(
        "an upsert into Postgres, exactly once, takes at most as long as by Spark's JDBC writer",
        median(ratios),
        1.0,
    )
    return Section(text, ("side", "median", "range"), rows, [target])


MEASUREMENT = Measurement(
    "postgres_sink",
    "A batch into Postgres",
    SIDES,
    {"full": Size(1_000_000, 100_000, 2, 8), "quick": Size(100_000, 10_000, 2, 4)},
    run,
    section,
    repeats=1,
    minutes={"full": 1.5, "quick": 0.8},
    named_only=True,
)
