"""Keeps Hadoop from starting processes for files of this machine.

Without its native library, Hadoop runs `chmod` for every file that it makes, and `readlink` twice for each that it renames. A batch
writes Spark's logs of the query, and two files of a Delta table's log, each with a checksum beside it and renamed into place: dozens of
processes, which took a fifth of a small batch. Java can do both by itself. The two classes that do come as source,
which Spark's own compiler compiles when a session starts; all else is Hadoop's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.internals import internal
from stateflow.spark.internals.gateway import define_classes
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_SOURCE = Path(__file__).parent / "LocalFiles.java"
_FILES, _CONTEXT = "stateflow.LocalFiles", "stateflow.LocalFiles$Context"
FILE_SYSTEM, FILE_CONTEXT = "fs.file.impl", "fs.AbstractFileSystem.file.impl"
_HADOOPS_OWN = {
    FILE_SYSTEM: "org.apache.hadoop.fs.LocalFileSystem",
    FILE_CONTEXT: "org.apache.hadoop.fs.local.LocalFs",
}


@internal(
    "pyspark.SparkContext._jsc",
    "org.apache.hadoop.io.nativeio.NativeIO.isAvailable()",
    "org.apache.hadoop.fs.FileSystem.get(URI, Configuration)",
    "org.apache.hadoop.fs.FileContext.getFileContext(URI, Configuration)",
    "org.apache.hadoop.fs.RawLocalFileSystem.setPermission(Path, FsPermission)",
    where_missing="Hadoop goes on to start processes for local files",
)
def without_processes(session: SparkSession) -> bool:
    """Whether this session handles local files without processes from here on.

    It does not where the user has chosen a file system for local files, where Hadoop has its native library, and where the classes do
    not fit this Java or Hadoop. The executors have to be in the driver's JVM: others would not find the classes.
    """
    context: Any = session.sparkContext
    conf = context._jsc.hadoopConfiguration()
    before = {name: conf.get(name) for name in _HADOOPS_OWN}
    if any(chosen not in (None, _HADOOPS_OWN[name]) for name, chosen in before.items()):
        return False
    try:
        hadoop, here = java_names(session).org.apache.hadoop, java_names(session).java.net.URI("file:///")
        if hadoop.io.nativeio.NativeIO.isAvailable():
            return False
        _make(session, conf)
        hadoop.fs.FileContext.getFileContext(here, conf)
    except Exception as error:
        _restore(conf, before)
        _log.info("Hadoop goes on to start processes for local files: %s", error)
        return False
    return True


def _make(session: SparkSession, conf: Any) -> None:
    """Sets the classes, and puts the file system in the place where Hadoop keeps those that it has made.

    One that is closed leaves that place, and works on for whoever has it.
    """
    files, here = (
        java_names(session).org.apache.hadoop.fs.FileSystem,
        java_names(session).java.net.URI("file:///"),
    )
    define_classes(session, _SOURCE, _FILES, "org.apache.hadoop.fs.RawLocalFileSystem")
    conf.set(FILE_SYSTEM, _FILES)
    conf.set(FILE_CONTEXT, _CONTEXT)
    files.get(here, conf).close()
    files.get(here, conf)


def _restore(conf: Any, before: Mapping[str, str | None]) -> None:
    for name, own in before.items():
        conf.unset(name) if own is None else conf.set(name, own)


@internal(
    "pyspark.SparkContext._jsc",
    "org.apache.hadoop.fs.FileSystem.get(URI, Configuration)",
    where_missing="a warm host takes runs from its own working folder alone",
)
def can_work_anywhere(session: SparkSession) -> bool:
    """Whether `work_in` has an effect from here on. It has none where the user has chosen a file system for local files.

    The driver keeps our file system and its settings do not name it: executors that are other JVMs have Hadoop's own.
    """
    context: Any = session.sparkContext
    conf = context._jsc.hadoopConfiguration()
    before = {name: conf.get(name) for name in _HADOOPS_OWN}
    if before[FILE_SYSTEM] == _FILES:
        return True
    if any(chosen not in (None, _HADOOPS_OWN[name]) for name, chosen in before.items()):
        return False
    try:
        _make(session, conf)
    except Exception as error:
        _log.info("relative paths mean the folder that Spark was started in: %s", error)
        return False
    finally:
        _restore(conf, before)
    return True


@internal(
    "org.apache.hadoop.fs.RawLocalFileSystem.getWorkingDirectory()",
    where_missing="a warm host takes runs from its own working folder alone",
)
def work_in(session: SparkSession, folder: str) -> None:
    """This thread's thread of the JVM, and each that it starts, resolves relative paths in a folder from here on.

    Where `can_work_anywhere` says so.
    """
    java_names(session).stateflow.LocalFiles.workIn(folder)
