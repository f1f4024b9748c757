"""Delta tables as users name them: a source of a flow, or the target of `append` and `upsert`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.errors import UsageError
from stateflow.names import with_options
from stateflow.pipelines.inputs.input import Input
from stateflow.pipelines.inputs.places import canonical, on_s3
from stateflow.pipelines.inputs.reader_options import check_reader_options
from stateflow.pipelines.rows.row_type import quoted

CHANGE_TYPE = "_change_type"
"""The column of a change feed that says what a row is."""
FEED_COLUMNS = (CHANGE_TYPE, "_commit_version", "_commit_timestamp")
"""The columns that a change feed has beside those of its table."""
READ_FEED = "readChangeFeed"
"""The option of Delta's reader that `changes=True` stands for."""
_FEEDS = ("readchangefeed", "readchangedata")
_PART = r"(?:`[^`/]+`|\w[\w-]*)"
_PARTS = re.compile(_PART)
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{1,2}}|`[^`/]+`")
"""Two or three names with dots between; one alone may well be a folder."""
_QUALIFIED = re.compile(rf"{_PART}(?:\.{_PART})+")
_UNFILLED = re.compile(r"\{\w+\}")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.pipelines.rows.row_type import RowType


@dataclass(frozen=True, slots=True)
class DeltaTable(Input):
    """A Delta table, with the options that create and read it."""

    path: str
    """Where it is; empty for one that a catalog names, until a run has asked where that is."""
    partition_by: tuple[str, ...] = ()
    """For creation only: an existing table keeps its own partitioning, which must then be this one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`delta.*` are properties of a table that is created; the rest goes to the reader of a source."""

    name: str = ""
    """What a catalog calls it, with dots; empty for a table that is given by its path."""
    create: bool = True
    """True if a sink makes it where there is none."""
    location: str = ""
    """Where a table with a name is made; empty for the place that its catalog chooses."""
    managed: bool = False
    """True if its commits go through its catalog, as a run has learnt there."""

    kind = offset_kind = "delta"

    def at(self, path: str, name: str = "", *, managed: bool = False) -> DeltaTable:
        """The same table at a place. `name`: its catalog's whole name for it, empty for a table that no catalog knows."""
        return replace(self, path=path, name=name, managed=managed)

    @property
    def managed_as(self) -> tuple[str, ...]:
        """The parts of the name by which its commits go through its catalog; empty for any other table."""
        return parts_of(self.name) if self.managed else ()

    @property
    def in_sql(self) -> str:
        """As statements name it."""
        return sql_name(self.managed_as) if self.managed else path_in_sql(self.path)

    @property
    def reader_options(self) -> dict[str, str]:
        """The options that only a reader looks at."""
        return {name: value for name, value in self.options.items() if not _is_property(name)}

    def is_called(self, name: str) -> bool:
        """Whether a record's whole name of a table is that of this one, which may lack the catalog."""
        own, whole = _plain(self.name), _plain(name)
        return bool(own) and (whole == own or whole.endswith(f".{own}"))

    def streaming(self, spark: SparkSession) -> DataFrame:
        """The table as a stream."""
        reader = spark.readStream.format("delta")
        for name, value in self.reader_options.items():
            reader = reader.option(name, value)
        return reader.load(self.path)

    @property
    def place(self) -> str:
        """Where it is, in one spelling; for a table of a catalog, until a run has asked, its name."""
        return canonical(self.path) if self.path else f"catalog://{_plain(self.name)}"

    @property
    def named(self) -> str:
        return self.name or self.path

    @property
    def jars(self) -> str:
        return "s3" if on_s3(self.path or self.location) else ""

    @property
    def properties(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if _is_property(name)}

    @property
    def reads_changes(self) -> bool:
        """True if a source of it gives the rows of its change feed."""
        return of_change_feed(self.options)

    @property
    def since(self) -> str:
        """Where a source begins that has read nothing; empty for the default."""
        begins = (
            f"{name}={value}" for name, value in self.options.items() if name.lower().startswith("starting")
        )
        return ", ".join(sorted(begins))

    def declared(self, uid: str, rows: RowType | None) -> Input:
        """The table itself, which has its own columns."""
        if self.name and self.create:
            raise UsageError(
                f"source {uid!r} reads {self}, and create= and location= are for a sink that makes its table: leave them out"
            )
        self.check_rows(uid, rows)
        return self

    def check_rows(self, uid: str, rows: RowType | None) -> None:
        """UsageError for a row type of a change feed that would take rows which are gone for new ones."""
        if self.reads_changes and rows is not None and rows.field(CHANGE_TYPE) is None:
            raise UsageError(
                f"source {uid!r} reads the change feed of {self}, which has rows as they were beside those as they are: add a field "
                f"{CHANGE_TYPE}: str to {rows.name}, and go by it (docs/recipes/changes.md)"
            )

    def __str__(self) -> str:
        return f"Delta table {self.named}"


def of_change_feed(options: Mapping[str, str]) -> bool:
    """Whether Delta's reader gives the rows of a table's change feed with these options."""
    return any(name.lower() in _FEEDS and value.lower() == "true" for name, value in options.items())


def _plain(name: str) -> str:
    """A name as catalogs compare it: without quotes, in small letters."""
    return ".".join(parts_of(name)).lower()


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a catalog's name, without their quotes."""
    return tuple(part.strip("`") for part in _PARTS.findall(name))


