"""An archive of Spark's classes, loaded and verified once for all later drivers of this machine (class data sharing).

Every driver loads the same twenty thousand classes before its first batch. The archive halves that time.
`python -m stateflow.spark.session.class_data` makes the archive from a small run of everything that a pipeline uses. A
driver with another Java or other jars starts without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stateflow.config.options import cache_folder
from stateflow.errors import StateflowError, UnavailableError
from stateflow.private_folders import make_private
from stateflow.spark.session.jars import spark_jars
from stateflow.spark.session.java import require_java

KEPT = 3
"""How many archives the folder keeps, the newest: other versions of Java and Spark share it."""
_FOLDER = "class-data"
# Java would complain about an unfit archive on standard output, amid the user's own output.
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_SPEAK_OF_IT = ("Shared", "-Xshare", "ArchiveClasses")
JAVA_READS = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")
"""Variables with options for Java, which come beside those of the settings."""


def options(cache: Path, java: Path, user_options: str = "") -> str:
    """Options for a driver's JVM; empty when no archive fits, or when the user's own options mention one."""
    all_options = " ".join((user_options, *(os.environ.get(name, "") for name in JAVA_READS)))
    archive = None if any(word in all_options for word in _SPEAK_OF_IT) else find(cache, java)
    return f'"-XX:SharedArchiveFile={archive}" {_SILENT}' if archive else ""


def find(cache: Path, java: Path) -> Path | None:
    """The archive for this Java and Spark's jars. An incomplete one would crash Java, so its name contains its size."""
    try:
        for archive in (cache / _FOLDER).glob(f"{_key(java)}.*.jsa"):
            if archive.suffixes == [f".{archive.stat().st_size}", ".jsa"] and os.access(archive, os.R_OK):
                return archive
    except OSError:
        return None
    return None


def _key(java: Path) -> str:
    digest = hashlib.sha256(str(java).encode())
    for file in [java / "release", *sorted(spark_jars())]:
        if file.is_file():
            status = file.stat()
            # In whole seconds: container images keep no more, and Java compares no more.
            digest.update(f"\n{file} {status.st_size} {int(status.st_mtime)}".encode())
    return digest.hexdigest()[:16]


def make(cache: Path) -> Path:
    """The archive, which it makes if needed. It appears whole or not at all. UnavailableError when Java cannot make one."""
    java = require_java(cache)
    if (archive := find(cache, java)) is not None:
        return archive
    folder = cache / _FOLDER
    make_private(folder)
    part = folder / f"{_key(java)}.{os.getpid()}.part"
    try:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "stateflow.spark.class_data_run", scratch, str(part)]
            environment = {**os.environ, "STATEFLOW_CACHE_DIR": str(cache)}
            process = subprocess.run(
                command, cwd=scratch, env=environment, capture_output=True, text=True, check=False
            )
        if process.returncode or not part.is_file():
            reason = (process.stderr.strip() or "Java gave no reason").splitlines()[-1]
            raise UnavailableError(
                f"no archive of Spark's classes was made ({reason}): drivers start without one"
            )
        with part.open("rb") as file:  # an incomplete archive would keep drivers from starting
            os.fsync(file.fileno())
        archive = part.rename(folder / f"{_key(java)}.{part.stat().st_size}.jsa")
    finally:
        part.unlink(missing_ok=True)
    make_room(folder)
    return archive


def make_room(folder: Path) -> None:
    newest_first = sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in newest_first[KEPT:]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        archive = make(cache_folder())
        sys.stdout.write(f"{archive.stat().st_size // 1_000_000} MB in {archive}\n")
    except StateflowError as error:
        sys.exit(f"stateflow: {error}")
