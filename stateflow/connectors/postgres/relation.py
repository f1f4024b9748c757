"""A table in Postgres as it is now: its columns, what it may refuse, and which slots the jobs have there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.connectors import IncompatibleError, NotFoundError, SinkSlot, UsageError
from stateflow.connectors.postgres.columns import Column, quoted
from stateflow.connectors.postgres.server import make_table

if TYPE_CHECKING:
    import psycopg

SLOTS = "stateflow_slots"
"""The table beside the user's that says which slot of which job is in."""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname), coalesce(b.typtype, t.typtype) = 'e',
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attnotnull,
       CASE WHEN a.attgenerated <> '' THEN 'generated' WHEN a.attidentity = 'a' THEN 'an identity column' ELSE '' END,
       CASE WHEN coalesce(b.typname, t.typname) = 'varchar' THEN coalesce(nullif(a.atttypmod, -1), nullif(t.typtypmod, -1)) - 4 END,
       coalesce(to_jsonb(c) ->> 'collisdeterministic' = 'false', false),
       format_type(coalesce(b.oid, t.oid), coalesce(nullif(a.atttypmod, -1), t.typtypmod))
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type b ON b.oid = nullif(t.typbasetype, 0)
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_GUARDS = """
SELECT EXISTS (SELECT 1 FROM pg_constraint WHERE conrelid = %(oid)s AND contype IN ('c', 'f', 'x'))
    OR (%(deletes)s AND EXISTS (SELECT 1 FROM pg_constraint WHERE confrelid = %(oid)s AND contype = 'f'))
    OR EXISTS (SELECT 1 FROM pg_index WHERE indrelid = %(oid)s AND indisunique AND indexrelid IS DISTINCT FROM %(own)s::oid)
    OR EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal)
    OR EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = %(oid)s)
    OR EXISTS (SELECT 1 FROM pg_class WHERE oid = %(oid)s AND (relkind = 'p' OR relispartition OR relrowsecurity))
    OR EXISTS (SELECT 1 FROM pg_index WHERE indrelid = %(oid)s AND (indexprs IS NOT NULL OR indpred IS NOT NULL))
    OR EXISTS (
        SELECT 1 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND (
            a.attgenerated <> '' OR (a.attlen = -1 AND a.attstorage = 'p')
            OR (NOT a.attname = ANY (%(written)s) AND (t.typtype = 'd' OR (
                left(d.adbin::text, 7) <> '{CONST ' AND pg_get_expr(d.adbin, d.adrelid) <> ALL (%(sure)s)
                AND left(pg_get_expr(d.adbin, d.adrelid), 8) <> 'nextval('
            )))
        )
    )
"""
_SURE = [
    "now()", "CURRENT_TIMESTAMP", "CURRENT_DATE", "LOCALTIMESTAMP", "statement_timestamp()", "clock_timestamp()", "gen_random_uuid()", "CURRENT_USER",
]  # fmt: skip
"""Defaults that give a value for every row, beside constants. So does a sequence until its end, and would lose numbers by each row on trial."""
_DISCARDS = """
SELECT EXISTS (
        SELECT 1 FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')
        AND (tgrelid = %(oid)s OR tgrelid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)))
    )
    OR EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = %(oid)s)
    OR row_security_active(%(oid)s::oid)
"""
_UNIQUE = """
SELECT i.indexrelid, array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
  AND i.indnkeyatts = i.indnatts
GROUP BY i.indexrelid
"""
_INDEXED = """
SELECT DISTINCT a.attname::text, t.typcategory = 'S' OR t.typname = 'bytea' FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
WHERE i.indrelid = %s AND a.attlen = -1 AND t.typcategory NOT IN ('I', 'N') AND m.amname NOT IN ('gin', 'hash') ORDER BY 1
"""
"""Numbers and addresses are short, and these two kinds of index keep no value whole."""
_CLOSED = """
SELECT a.attname::text, s.oid::regclass::text, current_user::text FROM pg_attrdef d
JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid AND p.refclassid = 'pg_class'::regclass
JOIN pg_class s ON s.oid = p.refobjid
WHERE d.adrelid = %s AND NOT a.attname = ANY (%s)
  AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE, UPDATE') ELSE false END
ORDER BY a.attnum
"""
_FOLDING = """
SELECT i.indexrelid::regclass::text, array_agg(a.attname::text) FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND EXISTS (
  SELECT 1 FROM pg_collation c WHERE c.oid = ANY (i.indcollation) AND to_jsonb(c) ->> 'collisdeterministic' = 'false'
)
GROUP BY i.indexrelid
"""
_PUBLISHED = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(x.relname), b.pubname, coalesce((
    SELECT string_agg('ALTER COLUMN ' || quote_ident(a.attname) || ' SET NOT NULL, ', '' ORDER BY a.attnum) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull
), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_index i ON i.indrelid = c.oid JOIN pg_class x ON x.oid = i.indexrelid,
LATERAL (
    SELECT p.pubname FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
    WHERE (p.pubupdate AND %(updates)s OR p.pubdelete AND %(deletes)s) AND (t.schemaname, t.tablename) IN (
        SELECT m.nspname, w.relname FROM pg_class w JOIN pg_namespace m ON m.oid = w.relnamespace
        WHERE w.oid = c.oid OR w.oid IN (SELECT relid FROM pg_partition_ancestors(c.oid::regclass))
    )
    ORDER BY 1 LIMIT 1
) b
WHERE c.relkind = 'r' AND c.relreplident <> 'f'
  AND (c.oid = %(oid)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(oid)s::oid::regclass)))
  AND (x.oid = %(own)s OR x.oid IN (SELECT relid FROM pg_partition_tree(%(own)s::oid::regclass)))
  AND NOT EXISTS (
    SELECT 1 FROM pg_index k WHERE k.indrelid = c.oid AND k.indisvalid AND k.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN k.indisprimary WHEN 'i' THEN k.indisreplident ELSE false END
  )
