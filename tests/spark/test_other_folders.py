"""Spark knows a file by its path. A folder under another name is not read again, and names like patterns double nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import IncompatibleError, NotFoundError
from stateflow.spark.internals.scratch_folder import ReadFile
from stateflow.spark.sources.other_folders import read_again
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, per_batch: int | None = None) -> None:
    flow.source("rows", sf.files(input, "json", per_batch=per_batch), "id long").collect(
        "out", sf.memory("other-folders")
    )


class Folder:
    """Runs over folders of small files, and what they have put out."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self.bench, self.out = Workbench(spark, tmp_path), sf.memory("other-folders")
        self.out.clear()

    def add(self, file: Path, number: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'{{"id": {number}}}\n')

    def run(self, path: Path | str, **given: Any) -> tuple[str, ...]:
        return self.bench.run(copied, {"input": str(path), **given}, tolerable_failed_batches=0).warnings

    @property
    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.out.rows)


@pytest.mark.slow
def test_a_folder_is_not_read_again_under_another_name(spark: SparkSession, tmp_path: Path) -> None:
    folder, place = Folder(spark, tmp_path), tmp_path / "in"
    folder.add(place / "1.json", 1)
    (tmp_path / "link").symlink_to(place)
    assert folder.run(place) == ()
    others = (f"file://{place}", f"{place}/", f"{place}/../in", f"{place}/*.json")
    for number, same in enumerate(others, 2):
        folder.add(place / f"{number}.json", number)
        assert folder.run(same) == (), same
        assert folder.ids == list(range(1, number + 1)), same
    for other in (tmp_path / "link", f"{tmp_path}/lin?", f"file://{tmp_path}/link/"):
        with pytest.raises(IncompatibleError) as caught:
            folder.run(other)
        assert str(caught.value) == (
            f"source 'rows' reads {other} now, where 5 files are ones that the job has read under other paths, such as "
            f"{place}/1.json (now {tmp_path}/link/1.json): Spark would read them again; give the source the path that it had, "
            "or, to read all once more, a new uid, and the operators behind it and all their other sources, too, and run once with --allow-non-restored-state"
        )
    place.rename(tmp_path / "moved")
    with pytest.raises(IncompatibleError, match="5 files are ones that the job has read"):
        folder.run(tmp_path / "moved")
    place.symlink_to(tmp_path / "moved")
    folder.add(place / "9.json", 9)
    assert folder.run(place) == ()
    assert folder.ids == [1, 2, 3, 4, 5, 9]


def test_another_folder_is_warned_of_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, tmp_path)
    folder.add(tmp_path / "in" / "1.json", 1)
    folder.run(tmp_path / "in")
    folder.add(tmp_path / "next" / "1.json", 2)
    os.utime(tmp_path / "next" / "1.json", (5, 5))
    (told,) = folder.run(tmp_path / "next")
    assert told == (
        f"source 'rows' has read {tmp_path}/in and reads {tmp_path}/next now, on top of what the job has: give another input "
        "another uid"
    )
    assert folder.run(tmp_path / "next") == ()
    assert folder.run(tmp_path / "in") == ()
    assert folder.ids == [1, 2]


def test_a_file_of_the_name_and_the_time_of_a_read_one_is_that_one() -> None:
    read = [ReadFile("file:///in/a%20b.json", 7), ReadFile("file:///in/c.json", 8)]
    there = {"file:///in/c.json": 8, "file:///l/a%20b.json": 7, "file:///l/c.json": 9, "file:///l/d.json": 8}
    assert read_again(read, there) == [("/in/a b.json", "/l/a b.json")]
    assert read_again([], there) == []


NAMES = ("[1].json", "{a,b}.json", "*.json", "?.json", "a\\b.json", "a}.json")


@pytest.mark.slow
def test_a_file_with_a_name_like_a_pattern_does_not_double_its_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder, place = Folder(spark, tmp_path), tmp_path / "in"
    folder.add(place / "1.json", 1)
    for name in NAMES:
        folder.add(place / name, 2)
        with pytest.raises(IncompatibleError) as caught:
            folder.run(place)
        assert str(caught.value) == (
            f"source 'rows': Spark takes the path of {place}/{name} for a pattern, and would read the other files of its batch twice: "
            r"rename it without any of * ? [ \ ] { }, or read one file per batch (per_batch=1)"
        )
        (place / name).unlink()
    assert folder.ids == []
    for number, name in enumerate(NAMES, 2):
        folder.add(place / name, number)
    folder.run(place, per_batch="1")
    assert folder.ids == list(range(1, len(NAMES) + 2))
    folder.add(place / "3.json", 8)
    folder.add(place / "a b%41#^.json", 9)
    folder.run(place)
    assert folder.ids == list(range(1, 10))


def test_a_folder_with_a_name_like_a_pattern_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder, place = Folder(spark, tmp_path), tmp_path / "[q]"
    folder.add(place / "1.json", 1)
    with refused(NotFoundError, "Spark takes the path of the folder", "rename it without any of"):
        folder.run(place)
