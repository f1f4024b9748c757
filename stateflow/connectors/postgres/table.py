"""Tables of Postgres as users name them, without a password: the target of `append` and `upsert`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from stateflow.connectors import GETS_NEW_ROWS, SinkKind, UsageError, required, upsert_kind

_PART = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_NAME = re.compile(rf"{_PART}\.{_PART}")
_OF_ENVIRONMENT = re.compile(r"env:(\w+)")
_PORT = "5432"
_SECRETS = frozenset({"password", "sslpassword"})


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table, and where its server is."""

    name: str
    """Schema and table as SQL writes them."""
    connection: str = ""
    """A URL or a text of libpq's without a password; `env:NAME` for a variable that has one; empty for libpq's own variables."""
    create: bool = False
    """Whether a run makes the table where it is missing."""

    @property
    def place(self) -> str:
        """Its server and database, as far as the connection says them, its schema and its name."""
        given = parts_of(self.connection)
        name = ".".join(names_of_table(self.name))
        if not given or "service" in given or "env" in given:
            where = next((f"{key}:{given[key]}" for key in ("service", "env") if key in given), "environment")
            return f"postgres://{where}/{name}"
        host, port = given.get("host", "localhost"), given.get("port", _PORT)
        return f"postgres://{host}:{port}/{given.get('dbname') or given.get('user', '')}.{name}"

    def __str__(self) -> str:
        return f"Postgres table {self.name}"


def postgres(name: str, *, connection: str = "", create: bool = False) -> PostgresTable:
    """The Postgres table `schema.table`: the target of `append` and `upsert`.

    `connection` is a URL or text of libpq's without a password, such as `"postgresql://etl@db.example/shop"` or `"service=shop"`; or
    `"env:..."` with the name of a variable that has one with its password. Without it libpq's own variables count. `create` makes a table
    that is missing, of the output's columns.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"postgres({name!r}): a table is named with its schema, as in SQL: write postgres('public.orders')"
        )
    if secret := sorted(_SECRETS & parts_of(connection).keys()):
        raise UsageError(
            f"postgres({name!r}): the connection has a {secret[0]}, which would stand in records: leave it out, and give it as PGPASSWORD, in "
            "~/.pgpass, as a service of pg_service.conf (connection='service=NAME'), or the whole URL in a variable (connection='env:NAME')"
        )
    return PostgresTable(name, connection, create)


def names_of_table(name: str) -> tuple[str, str]:
    """Schema and table. SQL folds what is not quoted."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    schema, table = (
        part[1:-1].replace('""', '"') if part.startswith('"') else part.lower() for part in match.groups()
    )
    return schema, table


def parts_of(connection: str) -> Mapping[str, str]:
    """What a connection says, by libpq's words; `env` for one that stands in a variable."""
    if not connection:
        return {}
    if match := _OF_ENVIRONMENT.fullmatch(connection):
        return {"env": match[1]}
    try:
        if connection.startswith(("postgresql://", "postgres://")):
            return _parts_of_url(connection)
        return dict(part.split("=", 1) for part in shlex.split(connection))
    except ValueError:
        # The text itself may have a password in it.
        raise UsageError(
            "the connection of a Postgres table is no text that libpq reads: write 'postgresql://user@host:5432/database', "
            "'host=db.example dbname=shop', 'service=NAME' or 'env:NAME'"
        ) from None


def _parts_of_url(url: str) -> Mapping[str, str]:
    read = urlsplit(url)
    # Of several hosts each may have a port of its own.
    hosts = [urlsplit(f"//{each}") for each in read.netloc.rpartition("@")[2].split(",")]
    ports = [str(each.port or "") for each in hosts]
    found = {
        "host": ",".join(each.hostname or "" for each in hosts),
        "port": ",".join(port or _PORT for port in ports) if any(ports) else "",
        "user": unquote(read.username or ""),
        "password": unquote(read.password or ""),
        "dbname": unquote(read.path.strip("/")),
        **dict(parse_qsl(read.query)),
    }
    return {name: value for name, value in found.items() if value}


def conninfo(connection: str, environment: Mapping[str, str] = os.environ) -> str:
    """What libpq gets."""
    name = parts_of(connection).get("env")
    if name is None:
        return connection
    if not (value := environment.get(name, "")):
        raise UsageError(
            f"the connection of a Postgres table stands in the variable {name}, which this process does not have: set it where the driver runs"
        )
    return value


def _require(target: PostgresTable) -> None:
    required("psycopg", "postgres", str(target))
    conninfo(target.connection)


def _renamed(target: PostgresTable, recorded: str) -> bool:
    # Where the server is may be written in another way, and the database stands before the schema if the connection says it.
    name = ".".join(names_of_table(target.name))
    return not recorded.endswith((f"/{name}", f".{name}"))


APPEND = SinkKind(
    name="postgres_append",
    mode="append",
    takes="postgres(table)",
    accepts=lambda target: isinstance(target, PostgresTable),
    implementation="stateflow.connectors.postgres.sink:PostgresAppend",
    made_by="postgres",
    place=lambda target: target.place,
    renamed=_renamed,
    require=_require,
    shown=str,
    dataset="postgres",
    tells_slot=True,
    changes="refused",
    starts=GETS_NEW_ROWS,
)
UPSERT = upsert_kind(APPEND, "postgres_upsert", "stateflow.connectors.postgres.sink:PostgresUpsert")
