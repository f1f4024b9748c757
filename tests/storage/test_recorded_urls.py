"""URLs that records and claims hold: a stranger may have written them, and they are opened with the job's credentials."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptError, StateflowError, UnavailableError, UsageError
from stateflow.format.records import FileRef, decode, encode
from stateflow.storage.objects import ObjectStore
from stateflow.storage.roots import open_recorded, open_store
from tests.refusals.refusal import refused

S3 = {"region": "us-east-1", "skip_signature": "true"}
NO_URLS = (
    "s3://a b/x", "s3://a\nb/x", "s3://ü/x", "s3://b%00/x", "s3://[::/x", "s3://user@bucket/x", "s3://b/x?versions",
    "s3://b/../x", "s3://", "https://example.org/x", "file://elsewhere/x", "file://", "x://y", "://", "gs://" + "a" * 9 + "/\\",
)  # fmt: skip


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_root_is_refused_by_an_error_that_names_record_and_url(url: str) -> None:
    with pytest.raises(CorruptError) as error:
        open_recorded(url, S3, root="s3://bucket/root")
    assert str(error.value).startswith(
        f"a record in s3://bucket/root names the savepoint {url[:200]!r}, which is not opened ("
    )


@given(
    st.text(max_size=60)
    | st.text(max_size=40).map("s3://{}".format)
    | st.text(max_size=40).map("abfs://c@{}".format)
)
def test_whatever_a_record_names_is_opened_or_refused(url: str) -> None:
    with suppress(StateflowError):
        open_recorded(url, S3, root="s3://bucket/root")


@pytest.mark.parametrize(
    ("url", "root", "options"),
    [
        ("abfs://c@theirs.dfs.core.windows.net/x", "abfs://c@ours.dfs.core.windows.net/root", {}),
        ("abfs://c@theirs.dfs.core.windows.net/x", "az://c/root", {"account_name": "ours"}),
        ("abfs://c@theirs.dfs.core.windows.net/x", "/data/root", {}),
    ],
)
def test_a_token_is_not_sent_to_an_account_that_a_record_names(
    url: str, root: str, options: dict[str, str]
) -> None:
    secret = {"sas_key": "sv=1&sig=hush", **options}
    with refused(CorruptError, "an account", "not that of the job's root") as error:
        open_recorded(url, secret, root=root)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "root", "options"),
    [
        ("abfs://c@ours.dfs.core.windows.net/x", "abfs://c@ours.dfs.core.windows.net/root", {}),
        ("abfs://c@ours.dfs.core.windows.net/x", "az://c/root", {"account_name": "ours"}),
        ("az://other/x", "az://c/root", {"account_name": "ours"}),
    ],
)
def test_an_account_that_the_job_works_with_is_opened(url: str, root: str, options: dict[str, str]) -> None:
    secret = {"account_key": "aHVzaA==", **options}
    assert open_recorded(url, secret, root=root).url == url


@pytest.mark.parametrize(
    "url", ["hdfs://nn:8020/sp", "webhdfs://nn:9870/sp/", "HDFS://NN/sp", "hdfs://nn/sp"]
)
@pytest.mark.parametrize("root", ["hdfs://nn/root", "webhdfs://nn:14000/root"])
def test_a_root_in_hdfs_may_be_written_in_another_way_than_a_record_has_it(url: str, root: str) -> None:
    """The record's URL names where to send a token, so the savepoint is reached as the root is."""
    assert open_recorded(url, root=root).url == root.replace("/root", "/sp")


def test_a_savepoint_in_another_hdfs_is_not_opened() -> None:
    for url in ("hdfs://other/sp", "webhdfs://other:9870/sp", "hdfs://nn.other.org:8020/sp"):
        with refused(CorruptError, "hdfs://nn:8020/root", url, "not that of the job's root"):
            open_recorded(url, {"hdfs_delegation_token": "hush"}, root="hdfs://nn:8020/root")


def test_a_folder_and_the_root_itself_are_opened_as_before(tmp_path: Path) -> None:
    root = open_store(str(tmp_path / "root"))
    assert open_recorded("", root=root.url) is root
    assert open_recorded(f"file://{tmp_path}/sp", root=root.url).url == f"file://{tmp_path}/sp"


@pytest.mark.parametrize("base", ["../x", "a/../../x", "..", "/etc", "a//b", "./a", "a\0b"])
def test_a_place_in_the_root_that_leads_out_of_it_is_refused_where_the_record_is_decoded(base: str) -> None:
    ref = FileRef("a", 1, "0" * 16, "state/a", base=base)
    with pytest.raises(CorruptError, match="a name in it may lead out of its folder"):
        decode(encode(ref), FileRef, "it")


@pytest.mark.parametrize(
    "base",
    ["", "_savepoints/orders/a b", "mine/what%3F", "odd\\name", "s3://bucket/a/b", "file:///data/a%0Ab",
     "abfs://c@account.dfs.core.windows.net/x"],
)  # fmt: skip
def test_what_jobs_have_stored_is_still_read(base: str) -> None:
    ref = FileRef("a", 1, "0" * 16, "state/a", base=base)
    assert decode(encode(ref), FileRef, "it") == ref


class PanicException(BaseException):
    """Like the one of pyo3, which is no Exception and cannot be imported."""


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("get", lambda store, path: store.read("a")),
        ("get_range", lambda store, path: store.read_range("a", 0, 1)),
        ("put", lambda store, path: store.create("a", b"")),
        ("put", lambda store, path: store.put("a", b"")),
        ("list", lambda store, path: store.list("a")),
        ("list_with_delimiter", lambda store, path: store.folders("")),
        ("delete", lambda store, path: store.delete(["a"])),
        ("copy", lambda store, path: store.copy("a", "b")),
        ("get", lambda store, path: store.download("a", path / "a")),
    ],
)
def test_a_panic_of_the_client_is_an_error_of_the_store(
    function: str, call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def panics(*args: object, **more: object) -> None:
        raise PanicException("request valid: InvalidUri(hush)")

    monkeypatch.setattr(obstore, function, panics)
    store = ObjectStore(
        "s3://bucket/root", {"secret_access_key": "hush", "access_key_id": "x", "region": "x"}
    )
    with pytest.raises(UnavailableError) as error:
        call(store, tmp_path)
    assert str(error.value) == (
        "the client of 's3://bucket/root' gave up (request valid: InvalidUri(***)): check the root and the storage options"
    )


def test_a_download_that_panics_half_way_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Half:
        def stream(self, **more: object) -> Any:
            yield b"half"
            raise PanicException

    monkeypatch.setattr(obstore, "get", lambda *args, **more: Half())
    with pytest.raises(UnavailableError):
        ObjectStore("s3://bucket/root", S3).download("a", tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_interrupt_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(obstore, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ObjectStore("s3://bucket/root", S3).read("a")


def test_a_bucket_that_makes_the_client_panic_is_no_root() -> None:
    with refused(UsageError, "no bucket, container or account"):
        open_store("s3://a b/x", S3)
