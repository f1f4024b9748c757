"""Hadoop's local file system without processes: all that it does is as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from stateflow.spark.internals import local_files
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.local_files import (
    FILE_CONTEXT,
    FILE_SYSTEM,
    can_work_anywhere,
    without_processes,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def files(spark: SparkSession) -> Any:
    return Hadoop(spark)


class Hadoop:
    """Local files as Hadoop's two interfaces have them."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self.jvm, self.conf = context._jvm, context._jsc.hadoopConfiguration()
        here = self.jvm.java.net.URI("file:///")
        self.system = self.jvm.org.apache.hadoop.fs.FileSystem.get(here, self.conf)
        self.context = self.jvm.org.apache.hadoop.fs.FileContext.getFileContext(here, self.conf)
        self.no_options = context._gateway.new_array(self.jvm.org.apache.hadoop.fs.Options.Rename, 0)

    def path(self, path: Path, scheme: str = "file:") -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(f"{scheme}{path}")

    def permission(self, mode: int) -> Any:
        return self.jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:04o}")

    def rename(self, old: Path, new: Path) -> None:
        self.context.rename(self.path(old), self.path(new), self.no_options)


@pytest.mark.parametrize("mode", [0o640, 0o755, 0o1777, 0o000, 0o421])
def test_permissions_are_those_that_were_asked_for(files: Any, tmp_path: Path, mode: int) -> None:
    (tmp_path / "file").touch()
    files.system.setPermission(files.path(tmp_path / "file"), files.permission(mode))
    assert (tmp_path / "file").stat().st_mode & 0o7777 == mode


def test_a_new_file_and_folder_have_the_permissions_of_the_configuration(files: Any, tmp_path: Path) -> None:
    files.system.mkdirs(files.path(tmp_path / "folder"), files.permission(0o750))
    files.system.create(files.path(tmp_path / "folder" / "file")).close()
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("folder", "folder/file")]
    assert modes == [0o750, 0o644]


def test_the_permission_of_a_file_that_is_not_there_cannot_be_set(files: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="gone"):
        files.system.setPermission(files.path(tmp_path / "gone"), files.permission(0o600))


def test_files_have_their_checksums_beside_them(files: Any, tmp_path: Path) -> None:
    stream = files.system.create(files.path(tmp_path / "a"))
    stream.write(bytearray(b"rows"))
    stream.close()
    files.rename(tmp_path / "a", tmp_path / "b")
    assert {p.name for p in tmp_path.iterdir()} == {"b", ".b.crc"}
    (tmp_path / "b").write_bytes(b"damaged")
    with pytest.raises(Exception, match="Checksum"):
        files.system.open(files.path(tmp_path / "b")).read()


def test_a_file_that_is_there_is_not_replaced(files: Any, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    with pytest.raises(Exception, match=r"FileAlreadyExists|already exists"):
        files.rename(tmp_path / "a", tmp_path / "b")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["a", "b"]


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_a_link_is_told_as_before(files: Any, tmp_path: Path, scheme: str) -> None:
    (tmp_path / "file").write_text("four")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "broken").symlink_to(tmp_path / "gone")
    hadoops = files.jvm.org.apache.hadoop.fs.RawLocalFileSystem()
    hadoops.initialize(files.jvm.java.net.URI("file:///"), files.conf)
    ours = files.system.getRaw()
    assert ours.getClass().getName() != hadoops.getClass().getName()
    for name in ("file", "link", "broken", "gone"):
        told = [status(system, files.path(tmp_path / name, scheme)) for system in (hadoops, ours)]
        assert told[0] == told[1]


def status(system: Any, path: Any) -> str:
    try:
        return str(system.getFileLinkStatus(path).toString())
    except Py4JJavaError as error:
        return str(error.java_exception.toString())


@pytest.fixture
def hadoops_own(files: Any) -> Iterator[None]:
    before = {name: files.conf.get(name) for name in (FILE_SYSTEM, FILE_CONTEXT)}
    files.conf.unset(FILE_SYSTEM)
    files.conf.set(FILE_CONTEXT, "org.apache.hadoop.fs.local.LocalFs")
    yield
    for name, value in before.items():
        files.conf.set(name, value)


@pytest.mark.usefixtures("hadoops_own")
def test_classes_that_do_not_fit_change_nothing(
    spark: SparkSession, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "LocalFiles.java").write_text("package stateflow; class Other extends NoSuchClass {}")
    monkeypatch.setattr(local_files, "_SOURCE", tmp_path / "LocalFiles.java")
    monkeypatch.setattr(local_files, "_FILES", "stateflow.Absent")
    assert not without_processes(spark)
    assert files.conf.get(FILE_SYSTEM) is None
    assert files.conf.get(FILE_CONTEXT) == "org.apache.hadoop.fs.local.LocalFs"


@pytest.mark.usefixtures("hadoops_own")
def test_a_later_session_of_the_same_jvm_finds_the_classes(spark: SparkSession, files: Any) -> None:
    assert without_processes(spark)
    assert files.conf.get(FILE_SYSTEM) == "stateflow.LocalFiles"


@pytest.mark.usefixtures("hadoops_own")
def test_a_driver_works_in_any_folder_and_its_executors_hear_nothing_of_the_classes(
    spark: SparkSession, files: Any
) -> None:
    assert can_work_anywhere(spark)
    assert files.conf.get(FILE_SYSTEM) is None
    here = java_names(spark).java.net.URI("file:///")
    kept = java_names(spark).org.apache.hadoop.fs.FileSystem.get(here, files.conf)
    assert kept.getClass().getName() == "stateflow.LocalFiles"
    files.conf.set(FILE_SYSTEM, "org.example.Chosen")
    assert not can_work_anywhere(spark), "the user's choice stays"
