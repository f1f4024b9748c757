"""Keeps Hadoop from starting processes for files of this machine.

Without its native library, Hadoop runs `chmod` for every file that it makes, and `readlink` twice for each that it renames. A batch
writes Spark's logs of the query, and two files of a Delta table's log, each with a checksum beside it and renamed into place: dozens of
processes, which took a fifth of a small batch. Java can do both by itself. The two classes that do come as source,
which Spark's own compiler compiles when a session starts; all else is Hadoop's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def without_processes(session: SparkSession) -> bool:
    """Whether this session handles local files without processes from here on.

    It does not where the user has chosen a file system for local files, where Hadoop has its native library, and where the classes do
    not fit this Java or Hadoop. The executors have to be in the driver's JVM: others would not find the classes.
    """
    context: Any = session.sparkContext
    jvm, conf = context._jvm, context._jsc.hadoopConfiguration()
    before = {name: conf.get(name) for name in _HADOOPS_OWN}
    if any(chosen not in (None, _HADOOPS_OWN[name]) for name, chosen in before.items()):
        return False
    try:
        hadoop, here = jvm.org.apache.hadoop, jvm.java.net.URI("file:///")
        if hadoop.io.nativeio.NativeIO.isAvailable():
            return False
        _define(jvm, context._gateway.new_array)
        conf.set(FILE_SYSTEM, _FILES)
        conf.set(FILE_CONTEXT, _CONTEXT)
        # Hadoop keeps a file system that it has made. One that is closed leaves that place, and works on for whoever has it.
        hadoop.fs.FileSystem.get(here, conf).close()
        hadoop.fs.FileSystem.get(here, conf)
        hadoop.fs.FileContext.getFileContext(here, conf)
    except Exception as error:
        for name, own in before.items():
            conf.unset(name) if own is None else conf.set(name, own)
        _log.info("Hadoop goes on to start processes for local files: %s", error)
        return False
    return True


def _define(jvm: Any, new_array: Callable[..., Any]) -> None:
    """Gives the classes to the loader of Hadoop's own, so that every thread finds them by their names."""
    lang = jvm.java.lang
    loader = lang.Class.forName("org.apache.hadoop.fs.RawLocalFileSystem").getClassLoader()
    # A session before this one may have left them here.
    with suppress(Exception):
        loader.loadClass(_FILES)
        return
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    define = _method(lang, new_array)
    define.setAccessible(True)
    for name, code in dict(compiler.getBytecodes()).items():
        arguments = new_array(lang.Object, 4)
        arguments[0], arguments[1], arguments[2], arguments[3] = name, code, 0, len(code)
        define.invoke(loader, arguments)


def _method(lang: Any, new_array: Callable[..., Any]) -> Any:
    kinds = new_array(lang.Class, 4)
    kinds[0], kinds[1] = lang.Class.forName("java.lang.String"), lang.Class.forName("[B")
    kinds[2] = kinds[3] = lang.Integer.TYPE
    return lang.Class.forName("java.lang.ClassLoader").getDeclaredMethod("defineClass", kinds)