ORDER BY 1 LIMIT 1
"""
"""A publication may name a partitioned table for its partitions, which alone have rows, each with a replica identity of its own."""

_NARROWED = """
SELECT EXISTS (SELECT 1 FROM pg_publication_rel r WHERE coalesce(to_jsonb(r) ->> 'prqual', to_jsonb(r) ->> 'prattrs') IS NOT NULL)
"""
"""Whether a publication has a condition or a list of columns. Servers before 15 know neither."""
_NUMBERS = """
SELECT column_name, sequence, numbers, cache FROM (
    SELECT a.attname::text AS column_name, q.seqrelid::regclass::text AS sequence, CASE WHEN has_sequence_privilege(q.seqrelid, 'USAGE, SELECT') THEN
        trunc((CASE WHEN q.seqincrement > 0 THEN q.seqmax ELSE q.seqmin END
            - coalesce(pg_sequence_last_value(q.seqrelid)::numeric, q.seqstart::numeric - q.seqincrement)) / q.seqincrement)
    END AS numbers, q.seqcache AS cache
    FROM pg_attribute a JOIN pg_sequence q ON NOT q.seqcycle AND q.seqrelid IN (
        SELECT p.refobjid FROM pg_attrdef d JOIN pg_depend p ON p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
        WHERE p.refclassid = 'pg_class'::regclass AND d.adrelid = a.attrelid AND d.adnum = a.attnum
        UNION ALL
        SELECT p.objid FROM pg_depend p WHERE p.classid = 'pg_class'::regclass AND p.deptype = 'i'
        AND p.refclassid = 'pg_class'::regclass AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum
    )
    WHERE a.attrelid = %s AND NOT a.attname = ANY (%s)
) found WHERE numbers IS NOT NULL ORDER BY numbers
"""
"""The sequences that number the rows by a default or as an identity: how many numbers each has left, which may be more than a bigint holds, and how
many a session takes from it at once."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of a connection."""

    connection: psycopg.Connection[Any]
    schema: str
    table: str

    @property
    def name(self) -> str:
        """As statements write it."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def slots(self) -> str:
        return f"{quoted(self.schema)}.{quoted(SLOTS)}"

    def one(self, statement: str, values: Any = ()) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self.connection.execute(statement, values).fetchone()
        return row

    def oid(self) -> int | None:
        """What Postgres knows it by; another one for a table that was made anew. None where there is none."""
        row = self.one("SELECT to_regclass(%s)::oid::bigint", (self.name,))
        return row[0] if row is not None else None

    def hold(self) -> bool:
        """Nobody alters the table, or puts another one in its place, before the transaction ends. False if there is none, which ends the transaction.
        Its partitions are not held: their columns are altered with its own alone."""
        import psycopg

        try:
            self.connection.execute(f"LOCK TABLE ONLY {self.name} IN ROW EXCLUSIVE MODE")
        except psycopg.errors.UndefinedTable:
            return False
        return True

    def columns(self, oid: int) -> list[Column]:
        return [Column(*row) for row in self.connection.execute(_COLUMNS, (oid,))]

    def unique_index(self, oid: int, keys: Sequence[str]) -> int | None:
        """The index that keeps one row per key."""
        rows = self.connection.execute(_UNIQUE, (oid,)).fetchall()
        return next((index for index, names in rows if sorted(names) == sorted(keys)), None)

    def folding_index(self, oid: int, keys: Sequence[str]) -> str:
        """A unique index of the keys to which different texts are equal; empty for none. An upsert that names the columns takes this one, too."""
        rows = self.connection.execute(_FOLDING, (oid,)).fetchall()
        return next((index for index, names in rows if sorted(names) == sorted(keys)), "")

    def is_guarded(
        self, oid: int, own_index: int | None, written: Sequence[str], *, deletes: bool = False
    ) -> bool:
        """Whether it may refuse rows whose values have the right types. `own_index` is that of an upsert's keys, `written` the columns that get values.
        `deletes`: rows may go, to which those of another table may still point."""
        asked = {"oid": oid, "own": own_index, "written": list(written), "sure": _SURE, "deletes": deletes}
        return self.one(_GUARDS, asked) == (True,)

    def indexed(self, oid: int) -> dict[str, bool]:
        """Columns of any length that an index has, which refuses values that are too long for it. True for one whose text is no shorter than what the
        index keeps of it."""
        return dict(self.connection.execute(_INDEXED, (oid,)).fetchall())

    def may_discard(self, oid: int) -> bool:
        """Whether a trigger of the table or of a partition, a rule or a policy may leave rows out, or leave them there, which is no error to the server."""
        return self.one(_DISCARDS, {"oid": oid}) == (True,)

    def identity(self, oid: int) -> str:
        """The same however the connection is spelled: another server has started at another time."""
        row = self.one(
            "SELECT pg_postmaster_start_time()::text, oid::bigint FROM pg_database WHERE datname = current_database()"
        )
        # A partition is a part of its table, which other sinks may name.
        whole = self.one("SELECT coalesce(pg_partition_root(%s::oid)::oid, %s::oid)::bigint", (oid, oid))
        return f"postgres:{row}/{whole[0] if whole else oid}"

    def require_schema(self, what: str) -> None:
        """The right to find anything in its schema, if there is such a one."""
        row = self.one(
            "SELECT has_schema_privilege(oid, 'USAGE'), current_user FROM pg_namespace WHERE nspname = %s",
            (self.schema,),
        )
        if row is not None and not row[0]:
            schema, role = quoted(self.schema), quoted(row[1])
            raise UsageError(
                f"{what}: {row[1]} has no right to find it in the schema {self.schema}: GRANT USAGE ON SCHEMA {schema} TO {role}"
            )

    def require(self, what: str, rights: Sequence[str]) -> int:
        """Its oid. The error says that it is not there, is no table, or is not ours to write."""
        oid = self.oid()
        if oid is None:
            raise NotFoundError(
                f"{what} is not there: make it, or let a run make it with sf.postgres(..., create=True); what is not quoted is looked for in "
                "lower case"
            )
        row = self.one("SELECT relkind::text FROM pg_class WHERE oid = %s", (oid,))
        if row is None or row[0] not in ("r", "p"):
            raise UsageError(f"{what} is no table but a view or something else: name the table behind it")
        for right in rights:
            row = self.one("SELECT has_table_privilege(%s::oid, %s), current_user", (oid, right))
            if row is not None and not row[0]:
                raise UsageError(
                    f"{what}: {row[1]} has no right to {right}: GRANT {right} ON {self.name} TO {quoted(row[1])}"
                )
        return oid

    def require_sequences(self, what: str, oid: int, written: Sequence[str]) -> None:
        """The right to the numbers that columns have as defaults: a table of these is not written on trial."""
        row = self.one(_CLOSED, (oid, list(written)))
        if row is not None:
            column, sequence, role = row
            raise UsageError(
                f"{what}: {role} has no right to the sequence {sequence}, from which the column {column!r} has its default: GRANT USAGE ON SEQUENCE "
                f"{sequence} TO {quoted(role)}"
            )

    def require_replica_identity(
        self, what: str, oid: int, index: int, *, updates: bool, deletes: bool
    ) -> None:
        """Of a table that is published the server refuses changes of rows that it cannot name to those who follow. `index` is that of an upsert's keys,
        which can name them."""
        row = self.one(_PUBLISHED, {"oid": oid, "own": index, "updates": updates, "deletes": deletes})
        if row is not None:
            table, name, publication, filled = row
            raise IncompatibleError(
                f"{what}: the publication {publication} publishes {table}, which has no replica identity, so that the server would refuse to change its "
                f"rows: ALTER TABLE {table} {filled}REPLICA IDENTITY USING INDEX {name}"
            )

    def require_published_columns(self, what: str, changed: Sequence[str], *, deletes: bool) -> None:
        """Of a table that is published with a condition or a list of columns the server refuses changes that it cannot tell of. It is asked itself, and
        changes nothing. `changed` are the columns that an upsert updates."""
        import psycopg

        if self.one(_NARROWED) != (True,):
            return
        changes = [f"UPDATE {self.name} SET {quoted(name)} = {quoted(name)}" for name in changed[:1]]
        try:
            for change in [*changes, f"DELETE FROM {self.name}"] if deletes else changes:
                self.connection.execute(f"EXPLAIN {change}")
        except psycopg.errors.InvalidColumnReference as error:
            raise IncompatibleError(
                f"{what} is published so that the server would refuse to change its rows ({error.diag.message_detail}): where the publication has a "
                f"condition, ALTER TABLE {self.name} REPLICA IDENTITY FULL; where it lists columns, let it list those of the replica identity, too"
            ) from error

    def out_of_numbers(
        self, oid: int, written: Sequence[str], inserted: Callable[[], int], *, on_trial: bool
    ) -> str:
        """Which sequence ends before it has numbered the rows that `inserted` counts; empty for none. `on_trial`: they are written twice, and the
        sequence gets back no number that a trial takes."""
        found = self.connection.execute(_NUMBERS, (oid, list(written))).fetchall()
        rows = inserted() if found else 0
        for column, sequence, left, cache in found:
            if left < rows + (-(-rows // cache) * cache if on_trial else 0):
                twice = ", each of which takes one on trial, too" if on_trial else ""
                return f"the sequence {sequence} of its column {column!r} has {left} numbers left, and the batch {rows} rows{twice} (ALTER SEQUENCE {sequence})"
        return ""

    def make_slots(self, connection: str, what: str) -> None:
        """Makes the table of slots, if it is missing, over a connection of its own."""
        import psycopg

        if self.one("SELECT to_regclass(%s)", (self.slots,)) != (None,):
            return
        columns = "(job text, sink text, slot bigint, mark bigint, relation bigint, job_name text, at timestamptz, PRIMARY KEY (job, sink))"
        try:
            make_table(connection, what, f"{self.slots} {columns}")
        except psycopg.errors.InsufficientPrivilege as error:
            raise UsageError(
                f"{what}: the table {self.slots}, which says what came, cannot be made: {error.diag.message_primary}; GRANT CREATE ON SCHEMA "
                f"{quoted(self.schema)} to the role, or make it: CREATE TABLE {self.slots} {columns}"
            ) from error

    def require_slots(self, what: str) -> None:
        """The rights that a commit needs beside those on the table, each with the statement that gives it."""
        row = self.one(
            "SELECT has_database_privilege(current_database(), 'TEMP'), current_user, current_database()"
        )
        assert row is not None
        may_stage, role, database = row
        if not may_stage:
            raise UsageError(
                f"{what}: {role} has no right to make temporary tables, in which rows are staged: GRANT TEMP ON DATABASE {quoted(database)} TO {quoted(role)}"
            )
        for right in ("SELECT", "INSERT", "UPDATE"):
            if self.one("SELECT has_table_privilege(%s, %s)", (self.slots, right)) != (True,):
                raise UsageError(
                    f"{what}: {role} has no right to {right} the table {self.slots}, which says what came: GRANT SELECT, INSERT, UPDATE ON {self.slots} "
                    f"TO {quoted(role)}"
                )

    def lock_slot(self, at: SinkSlot) -> tuple[int | None, int | None, int | None]:
        """Slot, mark and oid of the job's last commit. Nobody else commits for this sink before the transaction ends."""
        key = (at.job, at.sink)
        self.connection.execute(
            f"INSERT INTO {self.slots} (job, sink) VALUES (%s, %s) ON CONFLICT DO NOTHING", key
        )
        row = self.one(
            f"SELECT slot, mark, relation FROM {self.slots} WHERE job = %s AND sink = %s FOR UPDATE", key
        )
        assert row is not None
        return row[0], row[1], row[2]

    def slot(self, at: SinkSlot) -> tuple[int | None, int | None]:
        """Slot and oid of the job's last commit, without a lock."""
        if self.one("SELECT to_regclass(%s)", (self.slots,)) == (None,):
            return None, None
        row = self.one(
            f"SELECT slot, relation FROM {self.slots} WHERE job = %s AND sink = %s", (at.job, at.sink)
        )
        return (row[0], row[1]) if row is not None else (None, None)

    def way_on(self, at: SinkSlot) -> str:
        """How a job goes on with a table that was put back together with it: a restore leaves the table, and its slots, as they are."""
        return (
            "restore the job to the checkpoint of that slot, and let the table have the slot that the log expects: UPDATE "
            f"{self.slots} SET slot = {at.prev} WHERE job = '{at.job}' AND sink = '{at.sink}'"
        )

    def writers(self) -> dict[str, str]:
        """Names of jobs by the `app_id` of the sinks that have written to the table as it is now; none for one that has no rows."""
        oid = self.oid()
        may_look = self.one("SELECT has_table_privilege(%s::oid, 'SELECT')", (oid,))
        if may_look == (True,) and self.one(f"SELECT EXISTS (SELECT 1 FROM {self.name})") == (False,):
            return {}
        rows = self.connection.execute(
            f"SELECT job, sink, coalesce(job_name, '') FROM {self.slots} WHERE relation = %s", (oid,)
        )
        return {SinkSlot(job, name, sink, 0, 0).app_id: name for job, sink, name in rows}

    def take_slot(self, at: SinkSlot, oid: int) -> None:
        self.connection.execute(
            f"UPDATE {self.slots} SET slot = %s, mark = %s, relation = %s, job_name = %s, at = now() WHERE job = %s AND sink = %s",
            (at.slot, at.mark, oid, at.job_name, at.job, at.sink),
        )


def refuse_made_anew(
    relation: Relation,
    at: SinkSlot,
    what: str,
    oid: int,
    slot: int | None,
    recorded: int | None,
    *,
    decided: bool = False,
) -> str:
    """The reason why a table is not the one that got the last `slot`; empty if it is. `decided`: a record waits for it."""
    if recorded is None or recorded == oid:
        return ""
    given_up = (
        f", behind `stateflow abandon {at.job_name} {at.slot}`, which gives up the rows that are decided for the old one"
        if decided
        else ""
    )
    return (
        f"{what} was made anew since slot {slot} or one before it came (dropped, or read back from a dump), so that rows may be missing: put "
        f"the old one back; or, if it has what came before, UPDATE {relation.slots} SET relation = {oid} WHERE job = '{at.job}' AND sink = "
        f"'{at.sink}'; or give it a new sink uid{given_up}"
    )
