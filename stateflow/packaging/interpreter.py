"""The Python of the executors: a copy of this one, or one that their hosts have."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from stateflow.errors import UsageError
from stateflow.packaging.entries import ArchiveEntry, file_entry
from stateflow.pipelines.code.own_modules import files_below

FOLDER = "python"
NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
_MINOR = f"({sys.version_info.major}, {sys.version_info.minor})"
# Nobody on an executor has a terminal, draws windows, installs packages or runs Python's own tests.
_UNUSED = re.compile(
    r"(site-packages|dist-packages|test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|pydoc_data|config-[^/]*)/"
    r"|(unittest|distutils|ctypes|sqlite3)/tests?/"
    r"|(turtle|sitecustomize|usercustomize)\.py$"
    r"|(lib-dynload/)?(_tkinter|_curses|_curses_panel|readline|_dbm|_gdbm|nis|_test\w*|_ctypes_test|xxlimited\w*)\."
)

_LAUNCHER = """\
#!/bin/sh
# The Python of this environment, wherever it was unpacked. Spark's own modules come first, as it wants them.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/site-packages"
PYTHONNOUSERSITE=1
export PYTHONPATH PYTHONNOUSERSITE
unset PYTHONHOME
{start}"""
_INCLUDED = """\
LD_LIBRARY_PATH="$here/{folder}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
export LD_LIBRARY_PATH
exec "$here/{folder}/bin/{name}" "$@"
"""
_ON_HOST = """\
for python in "${{STATEFLOW_HOST_PYTHON:-{name}}}" python3 /usr/local/bin/{name} /usr/bin/{name} /opt/{name}/bin/{name}; do
  if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {minor} or sys.implementation.name != "cpython")' \\
    2>/dev/null
  then exec "$python" "$@"
  fi
done
echo "stateflow: this environment needs CPython {version} on every host, and $(hostname) has none on its PATH: install it, \
set STATEFLOW_HOST_PYTHON, or package with the interpreter (without --no-python)" >&2
exit 1
"""


def launcher(*, included: bool) -> ArchiveEntry:
    """`bin/python`. It finds its environment by its own path, so it works wherever Spark unpacks it."""
    start = _INCLUDED if included else _ON_HOST
    version = NAME.removeprefix("python")
    text = _LAUNCHER.format(start=start.format(folder=FOLDER, name=NAME, minor=_MINOR, version=version))
    return ArchiveEntry("bin/python", text.encode(), executable=True)


def interpreter() -> Iterator[ArchiveEntry]:
    """The running interpreter and its standard library. The interpreter finds the library by its own path."""
    program = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    if sys.implementation.name != "cpython" or not (library / "os.py").is_file():
        raise UsageError(
            f"the Python that runs this, {program}, cannot be copied: package with --no-python and have {NAME} on every host"
        )
    place = f"{FOLDER}/{sys.platlibdir}/{NAME}"
    yield file_entry(f"{FOLDER}/bin/{NAME}", program)
    for path in files_below(library):
        name = path.relative_to(library).as_posix()
        if not _UNUSED.match(name):
            yield file_entry(f"{place}/{name}", path)
    extensions = Path(sysconfig.get_config_var("DESTSHARED") or library / "lib-dynload")
    if not extensions.is_relative_to(library):
        for path in files_below(extensions):
            if not _UNUSED.match(path.name):
                yield file_entry(f"{place}/lib-dynload/{path.name}", path)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        name = str(sysconfig.get_config_var("INSTSONAME"))
        for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
            if folder and (path := Path(folder) / name).is_file():
                yield file_entry(f"{FOLDER}/lib/{name}", path)
                return
