"""A driver as a user starts it: what its Java is given, and what it starts for the files of a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from stateflow.config.options import cache_folder
from stateflow.spark.internals.local_files import FILE_SYSTEM
from stateflow.spark.session import class_data, compiling

COMMANDS = ("chmod", "readlink", "stat", "ls")
WRITES = """
import json, sys
from stateflow.spark.session.build import build_session
given = {"spark.driver.extraJavaOptions": "-Dsaid=yes -Xlog:class+load:file=loaded.txt"}
spark = build_session("driver", master="local[1]", conf={**given, **json.loads(sys.argv[1])})
open("started", "w").close()
spark.range(3).write.format("delta").save("table")
management = spark._jvm.java.lang.management.ManagementFactory
print(json.dumps({
    "rows": spark.read.format("delta").load("table").count(),
    "options": list(management.getRuntimeMXBean().getInputArguments()),
    "file_system": spark.sparkContext._jsc.hadoopConfiguration().get("fs.file.impl"),
}))
"""


@dataclass
class Driver:
    rows: int
    options: list[str]
    """Of its Java."""
    file_system: str
    programs: set[str]
    """What was started for the table's files."""
    from_archive: int
    """Classes."""


def driven(folder: Path, **conf: str) -> Driver:
    (folder / "bin").mkdir()
    for name in COMMANDS:
        real = next(p for d in os.environ["PATH"].split(":") if (p := Path(d) / name).exists())
        command = folder / "bin" / name
        command.write_text(
            f'#!/bin/sh\n[ -e {folder}/started ] && echo {name} >> {folder}/log\nexec {real} "$@"\n'
        )
        command.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name not in compiling.JAVA_READS}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WRITES, json.dumps(conf)],
        env={**env, "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(root)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    log = folder / "log"
    return Driver(
        **json.loads(done.stdout.splitlines()[-1]),
        programs=set(log.read_text().split()) if log.exists() else set(),
        from_archive=(folder / "loaded.txt").read_text().count("shared objects file (top)"),
    )


def test_it_starts_from_the_archive_compiles_later_and_writes_tables_without_processes(
    tmp_path: Path,
) -> None:
    archive = class_data.make(cache_folder())
    made = archive.stat().st_mtime_ns
    assert class_data.make(cache_folder()) == archive
    assert archive.stat().st_mtime_ns == made
    driver = driven(tmp_path)
    assert driver.rows == 3
    assert driver.from_archive > 5000
    assert f"-XX:SharedArchiveFile={archive}" in " ".join(driver.options)
    assert {compiling.LATER, "-Dsaid=yes"} <= set(driver.options)
    assert (driver.file_system, driver.programs) == ("stateflow.LocalFiles", set())


@pytest.mark.system
def test_the_users_own_file_system_stays(tmp_path: Path) -> None:
    own = "org.apache.hadoop.fs.RawLocalFileSystem"
    driver = driven(tmp_path, **{f"spark.hadoop.{FILE_SYSTEM}": own})
    assert (driver.rows, driver.file_system) == (3, own)
    # Which also shows that such processes are seen here.
    assert {"chmod", "readlink"} <= driver.programs
