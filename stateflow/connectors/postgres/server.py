"""Connections to Postgres: what is wrong with one, in a sentence that names the table, and whether trying again helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A connection to the server of a table. What is written is kept only by its `commit()`."""
    driver = required("psycopg", "postgres", what)
    try:
        given = driver.conninfo.conninfo_to_dict(conninfo(connection))
    except driver.ProgrammingError:
        raise UsageError(
            f"{what}: its connection is no text that libpq reads: write 'postgresql://user@host:5432/database' or 'service=NAME'"
        ) from None
    try:
        opened = driver.connect(**{**_SESSION, **given})
    except driver.OperationalError as error:
        raise cannot_connect(what, str(error)) from error
    try:
        yield opened
    finally:
        opened.close()


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
