"""Tables of Iceberg as users name them: the target of `append` and `upsert`, or the source of a flow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stateflow.connectors import (
    GETS_NEW_ROWS,
    Declarable,
    SinkKind,
    UsageError,
    check_upsert,
    for_reading,
    names_of,
    require_columns,
    upsert_kind,
)

if TYPE_CHECKING:
    from stateflow.connectors import RowType

_NAME = re.compile(r"[^.\s/]+(\.[^.\s/]+)+")
_CATALOG = re.compile(r"[\w-]+")
_PARTITION = re.compile(
    r"(?:(years?|months?|days?|hours?)\((\w+)\)|(bucket|truncate)\((\d+), ?(\w+)\)|(\w+))"
)


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A column by which a new table is partitioned."""

    column: str
    transform: str
    """As Iceberg writes it: `identity`, `day`, `bucket[16]`."""

    def name(self, column: str = "") -> str:
        """That of the partitions, such as `at_day`, for the column as the table spells it."""
        own, kind = column or self.column, self.transform.partition("[")[0]
        return own if kind == "identity" else f"{own}_{kind}"


@dataclass(frozen=True, slots=True)
class IcebergTable(Declarable):
    """A table, and the catalog that knows it."""

    name: str
    """Namespace and table, with dots."""
    catalog: str = "default"
    """Its name in PyIceberg's configuration."""
    create: bool = False
    """Whether a run makes the table where it is missing."""
    partition_by: tuple[str, ...] = ()
    """For creation only: columns, or `day(at)` and its like."""
    per_batch: int | None = None
    """About how many rows a batch of a source takes at most."""

    def declared(self, uid: str, rows: RowType | None) -> Any:
        """What a source reads, with the columns that it declares."""
        return import_module("stateflow.connectors.iceberg.source").rows_of(uid, self, rows)

    @property
    def place(self) -> str:
        """Its catalog and its name. PyIceberg's configuration does not tell capitals apart in the name of a catalog."""
        return f"iceberg://{self.catalog.lower()}/{self.name}"

    @property
    def partitions(self) -> tuple[PartitionColumn, ...]:
        return tuple(map(_partition, self.partition_by))

    def __str__(self) -> str:
        return f"Iceberg table {self.name} of catalog {self.catalog!r}"


def iceberg(
    name: str,
    *,
    catalog: str = "default",
    create: bool = False,
    partition_by: str | Iterable[str] = (),
    per_batch: int | None = None,
) -> IcebergTable:
    """The Iceberg table `namespace.table`: the target of `append` and `upsert`, or a source.

    `catalog` is a name in PyIceberg's configuration (`~/.pyiceberg.yaml`, or variables such as `PYICEBERG_CATALOG__LAKE__URI`), which has
    the place and the credentials. `create` lets a sink make a table that is missing, of the output's columns and partitioned by
    `partition_by`: columns, or `"day(at)"`, `"bucket(16, user)"`. `per_batch` lets a batch of a source end after about so many rows.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise UsageError(
            f"iceberg({name!r}): a table is named with its namespace: write iceberg('shop.orders', catalog='lake')"
        )
    if _CATALOG.fullmatch(catalog) is None:
        # What stands here may be a URI with a password in it.
        raise UsageError(
            f"iceberg({name!r}): catalog= is no name: write that of a catalog in PyIceberg's configuration, such as catalog='lake' for "
            "PYICEBERG_CATALOG__LAKE__URI"
        )
    if per_batch is not None and (
        isinstance(per_batch, bool) or not isinstance(per_batch, int) or per_batch < 1
    ):
        raise UsageError(
            f"iceberg({name!r}): per_batch is a number of rows, not {per_batch!r}: say 1 or more, or leave it out"
        )
    table = IcebergTable(name, catalog, create, names_of(partition_by), per_batch)
    names = [each.name().lower() for each in table.partitions]
    if twice := next((own for own in names if names.count(own) > 1), None):
        raise UsageError(
            f"iceberg({name!r}): partition_by={[*table.partition_by]} makes the partitions {twice!r} twice: leave one of them out"
        )
    return table


def _partition(text: str) -> PartitionColumn:
    match = _PARTITION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"partition_by={text!r} is nothing that Iceberg partitions by: write a column, 'day(at)' (year, month, hour), 'bucket(16, id)' or "
            "'truncate(4, name)'"
        )
    time, of_time, sized, size, of_sized, column = match.groups()
    if sized and not int(size):
        raise UsageError(
            f"partition_by={text!r} is nothing that Iceberg partitions by: let the number be 1 or more"
        )
    if time:
        return PartitionColumn(of_time, time.rstrip("s"))
    return PartitionColumn(of_sized, f"{sized}[{size}]") if sized else PartitionColumn(column, "identity")


def _renamed(target: IcebergTable, recorded: str) -> bool:
    # A catalog may be called otherwise where another process is configured.
    return target.name != recorded.rpartition("/")[2]


def _check_append(where: str, target: IcebergTable, options: Mapping[str, Any], rows: RowType | None) -> None:
    if target.per_batch is not None:
        raise for_reading(where, "per_batch", target)
    if target.partition_by and not target.create:
        raise UsageError(
            f"{where}: partition_by does nothing to a table that is there: say create=True, or leave it out"
        )
    require_columns(where, rows, {"partition_by": [each.column for each in target.partitions]})


def _check_upsert(where: str, target: IcebergTable, options: Mapping[str, Any], rows: RowType | None) -> None:
    _check_append(where, target, options, rows)
    check_upsert(where, target, options, rows)


APPEND = SinkKind(
    name="iceberg_append",
    mode="append",
    takes="iceberg(table)",
    accepts=lambda target: isinstance(target, IcebergTable),
    implementation="stateflow.connectors.iceberg.sink:IcebergAppend",
    made_by="iceberg",
    place=lambda target: target.place,
    renamed=_renamed,
    require=lambda target: import_module("stateflow.connectors.iceberg.catalog").configuration(target),
    shown=str,
    dataset="iceberg",
    tells_slot=True,
    check=_check_append,
    changes="refused",
    rewound_as="iceberg_append_rewind",
    starts=GETS_NEW_ROWS,
)
UPSERT = upsert_kind(
    APPEND,
    "iceberg_upsert",
    "stateflow.connectors.iceberg.upsert:IcebergUpsert",
    check=_check_upsert,
    rewound_as="iceberg_upsert_rewind",
)
