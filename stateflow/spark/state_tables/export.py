"""Exports one state of a snapshot as files for other programs: Spark writes Parquet, JSON or CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from stateflow.errors import UsageError
from stateflow.format.records import Owner
from stateflow.pipelines.rows.as_json import INSTANTS
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.file_systems import Folder
from stateflow.spark.internals.words import THERE_ALREADY
from stateflow.spark.state_tables.export_target import require_export, require_target
from stateflow.spark.state_tables.failures import failed
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.snapshots import TableSnapshot
from stateflow.spark.state_tables.text_keys import with_text_keys

Format = Literal["parquet", "json", "csv"]
FORMATS: tuple[str, ...] = get_args(Format)

_OPTIONS: dict[str, dict[str, str]] = {
    "parquet": {},
    "json": INSTANTS,
    # As RFC 4180 says, and as the sink of files writes it. Spark would cut blanks off, so that two keys look alike.
    "csv": {
        "header": "true",
        "escape": '"',
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        **INSTANTS,
    },
}
_PARQUET_INSTANTS = "spark.sql.parquet.outputTimestampType"


def export_state(
    spark: SparkSession,
    snapshot: TableSnapshot,
    operator: str,
    state: str,
    path: str,
    format: Format = "parquet",
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    overwrite: bool = False,
) -> int:
    """Writes the table to the folder `path`; returns the number of rows. Pins the checkpoint meanwhile.

    `overwrite` replaces an earlier export, and nothing else.
    JSON has the keys of maps as texts. CSV has no nested values: they become JSON text, and bytes become Base64.
    """
    checked_format(format)
    require_target(path, snapshot, overwrite=overwrite)
    frame = table_frame(spark, snapshot, operator, state)
    observation = Observation()
    frame = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    writer = _written(frame, format).write.mode("overwrite" if overwrite else "error")
    with snapshot.pinned(owner, ids, clock, f"export of {operator}.{state}"):
        folder = Folder(spark, path)
        if overwrite:
            require_export(path, folder.names())
        before = folder.files()
        try:
            with _instants_as_microseconds(spark):
                writer.format(format).options(**_OPTIONS[format]).save(path)
        except Exception as error:
            if isinstance(error, AnalysisException) and THERE_ALREADY.is_in(str(error)):
                raise UsageError(
                    f"{path} exists already: choose another folder, or give --overwrite (overwrite=True)"
                ) from None
            after = folder.files()
            if before is not None and after is not None and not before & after:
                folder.delete()  # it holds half of this export, and nothing else
            raise failed(f"the export to {path} failed", error) from error
    return int(observation.get["rows"])


@contextmanager
def _instants_as_microseconds(spark: SparkSession) -> Iterator[None]:
    """Otherwise Spark's Parquet has an old form of instants, which others read without a time zone and which ends in 2262."""
    before = spark.conf.get(_PARQUET_INSTANTS)
    spark.conf.set(_PARQUET_INSTANTS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_PARQUET_INSTANTS, str(before))


def checked_format(name: str) -> None:
    if name not in FORMATS:
        raise UsageError(f"{name!r} is not a format to export to: use {', '.join(FORMATS)}")


def _written(frame: DataFrame, format: Format) -> DataFrame:
    if format == "parquet":
        return frame
    columns = []
    for field in frame.schema:
        column = with_text_keys(F.col(quoted(field.name)), field.dataType)
        if format == "csv":
            column = _cell(column, field.dataType)
        columns.append(column.alias(field.name))
    return frame.select(*columns)


def _cell(column: Column, kind: DataType) -> Column:
    """What fits one cell of text."""
    if isinstance(kind, BinaryType):
        return F.base64(column)
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(column, INSTANTS)
    return column
