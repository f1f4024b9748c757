"""Spark's classes, read and verified once and kept for all later drivers of this machine (Java's class data sharing).

Every driver loads the same twenty thousand classes before its first batch; from the archive that takes half the time.
`python -m stateflow.spark.class_data` makes the archive from a small run of everything that a pipeline uses. A
driver that it does not fit (another Java, other jars) starts as it would without one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stateflow.config import cache_folder
from stateflow.errors import StateflowError, UnavailableError
from stateflow.spark.jars import spark_jars
from stateflow.spark.java import require_java

KEPT = 3
"""Archives of other Javas and Sparks that share the folder; the newest stay."""
_FOLDER = "class-data"
# Java would write its complaint about an archive that does not fit to standard output, among the user's own.
_SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def options(cache: Path, java: Path, given: str = "") -> str:
    """For a driver's JVM; empty when there is no archive for it, or when its own options speak of one."""
    archive = archive_of(cache, java)
    if "Shared" in given or "-Xshare" in given or not archive.is_file():
        return ""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto {_SILENT}'


def archive_of(cache: Path, java: Path) -> Path:
    """Where the archive for this Java and these jars of Spark's is, or would be."""
    digest = hashlib.sha256(str(java).encode())
    for file in [java / "release", *sorted(spark_jars())]:
        if file.is_file():
            found = file.stat()
            digest.update(f"\n{file} {found.st_size} {found.st_mtime_ns}".encode())
    return cache / _FOLDER / f"{digest.hexdigest()[:16]}.jsa"


def make(cache: Path) -> Path:
    """The archive, made if need be; it appears whole or not at all. Raises UnavailableError where Java cannot make one."""
    archive = archive_of(cache, require_java(cache))
    if archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.stem}.{os.getpid()}.part")
    try:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "stateflow.spark.class_data_run", folder, str(part)]
            environment = {**os.environ, "STATEFLOW_CACHE_DIR": str(cache)}
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
        if done.returncode or not part.is_file():
            reason = (done.stderr.strip() or "Java gave no reason").splitlines()[-1]
            raise UnavailableError(
                f"no archive of Spark's classes was made ({reason}): drivers start without one"
            )
        with part.open("rb") as file:  # half of one would keep drivers from starting
            os.fsync(file.fileno())
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    make_room(archive.parent)
    return archive


def make_room(folder: Path) -> None:
    newest_first = sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in newest_first[KEPT:]:
        old.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        made = make(cache_folder())
        sys.stdout.write(f"{made.stat().st_size // 1_000_000} MB in {made}\n")
    except StateflowError as error:
        sys.exit(f"stateflow: {error}")
