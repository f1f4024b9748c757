"""Drivers start from an archive of Spark's classes: when it fits, when it does not, and when it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.config.options import cache_folder
from stateflow.errors import UnavailableError
from stateflow.spark.session import class_data
from stateflow.spark.session.java import require_java

START = """
from stateflow.spark.session.build import build_session
given = "-Dsaid=yes -Xlog:class+load:file=loaded.txt"
spark = build_session("start", master="local[1]", conf={"spark.driver.extraJavaOptions": given})
management = spark._jvm.java.lang.management.ManagementFactory
told = " ".join(management.getRuntimeMXBean().getInputArguments())
print(spark.range(3).count(), "SharedArchiveFile" in told, "-Dsaid=yes" in told)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache folder's own jars, and no archive yet."""
    own, folder = cache_folder(), tmp_path / "the cache"
    folder.mkdir()
    for name in ("ivy", "jars.json", "java"):
        if (own / name).exists():
            (folder / name).symlink_to(own / name)
    return folder


def started(cache: Path) -> tuple[str, int]:
    """What a driver printed, and how many of its classes came from the archive."""
    env = {**os.environ, "STATEFLOW_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, env=env, cwd=cache, capture_output=True, text=True, check=True)
    return done.stdout, (cache / "loaded.txt").read_text().count("shared objects file (top)")


def put(cache: Path, content: bytes) -> None:
    folder = cache / "class-data"
    folder.mkdir()
    (folder / f"{class_data._key(require_java(cache))}.{len(content)}.jsa").write_bytes(content)


def of_another_program(folder: Path) -> bytes:
    archive = folder / "other.jsa"
    java = require_java(cache_folder()) / "bin" / "java"
    subprocess.run([java, f"-XX:ArchiveClassesAtExit={archive}", "-version"], capture_output=True, check=True)
    return archive.read_bytes()


@pytest.mark.system
@pytest.mark.parametrize("harm", ["spoiled", "of another program"])
def test_an_archive_that_does_not_fit_is_passed_over_in_silence(cache: Path, harm: str) -> None:
    put(cache, b"neither classes nor an archive" * 1000 if harm == "spoiled" else of_another_program(cache))
    printed, from_archive = started(cache)
    assert printed == "3 True True\n"
    assert from_archive < 100


def test_half_an_archive_of_which_java_would_die_is_not_given_to_it(cache: Path) -> None:
    java = require_java(cache)
    put(cache, of_another_program(cache))
    archive = class_data.find(cache, java)
    assert archive is not None
    whole = archive.read_bytes()
    archive.chmod(0o644)
    archive.write_bytes(whole[: len(whole) // 2])
    assert class_data.find(cache, java) is None
    assert class_data.options(cache, java) == ""


def test_what_somebody_says_of_archives_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = require_java(cache)
    put(cache, b"archive")
    assert str(class_data.find(cache, java)) in class_data.options(cache, java, "-Xmx1g")
    for said in ("-XX:SharedArchiveFile=/mine.jsa", "-Xshare:off", "-XX:ArchiveClassesAtExit=/mine.jsa"):
        assert class_data.options(cache, java, said) == ""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xshare:off")
    assert class_data.options(cache, java) == ""


def test_a_folder_that_cannot_be_read_is_no_reason_not_to_start(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError("another user's")

    put(cache, b"archive")
    monkeypatch.setattr(Path, "glob", denied)
    assert class_data.find(cache, Path("/java")) is None


def test_other_jars_of_spark_have_another_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = cache / "spark-core.jar"
    jar.write_bytes(b"old")
    monkeypatch.setattr(class_data, "spark_jars", lambda: [jar])
    put(cache, b"archive")
    java = require_java(cache)
    assert class_data.find(cache, java) is not None
    os.utime(jar, (int(jar.stat().st_mtime),) * 2)  # as an image of a container keeps it
    assert class_data.find(cache, java) is not None
    jar.write_bytes(b"newer")
    assert class_data.find(cache, java) is None


def test_older_archives_make_room(cache: Path) -> None:
    folder = cache / "class-data"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.jsa").touch()
        os.utime(folder / f"{number}.jsa", (number, number))
    class_data.make_room(folder)
    assert sorted(file.name for file in folder.iterdir()) == ["2.jsa", "3.jsa", "4.jsa"]


@pytest.mark.slow
def test_a_java_that_makes_none_is_named_and_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java17"
    (java / "bin").mkdir(parents=True)
    (java / "release").write_text('JAVA_VERSION="17.0.1"\n')
    program = java / "bin" / "java"
    program.write_text("#!/bin/sh\necho 'no archives here' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java))
    with pytest.raises(UnavailableError, match="no archive of Spark's classes was made"):
        class_data.make(cache)
    assert list((cache / "class-data").iterdir()) == []
