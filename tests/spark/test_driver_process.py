"""A driver as a user starts it: what its Java is given, where its files go, and what it starts for those of a table."""

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
from pathlib import Path
from stateflow.spark.session.build import build_session
folder = Path(sys.argv[1])
given = {"spark.driver.extraJavaOptions": f"-Dsaid=yes -Xlog:class+load:file={folder}/loaded.txt"}
spark = build_session(
    "driver", master="local[1]", conf={**given, **json.loads(sys.argv[2])}, scratch=folder / "scratch"
)
(folder / "started").touch()
spark.range(3).write.format("delta").save(f"{folder}/table")
spark.range(5).selectExpr("id % 2 as k").groupBy("k").count().collect()
spark.sql("show databases").collect()
management = spark._jvm.java.lang.management.ManagementFactory
print(json.dumps({
    "rows": spark.read.format("delta").load(f"{folder}/table").count(),
    "options": list(management.getRuntimeMXBean().getInputArguments()),
    "file_system": spark.sparkContext._jsc.hadoopConfiguration().get("fs.file.impl"),
    "temporary": [spark.conf.get("spark.local.dir"), spark._jvm.System.getProperty("java.io.tmpdir")],
}))
"""
DEAD = "import sys; from pathlib import Path; from stateflow.storage.scratch import new_scratch; print(new_scratch(Path(sys.argv[1])))"


@dataclass
class Driver:
    folder: Path
    left: Path
    """The temporary files of a driver before it, which was killed."""
    rows: int
    options: list[str]
    """Of its Java."""
    file_system: str
    temporary: list[str]
    """Where Spark's and Java's temporary files go."""
    programs: set[str]
    """What was started for the table's files."""
    from_archive: int
    """Classes."""


def driven(folder: Path, **conf: str) -> Driver:
    for name in ("bin", "working"):
        (folder / name).mkdir()
    for name in COMMANDS:
        real = next(p for d in os.environ["PATH"].split(":") if (p := Path(d) / name).exists())
        command = folder / "bin" / name
        command.write_text(
            f'#!/bin/sh\n[ -e {folder}/started ] && echo {name} >> {folder}/log\nexec {real} "$@"\n'
        )
        command.chmod(0o755)
    left = subprocess.check_output([sys.executable, "-c", DEAD, str(folder / "scratch")], text=True).strip()
    assert Path(left).is_dir()
    hidden = (*compiling.JAVA_READS, "SPARK_LOCAL_DIRS")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(folder), json.dumps(conf)],
        env={**env, "PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(root)},
        cwd=folder / "working",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    log = folder / "log"
    return Driver(
        folder,
        Path(left),
        **json.loads(done.stdout.splitlines()[-1]),
        programs=set(log.read_text().split()) if log.exists() else set(),
        from_archive=(folder / "loaded.txt").read_text().count("shared objects file (top)"),
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """One for which nobody has chosen anything."""
    class_data.make(cache_folder())
    return driven(tmp_path_factory.mktemp("plain"))


OWN_FILE_SYSTEM = "org.apache.hadoop.fs.RawLocalFileSystem"


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """One whose user has a file system and a place for temporary files."""
    folder = tmp_path_factory.mktemp("chosen")
    return driven(
        folder, **{f"spark.hadoop.{FILE_SYSTEM}": OWN_FILE_SYSTEM, "spark.local.dir": str(folder / "mine")}
    )


@pytest.mark.slow
def test_it_starts_from_the_archive_compiles_later_and_writes_tables_without_processes(plain: Driver) -> None:
    archive = class_data.make(cache_folder())
    made = archive.stat().st_mtime_ns
    assert class_data.make(cache_folder()) == archive
    assert archive.stat().st_mtime_ns == made
    assert plain.rows == 3
    assert plain.from_archive > 5000
    assert f"-XX:SharedArchiveFile={archive}" in " ".join(plain.options)
    assert {compiling.LATER, "-Dsaid=yes"} <= set(plain.options)
    assert (plain.file_system, plain.programs) == ("stateflow.LocalFiles", set())


@pytest.mark.system
def test_the_users_own_file_system_stays(chosen: Driver) -> None:
    assert (chosen.rows, chosen.file_system) == (3, OWN_FILE_SYSTEM)
    # Which also shows that such processes are seen here.
    assert {"chmod", "readlink"} <= chosen.programs


@pytest.mark.system
def test_sparks_temporary_files_are_where_they_are_swept_unless_somebody_has_chosen(
    plain: Driver, chosen: Driver
) -> None:
    local, of_java = plain.temporary
    assert local == of_java
    assert Path(local).parent == plain.left.parent
    assert not plain.left.exists()
    assert chosen.temporary == [str(chosen.folder / "mine"), "/tmp"]
    for driver in (plain, chosen):
        left = list((driver.folder / "working").iterdir())
        assert left == [], "Spark's empty folder for tables without a path stays"
