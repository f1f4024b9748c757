"""What is special about object stores: pages, secrets, processes."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from stateflow.airflow.connections.failures import may_pass
from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.storage import objects, s3_parts
from stateflow.storage.objects import ObjectStore, copier
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.memory_store import MemoryStore
from tests.one_answer import answering
from tests.refusals.refusal import refused
from tests.servers import AZURE, NEEDS_AZURITE, ObjectServer, s3_options
from tests.slow_azure import slow_azure

IMPATIENT = {"max_retries": "0", "retry_timeout": "1", "connect_timeout": "1s", "timeout": "2s"}


@pytest.mark.slow
def test_listing_the_records_does_not_page_through_the_state(s3: ObjectServer) -> None:
    store = open_store(s3.new_root(), s3.options)
    state = [f"job/shared/e1-c1-{n:05d}.sst" for n in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(store.put, path, b"x") for path in state]:
            done.result()
    records = [f"job/chk-{n:08d}/_pending" for n in (7, 8, 9)]
    for path in records:
        store.put(path, b"x")
    s3.requests.clear()
    assert [e.path for e in store.list("job/chk-")] == records
    assert len(s3.requests) == 1
    assert [e.path for e in store.list("job/shared/e1-c1-00")] == state[:1000]
    assert len(store.list("job/")) == 1103
    s3.requests.clear()
    store.delete(state)
    assert len(s3.requests) == 2
    assert [e.path for e in store.list("")] == records


def test_directory_buckets_which_list_in_no_order_are_listed_whole() -> None:
    assert ObjectStore("s3://state--use1-az4--x-s3/root", {"region": "us-east-1"})._unordered
    assert not ObjectStore("s3://state", {"region": "us-east-1"})._unordered


@pytest.mark.parametrize("kind", ["s3", "gcs", AZURE])
def test_a_bucket_that_is_missing_is_not_an_empty_root(kind: str, request: pytest.FixtureRequest) -> None:
    server: ObjectServer = request.getfixturevalue(kind)
    scheme = {"s3": "s3", "gcs": "gs", "azure": "az"}[kind]
    store = ObjectStore(f"{scheme}://nobody-made-it/x", {**server.options, **IMPATIENT})
    for call in (
        lambda: store.read("job/job"),
        lambda: store.list("job/"),
        lambda: store.create("job/job", b""),
    ):
        with pytest.raises(UnavailableError, match="nobody-made-it"):
            call()


def test_a_store_out_of_reach_is_named_in_one_sentence() -> None:
    store = ObjectStore(
        "s3://bucket/root",
        {"endpoint": "http://127.0.0.1:9", "allow_http": "true", "region": "x", **IMPATIENT},
    )
    with refused(UnavailableError, "s3://bucket/root", "job/job", "could not be reached") as e:
        store.read("job/job")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("code", "lasts"),
    [("InvalidAccessKeyId", True), ("SignatureDoesNotMatch", True), ("AccessDenied", False)],
)
def test_credentials_that_the_service_does_not_know_are_no_outage(code: str, lasts: bool) -> None:
    """A scheduler tries again what is unavailable, and no retry makes a wrong key right."""
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()

    with answering(403, body) as (url, _):
        store = ObjectStore(
            "s3://bucket/root",
            {
                "endpoint": url, "allow_http": "true", "region": "x",
                "access_key_id": "AKIANOBODY", "secret_access_key": "hush", **IMPATIENT,
            },
        )  # fmt: skip
        for call in (lambda: store.read("a/b"), lambda: store.create("a/b", b"x"), lambda: store.list("a")):
            with pytest.raises(UsageError if lasts else UnavailableError, match=code) as caught:
                call()
            assert "hush" not in str(caught.value)
            if lasts:
                assert str(caught.value).endswith("correct the keys in the storage options")
                assert not may_pass(caught.value.exit_code)


class TestSecrets:
    SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCY"

    def everything_said(self, store: Store) -> str:
        said = [repr(store), str(store), store.url]
        for call in (lambda: store.read("a/b"), lambda: store.create("a/b", b"x"), lambda: store.list("a/b")):
            try:
                call()
            except StateflowError as error:
                said.append("".join(traceback.format_exception(error)))
        return "\n".join(said)

    def test_no_key_is_shown_or_said(self) -> None:
        store = ObjectStore(
            "s3://bucket",
            {
                "access_key_id": "AKIAIOSFODNN7",
                "secret_access_key": self.SECRET,
                "session_token": self.SECRET + "t",
                "endpoint": f"http://127.0.0.1:9/{self.SECRET}",
                "allow_http": "true",
                "region": "us-east-1",
                **IMPATIENT,
            },
        )
        said = self.everything_said(store)
        assert "refused to read a/b" in said
        assert self.SECRET not in said
        assert "AKIAIOSFODNN7" not in said

    def test_a_signature_in_a_request_is_not_said(self) -> None:
        sas = "?sv=2021&sig=abcdefSIGNATURE%3D&se=2030"
        store = ObjectStore(
            "az://container",
            {
                "account_name": "someone",
                "sas_key": sas,
                "endpoint": "http://127.0.0.1:9/someone",
                "allow_http": "true",
                **IMPATIENT,
            },
        )
        said = self.everything_said(store)
        assert "refused to read a/b" in said
        assert "SIGNATURE" not in said

    def test_a_wrong_option_is_named_without_any_value(self) -> None:
        with pytest.raises(UsageError, match="secret_keey") as error:
            ObjectStore("s3://bucket", {"secret_keey": self.SECRET})
        assert self.SECRET not in "".join(traceback.format_exception(error.value))

    def test_a_number_that_is_none_is_named(self) -> None:
        with pytest.raises(UsageError, match="s3://bucket"):
            ObjectStore("s3://bucket", {"region": "x", "max_retries": "many"})

    def test_a_store_cannot_be_pickled_with_its_keys(self) -> None:
        with pytest.raises(TypeError, match="holds credentials"):
            pickle.dumps(ObjectStore("s3://bucket", {"region": "x"}))

    @pytest.mark.parametrize(
        "url", ["s3://key:secret@bucket/x", "s3://key@bucket", "az://c/x?sig=secret", "s3://bucket/x#secret"]
    )
    def test_a_url_with_credentials_is_refused_without_repeating_them(self, url: str) -> None:
        with pytest.raises(UsageError, match="options") as error:
            ObjectStore(url)
        assert "secret" not in str(error.value)
        assert "key@" not in str(error.value)


class TestProcesses:
    def outcome_in_a_fork(self, store: Store) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            try:
                said = store.read("a").decode()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read()
        os.waitpid(child, 0)
        return said

    def test_a_fork_of_a_process_that_used_a_store_says_so_and_does_not_hang(self, s3: ObjectServer) -> None:
        store = ObjectStore(s3.new_root(), s3.options)
        store.put("a", b"content")
        said = self.outcome_in_a_fork(store)
        assert said.startswith(f"UsageError: {store.url} cannot be used in this process: it was forked")
        assert "spawn" in said

    def test_a_fork_of_a_process_that_used_none_works(self, s3: ObjectServer) -> None:
        store = ObjectStore(s3.new_root(), s3.options)
        store.put("a", b"content")
        # Spark's Python workers are such forks: of a daemon that may have loaded the client, never used it.
        script = (
            "import os, sys, json\n"
            "from stateflow.storage.roots import open_store\n"
            "store = open_store(sys.argv[1], json.loads(sys.argv[2]))\n"
            "if os.fork() == 0:\n"
            "    print(open_store(sys.argv[1], json.loads(sys.argv[2])).read('a').decode(), flush=True)\n"
            "    print(store.read('a').decode(), flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, store.url, json.dumps(s3.options)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.split() == ["content", "content"], done.stderr


class TestSlowLines:
    """What a request may take is told by the time without a byte, and not by the size of a file."""

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(objects, "IDLE", timedelta(seconds=0.5))

    def test_a_file_may_take_longer_than_a_request_without_a_byte(self, tmp_path: Path) -> None:
        with slow_line(bytes(1 << 20), pieces=8, pause=0.15) as options:
            ObjectStore("s3://bucket/root", options).download("a", tmp_path / "a")
        assert (tmp_path / "a").stat().st_size == 1 << 20

    def test_a_download_that_breaks_off_late_goes_on_behind_its_last_byte(self, tmp_path: Path) -> None:
        body = random.Random(1).randbytes(6 << 20)
        with slow_line(body, pieces=6, pause=0.2, breaks_after=3) as options:
            ObjectStore("s3://bucket/root", options).download("a", tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == body

    def test_a_part_of_an_upload_has_more_time_than_a_record(self, s3: ObjectServer, tmp_path: Path) -> None:
        store = ObjectStore(s3.new_root(), s3.options)
        (tmp_path / "a").write_bytes(b"state")
        s3.fault = lambda method, path: time.sleep(0.8)  # type: ignore[func-returns-value]
        try:
            store.upload(tmp_path / "a", "a")
            with refused(UnavailableError, store.url, "`read_timeout`", "`timeout`"):
                store.put("b", b"record")
        finally:
            s3.fault = None
        assert store.read("a") == b"state"

    def test_a_store_that_hangs_is_noticed_soon(self) -> None:
        with slow_line(b"x", pieces=1, pause=3) as options, refused(UnavailableError, "`read_timeout`"):
            began = time.monotonic()
            try:
                ObjectStore("s3://bucket/root", options).read("a")
            finally:
                assert time.monotonic() - began < 2.5


@contextmanager
def slow_line(body: bytes, pieces: int, pause: float, breaks_after: int = 0) -> Iterator[dict[str, str]]:
    """Options of a store that sends `body` for every object, one piece after each pause; `breaks_after` so many the line breaks."""

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", formatdate(usegmt=True))
            self.end_headers()
            each = len(body) // pieces
            with suppress(OSError):
                for number, at in enumerate(range(start, len(body), each), 1):
                    time.sleep(pause)
                    self.wfile.write(body[at : at + each])
                    if number == breaks_after:
                        return

        def log_message(self, format: str, *given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield s3_options(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def test_a_failed_download_leaves_no_half_file(s3: ObjectServer, tmp_path: Path) -> None:
    store = ObjectStore(s3.new_root(), {**s3.options, **IMPATIENT})
    store.put("a", b"content")
    s3.fault = lambda method, path: "refuse"
    try:
        with pytest.raises(UnavailableError, match="refused to download a"):
            store.download("a", tmp_path / "a")
    finally:
        s3.fault = None
    assert list(tmp_path.iterdir()) == []


class TestCopies:
    """Between two roots of one bucket the service copies; this process only asks."""

    def two(self, server: ObjectServer, **options: str) -> tuple[ObjectStore, ObjectStore]:
        bucket = server.new_root()
        here = ObjectStore(f"{bucket}/team/checkpoints", {**server.options, **options})
        there = ObjectStore(f"{bucket}/savepoints/one", {**server.options, **options})
        return here, there

    @pytest.mark.parametrize("kind", ["s3", "gcs"])
    def test_no_byte_of_the_object_passes_through(self, kind: str, request: pytest.FixtureRequest) -> None:
        server: ObjectServer = request.getfixturevalue(kind)
        here, there = self.two(server)
        here.put("job/shared/a", b"state" * 1000)
        copy = copier(here, there)
        assert copy is not None
        server.requests.clear()
        copy("job/shared/a", "state/b")
        assert [method for method, _ in server.requests] == ["PUT"]
        assert server.requests[0][1].endswith("/savepoints/one/state/b")
        assert there.read("state/b") == b"state" * 1000

    @pytest.mark.parametrize("kind", ["s3", "gcs", AZURE])
    def test_what_is_missing_is_named_with_the_root_that_lacks_it(
        self, kind: str, request: pytest.FixtureRequest
    ) -> None:
        here, there = self.two(request.getfixturevalue(kind))
        with pytest.raises(NotFoundError, match=f"job/shared/a does not exist in {here.url}"):
            there.copy_from(here, "job/shared/a", "state/b")

    def test_the_scheme_may_be_spelled_differently(self, s3: ObjectServer) -> None:
        bucket = s3.new_root()
        here = ObjectStore(f"{bucket}/a", s3.options)
        there = ObjectStore(f"{bucket.replace('s3:', 's3a:')}/b", s3.options)
        here.put("x", b"1")
        copy = copier(here, there)
        assert copy is not None
        copy("x", "y")
        assert there.read("y") == b"1"

    def test_other_buckets_accounts_and_stores_have_no_way_inside(self, s3: ObjectServer) -> None:
        here = ObjectStore("s3://bucket/a", s3.options)
        assert copier(here, ObjectStore("s3://bucket/b", s3.options)) is not None
        assert copier(here, ObjectStore("s3://other/a", s3.options)) is None
        elsewhere = {**s3.options, "endpoint": "http://127.0.0.1:9"}
        assert copier(here, ObjectStore("s3://bucket/b", elsewhere)) is None
        somebody = {**s3.options, "access_key_id": "somebody-else"}
        assert copier(here, ObjectStore("s3://bucket/b", somebody)) is None
        account = {"account_name": "one", "account_key": "a2V5"}
        assert copier(here, ObjectStore("az://bucket/b", account)) is None
        azure = ObjectStore("az://bucket/a", account)
        assert copier(azure, ObjectStore("az://bucket/b", {**account, "account_name": "two"})) is None
        assert copier(azure, MemoryStore()) is None

    @pytest.mark.parametrize("name", ["account_name", "azure_storage_account_name", "ACCOUNT_NAME"])
    @pytest.mark.parametrize("key", ["account_key", "azure_storage_account_key"])
    def test_an_account_is_the_one_that_the_url_names(self, name: str, key: str) -> None:
        options = {name: "one", key: "a2V5"}
        by_option = ObjectStore("az://bucket/a", options)
        by_url = ObjectStore("abfss://bucket@one.dfs.core.windows.net/b", options)
        assert copier(by_option, by_url) is not None
        assert copier(by_url, ObjectStore("az://bucket@one/c", {key: "a2V5"})) is not None
        with refused(UsageError, "abfss://bucket@two.", name, "'one'", "'two'"):
            ObjectStore("abfss://bucket@two.dfs.core.windows.net/b", options)

    @pytest.mark.parametrize("name", ["endpoint", "azure_storage_endpoint"])
    def test_an_address_of_another_account_is_refused(self, name: str) -> None:
        options = {name: "https://one.blob.core.windows.net", "account_key": "a2V5"}
        ObjectStore("abfss://bucket@one.dfs.core.windows.net/b", options)
        with refused(UsageError, "az://bucket@two/b", name, "'one'", "'two'"):
            ObjectStore("az://bucket@two/b", options)

    def test_a_large_object_that_one_request_may_not_copy_is_copied_by_parts(
        self, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = self.two(s3, **IMPATIENT)
        body = bytes(range(256)) * 50_000
        here.put("a b+c", body)
        refusals = ["refuse"]
        try:
            s3.fault = lambda method, path: refusals.pop() if method == "PUT" and refusals else None  # type: ignore[return-value]
            with pytest.raises(UnavailableError, match="refused to copy to b"):
                there.copy_from(here, "a b+c", "b")
            monkeypatch.setattr(objects, "_COPIED_WHOLE", 1 << 20)
            monkeypatch.setattr(s3_parts, "PART", 5 << 20)
            refusals.append("refuse")
            s3.requests.clear()
            there.copy_from(here, "a b+c", "b")
        finally:
            s3.fault = None
        parts = [path for method, path in s3.requests if method == "PUT" and "partNumber" in path]
        assert len(parts) == 3
        assert not [path for method, path in s3.requests if method == "GET"]  # no byte came here
        assert there.read("b") == body

    @pytest.mark.parametrize("keys", [True, False])
    def test_where_s3_copies_no_parts_a_large_object_goes_through_this_process(
        self, keys: bool, s3: ObjectServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        here, there = self.two(s3, **IMPATIENT)
        body = bytes(range(256)) * 50_000
        here.put("a", body)
        monkeypatch.setattr(objects, "_COPIED_WHOLE", 1 << 20)
        monkeypatch.setattr(s3_parts, "PART", 5 << 20)
        if not keys:
            monkeypatch.setattr(there, "_keys", None)
        puts = itertools.count(1)
        refused = (1, 3) if keys else (1,)  # the whole copy, and one of the parts
        try:
            s3.fault = lambda method, path: "deny" if method == "PUT" and next(puts) in refused else None
            s3.requests.clear()
            there.copy_from(here, "a", "b")
        finally:
            s3.fault = None
        assert there.read("b") == body
        aborted = [path for method, path in s3.requests if method == "DELETE" and "uploadId" in path]
        assert len(aborted) == int(keys)  # nothing of an upload stays that nobody completes
        assert ("does not copy" in caplog.text) == keys

    @NEEDS_AZURITE
    def test_azure_copies_a_large_object_behind_its_answer_and_is_waited_for(
        self, azure: ObjectServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float] = []
        body = bytes(range(256)) * 50_000
        monkeypatch.setattr(objects, "_COPIED_WHOLE", 1 << 20)
        monkeypatch.setattr(objects, "_COPY_LOOKS", 4)
        with slow_azure(azure) as server:
            server.looks, server.early_length = 30, len(body)
            here = ObjectStore(f"{azure.new_root()}/a", server.options, pause=pauses.append)
            here.put("a b+c", body)
            server.body_bytes = 0
            assert here.copy("a b+c", "b") == 0
            assert server.body_bytes == 1  # the last of the object
            assert pauses[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
            assert here.read("b") == body

    @NEEDS_AZURITE
    def test_a_copy_that_azure_gives_up_is_told_with_its_reason(self, azure: ObjectServer) -> None:
        with slow_azure(azure) as server:
            server.failure = "500 InternalServerError"
            store = ObjectStore(azure.new_root(), server.options, pause=lambda _: None)
            store.put("a", b"state")
            with refused(UnavailableError, "copying b", "500 InternalServerError", "run again"):
                store.copy("a", "b")

    @NEEDS_AZURITE
    def test_a_copy_that_gets_no_further_is_not_waited_for_without_end(
        self, azure: ObjectServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(objects, "_COPY_LOOKS", 6)
        monkeypatch.setattr(objects, "copy_state", lambda url: None)
        with slow_azure(azure) as server:
            server.looks = 1000
            store = ObjectStore(azure.new_root(), server.options, pause=lambda _: None)
            store.put("a", b"state")
            with pytest.raises(UnavailableError, match="has not finished copying b: run again"):
                store.copy("a", "b")


def test_folders_take_one_request_however_much_lies_in_them(s3: ObjectServer) -> None:
    store = ObjectStore(s3.new_root("root"), s3.options)
    for name in ("a", "b"):
        for n in range(20):
            store.put(f"_savepoints/{name}/one/state/{n}", b"x")
    s3.requests.clear()
    assert store.folders("_savepoints/") == ["a", "b"]
    assert len(s3.requests) == 1
