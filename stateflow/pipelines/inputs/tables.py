"""Delta tables as users name them: a source of a flow, or the target of `append` and `upsert`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.errors import UsageError
from stateflow.names import with_options
from stateflow.pipelines.inputs.input import Input
from stateflow.pipelines.inputs.places import canonical
from stateflow.pipelines.inputs.reader_options import check_reader_options

CHANGE_TYPE = "_change_type"
"""The column of a change feed that says what a row is."""
READ_FEED = "readChangeFeed"
"""The option of Delta's reader that `changes=True` stands for."""
_FEEDS = ("readchangefeed", "readchangedata")
_PART = r"(`[^`/]+`|\w[\w-]*)"
_NAME = re.compile(rf"{_PART}\.{_PART}(\.{_PART})?|`[^`/]+`")
"""Two or three names with dots between; one alone may well be a folder."""
_UNFILLED = re.compile(r"\{\w+\}")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.pipelines.rows.row_type import RowType


@dataclass(frozen=True, slots=True)
class DeltaTable(Input):
    """A Delta table at a path, with the options that create and read it."""

    path: str
    partition_by: tuple[str, ...] = ()
    """For creation only: an existing table keeps its own partitioning, which must then be this one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`delta.*` are properties of a table that is created; the rest goes to the reader of a source."""

    kind = "delta"

    def streaming(self, spark: SparkSession) -> DataFrame:
        """The table as a stream."""
        reader = spark.readStream.format("delta")
        for name, value in self.options.items():
            if not _is_property(name):
                reader = reader.option(name, value)
        return reader.load(self.path)

    @property
    def place(self) -> str:
        """Where it is, in one spelling."""
        return canonical(self.path)

    @property
    def named(self) -> str:
        return self.path

    @property
    def properties(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if _is_property(name)}

    @property
    def read_with(self) -> tuple[str, ...]:
        """The names of options that only a reader looks at."""
        return tuple(name for name in self.options if not _is_property(name))

    @property
    def reads_changes(self) -> bool:
        """True if a source of it gives the rows of its change feed."""
        return any(name.lower() in _FEEDS and value.lower() == "true" for name, value in self.options.items())

    @property
    def since(self) -> str:
        """Where a source begins that has read nothing; empty for the default."""
        begins = (
            f"{name}={value}" for name, value in self.options.items() if name.lower().startswith("starting")
        )
        return ", ".join(sorted(begins))

    def declared(self, uid: str, rows: RowType | None) -> Input:
        """The table itself, which has its own columns."""
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
        return f"Delta table {self.path}"


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
    _check_path(path)
    if isinstance(partition_by, str):
        raise UsageError(
            f"partition_by={partition_by!r} is not a list of columns: write partition_by=[{partition_by!r}]"
        )
    given = {name: str(value) for name, value in (options or {}).items()}
    if not isinstance(changes, bool):
        raise UsageError(
            f"delta({path!r}): changes={changes!r} is neither True nor False: write changes=True"
        )
    if changes:
        if said := [name for name in given if name.lower() in _FEEDS]:
            raise UsageError(
                f"delta({path!r}): changes=True and option {said[0]!r} are the same: leave the option out"
            )
        given[READ_FEED] = "true"
    table = DeltaTable(path, tuple(partition_by), given)
    check_reader_options(f"delta({path!r})", "delta", {name: table.options[name] for name in table.read_with})
    return table


def _is_property(name: str) -> bool:
    # Delta takes the names of its properties in any case.
    return name.lower().startswith("delta.")


def _check_path(path: str) -> None:
    """UsageError for a path that would become a folder of a name that nobody has meant."""
    if _NAME.fullmatch(path):
        raise UsageError(
            f"delta({path!r}) looks like the name of a table of a catalog, and a table is found by its path here: give the path that "
            f"`DESCRIBE DETAIL {path}` shows as its location, or say './{path}' for a folder of that name"
        )
    if path.lower().startswith("delta.`"):
        raise UsageError(f"delta({path!r}) is written as in SQL: write delta({path[7:].rstrip('`')!r})")
    if path != path.strip():
        raise UsageError(f"delta({path!r}) has a space at its end: write delta({path.strip()!r})")
    if path.startswith(("~", "$")) or "${" in path:
        raise UsageError(
            f"delta({path!r}): nobody puts in what a shell would, so that a folder of that name would be made: give the whole path"
        )
    if unfilled := _UNFILLED.search(path):
        raise UsageError(
            f"delta({path!r}) has {unfilled[0]} in it, so that a folder of that name would be made: write f'...', with the f, to put "
            "the value in"
        )
