"""The store that tests crash, tear and branch."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.errors import StateflowError
from stateflow.storage.store import Entry
from tests.memory_store import Call, CrashError, MemoryStore


def test_every_call_is_recorded_in_order_and_a_delete_of_many_is_many(tmp_path: Path) -> None:
    store = MemoryStore()
    (tmp_path / "f").write_bytes(b"file")
    store.create("a", b"1")
    store.put("b", b"2")
    store.upload(tmp_path / "f", "c")
    store.read("a")
    store.list("")
    store.copy("c", "d")
    store.read_range("d", 0, 2)
    store.folders("")
    store.delete(["a", "b"])
    assert [(c.verb, c.path, c.body) for c in store.calls] == [
        ("create", "a", b"1"),
        ("put", "b", b"2"),
        ("upload", "c", b"file"),
        ("read", "a", b""),
        ("list", "", b""),
        ("copy", "d", b""),
        ("range", "d", b""),
        ("list", "", b""),
        ("delete", "a", b""),
        ("delete", "b", b""),
    ]
    assert [c.number for c in store.calls if c.writes] == [0, 1, 2, 5, 8, 9]


@pytest.mark.parametrize("verb", ["create", "put", "delete"])
def test_a_crash_before_a_call_leaves_no_trace_and_one_after_it_does(verb: str) -> None:
    def crash(call: Call) -> None:
        raise CrashError

    for applied in (False, True):
        store = MemoryStore(objects={"gone": b"1"})
        store.before, store.after = (None, crash) if applied else (crash, None)
        arguments = (["gone"],) if verb == "delete" else ("new", b"2")
        with pytest.raises(CrashError):
            getattr(store, verb)(*arguments)
        content = {"delete": {}}.get(verb, {"gone": b"1", "new": b"2"}) if applied else {"gone": b"1"}
        assert store.snapshot() == content


def test_a_crash_is_not_caught_by_what_handles_errors() -> None:
    assert not issubclass(CrashError, Exception)
    assert not issubclass(CrashError, StateflowError)


def test_branches_do_not_see_each_other() -> None:
    store = MemoryStore(objects={"a": b"1"})
    store.before = lambda call: None
    branch = store.clone()
    branch.put("b", b"2")
    assert store.snapshot() == {"a": b"1"}
    assert (branch.calls[0].number, branch.before, branch.url) == (0, None, store.url)
    before = branch.snapshot()
    branch.delete(["a"])
    branch.restore(before)
    assert branch.snapshot() == {"a": b"1", "b": b"2"}


def test_a_listing_can_be_torn() -> None:
    store = MemoryStore(objects={"a": b"1", "b": b"22", "c": b"3"})
    store.tear = lambda call, entries: [e for e in entries if e.path != "b"]
    assert store.list("") == [Entry("a", 1), Entry("c", 1)]
    store.tear = None
    assert store.list("b") == [Entry("b", 2)]