def is_name(text: str) -> bool:
    """Whether a text is the name of a table in a catalog rather than a path."""
    return _NAME.fullmatch(text) is not None


def sql_name(parts: Iterable[str]) -> str:
    """A name as statements have it, each part in quotes."""
    return ".".join(map(quoted, parts))


def path_in_sql(path: str) -> str:
    """The table at a path, as statements name it."""
    if "://" not in path and not path.startswith("file:"):
        path = str(Path(path).absolute())  # Delta takes a relative path for the name of a table
    return f"delta.{quoted(path)}"


@with_options
def delta(
    path: str,
    *,
    partition_by: Sequence[str] = (),
    changes: bool = False,
    options: Mapping[str, str] | None = None,
) -> DeltaTable:
    """The Delta table at `path`. `options` are properties of a table that is made (`delta.*`), or go to the reader of a source.

    With `changes` a source gives the rows of the table's change feed: `_change_type` says what a row is, `_commit_version` and
    `_commit_timestamp` which commit changed it.
    """
    if not path:
        raise UsageError(
            "a Delta table needs a path: write delta('s3a://bucket/table') or delta('/data/table')"
        )
    path = str(path)
    _check_path(f"delta({path!r})", path)
    return _with_options(f"delta({path!r})", DeltaTable(path), partition_by, changes, options)


@with_options
def table(
    name: str,
    *,
    create: bool = False,
    location: str = "",
    partition_by: Sequence[str] = (),
    changes: bool = False,
    options: Mapping[str, str] | None = None,
) -> DeltaTable:
    """The Delta table that a catalog of Spark's calls `name`, such as `main.sales.orders`. A run asks the catalog once where it is, and
    goes on as with `delta(path)`.

    A sink makes a missing table only with `create`, at the place that the catalog chooses, or in the folder `location`. The other
    arguments are those of `delta`.
    """
    where = f"table({name!r})"
    _check_name(where, name)
    if not isinstance(create, bool):
        raise UsageError(f"{where}: create={create!r} is neither True nor False: write create=True")
    location = str(location)
    if location:
        _check_path(where, location)
    named = DeltaTable("", name=name, create=create or bool(location), location=location)
    return _with_options(where, named, partition_by, changes, options)


def _with_options(
    where: str,
    table: DeltaTable,
    partition_by: Sequence[str],
    changes: bool,
    options: Mapping[str, str] | None,
) -> DeltaTable:
    if isinstance(partition_by, str):
        raise UsageError(
            f"partition_by={partition_by!r} is not a list of columns: write partition_by=[{partition_by!r}]"
        )
    given = {name: str(value) for name, value in (options or {}).items()}
    if not isinstance(changes, bool):
        raise UsageError(f"{where}: changes={changes!r} is neither True nor False: write changes=True")
    if changes:
        if said := [name for name in given if name.lower() in _FEEDS]:
            raise UsageError(
                f"{where}: changes=True and option {said[0]!r} are the same: leave the option out"
            )
        given[READ_FEED] = "true"
    table = replace(table, partition_by=tuple(partition_by), options=given)
    check_reader_options(where, "delta", table.reader_options)
    return table


def _check_name(where: str, name: str) -> None:
    """UsageError for what cannot be the name of a table in a catalog."""
    if not isinstance(name, str) or not name:
        raise UsageError("a table of a catalog needs a name: write table('main.sales.orders')")
    if unfilled := _UNFILLED.search(name):
        raise UsageError(f"{where} has {unfilled[0]} in it: write f'...', with the f, to put the value in")
    if "/" in name or name.lower().startswith("delta.`"):
        raise UsageError(
            f"{where} is a path, and a table is found by its name here: write delta(...) for a path"
        )
    if not _QUALIFIED.fullmatch(name):
        raise UsageError(
            f"{where} is no name of a table with its schema: write its parts with dots, such as 'sales.orders' or 'main.sales.orders', "
            "and a part with other signs than letters, digits, - and _ in `...`"
        )


def _is_property(name: str) -> bool:
    # Delta takes the names of its properties in any case.
    return name.lower().startswith("delta.")


def _check_path(where: str, path: str) -> None:
    """UsageError for a path that would become a folder of a name that nobody has meant."""
    if is_name(path):
        raise UsageError(
            f"{where} looks like the name of a table of a catalog: write sf.table({path!r}), or say './{path}' for a folder of that name"
        )
    if path.lower().startswith("delta.`"):
        raise UsageError(f"{where} is written as in SQL: write delta({path[7:].rstrip('`')!r})")
    if path != path.strip():
        raise UsageError(f"{where} has a space at its end: write delta({path.strip()!r})")
    if path.startswith(("~", "$")) or "${" in path:
        raise UsageError(
            f"{where}: nobody puts in what a shell would, so that a folder of that name would be made: give the whole path"
        )
    if unfilled := _UNFILLED.search(path):
        raise UsageError(
            f"{where} has {unfilled[0]} in it, so that a folder of that name would be made: write f'...', with the f, to put "
            "the value in"
        )
