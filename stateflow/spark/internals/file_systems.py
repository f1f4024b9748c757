"""Files as Hadoop sees them, with the settings of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from stateflow.internals import internal
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Answer = TypeVar("Answer")
AT_ONCE = 16
"""Files that are asked for at once: each is a question to a store."""
_CONF = (
    "pyspark.sql.SparkSession._jsparkSession",
    "org.apache.spark.sql.classic.SparkSession.sessionState()",
    "org.apache.spark.sql.internal.SessionState.newHadoopConf()",
)


@internal(*_CONF)
def hadoop_conf(spark: SparkSession) -> Any:
    """Hadoop's settings, with those of the session."""
    return spark._jsparkSession.sessionState().newHadoopConf()


class Folder:
    """A folder, through Hadoop's file systems."""

    @internal("org.apache.hadoop.fs.Path(String)")
    def __init__(self, spark: SparkSession, path: str) -> None:
        """Opens nothing yet."""
        self._path = java_names(spark).org.apache.hadoop.fs.Path(path)
        self._conf = hadoop_conf(spark)

    @internal(
        "org.apache.hadoop.fs.Path.getFileSystem(Configuration)",
        "org.apache.hadoop.fs.FileSystem.listStatus(Path)",
        "org.apache.hadoop.fs.FileStatus.isDirectory()",
        where_missing="nobody knows which files there are, and nothing is deleted",
    )
    def names(self) -> set[str] | None:
        """Names of all that is there, those of folders with a slash behind; None when the file system does not answer."""
        try:
            system = self._system()
            if not system.exists(self._path):
                return set()
            return {
                f"{each.getPath().getName()}{'/' if each.isDirectory() else ''}"
                for each in system.listStatus(self._path)
            }
        except Exception:
            return None

    def files(self) -> set[str] | None:
        """Names of the data files there; None when the file system does not answer."""
        names = self.names()
        return None if names is None else {name for name in names if not name.startswith(("_", "."))}

    def delete(self) -> None:
        """All of it, if that can be done."""
        with suppress(Exception):
            self._system().delete(self._path, True)

    def _system(self) -> Any:
        return self._path.getFileSystem(self._conf)


@internal("org.apache.hadoop.fs.FileSystem.exists(Path)")
def missing(spark: SparkSession, paths: Iterable[str]) -> list[str]:
    """Which of the paths have nothing at them."""
    found = _of_each(spark, paths, lambda system, target: bool(system.exists(target)))
    return [path for path, is_there in found if not is_there]


@internal(
    "org.apache.hadoop.fs.FileSystem.exists(Path)",
    "org.apache.hadoop.fs.FileSystem.getFileStatus(Path)",
    "org.apache.hadoop.fs.FileStatus.getModificationTime()",
)
def modified_at(spark: SparkSession, paths: Iterable[str]) -> dict[str, int | None]:
    """When the file at each path was last modified, in milliseconds; None where there is none."""

    def time_of(system: Any, target: Any) -> int | None:
        return int(system.getFileStatus(target).getModificationTime()) if system.exists(target) else None

    return dict(_of_each(spark, paths, time_of))


@internal("org.apache.hadoop.fs.Path(String)", "org.apache.hadoop.fs.Path.getFileSystem(Configuration)")
def _of_each(
    spark: SparkSession, paths: Iterable[str], ask: Callable[[Any, Any], Answer]
) -> list[tuple[str, Answer]]:
    """Each path with what `ask` says of it, given its file system and the path as Hadoop's object."""
    path_of, conf = java_names(spark).org.apache.hadoop.fs.Path, hadoop_conf(spark)

    def answer(path: str) -> Answer:
        target = path_of(path)
        return ask(target.getFileSystem(conf), target)

    all_paths = list(paths)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        return list(zip(all_paths, threads.map(answer, all_paths), strict=True))


@internal(
    "org.apache.spark.paths.SparkPath.fromUrlString(String)", "org.apache.spark.paths.SparkPath.toPath()"
)
def path_of_url(spark: SparkSession, url: str) -> str:
    """A path as readers take it, from the URL that the log of a source of files has."""
    return str(java_names(spark).org.apache.spark.paths.SparkPath.fromUrlString(url).toPath().toString())


@internal(
    "pyspark.sql.DataFrame._jdf",
    "org.apache.spark.sql.classic.Dataset.queryExecution()",
    "org.apache.spark.sql.execution.QueryExecution.analyzed()",
    "org.apache.spark.sql.execution.datasources.LogicalRelation.relation()",
    "org.apache.spark.sql.execution.datasources.HadoopFsRelation.location()",
    "org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex.allFiles()",
    "org.apache.spark.paths.SparkPath.fromFileStatus(FileStatus)",
    "org.apache.spark.paths.SparkPath.urlEncoded()",
)
def times_of_files(files: DataFrame) -> dict[str, int]:
    """When each file that a frame reads was last modified, in milliseconds, by its URL as the log of a source of files has it."""
    path_of = java_names(files.sparkSession).org.apache.spark.paths.SparkPath.fromFileStatus
    found = files._jdf.queryExecution().analyzed().relation().location().allFiles()
    statuses = [found.apply(at) for at in range(found.size())]
    return {str(path_of(each).urlEncoded()): int(each.getModificationTime()) for each in statuses}
