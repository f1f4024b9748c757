"""Names and paths in a savepoint that somebody else has made: none leads out of its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.errors import CorruptError, UsageError
from stateflow.format.records import FileRef, Savepoint, StateSchema, TableFile, decode, encode
from stateflow.savepoints.format import list_savepoints, read_savepoint, verify_savepoint
from stateflow.storage.files import inline
from stateflow.storage.store import checked_path
from tests.jobs.files import objects
from tests.jobs.snapshots import checkpoint, claim, dispose, native
from tests.memory_store import MemoryStore
from tests.refusals.refusal import refused

LEADING_OUT = (
    "/etc/passwd",
    "../x",
    "..",
    ".",
    "a/../../x",
    "a/./x",
    "a//x",
    "/",
    "a/",
    "x\n",
    "a\\..\\x",
    "a\0b",
)
NO_PATHS = (*(text for text in LEADING_OUT if text != "x\n"), "state/.tmp-x")
OWN_NAMES = (
    "000007.sst",
    "CURRENT",
    "MANIFEST-000004",
    "entries.bin",
    "0/7.compact",
    "part-0.parquet",
    "..a",
)

Change = Callable[[Savepoint], Savepoint]


@pytest.fixture
def saved(tmp_path: Path) -> MemoryStore:
    root, target = MemoryStore("root"), MemoryStore("root")
    native(root, checkpoint(root), target, tmp_path)
    return target


def with_file(**changes: Any) -> Change:
    """The first state file of the savepoint, changed."""

    def change(made: Savepoint) -> Savepoint:
        operator = made.record.operators["balance"]
        shard = operator.shards[0][0]
        files = (msgspec.structs.replace(shard.files[0], **changes), *shard.files[1:])
        shards = ((msgspec.structs.replace(shard, files=files),),)
        return with_record(made, operators={"balance": msgspec.structs.replace(operator, shards=shards)})

    return change


def with_record(made: Savepoint, **changes: Any) -> Savepoint:
    return msgspec.structs.replace(made, record=msgspec.structs.replace(made.record, **changes))


def with_source(**changes: Any) -> Change:
    def change(made: Savepoint) -> Savepoint:
        source = made.record.sources["events"]
        files = (msgspec.structs.replace(source.files[0], **changes),)
        return with_record(made, sources={"events": msgspec.structs.replace(source, files=files)})

    return change


def with_table(operator: str = "balance", state: str = "total", **changes: Any) -> Change:
    file = TableFile(
        **{"path": "tables/balance/total/g00000-x.parquet", "size": 0, "xxh3": "00", "rows": 0} | changes
    )
    return lambda made: msgspec.structs.replace(made, tables={operator: {state: (file,)}})


def with_operator(uid: str) -> Change:
    return lambda made: with_record(made, operators={uid: made.record.operators["balance"]})


def with_state(name: str) -> Change:
    def change(made: Savepoint) -> Savepoint:
        states = {name: StateSchema(1, "value", "float")}
        operator = msgspec.structs.replace(made.record.operators["balance"], states=states)
        return with_record(made, operators={"balance": operator})

    return change


EVIL: dict[str, Change] = {
    **{f"state file {text!r}": with_file(name=text) for text in (*LEADING_OUT, "", "a b", "ä")},
    **{f"source file {text!r}": with_source(name=text) for text in LEADING_OUT},
    **{f"path {text!r}": with_file(path=text) for text in NO_PATHS},
    **{f"source path {text!r}": with_source(path=text) for text in NO_PATHS},
    **{f"table {text!r}": with_table(path=text) for text in NO_PATHS},
    **{f"operator {text!r}": with_operator(text) for text in ("", "..", "a/b", "a\\b", ".tmp-x")},
    **{f"state {text!r}": with_state(text) for text in ("", "..", "a/b", "a\\b", ".tmp-x")},
    **{f"table of {text!r}": with_table(operator=text) for text in ("..", "a/b")},
    **{f"table of state {text!r}": with_table(state=text) for text in ("..", "a/b")},
    "inline": lambda made: with_file(**{f: getattr(inline("../x", b"mine"), f) for f in ("name", "data", "path")})(made),
    # The cache of a host names its entries by them.
    "checksum": with_file(xxh3="../../home/x/notes"),
    "table's checksum": with_table(xxh3="../../home/x/notes"),
}  # fmt: skip


@pytest.mark.parametrize("evil", EVIL)
def test_a_name_that_leads_out_is_refused_whatever_is_done_with_the_savepoint(
    evil: str, saved: MemoryStore
) -> None:
    body = encode(EVIL[evil](read_savepoint(saved)))
    saved.put("_metadata", body)
    before = objects(saved)
    for call in (lambda: read_savepoint(saved), lambda: claim(saved), lambda: dispose(saved)):
        with refused(CorruptError, "may lead out of its folder", "use another one") as error:
            call()
        assert "\n" not in str(error.value)
    for deep in (False, True):
        assert ["may lead out of its folder" in f.text for f in verify_savepoint(saved, deep=deep)] == [True]
    assert objects(saved) == before
    root = MemoryStore("all", {"_savepoints/orders/one/_metadata": body})
    [(_, listed)] = list_savepoints(root)
    assert listed.savepoint is None
    assert "may lead out of its folder" in listed.problem


@pytest.mark.parametrize("changes", [{"size": -1}, {"offset": -1}])
def test_no_file_begins_before_its_container_or_has_less_than_nothing(
    changes: dict[str, int], saved: MemoryStore
) -> None:
    saved.put("_metadata", encode(with_file(**changes)(read_savepoint(saved))))
    with refused(CorruptError, "_metadata", "fields of a Savepoint", ">= 0"):
        read_savepoint(saved)


WITHOUT_CHECKSUM: dict[str, Change] = {
    "state file": with_file(xxh3=""),
    "state inside the record": lambda made: with_file(path="", data=b"x", size=1, xxh3="")(made),
    "source file": with_source(xxh3=""),
    "table": with_table(xxh3=""),
}


@pytest.mark.parametrize("what", WITHOUT_CHECKSUM)
def test_a_savepoint_that_leaves_out_a_checksum_is_refused(what: str, saved: MemoryStore) -> None:
    saved.put("_metadata", encode(WITHOUT_CHECKSUM[what](read_savepoint(saved))))
    before = objects(saved)
    for call in (lambda: read_savepoint(saved), lambda: claim(saved), lambda: dispose(saved)):
        with refused(CorruptError, "_metadata", "fields of a Savepoint", "xxh3"):
            call()
    assert objects(saved) == before


@pytest.mark.parametrize("name", OWN_NAMES)
def test_names_that_are_written_are_read(name: str) -> None:
    ref = FileRef(name, 0, "0f", path="größe/b c/" + name)
    assert decode(encode(ref), FileRef, "p") == ref


@pytest.mark.parametrize("path", [*NO_PATHS, "a", "a/b", "a b/ä", "a/.b", "..a/b..", "x\n"])
def test_a_record_names_the_paths_that_a_store_takes(path: str) -> None:
    def accepted(check: Callable[[], object]) -> bool:
        try:
            check()
        except (CorruptError, UsageError):
            return False
        return True

    ref = FileRef("a", 1, "00", path=path)
    assert accepted(lambda: checked_path(path)) == accepted(lambda: decode(encode(ref), FileRef, "p"))
