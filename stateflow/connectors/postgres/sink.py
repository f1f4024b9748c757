"""Appends to and upserts into a table of Postgres: staged rows are copied in one transaction with the slot that they are of."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stateflow.connectors import (
    DELETE,
    CommitRequest,
    Committed,
    DisagreementError,
    IncompatibleError,
    Prepared,
    Sink,
    SinkKind,
    SinkSlot,
    Stager,
    UsageError,
    check_as_json,
    value_as_json,
)
from stateflow.connectors import quoted as quoted_in_sql
from stateflow.connectors.postgres.columns import (
    Column,
    json_columns,
    keeps,
    made_type,
    matched,
    overlong,
    quoted,
)
from stateflow.connectors.postgres.relation import Relation, refuse_made_anew
from stateflow.connectors.postgres.server import connected, is_passing, make_table, said, trying_again
from stateflow.connectors.postgres.table import APPEND, UPSERT, PostgresTable, names_of_table

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_STAGED = "stateflow_batch"
"""The temporary table that gets the rows of a batch, as they are staged."""
_OPERATION = "stateflow_op"
_AS_PUT_OUT = "stateflow_key{}"
"""Columns of it with the texts of keys as they were put out, where the server makes others of them."""

_SHORT = 2000
"""Bytes of texts that an index takes in any case. It has 2,704 for a row, with what it notes beside them."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch does to a table. A record keeps it."""

    connection: str
    name: str
    relation: int
    """The table's oid."""
    columns: Sequence[Sequence[str]]
    """Names in the staged rows, names in the table and types there."""
    keys: Sequence[str] = ()
    """Columns of the table; none for an append."""
    order_by: Sequence[str] = ()
    texts: Sequence[str] = ()
    """Those of them that are texts to the pipeline, whatever they are to the table."""
    operation: str = ""
    """The column of the staged rows that says what is deleted."""
    guarded: bool = False
    """Whether the table may refuse rows of the right types."""

    @property
    def what(self) -> str:
        return f"Postgres table {self.name}"

    def loss_in(self, columns: Sequence[Column]) -> str:
        """Which column of the table as it is now would lose something of the staged values, which Postgres would not say; empty for none."""
        there = {column.name: column for column in columns}
        for _, name, kind in self.columns:
            now = there.get(name)
            if now is not None and name in self.keys and now.type != kind and (now.mixes or now.kept_as):
                return f"its key column {name!r} was {kind} and is {now.type}, to which different keys may be one: ALTER COLUMN {quoted(name)} TYPE {kind}"
            if name in there and not keeps(kind, there[name]):
                return (
                    f"its column {name!r} was {kind} and is {there[name].type}, which does not hold all of its values: ALTER COLUMN {quoted(name)} "
                    f"TYPE {kind}"
                )
        return ""

    def copy(
        self,
        connection: psycopg.Connection[Any],
        batches: Iterable[pa.RecordBatch],
        columns: Sequence[Column],
        texts: Sequence[str] = (),
    ) -> str:
        """The staged rows in a temporary table of the target's types. What a column of the table as it is now would cut; empty for nothing. `texts`:
        columns that it has as texts, too."""
        limits = {column.name: column.length for column in columns if column.length is not None}
        # As a `varchar` its blanks would be cut on the way in already.
        types = ", ".join(
            f"{quoted(name)} {'text' if name in limits else kind}" for _, name, kind in self.columns
        )
        more = f", {_OPERATION} text" if self.operation else ""
        more += "".join(f", {_AS_PUT_OUT.format(k)} text" for k in range(len(texts)))
        connection.execute(f"CREATE TEMPORARY TABLE {_STAGED} ({types}{more}) ON COMMIT DROP")
        names = [name for name, _, _ in self.columns] + ([self.operation] if self.operation else [])
        names += [staged for text in texts for staged, name, _ in self.columns if name == text]
        with connection.cursor().copy(f"COPY {_STAGED} FROM STDIN (FORMAT csv)") as copy:
            for piece in _csv(batches, names):
                copy.write(piece)
        for _, name, _ in self.columns:
            if (limit := limits.get(name)) is None:
                continue
            row = connection.execute(f"SELECT max(char_length({quoted(name)})) FROM {_STAGED}").fetchone()
            if row is not None and (row[0] or 0) > limit:
                return f"a text of {row[0]} characters is longer than the {limit} of its column {name!r}"
        return ""

    def other_key(self, connection: psycopg.Connection[Any], keys: Sequence[Column]) -> str:
        """Which key of the staged rows the table would keep as another one, so that two of them could be one row; empty for none."""
        for k, column in enumerate(keys):
            given, kept = f'{_AS_PUT_OUT.format(k)} COLLATE "C"', f'{column.kept_as} COLLATE "C"'
            row = connection.execute(
                f"SELECT {given}, {kept} FROM {_STAGED} WHERE {given} <> {kept} ORDER BY 1 LIMIT 1"
            ).fetchone()
            if row is not None:
                return (
                    f"its key column {column.name!r}, which is {column.type}, keeps the key {row[0]!r} as {row[1]!r}, so that two keys of the "
                    "pipeline could be one row: let a transform() before the sink write such keys as the table keeps them"
                )
        return ""

    def may_outgrow(self, connection: psycopg.Connection[Any], indexed: Mapping[str, bool]) -> bool:
        """Whether the staged values of indexed columns may be too long for an index. Short texts as keys are common, and cost no trial."""
        written = [name for _, name, _ in self.columns if name in indexed]
        if not all(indexed[name] for name in written):
            return True
        if not written:
            return False
        length = " + ".join(f"coalesce(octet_length({quoted(name)}::text), 0)" for name in written)
        row = connection.execute(f"SELECT max({length}) FROM {_STAGED}").fetchone()
        return row is not None and (row[0] or 0) > _SHORT

    def _ordered(self, column: str) -> str:
        """As Spark compares them. The server would compare texts by the language of its database."""
        return f'{quoted(column)}::text COLLATE "C"' if column in self.texts else quoted(column)

    @property
    def _chosen(self) -> str:
        """The staged rows, of an order the highest of each key."""
        if not self.order_by:
            return f"{_STAGED} s"
        keys = ", ".join(map(quoted, self.keys))
        order = ", ".join(f"{self._ordered(column)} DESC NULLS LAST" for column in self.order_by)
        # Among equals the content decides, the same way every time: `s` alone would be a column of that name.
        return (
            f"(SELECT DISTINCT ON ({keys}) s.* FROM {_STAGED} s ORDER BY {keys}, {order}, (s.*)::text DESC) s"
        )

    @property
    def _inserted(self) -> str:
        """Those that an insert gets. Each takes the next number of a sequence, also one that finds its key there."""
        return self._chosen + (f" WHERE s.{_OPERATION} <> '{DELETE}'" if self.operation else "")

    def inserted(self, connection: psycopg.Connection[Any]) -> int:
        """How many of the rows in the temporary table are inserted."""
        return _count(connection, self._inserted)

    def write(self, connection: psycopg.Connection[Any], *, counted: bool = False) -> tuple[int, int]:
        """From the temporary table into the target. `counted`: how many rows the server has left out, and how many it has not deleted, such as by a
        trigger."""
        schema, table = names_of_table(self.name)
        target = f"{quoted(schema)}.{quoted(table)}"
        names = [name for _, name, _ in self.columns]
        listed = ", ".join(map(quoted, names))
        rows, then = self._chosen, ""
        left_out = undeleted = 0
        if self.operation:
            same = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in self.keys)
            connection.execute(
                f"DELETE FROM {target} t USING {rows} WHERE {same} AND s.{_OPERATION} = '{DELETE}'"
            )
            if counted:
                undeleted = _count(
                    connection, f"{target} t JOIN {rows} ON {same} AND s.{_OPERATION} = '{DELETE}'"
                )
        if self.keys:
            changed = ", ".join(f"{quoted(n)} = excluded.{quoted(n)}" for n in names if n not in self.keys)
            keys = ", ".join(map(quoted, self.keys))
            then = f" ON CONFLICT ({keys}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
        taken = connection.execute(
            f"INSERT INTO {target} ({listed}) SELECT {listed} FROM {self._inserted}{then}"
        ).rowcount
        if counted and not then.endswith("NOTHING"):
            left_out = max(self.inserted(connection) - taken, 0)
        return left_out, undeleted


