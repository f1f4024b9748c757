"""Tables, files and their options, as a pipeline names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import stateflow as sf
from stateflow.connectors.postgres.columns import made_type
from stateflow.connectors.postgres.table import conninfo
from stateflow.errors import IncompatibleError, UsageError
from tests.refusals.refusal import Refusal


@dataclass
class Order:
    id: int
    broken: str | None = None


def appended(source: Any, target: Any) -> sf.Flow:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        flow.source("in", source).append("out", target)

    return orders.build()


def read(source: Any, rows: Any = None) -> object:
    return sf.Flow("orders").source("in", source, rows)


def upserted(**options: Any) -> sf.Flow:
    @sf.pipeline("shop")
    def shop(flow: sf.Flow) -> None:
        flow.source("orders", sf.files("/in", "json"), Order).upsert(
            "out", sf.postgres("public.orders"), **options
        )

    return shop.build()


def twice_in_postgres() -> sf.Flow:
    @sf.pipeline("shop")
    def shop(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files("/in", "json"), Order)
        orders.append("all", sf.postgres("public.orders"))
        orders.upsert("newest", sf.postgres('public."orders"'), keys="id")

    return shop.build()


REFUSALS = [
    # paths of Delta tables
    Refusal(UsageError, ("name of a table", "'./main.sales.orders'"), lambda: sf.delta("main.sales.orders")),
    Refusal(UsageError, ("sf.table('sales.orders')",), lambda: sf.delta("sales.orders")),
    Refusal(UsageError, ("name of a table", "`my orders`"), lambda: sf.delta("`main`.`sales`.`my orders`")),
    Refusal(UsageError, ("as in SQL", "delta('/data/orders')"), lambda: sf.delta("delta.`/data/orders`")),
    Refusal(UsageError, ("space at its end", "delta('/data/orders')"), lambda: sf.delta("/data/orders ")),
    Refusal(UsageError, ("'~/orders'", "what a shell would"), lambda: sf.delta("~/orders")),
    Refusal(UsageError, ("'$HOME/orders'", "what a shell would"), lambda: sf.delta("$HOME/orders")),
    Refusal(UsageError, ("'s3a://${BUCKET}/orders'", "what a shell would"), lambda: sf.delta("s3a://${BUCKET}/orders")),
    Refusal(UsageError, ("{output}", "f'...'"), lambda: sf.delta("{output}/late")),
    # names of tables
    Refusal(UsageError, ("'orders'", "with its schema", "'sales.orders'"), lambda: sf.table("orders")),
    Refusal(UsageError, ("needs a name", "table('main.sales.orders')"), lambda: sf.table("")),
    Refusal(UsageError, ("'sales.my orders'", "a part with other signs"), lambda: sf.table("sales.my orders")),
    Refusal(UsageError, ("'/data/orders'", "is a path", "delta(...)"), lambda: sf.table("/data/orders")),
    Refusal(UsageError, ("delta.`orders`", "is a path", "delta(...)"), lambda: sf.table("delta.`orders`")),
    Refusal(UsageError, ("{schema}", "f'...'"), lambda: sf.table("{schema}.orders")),
    Refusal(UsageError, ("create=", "location=", "leave them out"),
            lambda: appended(sf.table("sales.orders", create=True), sf.delta("/b"))),
    # options of files
    Refusal(UsageError, ("reader of json", "'mod'", "did you mean mode?"),
            lambda: sf.files("/in", "json", options={"mod": "PERMISSIVE"})),
    Refusal(UsageError, ("reader of json", "no option 'header'"),
            lambda: sf.files("/in", "json", options={"header": "true"})),
    Refusal(UsageError, ("reader of csv", "no option 'seperator'"),
            lambda: sf.files("/in", "csv", options={"seperator": ";"})),
    Refusal(UsageError, ("did you mean delimiter?",), lambda: sf.files("/in", "csv", options={"Delimeter": ";"})),
    Refusal(UsageError, ("'inferSchema'", "the row class"),
            lambda: sf.files("/in", "csv", options={"inferSchema": "true"})),
    Refusal(UsageError, ("'mode'", "'FAIL_FAST'", "PERMISSIVE, DROPMALFORMED, FAILFAST"),
            lambda: sf.files("/in", "csv", options={"mode": "FAIL_FAST"})),
    Refusal(UsageError, ("did you mean maxFilesPerTrigger?",),
            lambda: sf.files("/in", "parquet", options={"maxFilePerTrigger": 1})),
    Refusal(UsageError, ("no option 'path'",), lambda: sf.files("/in", "text", options={"path": "/other"})),
    Refusal(
        UsageError,
        ("option 'encoding' is 'latin-1'", "takes every text file for UTF-8", "iconv -f ISO-8859-1 -t UTF-8"),
        lambda: sf.files("/in", "text", options={"encoding": "latin-1"}),
    ),
    Refusal(UsageError, ("'multiLine'", "'ture'", "'true' or 'false'"),
            lambda: sf.files("/in", "json", options={"multiLine": "ture"})),
    Refusal(UsageError, ("'maxFilesPerTrigger'", "'abc'", "1 or more"),
            lambda: sf.files("/in", "json", options={"maxFilesPerTrigger": "abc"})),
    Refusal(UsageError, ("'MaxFilesPerTrigger'", "'0'", "1 or more"),
            lambda: sf.files("/in", "csv", options={"MaxFilesPerTrigger": 0})),
    Refusal(UsageError, ("'header'", "'yes'", "'true' or 'false'"),
            lambda: sf.files("/in", "csv", options={"header": "yes"})),
    Refusal(UsageError, ("'maxBytesPerTrigger'", "'ten'", "'512m' or '10g'"),
            lambda: sf.files("/in", "orc", options={"maxBytesPerTrigger": "ten"})),
    Refusal(UsageError, ("'maxFileAge'", "'a week'", "'36h' or '7d'"),
            lambda: sf.files("/in", "orc", options={"maxFileAge": "a week"})),
    Refusal(UsageError, ("'cleanSource'", "'remove'", "off, archive, delete"),
            lambda: sf.files("/in", "parquet", options={"cleanSource": "remove"})),
    Refusal(UsageError, ("per_batch", "maxFilesPerTrigger", "the same"),
            lambda: sf.files("/in", "json", per_batch=1, options={"MaxFilesPerTrigger": 2})),
    Refusal(UsageError, ("columnNameOfCorruptRecord", "'brokn'", "Order"),
            lambda: read(sf.files("/in", "json", options={"columnNameOfCorruptRecord": "brokn"}), Order)),
    Refusal(UsageError, ("columnNameOfCorruptRecord", "'id'", "Order"),
            lambda: read(sf.files("/in", "json", options={"columnNameOfCorruptRecord": "id"}), Order)),
    # folders of files
    Refusal(UsageError, ("needs a folder",), lambda: sf.files("", "json")),
    Refusal(UsageError, ("the format 'xls'", "avro, csv, json"), lambda: sf.files("/in", "xls")),
    Refusal(UsageError, ("per_batch=0", "1 or more"), lambda: sf.files("/in", "json", per_batch=0)),
    Refusal(UsageError, ("per_batch", "'100'"), lambda: sf.files("/in", "json", per_batch="100")),  # type: ignore[arg-type]
    Refusal(UsageError, ("'in'", "json", "/in", "row class"), lambda: read(sf.files("/in", "json"))),
    # options of Delta tables
    Refusal(UsageError, ("no option 'startingVersions'", "did you mean startingVersion?"),
            lambda: sf.delta("/in", options={"startingVersions": "3"})),
    Refusal(UsageError, ("'startingVersion'", "'newest'", "'latest'"),
            lambda: sf.delta("/in", options={"startingVersion": "newest"})),
    Refusal(UsageError, ("'skipChangeCommits'", "'1'", "'true' or 'false'"),
            lambda: sf.delta("/in", options={"skipChangeCommits": "1"})),
    Refusal(UsageError, ("'maxFilesPerTrigger'", "'1.5'", "1 or more"),
            lambda: sf.delta("/in", options={"maxFilesPerTrigger": "1.5"})),
    Refusal(UsageError, ("'out' (append)", "'maxFilesPerTrigger'", "for reading it"),
            lambda: appended(sf.delta("/in"), sf.delta("/out", options={"maxFilesPerTrigger": 1}))),
    Refusal(UsageError, ("changes=True", "'ReadChangeFeed'", "the same"),
            lambda: sf.delta("/orders", changes=True, options={"ReadChangeFeed": "true"})),
    Refusal(UsageError, ("changes='yes'", "write changes=True"), lambda: sf.delta("/orders", changes="yes")),  # type: ignore[arg-type]
    Refusal(UsageError, ("changes=True of Delta table /out", "for reading it"),
            lambda: appended(sf.delta("/in"), sf.delta("/out", changes=True))),
    # tables of Postgres
    *(
        Refusal(UsageError, ("password, which", "in records", "PGPASSWORD"),
                lambda of=of: sf.postgres("public.orders", connection=of), hidden="hunter2")
        for of in ("postgresql://etl:hunter2@db/shop", "host=db password=hunter2", "postgresql://db/shop?password=hunter2",
                   "sslpassword=hunter2")
    ),
    *(
        Refusal(UsageError, ("no text that libpq reads", "'postgresql://"),
                lambda of=of: sf.postgres("public.orders", connection=of), hidden="hunter2")
        for of in ("hunter2", "host=db 'hunter2")
    ),
    *(
        Refusal(UsageError, (f"postgres({name!r})", "with its schema"), lambda name=name: sf.postgres(name))
        for name in ("orders", "", "a.b.c", "public.", "public.or ders", 5)
    ),
    Refusal(UsageError, ("SHOP", "this process does not have", "where the driver runs"), lambda: conninfo("env:SHOP", {})),
    Refusal(UsageError, ("no key columns", "keys="), lambda: upserted()),
    Refusal(UsageError, ("Order", "no column 'user' for keys"), lambda: upserted(keys="user")),
    Refusal(UsageError, ("delete_when", "gone"), lambda: upserted(keys="id", delete_when="gone")),
    Refusal(UsageError, ("'all' and 'newest'", 'public."orders"', "give each one"), lambda: twice_in_postgres()),
    Refusal(IncompatibleError, ("Postgres", "interval day to second"), lambda: made_type("interval day to second")),
]  # fmt: skip
