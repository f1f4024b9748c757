"""Where savepoints may lie, and how records name those in their own root."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log import read_log
from stateflow.errors import UsageError
from stateflow.format.layout import JobLayout
from stateflow.format.references import as_read, as_stored, path_inside, references
from stateflow.savepoints.location import require_fit, require_outside
from stateflow.storage.roots import open_store
from tests.jobs.builder import JobBuilder
from tests.jobs.files import stored
from tests.jobs.snapshots import checkpoint
from tests.memory_store import MemoryStore
from tests.refusals.refusal import refused

ROOT = "s3://bucket/team"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://bucket/team/_savepoints/orders/v1", "_savepoints/orders/v1"),
        ("s3://bucket/team/_savepoints/orders/v1/", "_savepoints/orders/v1"),
        ("s3://bucket/team/", ""),
        ("s3://bucket/teams/v1", None),
        ("s3://bucket", None),
        ("s3a://bucket/team/v1", None),
    ],
)
def test_a_place_is_inside_a_root_by_whole_names(url: str, path: str | None) -> None:
    assert path_inside(url, ROOT) == path
    assert path_inside(url, f"{ROOT}/") == path


def test_a_record_stores_the_path_of_a_savepoint_in_its_root_and_reads_a_url() -> None:
    root = MemoryStore("root")
    own, other = f"{root.url}/_savepoints/orders/v1", "s3://elsewhere/v1"
    saved = MemoryStore("saved")
    within = stored(saved, "state/a-000001.sst", b"state", base=own)
    without = stored(saved, "state/a-000002.sst", b"state", base=other)
    record = checkpoint(root, extra=(within, without))
    kept = as_stored(record, root.url)
    assert {ref.base for ref in references(kept)} == {"", "_savepoints/orders/v1", other}
    assert as_read(kept, root.url) == record
    assert kept.sinks == record.sinks
    assert {ref.base for ref in references(as_read(kept, "s3://moved"))} == {
        "",
        "s3://moved/_savepoints/orders/v1",
        other,
    }
    plain = checkpoint(root)
    assert as_stored(plain, root.url) is plain
    assert as_read(plain, root.url) is plain
    # The root itself has no path in there, and no name would mean a file of the job's own.
    at_top = checkpoint(root, extra=(msgspec.structs.replace(within, base=root.url),))
    assert as_stored(at_top, root.url) is at_top


def test_a_log_tells_urls_wherever_its_root_is_moved_to() -> None:
    root, layout = MemoryStore("root"), JobLayout("orders")
    file = stored(
        MemoryStore("saved"), "state/a-000001.sst", b"state", base=f"{root.url}/_savepoints/orders/v1"
    )
    made = checkpoint(root, extra=(file,))
    slot = JobBuilder(root, retained=1).decide(operators=made.operators).slot
    assert b'"base":"_savepoints/orders/v1"' in root.read(layout.pending(slot))
    moved = MemoryStore("moved", root.snapshot())
    for store in (root, moved):
        head = read_log(store, layout).head
        assert head is not None
        assert {ref.base for ref in references(head) if ref.base} == {f"{store.url}/_savepoints/orders/v1"}


class TestFit:
    def is_job(self, folder: str) -> bool:
        return folder in ("orders", "fraud")

    @pytest.mark.parametrize(
        "url",
        [
            "s3://elsewhere/v1",
            "s3://bucket/teams",
            "s3://bucket/team/_savepoints/orders/v1",
            "s3://bucket/team/backups/orders-v1",
        ],
    )
    def test_outside_of_the_root_in_its_default_place_or_in_a_folder_that_is_nobody_s(self, url: str) -> None:
        require_fit(url, ROOT, "orders", self.is_job)
        require_fit(url, "", "orders", self.is_job)

    @pytest.mark.parametrize(
        "url",
        [
            ROOT,
            f"{ROOT}/",
            f"{ROOT}/orders",
            f"{ROOT}/orders/savepoints/v1",
            f"{ROOT}/fraud/v1",
            f"{ROOT}/new/v1",
            f"{ROOT}/_savepoints",
            f"{ROOT}/_savepoints/v1",
            f"{ROOT}/_savepoints/fraud/v1",
            f"{ROOT}/_savepoints/orders/v1/again",
            f"{ROOT}/_savepoints/orders/.v1",
            f"{ROOT}/_other/v1",
        ],
    )
    def test_not_where_it_would_go_with_something_else(self, url: str) -> None:
        job = "new" if "/new/" in url else "orders"
        named = "'.v1' is not usable" if url.endswith("/.v1") else f"or {ROOT}/_savepoints/{job}/NAME"
        with refused(UsageError, named):
            require_fit(url, ROOT, job, self.is_job)

    @pytest.mark.parametrize(
        ("url", "root"),
        [
            ("s3a://bucket/team/orders/v1", ROOT),
            ("s3n://bucket/team/_savepoints/fraud/v1/", ROOT),
            ("S3://bucket/team", "s3a://bucket/team/"),
            ("webhdfs://node:9870/team/orders/v1", "hdfs://node:8020/team"),
            ("hdfs:/team/orders/v1", "hdfs://node/team"),
            ("abfss://box@account.dfs.core.windows.net/team/fraud", "az://box/team"),
        ],
    )
    def test_nor_there_by_another_spelling(self, url: str, root: str) -> None:
        with refused(UsageError, url, root):
            require_fit(url, root, "orders", self.is_job)
        with refused(UsageError, url, root):
            require_outside(url, root, self.is_job)

    @pytest.mark.parametrize(
        ("url", "root"),
        [
            ("s3a://buckets/team/orders/v1", ROOT),
            ("gs://bucket/team/orders/v1", ROOT),
            ("hdfs://other/team/orders/v1", "hdfs://node/team"),
            ("az://box@other/team/fraud", "az://box@account/team"),
            ("/bucket/team/orders/v1", ROOT),
        ],
    )
    def test_other_buckets_and_hosts_are_elsewhere(self, url: str, root: str) -> None:
        require_fit(url, root, "orders", self.is_job)
        require_outside(url, root, self.is_job)

    def test_what_is_no_url_is_named(self) -> None:
        with refused(UsageError, "s3://[bucket/v1", "s3://bucket/folder"):
            require_outside("s3://[bucket/v1", ROOT, self.is_job)

    def test_links_are_followed_on_both_sides(self, tmp_path: Path) -> None:
        (tmp_path / "root/orders").mkdir(parents=True)
        (tmp_path / "link").symlink_to("root")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "root/orders/out").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "root/free").symlink_to("orders")
        real, link = (open_store(str(tmp_path / name)).url for name in ("root", "link"))
        for url, root in (
            (f"{link}/orders/keep", real),
            (f"{real}/orders/keep", link),
            (f"{real}/orders/out/keep", real),
            (f"{real}/free/keep", real),
        ):
            with refused(UsageError, url, root):
                require_fit(url, root, "orders", self.is_job)
            with refused(UsageError, url, root):
                require_outside(url, root, self.is_job)
        for url, root in ((f"{link}/_savepoints/orders/v1", real), (f"{real}/backups/v1", link)):
            require_fit(url, root, "orders", self.is_job)
