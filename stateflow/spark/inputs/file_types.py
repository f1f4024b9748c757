"""Looks into the footers of a batch's ORC and Parquet files before their rows are read: a column of another type than the row class
says is refused where Spark's reader would change its values without a word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stateflow.errors import IncompatibleError, StateflowError
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.rows.file_types import unlike
from stateflow.pipelines.rows.former_names import columns_to_read
from stateflow.pipelines.rows.row_type import quoted
from stateflow.pipelines.rows.type_text import fields_of, inside_of
from stateflow.spark.internals.file_systems import AT_ONCE
from stateflow.spark.internals.gateway import JAVA_ERRORS, first_line
from stateflow.spark.internals.own_types import OwnTypes
from stateflow.spark.internals.scratch_folder import bounds_of_batch, files_between, log_folder, log_offset
from stateflow.spark.session.settings import DRIVER_JAVA, EXECUTOR_JAVA, IN_UTC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.pipelines.graph import SourceNode
    from stateflow.spark.inputs.open_inputs import OpenInputs

_LOCAL_TIME = re.compile(r"\btimestamp\b(?! with local time zone)")
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "UCT", "Etc/UCT", "Universal", "Zulu"})


def refuse_other_types(spark: SparkSession, inputs: OpenInputs, location: Path, batch_id: int) -> None:
    """IncompatibleError for a batch with a file whose columns would be misread. Call it inside the batch."""
    if not inputs.file_types:
        return
    nodes = {node.uid: node for node in inputs.nodes}
    begins, ends = bounds_of_batch(location, batch_id)
    for leaf in inputs.leaves:
        if leaf.uid in inputs.file_types and ends[leaf.number].startswith("{"):
            begin, end = log_offset(begins[leaf.number]), log_offset(ends[leaf.number])
            files = files_between(log_folder(location, leaf.number), begin, end)
            _check(spark, nodes[leaf.uid], inputs.file_types[leaf.uid], [file.path for file in files])


def _check(spark: SparkSession, node: SourceNode, types: OwnTypes, urls: Sequence[str]) -> None:
    files = node.factory
    if not isinstance(files, Files) or files.rows is None:
        return
    declared = columns_to_read(files.rows)
    skips = any(
        files.reader_options.get(name, str(spark.conf.get(f"spark.sql.files.{name}", "false"))).lower()
        == "true"
        for name in ("ignoreCorruptFiles", "ignoreMissingFiles")
    )

    def columns_of(url: str) -> dict[str, str]:
        try:
            return _columns(types.of(url))
        except JAVA_ERRORS as error:
            if skips:
                return {}
            raise StateflowError(
                f"the file {url} cannot be read: {first_line(error)}; move it out of the folder, or put one that can be read in its place, and "
                "run again"
            ) from error

    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        for url, columns in zip(urls, threads.map(columns_of, urls), strict=True):
            own = {name.lower(): type for name, type in columns.items()}
            if files.format == "orc" and all(name.startswith("_col") for name in own):
                # Hive has written it, and Spark goes by the places of the columns.
                own = dict(zip(map(str.lower, declared), own.values(), strict=False))
            for name, type in declared.items():
                # What the names of folders say is not read from the file.
                if name.lower() not in own or f"/{name}=" in url:
                    continue
                if files.format == "orc" and _LOCAL_TIME.search(own[name.lower()]):
                    _require_utc(spark, node.uid, url, name)
                if found := unlike(own[name.lower()], type, files.format, name):
                    path, have, want = found
                    raise IncompatibleError(
                        f"source {node.uid!r}: the file {url} has column {path!r} as {have}, which is not read as {want}, as {files.rows.name} "
                        "declares it: declare it as the file has it and convert it in a step, or have the file written with the declared type"
                    )


def _require_utc(spark: SparkSession, uid: str, url: str, column: str) -> None:
    """IncompatibleError where Spark's tasks would take a time without a zone for one of another zone than UTC."""
    if (zone := _zone_of_tasks(spark)) not in _UTC:
        both = " ".join(f"--conf {name}={IN_UTC}" for name in (DRIVER_JAVA, EXECUTOR_JAVA))
        raise IncompatibleError(
            f"source {uid!r}: the file {url} has times without a zone in column {column!r}, and Java's time zone in this Spark is {zone}, "
            f"which would shift them: start it with {both}"
        )


@cache
def _zone_of_tasks(spark: SparkSession) -> str:
    """The time zone of the machine, or the process, in which Spark's tasks run."""
    # Spark calls a method of Java's where the task runs: the optimiser does not know what it gives.
    zone = spark.range(1, numPartitions=1).selectExpr("reflect('java.time.ZoneId', 'systemDefault')").first()
    return str(zone[0]) if zone else ""


def _columns(found: str | dict[str, DataType]) -> dict[str, str]:
    """The types as Spark's DDL writes them."""
    if isinstance(found, str):
        return dict(fields_of(inside_of(found)[1]))
    return {name: _ddl(type) for name, type in found.items()}


def _ddl(type: DataType) -> str:
    if isinstance(type, StructType):
        return f"struct<{','.join(f'{quoted(each.name)}:{_ddl(each.dataType)}' for each in type.fields)}>"
    if isinstance(type, ArrayType):
        return f"array<{_ddl(type.elementType)}>"
    if isinstance(type, MapType):
        return f"map<{_ddl(type.keyType)},{_ddl(type.valueType)}>"
    return type.simpleString()
