"""From a URL to a store."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.errors import UsageError
from stateflow.storage.file_urls import file_url
from stateflow.storage.local import LocalStore
from stateflow.storage.objects import ObjectStore
from stateflow.storage.places import host_and_path
from stateflow.storage.roots import open_store
from tests.memory_store import MemoryStore
from tests.refusals.refusal import refused

S3 = {"region": "us-east-1"}


def test_a_folder_is_a_root_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    stores = [
        open_store(url)
        for url in (
            f"{tmp_path}/root",
            "root",
            "./x/../root",
            f"file://{tmp_path}/root/",
            f"file:{tmp_path}/root",
            f"file://localhost{tmp_path}/root",
            "~/root",
        )
    ]
    assert {store.url for store in stores} == {f"file://{tmp_path}/root"}
    assert all(store is stores[0] for store in stores)
    assert stores[0].local_root == tmp_path / "root"


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_folder_that_spark_and_the_system_find_in_two_places_is_refused(
    prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/deep")
    for act in (
        lambda: open_store(f"{prefix}{tmp_path}/link/../root"),
        lambda: LocalStore(tmp_path / "link/../root"),
        lambda: host_and_path(f"{prefix}{tmp_path}/link/../root"),
    ):
        with refused(UsageError, f"{tmp_path}/link/../root", f"{tmp_path}/disk/root", f"{tmp_path}/root"):
            act()
    assert list(tmp_path.rglob("root")) == []
    assert open_store(f"{prefix}{tmp_path}/disk/deep/../root").local_root == tmp_path / "disk/root"
    assert open_store(f"{prefix}{tmp_path}/disk/../link/root").local_root == tmp_path / "link/root"


@pytest.mark.parametrize("url", ["s3:/bucket/root", "S3:/bucket/root", "hdfs:/user/root", "gs:/"])
def test_half_a_url_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    scheme = url.partition(":")[0]
    with refused(UsageError, url, f"write {scheme}://", f"./{scheme}:/"):
        open_store(url)
    assert open_store(f"./{url}").local_root == tmp_path / url.rstrip("/")


def test_a_folder_with_a_space_in_its_url(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/my%20root").local_root == tmp_path / "my root"


NAMES = st.text(
    st.sampled_from("aZ09 .,:;&+=~^'\"`*|<>{}[]()!$@\\_-\t\n#?%äé日\u0301\U0001f600") | st.sampled_from("#?%4125fF"),
    min_size=1, max_size=12,
) | st.binary(min_size=1, max_size=8).map(os.fsdecode)  # fmt: skip
"""What a folder can be called on a disk."""


@given(
    st.lists(
        NAMES.filter(lambda n: n not in (".", "..") and not {"/", "\0"} & set(n)), min_size=1, max_size=3
    )
)
@example(["release#2"])
@example(["team%20a"])
@example(["what?"])
@example(["100%", "%%41", "%4%31", "%"])
@example([os.fsdecode(b"\xff\xc3\xa9\xe9")])
def test_the_url_that_a_root_says_is_the_same_folder_s(names: list[str]) -> None:
    folder = "/".join(("/data", *names))
    store = open_store(folder)
    assert str(store.local_root) == folder
    assert open_store(store.url) is store
    assert open_store(store.url + "/") is store
    # What other programs take a URL for, this version's predecessor among them.
    parts = urlsplit(store.url)
    assert unquote(parts.path, errors="surrogateescape") == folder
    assert (parts.query, parts.fragment) == ("", "")
    assert store.url.encode().isascii() or store.url.isprintable() or not folder.isprintable()
    # A folder in it is named by what is put behind its URL.
    inner = open_store(f"{store.url}/_savepoints/orders/one").local_root
    assert str(inner) == f"{folder}/_savepoints/orders/one"


@given(NAMES, NAMES)
def test_two_folders_never_have_one_url(one: str, other: str) -> None:
    assert (file_url(Path("/") / one) == file_url(Path("/") / other)) == (
        Path("/") / one == Path("/") / other
    )


@pytest.mark.parametrize("name", ["my root", "größe", "a+b&c;d=e", "100%", "50% off", "[v1]", "a\\b", "%zz"])
def test_what_cannot_be_misread_is_seen_as_it_is(name: str) -> None:
    assert open_store(f"/data/{name}").url == f"file:///data/{name}"
    assert str(open_store(f"file:///data/{name}").local_root) == f"/data/{name}"


@pytest.mark.parametrize(
    ("name", "url"), [("a#1", "a%231"), ("a?b", "a%3Fb"), ("a%20b", "a%2520b"), ("a\nb", "a%0Ab")]
)
def test_what_could_be_misread_is_quoted(name: str, url: str) -> None:
    assert open_store(f"/data/{name}").url == f"file:///data/{url}"


@pytest.mark.parametrize("name", ["release#2", "what?", "a#b?c#"])
def test_a_url_in_which_nothing_is_quoted_means_the_whole_name(name: str) -> None:
    assert str(open_store(f"file:///data/{name}").local_root) == f"/data/{name}"


def test_opening_makes_nothing(tmp_path: Path) -> None:
    assert open_store(str(tmp_path / "root")).list("") == []
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    "url", ["s3://b/p", "s3a://b/p", "gs://b/p", "az://b/p", "abfss://b@acc.dfs.core.windows.net/p"]
)
def test_object_stores_go_by_their_scheme(url: str) -> None:
    options = {
        "s3": S3,
        "s3a": S3,
        "gs": {"skip_signature": "true"},
        "az": {"account_name": "acc", "account_key": "a2V5"},
        "abfss": {"account_key": "a2V5"},
    }[url.split(":")[0]]
    store = open_store(url + "/", options)
    assert isinstance(store, ObjectStore)
    assert store.url == url
    assert store.local_root is None


def test_a_store_is_opened_once_per_url_and_options() -> None:
    assert open_store("s3://b/one", S3) is open_store("s3://b/one/", dict(S3))
    assert open_store("s3://b/one", S3) is not open_store("s3://b/one", {"region": "eu-west-1"})
    assert open_store("s3://b/one", S3) is not open_store("s3://b/two", S3)


def test_what_is_kept_open_is_bounded_and_the_used_ones_stay(tmp_path: Path) -> None:
    used, unused = open_store(str(tmp_path / "used")), open_store(str(tmp_path / "unused"))
    for n in range(40):
        open_store(str(tmp_path / str(n)))
        assert open_store(str(tmp_path / "used")) is used
    assert open_store(str(tmp_path / "unused")) is not unused


def test_nobody_but_a_test_has_a_root_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateflow.storage.roots.FOR_TESTS", {})
    with refused(UsageError, "'memory://orders' is not a root"):
        open_store("memory://orders")


def test_a_memory_root_is_the_same_for_the_whole_process() -> None:
    store = open_store("memory://roots-test")
    assert isinstance(store, MemoryStore)
    assert open_store("memory://roots-test/") is store
    assert open_store("memory://another") is not store


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "ftp://host/x",
        "s3:///x",
        "s3://[x",
        "file://otherhost/x",
        "file://",
        "file:x",
        "file:///a%00b",
        "hdfs:///x",
    ],
)
def test_a_root_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_durability_can_be_left_out_for_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: int) -> None:
        raise AssertionError("fsync was called")

    monkeypatch.setattr("os.fsync", never)
    store = open_store(str(tmp_path), fsync=False)
    assert isinstance(store, LocalStore)
    store.create("a/b", b"x")
    assert store.read("a/b") == b"x"
    with pytest.raises(AssertionError):
        open_store(str(tmp_path)).create("a/c", b"x")
