"""Lets several drivers commit to one Delta table on S3: each commit's file is created on the condition that there is none.

Delta's own log store for S3 looks whether a commit's file is there, and then writes it. Between the two another driver may write its
own, which is lost. Nor does Hadoop's `create(path, overwrite=false)` put a condition into the request: it looks, and writes as well. But
its builder of files can. The log store that asks the builder comes as source, which Spark's own compiler compiles; all else is Delta's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.errors import UnavailableError
from stateflow.internals import internal
from stateflow.spark.internals.file_systems import hadoop_conf
from stateflow.spark.internals.gateway import JAVA_ERRORS, define_classes, failure_text
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMES = ("s3", "s3a", "s3n")
_SOURCE = Path(__file__).parent / "S3Logs.java"
_CLASS = "stateflow.S3Logs"
_CONDITION = "fs.option.create.conditional.overwrite"
_DELTAS_OWN = "io.delta.storage.S3SingleDriverLogStore"


def scheme_of(path: str) -> str:
    """The scheme of a path on S3; empty for any other path."""
    scheme = path.partition("://")[0].lower() if "://" in path else ""
    return scheme if scheme in SCHEMES else ""


@internal(
    "org.apache.spark.SparkEnv$.get()",
    "io.delta.storage.S3SingleDriverLogStore(Configuration)",
    "io.delta.storage.S3SingleDriverLogStore.write(Path, Iterator, Boolean, Configuration)",
    "org.apache.hadoop.fs.FileSystem.hasPathCapability(Path, String)",
    "org.apache.hadoop.fs.FileSystem.createFile(Path)",
    "org.apache.hadoop.fs.FSDataOutputStreamBuilder.must(String, boolean)",
    "pyspark.SparkContext._jsc",
    "org.apache.spark.sql.delta.DeltaLog$.clearCache()",
)
def create_commits(spark: SparkSession, path: str) -> str:
    """Has Delta create the commits of all tables on S3 so that none replaces another's, from here on and in this whole JVM.

    Returns what is in the way; empty if nothing is. It leaves alone what the user has chosen. Only drivers write to a table's log, so
    executors need nothing.
    """
    if not (scheme := scheme_of(path)):
        return ""
    # Delta reads this setting where the application has it, not from the session.
    settings = java_names(spark).org.apache.spark.SparkEnv.get().conf()
    chosen = _chosen(settings, scheme)
    if chosen.endswith("S3SingleDriverLogStore"):
        return f"{chosen} is set, which serves one driver alone"
    if chosen not in ("", _CLASS):
        return ""
    try:
        if not file_system(spark, path).hasPathCapability(_hadoop_path(spark, path), _CONDITION):
            return (
                f"Hadoop {hadoop_version(spark)} does not create files on a condition (from 3.4.2 on it does, unless "
                "fs.s3a.create.conditional.enabled is false)"
            )
        if not chosen:
            _put_in_place(spark, settings)
    except JAVA_ERRORS as error:
        return f"Hadoop does not open it ({_reason(error)})"
    return ""


def _put_in_place(spark: SparkSession, settings: Any) -> None:
    define_classes(spark, _SOURCE, _CLASS, _DELTAS_OWN)
    for each in SCHEMES:
        if not _chosen(settings, each):
            settings.set(f"spark.delta.logStore.{each}.impl", _CLASS)
    # Logs that Delta has opened keep the store that they were opened with.
    java_names(spark).org.apache.spark.sql.delta.DeltaLog.clearCache()


def creates_commits(spark: SparkSession, path: str) -> bool:
    """Whether this library's log store writes the commits of a table."""
    return _chosen(java_names(spark).org.apache.spark.SparkEnv.get().conf(), scheme_of(path)) == _CLASS


def endpoint(spark: SparkSession, path: str) -> str:
    """Where the store of a path is, without credentials."""
    bucket = path.partition("://")[2].partition("/")[0]
    settings = file_system(spark, path).getConf()
    named = settings.get(f"fs.s3a.bucket.{bucket}.endpoint", settings.get("fs.s3a.endpoint", ""))
    return str(named or "Amazon S3")


def hadoop_version(spark: SparkSession) -> str:
    return str(java_names(spark).org.apache.hadoop.util.VersionInfo.getVersion())


def _chosen(settings: Any, scheme: str) -> str:
    """The class of the log store that is set; empty for none."""
    return str(
        settings.get(f"spark.delta.logStore.{scheme}.impl", settings.get("spark.delta.logStore.class", ""))
    )


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in failure_text(error).splitlines()]
    causes = [
        line.removeprefix("Caused by: ")
        for line in lines
        if "Exception" in line and not line.startswith("at ")
    ]
    return (causes or lines)[0].lstrip(": ")


def _hadoop_path(spark: SparkSession, path: str) -> Any:
    return java_names(spark).org.apache.hadoop.fs.Path(path)


def file_system(spark: SparkSession, path: str) -> Any:
    """Hadoop's, with the settings of the session."""
    return _hadoop_path(spark, path).getFileSystem(hadoop_conf(spark))


class CommitFiles:
    """Files on S3, created as commits are. After `create_commits`."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        self._folder = folder.rstrip("/")
        self._files = file_system(spark, folder)
        self._logs = java_names(spark).stateflow.S3Logs

    def _path(self, name: str) -> Any:
        return _hadoop_path(self._spark, f"{self._folder}/{name}")

    def create(self, name: str, body: bytes) -> bool:
        """Whether the file has this content now."""
        return bool(self._logs.create(self._files, self._path(name), bytearray(body)))

    def read(self, name: str) -> bytes | None:
        """The beginning of a file; None if there is none."""
        found = self._logs.head(self._files, self._path(name), 1 << 20)
        return None if found is None else bytes(found)

    def delete(self, name: str) -> None:
        try:
            self._files.delete(self._path(name), False)
        except JAVA_ERRORS as error:
            raise UnavailableError(f"{self._folder}: {_reason(error)}") from error
