"""Catalogs by PyIceberg's own configuration: what is wrong with one, in a sentence that names the table, and one try per commit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from stateflow.connectors import NotFoundError, StateflowError, UnavailableError, UsageError, hidden, required
from stateflow.connectors import trying_again as again
from stateflow.connectors.iceberg.table import IcebergTable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_catalogs: dict[str, Catalog] = {}
"""Those that this process has opened, by their configuration: each has connections and a token of its own."""
_DENIED = ("ACCESS_DENIED", "AccessDenied", "Forbidden", "permission denied")
_PASSING_REST = (
    "ServiceUnavailableError",
    "ServerError",
    "TooManyRequestsError",
    "CommitStateUnknownException",
    "AuthorizationExpiredError",
)
_REFUSED_REST = ("UnauthorizedError", "ForbiddenError", "OAuthError")
_CLIENTS = ("requests", "urllib3", "sqlalchemy", "botocore")
"""Packages whose errors say that a server was not reached, or said no."""

T = TypeVar("T")


class ConflictError(Exception):
    """Somebody else has committed meanwhile, so that this commit was not carried out; or it was, and its answer was lost."""


class OneTry:
    """A catalog that tries a commit once.

    PyIceberg would try again after a conflict, on a table that it looks at anew without asking which slot it has: a run that was
    replaced would commit its slot a second time. And where it gives up, it deletes the manifests of a commit that may have been carried out.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        from pyiceberg.exceptions import CommitFailedException

        try:
            return self._catalog.commit_table(table, requirements, updates)
        except CommitFailedException as error:
            raise ConflictError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


def configuration(table: IcebergTable) -> dict[str, Any]:
    """What PyIceberg's configuration says of the catalog. UsageError where it says nothing, or the package is missing."""
    config = required("pyiceberg.utils.config", "iceberg", str(table)).Config()
    found = config.get_catalog_config(table.catalog)
    if not found:
        known = ", ".join(sorted(config.get_known_catalogs())) or "none"
        raise UsageError(
            f"{table}: PyIceberg's configuration in this process has no such catalog (it has {known}): {_to_set(table.catalog)}write the catalog "
            "in .pyiceberg.yaml, in the home folder or that of PYICEBERG_HOME"
        )
    return dict(found)


def _to_set(catalog: str) -> str:
    """The variable that makes a catalog, up to an `or`. PyIceberg makes hyphens of the underscores in variables, and parts them where two are."""
    own = "-".join(filter(None, re.split("[-_]", catalog))) or "lake"
    variable = f"PYICEBERG_CATALOG__{own.upper().replace('-', '_')}__URI"
    if own == catalog:
        return f"set {variable} and its like, or "
    return f"say catalog={own!r} and set {variable} and its like, since no variable leads to the name {catalog!r}, or "


def catalog_of(table: IcebergTable) -> Catalog:
    """The catalog, open. Its own errors come as `told` makes them."""
    config = configuration(table)
    known = json.dumps([table.catalog, config], sort_keys=True, default=str)
    if known not in _catalogs:
        from pyiceberg.catalog import load_catalog

        with told(table):
            _catalogs[known] = load_catalog(table.catalog, **config)
    return _catalogs[known]


def loaded(table: IcebergTable) -> Table:
    """The table as it is now, whose commits are tried once."""
    catalog = catalog_of(table)
    with told(table):
        found = catalog.load_table(table.name)
    found.catalog = OneTry(catalog)
    return found


def identity_of(table: Table) -> str:
    """What a table is, by whatever name of a catalog it was found."""
    return f"iceberg:{table.metadata.table_uuid}"


def found(table: IcebergTable) -> Table | None:
    """The same; None where there is none."""
    try:
        return loaded(table)
    except NotFoundError:
        return None


def trying_again(table: IcebergTable, act: Callable[[], T]) -> T:
    """Does something, again while what stopped it goes away by itself; `act` has to notice what an earlier try has done."""

    def once() -> T:
        with told(table):
            return act()

    return again(once)


@contextmanager
def told(table: IcebergTable) -> Iterator[None]:
    """Turns errors of PyIceberg and of the clients below it into the library's."""
    try:
        yield
    except (StateflowError, ConflictError):
        raise
    except Exception as error:
        known = _known(table, error)
        if known is None:
            raise
        raise known from error


def _known(table: IcebergTable, error: Exception) -> StateflowError | None:
    kind, package = type(error).__name__, type(error).__module__.partition(".")[0]
    said = hidden(" ".join(str(error).split()) or kind, _texts(configuration(table)))
    if package == "pyiceberg":
        if kind in ("NoSuchTableError", "NoSuchIcebergTableError"):
            return NotFoundError(
                f"{table} is not there: make it, or let a run make it with sf.iceberg(..., create=True)"
            )
        if kind == "NoSuchNamespaceError":
            namespace = table.name.rpartition(".")[0]
            return NotFoundError(
                f"{table}: its catalog has no namespace {namespace}: make it, with catalog.create_namespace({namespace!r})"
            )
        if kind in _REFUSED_REST:
            return _denied(table, said)
        if kind == "NotInstalledError":
            return UsageError(f"{table}: {said}")
        return _unavailable(table, said) if kind in _PASSING_REST else None
    if isinstance(error, ModuleNotFoundError):
        return UsageError(
            f"{table}: its catalog, or its storage, needs the package {error.name}: install PyIceberg's extra for it, such as pip install "
            "'pyiceberg[glue]' or 'pyiceberg[sql-postgres]'"
        )
    if isinstance(error, PermissionError) or (
        isinstance(error, OSError) and any(word in said for word in _DENIED)
    ):
        return _denied(table, said)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{table}: a file of it is gone: {said}; put it back from a copy")
    if kind == "ClientError" and package == "botocore" and "AccessDenied" in said:
        return _denied(table, said)
    if isinstance(error, OSError) or package in _CLIENTS:
        return _unavailable(table, said)
    return None


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a catalog, and the password that a URI of it may have."""
    uri = str(config.get("uri", ""))
    return {name: str(value) for name, value in config.items()} | {"password": urlsplit(uri).password or ""}


def _denied(table: IcebergTable, said: str) -> UsageError:
    return UsageError(
        f"{table} may not be used: {said}; give the user of the catalog, or of its storage, the right to it"
    )


def _unavailable(table: IcebergTable, said: str) -> UnavailableError:
    return UnavailableError(
        f"{table} cannot be reached: {said}; start its catalog and storage, and run again: nothing is lost"
    )
