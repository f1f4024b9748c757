"""Connections to Postgres: what is wrong with one, in a sentence that names the table, and whether trying again helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from stateflow.connectors import UnavailableError, UsageError, required
from stateflow.connectors import trying_again as again
from stateflow.connectors.postgres.table import conninfo

if TYPE_CHECKING:
    import psycopg

_SESSION = {
    "application_name": "stateflow",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""A peer that is gone is noticed within a minute. What the connection says counts more."""
_ON_SERVER = {
    "lock_timeout": "60s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""Settings of the transaction: a wait for a lock ends, and the server notices a driver whose machine is gone, which would keep its locks for hours.
A pooler that lends a server's connection to one transaction after the other (pgbouncer) hands none of them on."""
_BEGIN = """
SELECT pg_backend_pid(), count(set_config(name, wanted, true))
FROM pg_settings JOIN unnest(%s::text[], %s::text[]) AS wanted (named, wanted) ON named = name WHERE source = 'default'
"""
"""What the server, the role or the connection says by itself counts more."""
LOOK_S = 20.0
"""Seconds between two looks at who keeps a connection waiting: a shorter wait opens no second one."""
_BLOCKING = """
SELECT pid, coalesce(application_name, ''), coalesce(usename::text, '') FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids(%s)) ORDER BY pid
"""
_LIMITS = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "57014": "statement_timeout",
    "57P05": "idle_session_timeout",
}
"""By SQLSTATE, the setting of the server that ends what takes longer. It says nothing of the rows."""
_AGAIN = ("08", "25006", "40", "53", "55P03", "57P01", "57P02", "57P03", *_LIMITS)
"""Beginnings of SQLSTATE: the connection, a server that only reads (a standby), a conflict with others, no room, a lock, a server that stops or
starts, a limit of time."""
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "definition of service",
)
"""Words of libpq for what no waiting helps against."""

T = TypeVar("T")


@contextmanager
def connected(connection: str, what: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the server of a table, for one transaction. What is written is kept only by its `commit()`."""
    driver = required("psycopg", "postgres", what)
    try:
        given = driver.conninfo.conninfo_to_dict(conninfo(connection))
    except driver.ProgrammingError:
        raise UsageError(
            f"{what}: its connection is no text that libpq reads: write 'postgresql://user@host:5432/database' or 'service=NAME'"
        ) from None
    wanted = {**_SESSION, **given}
    try:
        opened = driver.connect(**wanted)
        # A pooler's connection is of no process of the server's, and the next transaction may be of another one.
        [(pid, _)] = opened.execute(_BEGIN, (list(_ON_SERVER), list(_ON_SERVER.values())))
    except driver.OperationalError as error:
        raise cannot_connect(what, str(error)) from error
    blockers = _Blockers(pid, lambda: driver.connect(**wanted, autocommit=True))
    try:
        yield opened
    except driver.errors.LockNotAvailable as error:
        raise UnavailableError(
            f"{what} keeps this run waiting: {blockers}, and run again: nothing is lost"
        ) from error
    finally:
        opened.close()
        blockers.forget()


def make_table(connection: str, what: str, statement: str) -> None:
    """Makes a table in a transaction of its own; nothing if somebody else has made it in this very moment."""
    import psycopg

    with (
        suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable),
        connected(connection, what) as opened,
    ):
        opened.execute(f"CREATE TABLE IF NOT EXISTS {statement}")
        opened.commit()


class _Blockers:
    """Who keeps a connection waiting for a lock. It is asked beside the wait, for behind it the server no longer knows."""

    def __init__(self, pid: int, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._pid = pid
        self._connect = connect
        self._over = Event()
        self._found: list[tuple[int, str, str]] = []
        Thread(target=self._look, name="stateflow-postgres-locks", daemon=True).start()

    def __str__(self) -> str:
        if not self._found:
            return "another session has locked it for longer than lock_timeout: let that end"
        pid, name, user = self._found[0]
        more = f" and {len(self._found) - 1} more" if self._found[1:] else ""
        return (
            f"the session {name!r} of {user} with pid {pid}{more} has locked it for longer than lock_timeout: let that end, or end it with "
            f"SELECT pg_terminate_backend({pid})"
        )

    def forget(self) -> None:
        self._over.set()

    def _look(self) -> None:
        import psycopg

        while not self._over.wait(LOOK_S):
            try:
                with self._connect() as beside:
                    found = beside.execute(_BLOCKING, (self._pid,)).fetchall()
            except psycopg.Error:
                continue  # the connection itself says what is wrong with the server
            self._found = found or self._found  # an empty answer may be one of after the wait


def cannot_connect(what: str, reason: str) -> UsageError | UnavailableError:
    """The error for a server that lets nobody in, by what libpq says."""
    said = " ".join(reason.split()) or "no reason given"
    if any(word in said for word in _REFUSED) and "starting up" not in said:
        return UsageError(
            f"{what} cannot be reached: {said}; correct the connection or what it takes from the environment"
        )
    return UnavailableError(
        f"{what} cannot be reached: {said}; start the server, and run again: nothing is lost"
    )


def is_passing(error: BaseException) -> bool:
    """Whether an error of psycopg's goes away by itself."""
    import psycopg

    if isinstance(error, psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    return isinstance(error, psycopg.OperationalError) if state is None else state.startswith(_AGAIN)


def trying_again(what: str, act: Callable[[], T], pause: Callable[[float], object] | None = None) -> T:
    """Does something, again while what stopped it goes away by itself; `act` has to notice what an earlier try has done."""
    import psycopg

    def once() -> T:
        try:
            return act()
        except psycopg.Error as error:
            if not is_passing(error):
                raise
            limit = _LIMITS.get(error.sqlstate or "")
            longer = (
                f" or, if it comes again, with a longer {limit} of the role or the connection"
                if limit
                else ""
            )
            raise UnavailableError(
                f"{what} broke off: {said(error)}; run again when the server is well{longer}: nothing is lost"
            ) from error

    return again(once, pause)


def said(error: psycopg.Error) -> str:
    """What the server says, without the rows that it says it of."""
    primary = error.diag.message_primary
    return primary if primary else (str(error).strip().splitlines() or [type(error).__name__])[0]