def _count(connection: psycopg.Connection[Any], what: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {what}").fetchone()
    return int(row[0]) if row is not None else 0


class PostgresAppend(Sink):
    """The sink `stream.append(uid, postgres(table))`."""

    declared: ClassVar[SinkKind] = APPEND
    target: PostgresTable

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self.upsert.deletion(schema)
        self.upsert.refuse_nested_order(schema)
        rows = self._rows(schema)
        trying_again(str(self.target), lambda: self._opened(rows))

    def _opened(self, rows: Sequence[tuple[str, str]]) -> None:
        if self.target.create:
            self._make(rows)
        with self._relation() as relation:
            self.identity = relation.identity(self._load(relation, rows, "").relation)
            relation.make_slots(self.target.connection, str(self.target))
            relation.require_slots(str(self.target))

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        rows = self._rows(frame.schema)
        frame, upsert = self.upsert.marked(frame)

        def asked() -> Load:
            with self._relation() as relation:
                load = self._load(relation, rows, upsert.operation)
                slot, oid = relation.slot(at)
                if reason := refuse_made_anew(relation, at, load.what, load.relation, slot, oid):
                    raise DisagreementError(f"sink and log disagree: {reason}")
            at.refuse_disagreement(load.what, slot, relation.way_on(at))
            return load

        load = trying_again(str(self.target), asked)
        nested = set(json_columns(rows))
        if nested:
            plain = {name: quoted_in_sql(name) for name in frame.columns}
            frame = frame.selectExpr(
                *(f"{value_as_json(p)} as {p}" if name in nested else p for name, p in plain.items())
            )
        staged = stager.write(frame, at)
        upsert.refuse(staged, frame, at, stager)
        return Prepared(
            kind=self.declared.name,
            target=self.target.place,
            payload={name: getattr(load, name) for name in Load.__dataclass_fields__},
            files=staged.files,
            rows=staged.rows,
        )

    def check(self, prepared: Prepared, at: SinkSlot, stager: Stager) -> None:
        import psycopg

        if not prepared.files:
            return
        load = Load(**prepared.payload)
        try:
            refused = trying_again(load.what, lambda: _tried(load, stager.batches(prepared.files)))
        except psycopg.Error as error:
            refused = said(error)
        if refused:
            raise IncompatibleError(
                f"{load.what} refuses rows of {at}: {refused}; no row was written; leave such rows out where the operator puts them out, "
                "or alter the table"
            )

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        import psycopg

        if not request.prepared.files:
            return "none"
        load = Load(**request.prepared.payload)
        try:
            return trying_again(load.what, lambda: _committed(load, request))
        except psycopg.Error as error:
            if is_passing(error):
                raise
            raise request.stuck(
                f"{load.what} refuses its rows: {said(error)}; put the table right and run again"
            ) from error

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        load = Load(**prepared.payload)
        with connected(load.connection, load.what) as connection:
            return Relation(connection, *names_of_table(load.name)).slot(at)[0]

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        with self._relation() as relation:
            return relation.writers()

    def _rows(self, schema: StructType) -> list[tuple[str, str]]:
        """Names and types of the columns that the table has."""
        rows = [(f.name, f.dataType.simpleString()) for f in self.upsert.columns(schema)]
        if cut := overlong(name for name, _ in rows):
            raise IncompatibleError(
                f"{self.target} cannot have a column of its output: Postgres would cut the name {cut}: give it a shorter one in a transform() before the "
                "sink"
            )
        check_as_json(str(self.target), rows)
        return rows

    @contextmanager
    def _relation(self) -> Iterator[Relation]:
        """The table, with a connection of its own for the length of a `with`."""
        with connected(self.target.connection, str(self.target)) as connection:
            relation = Relation(connection, *names_of_table(self.target.name))
            relation.require_schema(str(self.target))
            yield relation

    def _make(self, rows: Sequence[tuple[str, str]]) -> None:
        """Makes the table, if it is missing."""
        import psycopg

        what = str(self.target)
        with self._relation() as relation:
            if relation.oid() is not None:
                return
        self.refuse_gone(what)
        if cut := overlong([relation.schema, relation.table]):
            raise UsageError(
                f"{what} cannot be made: Postgres would cut the name {cut}: give it a shorter one"
            )
        columns = [f"{quoted(name)} {made_type(kind)}" for name, kind in rows]
        if self.upsert.keys:
            made = {name.lower(): quoted(name) for name, _ in rows}
            # As for Delta's columns, capitals make no difference to who names them.
            keys = [made.get(key.lower(), quoted(key)) for key in self.upsert.keys]
            columns.append(f"PRIMARY KEY ({', '.join(keys)})")
        try:
            make_table(self.target.connection, what, f"{relation.name} ({', '.join(columns)})")
        except (psycopg.errors.InvalidSchemaName, psycopg.errors.InsufficientPrivilege) as error:
            raise IncompatibleError(
                f"{what} cannot be made: {error.diag.message_primary}; CREATE SCHEMA {quoted(relation.schema)} first, or GRANT CREATE ON it"
            ) from error

    def _load(self, relation: Relation, rows: Sequence[tuple[str, str]], operation: str) -> Load:
        """What batches do to the table as it is now. Refuses a table that does not fit."""
        what = str(self.target)
        rights = ["INSERT"] if not self.upsert.keys else ["INSERT", "SELECT", "UPDATE"]
        if self.upsert.deletes:
            rights.append("DELETE")
        oid = relation.require(what, rights)
        found = matched(rows, relation.columns(oid), what)
        relation.require_sequences(what, oid, [column.name for column in found.values()])
        named = {name.lower(): column.name for name, column in found.items()}
        self.upsert.refuse_unknown([name for name, _ in rows])
        texts = {named[name.lower()] for name, kind in rows if kind == "string"}
        order_by = [named[column.lower()] for column in self.upsert.order_by]
        keys = [named[key.lower()] for key in self.upsert.keys]
        index = relation.unique_index(oid, keys) if keys else None
        if folding := [c.name for c in found.values() if c.name in keys and c.folds]:
            raise IncompatibleError(
                f"{what}: different texts are equal to the collation of its key column {folding[0]!r}, so that two keys of the pipeline would be one "
                f'row: ALTER TABLE {relation.name} ALTER COLUMN {quoted(folding[0])} TYPE text COLLATE "C", and let the pipeline make such keys alike, as with '
                "lower()"
            )
        texts_of_keys = [found[name] for name, kind in rows if kind == "string" and found[name].name in keys]
        if mixing := next((column for column in texts_of_keys if column.mixes), None):
            raise IncompatibleError(
                f"{what}: different texts are equal to its key column {mixing.name!r}, which is {mixing.type}, so that two keys of the pipeline "
                f"would be one row: ALTER TABLE {relation.name} ALTER COLUMN {quoted(mixing.name)} TYPE text, and let the pipeline make such keys "
                "alike, as with lower()"
            )
        if keys and (unfit := relation.folding_index(oid, keys)):
            raise IncompatibleError(
                f"{what}: different texts are equal to the collation of its unique index {unfit}, so that two keys of the pipeline would be one row: DROP "
                f"INDEX {unfit}, and let the pipeline make such keys alike, as with lower()"
            )
        if keys and index is None:
            raise IncompatibleError(
                f"{what} has no unique index of {', '.join(keys)}, so that it could have a key twice: CREATE UNIQUE INDEX ON {relation.name} "
                f"({', '.join(map(quoted, keys))})"
            )
        if index is not None:
            changed = [column.name for column in found.values() if column.name not in keys]
            relation.require_replica_identity(
                what, oid, index, updates=bool(changed), deletes=self.upsert.deletes
            )
            relation.require_published_columns(what, changed, deletes=self.upsert.deletes)
        return Load(
            connection=self.target.connection,
            name=self.target.name,
            relation=oid,
            columns=[[name, column.name, column.type] for name, column in found.items()],
            keys=keys,
            order_by=order_by,
            texts=[column for column in order_by if column in texts],
            operation=operation,
            guarded=relation.is_guarded(
                oid, index, [column.name for column in found.values()], deletes=self.upsert.deletes
            )
            # A text of limited length is not staged as its domain, so that only the table asks what else the domain does.
            or any(c.length is not None and c.bounds != c.type for c in found.values())
            or any(c.not_null for c in found.values() if c.name not in keys)
            or any(not c.is_exact for c in found.values() if c.name in keys),
        )


class PostgresUpsert(PostgresAppend):
    """The sink `stream.upsert(uid, postgres(table), keys=[...], order_by=..., delete_when=...)`."""

    declared: ClassVar[SinkKind] = UPSERT


def _tried(load: Load, batches: Iterable[pa.RecordBatch]) -> str:
    """Which rows the table would not take whole; empty if it takes all. What the server refuses is its error. All is done as in the commit, and taken
    back."""
    with connected(load.connection, load.what) as connection:
        relation = Relation(connection, *names_of_table(load.name))
        columns = relation.columns(load.relation)
        keys = [column for column in columns if column.name in load.keys and column.kept_as]
        refused = load.copy(connection, batches, columns, [key.name for key in keys])
        refused = refused or load.other_key(connection, keys)
        on_trial = load.guarded or load.may_outgrow(connection, relation.indexed(load.relation))
        refused = refused or relation.out_of_numbers(
            load.relation,
            [name for _, name, _ in load.columns],
            lambda: load.inserted(connection),
            on_trial=on_trial,
        )
        if on_trial and not refused:
            load.write(connection)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        connection.rollback()
    return refused


def _committed(load: Load, request: CommitRequest) -> Committed:
    """One try. A later one finds the slot, if this one came through after all."""
    at = request.at
    with connected(load.connection, load.what) as connection:
        relation = Relation(connection, *names_of_table(load.name))
        relation.make_slots(load.connection, load.what)
        slot, mark, recorded = relation.lock_slot(at)
        if request.is_in(load.what, slot, mark):
            return "already"
        oid = relation.oid() if relation.hold() else None
        # Whoever has put another table's number into the slots says that it has what came before.
        if oid is None or (oid != load.relation and oid != recorded):
            request.still_owner()
            if oid is not None and (
                reason := refuse_made_anew(relation, at, load.what, oid, slot, recorded, decided=True)
            ):
                raise DisagreementError(f"sink and log disagree: {reason}")
            raise request.stuck(f"{load.what} was dropped or made anew since: put the old one back")
        columns = relation.columns(oid)
        if reason := load.loss_in(columns):
            request.still_owner()
            raise request.stuck(f"{load.what} has changed since: {reason} and run again")
        if load.keys and (unfit := relation.folding_index(oid, load.keys)):
            request.still_owner()
            raise request.stuck(
                f"{load.what} has changed since: different keys may be one row by the collation of its unique index {unfit}: DROP INDEX {unfit} and run "
                "again"
            )
        # Asked with the row of the slot locked: whoever replaces this run waits for it, or has been here.
        request.still_owner()
        if cut := load.copy(connection, request.stager.batches(request.prepared.files), columns):
            raise request.stuck(f"{load.what} has changed since: {cut}: alter that to text and run again")
        left_out, undeleted = load.write(connection, counted=relation.may_discard(oid))
        relation.take_slot(at, oid)
        connection.commit()
    if left_out:
        request.warn(
            f"left out: {at.sink}",
            f"{load.what} leaves out rows by a trigger or a rule of its own, the last time {left_out} of slot {at.slot} of {at}: they are not in "
            "it, unless that has put them elsewhere",
        )
    if undeleted:
        request.warn(
            f"not deleted: {at.sink}",
            f"{load.what} keeps rows that were to be deleted, by a trigger, a rule or a policy of its own, the last time {undeleted} of slot {at.slot} of "
            f"{at}: they are still in it; alter that if they are to go",
        )
    return "committed"


def _csv(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[bytes]:
    """Rows as COPY reads them: a text is quoted, a null is not."""
    import pyarrow as pa
    import pyarrow.csv as csv

    for batch in batches:
        columns = [
            _hexadecimal(batch[name]) if pa.types.is_binary(batch[name].type) else batch[name]
            for name in names
        ]
        written = io.BytesIO()
        options = csv.WriteOptions(include_header=False)
        csv.write_csv(pa.record_batch(columns, names=list(names)), written, options)
        yield written.getvalue()


def _hexadecimal(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(
        [None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string()
    )
