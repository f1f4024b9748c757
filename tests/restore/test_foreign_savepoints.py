"""Savepoints that came from elsewhere, or lie in folders of any name, through the commands that people use."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.format.records import FileRef, Owner, Savepoint, encode
from stateflow.format.references import references
from stateflow.jobs.job import Job
from stateflow.jobs.savepoints import dispose_expired
from stateflow.reading.snapshots import reader_context, savepoint_reader
from stateflow.savepoints.format import (
    list_savepoints,
    read_savepoint,
    read_savepoint_claim,
    verify_savepoint,
)
from stateflow.storage.files import inline
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.roots import FOR_TESTS, open_store
from tests.fake_hdfs import FakeHdfs
from tests.jobs.builder import options_of
from tests.jobs.files import stored
from tests.jobs.made import PARAMETERS, made_job, orders_pipeline
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.refusals.refusal import refused
from tests.storage.forging import twin

ODD = ("release#2", "what?", "team%20a", "100%", "a b ä+&;=~")


def made(root: Path, run: str = "run") -> Job:
    return made_job(root, run=run, watermark=77).opened()


def plain(name: str) -> str:
    """The folder that a careless reader of the name would open."""
    return name.partition("#")[0].partition("?")[0].replace("%20", " ")


@pytest.mark.parametrize(
    "name", [str, lambda victim: f"../../../home/{victim.name}"], ids=["absolute", "relative"]
)
def test_a_query_of_a_savepoint_writes_no_file_that_its_maker_has_chosen(
    name: object, tmp_path: Path
) -> None:
    made = QueriedJob(tmp_path / "root")
    made.checkpoint(entries_of(filled(*range(1, 40))))
    folder = str(tmp_path / "sp")
    made.opened().savepoint("native", options=made.options(inline_threshold="0"), to=folder)
    victim = tmp_path / "home" / "authorized_keys"
    victim.parent.mkdir()
    victim.write_text("mine\n")
    store = open_store(folder)
    savepoint = read_savepoint(store)
    operator = savepoint.record.operators["balance"]
    assert callable(name)
    evil = inline(name(victim), b"theirs\n")
    shards = tuple(
        tuple(msgspec.structs.replace(shard, files=(evil, *shard.files)) for shard in task)
        for task in operator.shards
    )
    record = msgspec.structs.replace(
        savepoint.record, operators={"balance": msgspec.structs.replace(operator, shards=shards)}
    )
    store.put("_metadata", encode(msgspec.structs.replace(savepoint, record=record)))
    place = reader_context(made.options(inline_threshold="0"), str(tmp_path / "root"), made.clock)
    with (
        refused(CorruptError, "may lead out of its folder"),
        savepoint_reader(place, folder) as reader,
    ):
        reader.look_up("balance", "total", 7)
    assert victim.read_text() == "mine\n"


@pytest.mark.parametrize("mode", ["claim", "no-claim"])
@pytest.mark.parametrize("linked", ["file", "folder"])
@pytest.mark.parametrize("disk", ["same", "other"])
def test_a_restore_takes_nothing_that_the_savepoint_s_links_point_to(
    disk: str, linked: str, mode: str, tmp_path: Path, other_disk: Path
) -> None:
    root, folder = tmp_path / "root", (tmp_path if disk == "same" else other_disk) / "sp"
    savepoint = made(root).savepoint("native", options=options_of(root), to=str(folder))
    secrets = tmp_path / "secrets"
    at = folder / "state"
    if linked == "folder":
        shutil.move(at, secrets)
        at.symlink_to(secrets)
    else:
        secrets.mkdir()
        for file in list(at.iterdir()):
            shutil.move(file, secrets / file.name)
            file.symlink_to(secrets / file.name)
    before = {file.name: file.read_bytes() for file in secrets.iterdir()}
    given = {**PARAMETERS, "output": "/data/copy"}
    job = Job(str(root), "copy")
    with refused(CorruptError, "symbolic link"):
        job.restore(
            savepoint.url, orders_pipeline(), given, options=options_of(root), claim_mode=mode
        ).apply()
    with refused(CorruptError, "symbolic link"):
        raise CorruptError("; ".join(f.text for f in verify_savepoint(open_store(savepoint.url), deep=True)))
    assert [file for file in (root / "copy").rglob("shared/*") if file.read_bytes() in before.values()] == []
    assert {file.name: file.read_bytes() for file in secrets.iterdir()} == before


def test_a_file_that_is_copied_has_the_checksum_that_was_recorded(tmp_path: Path, other_disk: Path) -> None:
    root = tmp_path / "root"
    savepoint = made(root).savepoint("native", options=options_of(root), to=str(other_disk / "sp"))
    for file in (other_disk / "sp/state").iterdir():
        file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    given = {**PARAMETERS, "output": "/data/copy"}
    with pytest.raises(CorruptError, match="size and checksum that were recorded"):
        Job(str(root), "copy").restore(
            savepoint.url, orders_pipeline(), given, options=options_of(root)
        ).apply()


def test_a_file_that_is_copied_has_the_sha256_that_was_recorded(tmp_path: Path, other_disk: Path) -> None:
    root = tmp_path / "root"
    savepoint = made(root).savepoint("native", options=options_of(root), to=str(other_disk / "sp"))
    ours, place = b"the balance of this user is 1000", open_store(savepoint.url)
    extra = stored(place, "state/extra.sst", ours)
    read = read_savepoint(place)
    node = read.record.operators["balance"]
    shards = tuple(
        tuple(msgspec.structs.replace(shard, files=(*shard.files, extra)) for shard in task)
        for task in node.shards
    )
    operators = {**read.record.operators, "balance": msgspec.structs.replace(node, shards=shards)}
    record = msgspec.structs.replace(read.record, operators=operators)
    place.put("_metadata", encode(msgspec.structs.replace(read, record=record)))
    plan = Job(str(root), "copy").restore(
        savepoint.url, orders_pipeline(), {**PARAMETERS, "output": "/data/copy"}, options=options_of(root)
    )
    (other_disk / "sp/state/extra.sst").write_bytes(twin(ours, b"it is 1000000000"))
    with pytest.raises(CorruptError, match="size and checksum that were recorded"):
        plan.apply()


@pytest.mark.parametrize("name", ODD)
def test_a_claim_takes_the_savepoint_that_was_named_and_no_other(name: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    job = made(root)
    beside = plain(name)
    for folder in {beside, name}:
        job.savepoint("native", options=options_of(root), to=str(tmp_path / folder))
    job.restore(
        str(tmp_path / name), orders_pipeline(), PARAMETERS, options=options_of(root), claim_mode="claim"
    ).apply()
    claims = {folder: read_savepoint_claim(open_store(str(tmp_path / folder))) for folder in {beside, name}}
    assert [folder for folder, claim in claims.items() if claim is not None] == [name]
    assert [f for f in job.verify(deep=True) if f.severity == "error"] == []


def test_a_savepoint_that_no_record_of_the_job_may_name_is_copied_and_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs = FakeHdfs()
    monkeypatch.setitem(FOR_TESTS, "hdfs", lambda name: HdfsStore(f"hdfs://{name}", {}, web=hdfs))
    root = tmp_path / "root"
    job = made(root)
    url = job.savepoint("native", options=options_of(root, inline_threshold="0"), to="hdfs://nn/sp/one").url

    def restored(mode: Literal["claim", "no-claim"]) -> None:
        job.restore(url, orders_pipeline(), PARAMETERS, options=options_of(root), claim_mode=mode).apply()

    with refused(UsageError, "'orders'", "hdfs://nn/sp/one", "--claim-mode no-claim"):
        restored("claim")
    assert read_savepoint_claim(open_store(url)) is None
    restored("no-claim")
    head = job.log().head
    assert head is not None
    assert head.kind == "restore"
    assert {ref.base for ref in references(head)} == {""}
    assert job.verify(deep=True) == []


@pytest.mark.parametrize("name", ODD)
def test_what_is_expired_in_one_root_is_not_disposed_of_in_another(name: str, tmp_path: Path) -> None:
    over = datetime.timedelta(microseconds=1)
    roots = {folder: made(tmp_path / folder / "chk") for folder in {plain(name), name}}
    for folder, job in roots.items():
        expires = over if folder == name else None
        job.savepoint("native", options=options_of(tmp_path / folder / "chk"), name="daily", expires=expires)
    assert len(dispose_expired(roots[name])) == 1
    left = {
        folder: (tmp_path / folder / "chk/_savepoints/orders/daily/_metadata").exists() for folder in roots
    }
    assert left == {folder: folder != name for folder in roots}


def forged(url: str, change: Callable[[Savepoint], Savepoint]) -> None:
    store = open_store(url)
    store.put("_metadata", encode(change(read_savepoint(store))))


def with_file(savepoint: Savepoint, ref: FileRef) -> Savepoint:
    operator = savepoint.record.operators["balance"]
    shards = tuple(
        tuple(msgspec.structs.replace(shard, files=(*shard.files, ref)) for shard in task)
        for task in operator.shards
    )
    record = msgspec.structs.replace(
        savepoint.record, operators={"balance": msgspec.structs.replace(operator, shards=shards)}
    )
    return msgspec.structs.replace(savepoint, record=record)


def test_a_place_that_the_savepoint_s_maker_wrote_beside_inline_bytes_is_not_taken_over(
    tmp_path: Path,
) -> None:
    job = made(tmp_path / "root")
    url = job.savepoint(options=options_of(tmp_path / "root"), to=str(tmp_path / "theirs")).url
    alias = msgspec.structs.replace(inline("x.sst", b"hi"), base=f"file://{tmp_path}/precious/.")
    forged(url, lambda savepoint: with_file(savepoint, alias))
    job.restore(url, orders_pipeline(), PARAMETERS, options=options_of(tmp_path / "root")).apply()
    head = job.log().head
    assert head is not None
    assert {ref.base for ref in references(head)} == {""}


def test_a_savepoint_that_names_files_elsewhere_is_refused_by_whoever_reads_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    job = made(root)
    url = job.savepoint(options=options_of(root), name="theirs").url
    elsewhere = FileRef("x.sst", 2, "0" * 16, "state/x", base=f"file://{tmp_path}/precious")
    forged(url, lambda savepoint: with_file(savepoint, elsewhere))
    for read in (
        lambda: read_savepoint(open_store(url)),
        lambda: job.restore(url, orders_pipeline(), PARAMETERS, options=options_of(root)),
        lambda: job.restore(url, orders_pipeline(), PARAMETERS, options=options_of(root), claim_mode="claim"),
        lambda: savepoint_reader(reader_context(options_of(root), str(root), lambda: 0), url).__enter__(),
    ):
        with refused(CorruptError, "outside of its savepoint", "'file:", "/precious'"):
            read()
    # A listing and a check name it, and go on.
    ((_, listed),) = list_savepoints(open_store(str(root)), "orders")
    assert "names files outside of its savepoint" in listed.problem
    (finding,) = verify_savepoint(open_store(url), deep=True)
    assert "names files outside of its savepoint" in finding.text


def test_numbers_that_nobody_could_read_again_are_not_written_and_the_job_goes_on(tmp_path: Path) -> None:
    job = made(tmp_path / "root")
    url = job.savepoint(options=options_of(tmp_path / "root"), to=str(tmp_path / "theirs")).url
    far = {"slot": 100, "shift": 1 << 53}
    forged(url, lambda s: msgspec.structs.replace(s, record=msgspec.structs.replace(s.record, **far)))
    shared = tmp_path / "root" / "orders" / "shared"
    before = sorted(shared.iterdir())
    with refused(IncompatibleError, "was not written", "nobody could read it"):
        job.restore(url, orders_pipeline(), PARAMETERS, options=options_of(tmp_path / "root")).apply()
    assert sorted(shared.iterdir()) == before
    again = job.restore(
        "checkpoint:4", orders_pipeline(), PARAMETERS, options=options_of(tmp_path / "root")
    ).apply()
    assert again.timeline == 2


def test_a_job_that_is_made_after_the_plan_does_not_get_the_savepoint_s_parameters(tmp_path: Path) -> None:
    job = made(tmp_path / "root")
    url = job.savepoint(options=options_of(tmp_path / "root"), to=str(tmp_path / "theirs")).url
    elsewhere = {**PARAMETERS, "output": "/elsewhere"}
    forged(
        url,
        lambda s: msgspec.structs.replace(
            s, job="x", targets={}, record=msgspec.structs.replace(s.record, parameters=elsewhere)
        ),
    )
    plan = Job(str(tmp_path / "root"), "copy").restore(
        url, orders_pipeline(), {}, options=options_of(tmp_path / "root")
    )
    made_job(tmp_path / "root", "copy", batches=1)
    with refused(UsageError, "created or replaced", "was planned"):
        plan.apply()
    head = Job(str(tmp_path / "root"), "copy").log().head
    assert head is not None
    assert head.parameters == PARAMETERS


def test_a_savepoint_that_calls_its_job_what_no_job_can_be_called_is_restored(tmp_path: Path) -> None:
    job = made(tmp_path / "root")
    url = job.savepoint(options=options_of(tmp_path / "root"), to=str(tmp_path / "theirs")).url
    forged(url, lambda s: msgspec.structs.replace(s, job="orders, of / before", targets={}))
    restored = Job(str(tmp_path / "root"), "copy")
    restored.restore(url, orders_pipeline(), PARAMETERS, options=options_of(tmp_path / "root")).apply()
    assert restored.log().head is not None


def test_the_key_of_a_restore_that_is_done_disposes_of_no_other_savepoint(tmp_path: Path) -> None:
    job = made(tmp_path / "root")
    task = Owner(run="the task")
    given = {"options": options_of(tmp_path / "root"), "owner": task}
    job.restore("checkpoint:2", orders_pipeline(), PARAMETERS, **given).apply()
    url = job.savepoint(options=options_of(tmp_path / "root"), to=str(tmp_path / "precious")).url
    before = sorted((tmp_path / "precious").rglob("*"))
    job.restore(url, orders_pipeline(), PARAMETERS, claim_mode="claim", **given).apply()
    assert sorted((tmp_path / "precious").rglob("*")) == before
