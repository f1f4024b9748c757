"""One place has many spellings, and is one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.pipelines.inputs.places import (
    between,
    canonical,
    depends_on_folder,
    same_place,
    same_spelling,
    spelled_below,
)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("/d/out", ("/d/out/", "//d//out", "/d/x/../out", "/d/./out", "file:/d/out", "file:///d/out", "FILE://localhost/d/out/")),
        ("/", ("//", "file:///", "/..")),
        ("s3://b/t", ("s3a://b/t", "s3n://b/t/", "S3A://b//t", "s3://b/x/../t", "s3://B/t")),
        ("s3://b", ("s3a://b/", "s3://b/.")),
        ("abfs://c@a.dfs.core.windows.net/t", ("abfss://c@a.dfs.core.windows.net/t/",)),
        ("hdfs://nn/t", ("hdfs://nn:8020/t", "hdfs://NN/t/")),
        ("dbfs:/mnt/t", ("dbfs:/mnt/t/",)),
    ],
)  # fmt: skip
def test_spellings_of_one_place(one: str, same: tuple[str, ...]) -> None:
    for other in same:
        assert canonical(other) == canonical(one), other


@pytest.mark.parametrize(
    ("one", "other"),
    [("/d/out", "/d/Out"), ("/d/out", "/d/out2"), ("/d/out", "s3://d/out"), ("s3://b/t", "s3://c/t"), ("s3://b/t", "gs://b/t"),
     ("hdfs://nn:9870/t", "hdfs://nn/t"), ("/d/a b", "/d/a%20b")],
)  # fmt: skip
def test_other_places(one: str, other: str) -> None:
    assert not same_place(one, other)


def test_links_and_relative_paths_lead_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to("v1")
    monkeypatch.chdir(tmp_path)
    for other in ("current", "./v1/", f"file://{tmp_path}/current", str(tmp_path / "current" / ".." / "v1")):
        assert same_place(other, str(tmp_path / "v1")), other
    assert same_place("current/not/there/yet", str(tmp_path / "v1/not/there/yet"))


def test_what_lies_between_two_places() -> None:
    assert between("/d", "/d/a/b=1/") == ("a", "b=1")
    assert between("/", "/d") == ("d",)
    assert between("s3a://b/d", "s3://b/d/x") == ("x",)
    assert between("/d", "file:///d") == ()
    assert between("/d", "/data") is None
    assert between("/d/a", "/d") is None


@pytest.mark.parametrize(
    ("folder", "below"),
    [
        ("/d/in", True), ("/d/in/", True), ("file:///d/in", True), ("file:/d/x/../in", True), ("//d//in", True), ("/d", True), ("/d/i?", True),
        ("/d/in/*.json", True), ("/[d]/in", True), ("/d/in2", False), ("/d/i", False), ("s3://d/in", False), ("/link", False),
        ("/link/*", False), ("/d/{in,out}", True), ("/{a,d}/i[m-o]/*", True), ("/d/i[!n]", False), ("/d/{in", False), ("/d/[in", False),
        ("/d/\\in", True), ("/d/in,", False), ("/*", True), ("/", True), ("/d/on*", False),
    ],
)  # fmt: skip
def test_a_file_lies_below_a_folder_by_its_spelling(folder: str, below: bool) -> None:
    assert spelled_below("file:///d/in/a b.json", folder) is below


def test_a_link_is_another_spelling_of_one_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert same_spelling(str(tmp_path), f"file://{tmp_path}/x/../")
    assert not same_spelling(str(tmp_path), str(tmp_path / "link"))
    assert not same_spelling("s3a://b/in", "s3://b/in")


def test_a_relative_path_leads_elsewhere_from_another_folder() -> None:
    assert depends_on_folder("out")
    assert depends_on_folder("../out")
    assert not any(map(depends_on_folder, ["/out", "s3://bucket/out", "file:///out", "file:/out"]))
