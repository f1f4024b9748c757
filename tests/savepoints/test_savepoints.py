"""Savepoints from outside: reading, listing, checking."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stateflow.errors import (
    CorruptError,
    IncompatibleError,
    NotFoundError,
    UnavailableError,
)
from stateflow.format import records
from stateflow.format.records import SavepointClaim, TableFile, encode
from stateflow.format.references import references
from stateflow.savepoints.format import (
    expired,
    list_savepoints,
    read_savepoint,
    resolved,
    verify_savepoint,
)
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Store
from tests.jobs.files import objects, stored
from tests.jobs.snapshots import DEAD, JOB, SOMEBODY, checkpoint, claim, dispose, native
from tests.memory_store import Call, MemoryStore
from tests.protocol.scenario import World, drain
from tests.refusals.refusal import refused
from tests.servers import ObjectServer


class TestReading:
    def test_where_there_is_none_it_is_not_found(self) -> None:
        with refused(NotFoundError, "no savepoint in memory://empty", "_metadata"):
            read_savepoint(MemoryStore("empty"))

    def test_damage_and_newer_formats_are_named(
        self, saved: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = read_savepoint(saved)
        with monkeypatch.context() as patch:
            patch.setattr(records, "FORMAT", 2)
            newer = encode(made)
        saved.put("_metadata", newer)
        with refused(IncompatibleError, "memory://saved/_metadata", "format 2"):
            read_savepoint(saved)
        saved.put("_metadata", b"rubbish")
        with refused(CorruptError, "memory://saved/_metadata", "not a stateflow record"):
            read_savepoint(saved)

    def test_a_checkpoint_is_no_savepoint(self) -> None:
        world = World(MemoryStore())
        drain(1)(world)
        folder = world.layout.slot(world.log().chain[-1].slot)
        store = MemoryStore("chk", {"_metadata": world.store.read(f"{folder}_metadata")})
        for call in (lambda: read_savepoint(store), lambda: dispose(store), lambda: claim(store)):
            with pytest.raises(CorruptError, match="does not have the fields of a Savepoint"):
                call()
        assert list(objects(store)) == ["_metadata"]

    def test_resolved_its_files_are_found_from_anywhere(self, saved: MemoryStore) -> None:
        made = read_savepoint(saved)
        taken = resolved(made, "s3://bucket/saved/")
        assert [(r.base, r.path) for r in references(taken)] == [
            ("s3://bucket/saved" if r.path else "", r.path) for r in references(made.record)
        ]

    def test_it_expires_at_a_moment_or_never(self, saved: MemoryStore) -> None:
        made = read_savepoint(saved)
        assert not expired(made, 10**18)
        passing = msgspec.structs.replace(made, expires=100)
        assert [expired(passing, now) for now in (99, 100, 101)] == [False, True, True]


class TestListing:
    @pytest.fixture(params=["local", "memory", "s3"])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        if request.param == "local":
            return LocalStore(tmp_path / "root")
        if request.param == "memory":
            return MemoryStore("root")
        server: ObjectServer = request.getfixturevalue("s3")
        from stateflow.storage.roots import open_store

        return open_store(server.new_root("root"), server.options)

    def fill(self, root: Store, saved: MemoryStore) -> None:
        """Sound: orders/a, fraud/b. Damaged: orders/d. Half: orders/h. Going: orders/g. Claimed: orders/c."""
        body = saved.read("_metadata")
        for path, content in {
            "orders/job": b"",
            "_savepoints/orders/a/_metadata": body,
            "_savepoints/orders/a/state/x-000001.sst": b"x",
            "_savepoints/fraud/b/_metadata": body,
            "_savepoints/orders/d/_metadata": body[:-7],
            f"_savepoints/orders/h/state/{DEAD}-000001.sst": b"x",
            "_savepoints/orders/g/_claimed": encode(SavepointClaim(job="", owner=SOMEBODY, savepoint="s")),
            "_savepoints/orders/c/_metadata": body,
            "_savepoints/orders/c/_claimed": encode(
                SavepointClaim(job=JOB, name="orders", owner=SOMEBODY, savepoint="s")
            ),
            "_savepoints/orders/.hidden/_metadata": body,
        }.items():
            root.put(path, content)

    def test_a_root_without_any(self, root: Store) -> None:
        assert list_savepoints(root) == []
        assert list_savepoints(root, "orders") == []

    def test_the_whole_the_damaged_and_those_that_go_but_not_the_unfinished(
        self, root: Store, saved: MemoryStore
    ) -> None:
        self.fill(root, saved)
        found = dict(list_savepoints(root))
        assert list(found) == [
            f"_savepoints/{each}" for each in ("fraud/b", "orders/a", "orders/c", "orders/d", "orders/g")
        ]
        whole = [path for path, listed in found.items() if listed.savepoint == read_savepoint(saved)]
        assert whole == [f"_savepoints/{each}" for each in ("fraud/b", "orders/a", "orders/c")]
        claimed = found["_savepoints/orders/c"].claim
        assert claimed is not None
        assert claimed.name == "orders"
        assert found["_savepoints/orders/a"].claim is None
        damaged = found["_savepoints/orders/d"]
        assert "_savepoints/orders/d/_metadata is truncated" in damaged.problem
        going = found["_savepoints/orders/g"]
        assert (going.savepoint, going.problem) == (None, "it is being disposed of")
        assert [path for path, _ in list_savepoints(root, "fraud")] == ["_savepoints/fraud/b"]

    def test_no_state_file_is_listed_for_it(self, saved: MemoryStore) -> None:
        root = MemoryStore("root")
        self.fill(root, saved)
        root.calls.clear()
        list_savepoints(root, "orders")
        listed = {c.path for c in root.calls if c.verb == "list"}
        assert listed == {
            "_savepoints/orders/",
            *(f"_savepoints/orders/{name}/_" for name in ("a", "c", "d", "g", "h")),
        }

    def test_one_that_goes_while_it_is_looked_at_is_left_out(self, saved: MemoryStore) -> None:
        root = MemoryStore("root")
        self.fill(root, saved)

        def going(call: Call) -> None:
            if call.verb == "read" and "orders/a/" in call.path:
                root.before = None
                root.delete(["_savepoints/orders/a/_metadata"])

        root.before = going
        assert "_savepoints/orders/a" not in dict(list_savepoints(root))

    def test_a_store_out_of_reach_is_no_empty_list(self, saved: MemoryStore) -> None:
        root = MemoryStore("root")
        self.fill(root, saved)

        def refuse(call: Call) -> None:
            if call.verb == "read":
                raise UnavailableError("no route")

        root.before = refuse
        with refused(UnavailableError, "no route"):
            list_savepoints(root)


class TestVerifying:
    def texts(self, store: Store, *, deep: bool = False) -> list[tuple[str, str]]:
        return [(f.severity, f.text) for f in verify_savepoint(store, deep=deep)]

    def test_a_sound_one_has_no_findings(self, saved: MemoryStore) -> None:
        assert self.texts(saved, deep=True) == []
        with pytest.raises(NotFoundError):
            verify_savepoint(MemoryStore(), deep=False)

    def test_a_missing_a_truncated_and_a_changed_file(self, saved: MemoryStore) -> None:
        first, second, third = [path for path in objects(saved) if path.endswith(".sst")]
        saved.delete([first])
        saved.put(second, b"short")
        body = saved.read(third)
        saved.put(third, bytes([body[0] ^ 1]) + body[1:])
        shallow = self.texts(saved)
        assert [severity for severity, _ in shallow] == ["error"] * 2
        assert f"memory://saved/{first} is missing: restore it from a copy" in shallow[0][1]
        assert f"memory://saved/{second} has 5 bytes instead of 20" in shallow[1][1]
        deep = self.texts(saved, deep=True)
        assert len(deep) == 3
        assert f"memory://saved/{third} does not have the checksum" in deep[2][1]

    @pytest.mark.parametrize("damage", ["truncated", "flipped"])
    def test_a_damaged_container(self, damage: str, tmp_path: Path) -> None:
        root, target = MemoryStore("root"), MemoryStore("saved")
        native(root, checkpoint(root), target, tmp_path, max_files=1)
        (path,) = [path for path in objects(target) if path.endswith(".pack")]
        body = target.read(path)
        assert self.texts(target, deep=True) == []
        target.put(path, body[:-1] if damage == "truncated" else body[:-1] + b"X")
        assert len(self.texts(target)) == (1 if damage == "truncated" else 0)
        assert len(self.texts(target, deep=True)) == 1

    def test_bytes_kept_in_the_metadata_are_checked_too(self, saved: MemoryStore) -> None:
        made = read_savepoint(saved)
        shard = made.record.operators["balance"].shards[0][0]
        files = tuple(msgspec.structs.replace(f, data=b"X") if f.data else f for f in shard.files)
        operator = msgspec.structs.replace(
            made.record.operators["balance"], shards=((msgspec.structs.replace(shard, files=files),),)
        )
        changed = msgspec.structs.replace(made.record, operators={"balance": operator})
        saved.put("_metadata", encode(msgspec.structs.replace(made, record=changed)))
        ((severity, text),) = self.texts(saved)
        assert severity == "error"
        assert text.startswith("CURRENT (kept inside memory://saved) does not have the checksum")

    def test_damaged_metadata_is_a_finding(self, saved: MemoryStore) -> None:
        saved.put("_metadata", b"rubbish")
        ((severity, text),) = self.texts(saved)
        assert (severity, "_metadata is not a stateflow record" in text) == ("error", True)

    def test_tables_are_files_like_others(self, saved: MemoryStore) -> None:
        ref = stored(saved, f"tables/balance/total/g00000-{DEAD}.parquet", b"rows")
        file = TableFile(path=ref.path, size=ref.size, xxh3=ref.xxh3, rows=1)
        made = msgspec.structs.replace(
            read_savepoint(saved), kind="canonical", tables={"balance": {"total": (file,)}}
        )
        saved.put("_metadata", encode(made))
        assert self.texts(saved, deep=True) == []
        saved.put(ref.path, b"rowz")
        assert self.texts(saved) == []
        assert len(self.texts(saved, deep=True)) == 1
        assert dispose(saved) > 0
        assert objects(saved) == {}

    def test_what_a_failed_attempt_left_is_a_warning_and_a_disposal_an_error(
        self, saved: MemoryStore
    ) -> None:
        saved.put(f"state/{DEAD}-000001.sst", b"orphan")
        saved.put("state/README", b"somebody else's")
        ((severity, text),) = self.texts(saved)
        assert (severity, f"{DEAD}-000001.sst (6 bytes) is no part of" in text) == ("warning", True)
        saved.put("_claimed", encode(SavepointClaim(job="", owner=SOMEBODY, savepoint="s")))
        assert [s for s, _ in self.texts(saved)] == ["warning", "error"]

    def test_every_finding_is_one_sentence(self, saved: MemoryStore) -> None:
        saved.put(f"state/{DEAD}-000001.sst", b"orphan")
        saved.delete([path for path in objects(saved) if path.endswith(".sst") and DEAD not in path])
        found = self.texts(saved)
        assert len(found) > 2
        assert not [text for _, text in found if "\n" in text or text.endswith(".")]
