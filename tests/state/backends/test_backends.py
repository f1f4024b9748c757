"""What every backend does alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stateflow.config.options import load
from stateflow.errors import CorruptError
from stateflow.format.encoding import group_range, prefix, state_range
from stateflow.format.records import Shard
from stateflow.state.backends.choice import open_backend

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stateflow.state.backends.base import Backend

    Shelf = Any


def key(group: int, number: int, state: int = 1) -> bytes:
    return prefix(group, state) + number.to_bytes(8, "big")


def many(count: int, group: int = 3, value: bytes = b"v") -> list[tuple[bytes, bytes]]:
    return [(key(group, n), value + str(n).encode()) for n in range(count)]


def scanned(
    backend: Backend, begin: bytes = b"\0\0", end: bytes = b"\xff\xff\xff"
) -> list[tuple[bytes, bytes]]:
    return list(backend.scan(begin, end))


def fill(backend: Backend, entries: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in entries:
        backend.write([(name, value)])


def test_an_empty_shard_has_nothing_and_needs_no_file(shelf: Shelf) -> None:
    backend = shelf.open()
    assert backend.get(key(1, 1)) is None
    assert backend.get_many([key(1, 1), key(1, 2)]) == [None, None]
    assert backend.get_many([]) == []
    assert scanned(backend) == []
    assert shelf.seal(backend).files == ()


def test_reads_see_writes_at_once(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.write([(key(1, 1), b"first"), (key(1, 2), b"gone")])
    backend.write([(key(1, 1), b"second"), (key(1, 2), None), (key(1, 3), None)])
    assert backend.get(key(1, 1)) == b"second"
    assert backend.get(key(1, 2)) is None
    assert scanned(backend) == [(key(1, 1), b"second")]


def test_reads_see_writes_over_what_is_stored(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(5))
    backend = shelf.open(shelf.seal(before))
    backend.write([(key(3, 1), b"new"), (key(3, 2), None)])
    wanted = [key(3, n) for n in (0, 1, 2, 9)]
    assert list(backend.get_many(wanted)) == [b"v0", b"new", None, None]
    assert [backend.get(k) for k in wanted] == [b"v0", b"new", None, None]
    assert [value for _, value in scanned(backend)] == [b"v0", b"new", b"v3", b"v4"]


def test_an_empty_value_is_a_value(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.write([(key(1, 1), b"")])
    assert backend.get(key(1, 1)) == b""
    sealed = shelf.seal(backend)
    assert shelf.contents(sealed) == {key(1, 1): b""}


def test_write_applies_changes_in_order(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.write(iter([(key(1, 1), b"a"), (key(1, 1), None), (key(1, 2), b"b"), (key(1, 2), b"c")]))
    assert scanned(backend) == [(key(1, 2), b"c")]


def test_get_many_answers_in_the_order_of_the_keys(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(50))
    backend = shelf.open(shelf.seal(before))
    order = [key(3, n) for n in (40, 2, 2, 99, 17)]
    assert list(backend.get_many(order)) == [b"v40", b"v2", b"v2", None, b"v17"]


def test_a_scan_is_ordered_and_excludes_its_end(shelf: Shelf) -> None:
    backend = shelf.open()
    fill(backend, [(key(2, 7), b"x"), (key(1, 9), b"y"), (key(2, 1), b"z")])
    begin, end = state_range(2, 1)
    assert scanned(backend, begin, end) == [(key(2, 1), b"z"), (key(2, 7), b"x")]
    assert scanned(backend, key(2, 1), key(2, 7)) == [(key(2, 1), b"z")]
    assert scanned(backend, key(2, 7), key(2, 1)) == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_scan_runs_over_the_state_at_its_start(shelf: Shelf, stored: bool) -> None:
    backend = shelf.open()
    fill(backend, many(10))
    if stored:
        backend = shelf.open(shelf.seal(backend))
        backend.write([(key(3, 4), b"changed before")])
    seen = []
    for name, value in backend.scan(b"\0\0", b"\xff\xff"):
        seen.append(value)
        backend.write([(name, None), (name + b"!", b"added meanwhile")])
    expected = [f"v{n}".encode() for n in range(10)]
    if stored:
        expected[4] = b"changed before"
    assert seen == expected
    assert len(scanned(backend)) == 10


def test_a_scan_that_was_not_stepped_yet_does_not_see_later_writes(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(3))
    backend = shelf.open(shelf.seal(before))
    scan = backend.scan(b"\0\0", b"\xff\xff")
    backend.delete_range(b"\0\0", b"\xff\xff")
    fill(backend, many(9000, value=b"later"))
    assert [value for _, value in scan] == [b"v0", b"v1", b"v2"]


def test_state_survives_many_generations(shelf: Shelf) -> None:
    shard, expected = shelf.empty(), {}
    for generation in range(14):
        backend = shelf.open(shard)
        for number in range(generation, generation + 40):
            backend.write([(key(number % 5, number), b"%d" % generation)])
            expected[key(number % 5, number)] = b"%d" % generation
        backend.write([(key(generation % 5, generation), None)])
        expected.pop(key(generation % 5, generation))
        shard = shelf.seal(backend)
    assert shelf.contents(shard) == expected


def test_older_handles_stay_what_they_were(shelf: Shelf) -> None:
    shard, handles = shelf.empty(), []
    for generation in range(8):
        backend = shelf.open(shard)
        fill(backend, many(300, value=b"g%d-" % generation))
        backend.write([(key(9, generation), b"own")])
        shard = shelf.seal(backend)
        handles.append(shard)
    for generation, handle in enumerate(handles):
        contents = shelf.contents(handle)
        assert contents[key(3, 5)] == b"g%d-5" % generation
        assert len(contents) == 300 + generation + 1


def test_files_that_were_given_never_change(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(6000, value=b"x" * 40))
    sealed = shelf.seal(before)
    files = shelf.checksums()
    assert files
    for _ in range(3):
        backend = shelf.open(sealed)
        fill(backend, many(6000, value=b"y" * 40))
        backend.delete_range(*group_range(3, 3))
        backend.snapshot()
        backend.close()
    assert shelf.checksums() == files


def test_two_instances_of_one_handle_do_not_meet(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(500))
    sealed = shelf.seal(before)
    one, two = shelf.open(sealed), shelf.open(sealed)
    one.write([(key(3, 1), b"one")])
    two.write([(key(3, 1), b"two"), (key(3, 2), None)])
    first, second = shelf.seal(one), shelf.seal(two)
    assert shelf.contents(first)[key(3, 1)] == b"one"
    assert shelf.contents(second)[key(3, 1)] == b"two"
    assert key(3, 2) in shelf.contents(first)
    assert key(3, 2) not in shelf.contents(second)


def test_an_abandoned_instance_leaves_nothing_behind(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(500))
    sealed = shelf.seal(before)
    directory = shelf.directory()
    backend = shelf.open_shard(sealed, directory, shelf.fetch)
    fill(backend, many(9000, value=b"lost"))
    backend.close()
    backend.close()
    assert not directory.exists()
    assert shelf.contents(sealed) == dict(many(500))


def test_closing_after_a_snapshot_frees_the_directory(shelf: Shelf) -> None:
    directory = shelf.directory()
    backend = shelf.open_shard(shelf.empty(), directory, shelf.fetch)
    fill(backend, many(9000, value=b"x" * 30))
    snapshot = backend.snapshot()
    assert all(file.path is None or file.path.exists() for file in snapshot.new)
    backend.close()
    assert not directory.exists()


def test_a_batch_without_changes_keeps_the_handle(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(9000, value=b"x" * 30))
    sealed = shelf.seal(before)
    backend = shelf.open(sealed)
    assert backend.get(key(3, 1)) is not None
    snapshot = backend.snapshot()
    backend.close()
    assert snapshot.kept == sealed.files
    assert snapshot.new == ()


def test_a_small_state_travels_inside_the_record(shelf: Shelf) -> None:
    shard = shelf.empty()
    for _ in range(6):
        backend = shelf.open(shard)
        fill(backend, many(20))
        shard = shelf.seal(backend)
    assert shelf.uploaded == []
    assert shard.files
    assert all(ref.data is not None for ref in shard.files)


def test_a_state_that_was_emptied_stays_empty(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(700))
    backend = shelf.open(shelf.seal(before))
    for name, _ in many(700):
        backend.write([(name, None)])
    sealed = shelf.seal(backend)
    assert shelf.contents(sealed) == {}


@pytest.mark.parametrize("count", [10, 5000])
def test_what_is_put_after_a_deleted_range_stays(shelf: Shelf, count: int) -> None:
    before = shelf.open()
    fill(before, [*many(count), (key(4, 1), b"neighbour")])
    backend = shelf.open(shelf.seal(before))
    backend.write([(key(3, 5), b"buffered before"), (key(3, count + 7), b"buffered before, nothing stored")])
    backend.delete_range(*group_range(3, 3))
    assert backend.get(key(3, 5)) is None
    backend.write([(key(3, 6), b"after")])
    expected = [(key(3, 6), b"after"), (key(4, 1), b"neighbour")]
    assert scanned(backend) == expected
    assert list(shelf.contents(shelf.seal(backend)).items()) == expected


def test_a_deleted_range_excludes_its_end(shelf: Shelf) -> None:
    backend = shelf.open()
    fill(backend, many(4))
    backend.delete_range(key(3, 1), key(3, 3))
    backend.delete_range(key(3, 3), key(3, 0))
    assert [value for _, value in scanned(backend)] == [b"v0", b"v3"]


def test_values_of_many_megabytes(shelf: Shelf) -> None:
    backend = shelf.open()
    value = bytes(range(256)) * 20_000
    backend.write([(key(1, 1), value), (key(1, 2), b"small")])
    sealed = shelf.seal(backend)
    assert shelf.contents(sealed) == {key(1, 1): value, key(1, 2): b"small"}


def test_more_changes_than_the_buffer_holds(shelf: Shelf) -> None:
    backend = shelf.open()
    fill(backend, many(12_000, value=b"one"))
    fill(backend, many(12_000, value=b"two"))
    for number in range(0, 12_000, 3):
        backend.write([(key(3, number), None)])
    expected = {key(3, n): b"two%d" % n for n in range(12_000) if n % 3}
    assert dict(scanned(backend)) == expected
    assert shelf.contents(shelf.seal(backend)) == expected


def test_keys_that_are_written_again_and_again(shelf: Shelf) -> None:
    backend = shelf.open()
    for turn in range(600):
        for number in range(20):
            backend.write([(key(3, number), b"%d" % turn)])
    assert backend.get(key(3, 7)) == b"599"
    assert shelf.contents(shelf.seal(backend)) == {key(3, n): b"599" for n in range(20)}


def test_a_shard_that_was_split_shows_only_its_own_key_groups(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, [(key(group, n), b"v%d" % group) for group in range(128) for n in range(30)])
    whole = shelf.seal(before)
    parts = []
    for first, last in ((0, 40), (41, 86), (87, 127)):
        part = Shard(first, last, shelf.kind, whole.files, physical_first=0, physical_last=127)
        backend = shelf.open(part)
        groups = {int.from_bytes(name[:2], "big") for name, _ in scanned(backend)}
        assert groups == set(range(first, last + 1))
        backend.write([(key(first, 1), b"new")])
        assert backend.get(key((first + 64) % 128, 1)) is None
        parts.append(shelf.seal(backend, first, last))
    merged: dict[bytes, bytes] = {}
    for part in parts:
        merged |= shelf.contents(part)
    assert len(merged) == 128 * 30
    assert [merged[key(group, 1)] for group in (0, 41, 87)] == [b"new"] * 3


def test_a_split_shard_without_changes_is_clipped_for_good(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, [(key(group, n), b"v") for group in range(128) for n in range(30)])
    whole = shelf.seal(before)
    backend = shelf.open(
        msgspec.structs.replace(whole, first=10, last=20, physical_first=0, physical_last=127)
    )
    sealed = shelf.seal(backend, 10, 20)
    # The handle says nothing of a wider range any more.
    groups = {int.from_bytes(name[:2], "big") for name in shelf.contents(sealed)}
    assert groups == set(range(10, 21))


def test_the_last_key_group_of_all(shelf: Shelf) -> None:
    backend = shelf.open(shelf.empty(0, 32767))
    backend.write([(key(32767, 1), b"last")])
    begin, end = group_range(32767, 32767)
    assert scanned(backend, begin, end) == [(key(32767, 1), b"last")]


def test_a_used_up_instance_says_so(shelf: Shelf) -> None:
    backend = shelf.open()
    backend.snapshot()
    with pytest.raises(RuntimeError, match="snapshotted or closed"):
        backend.snapshot()
    backend.close()


def test_a_snapshot_estimates_its_entries(shelf: Shelf) -> None:
    backend = shelf.open()
    fill(backend, many(2000))
    sealed = shelf.seal(backend)
    assert sealed.entries == 2000
    again = shelf.seal(shelf.open(sealed))
    assert again.entries == 2000


def test_a_cut_off_file_is_named(shelf: Shelf) -> None:
    before = shelf.open()
    fill(before, many(9000, value=b"x" * 30))
    sealed = shelf.seal(before)
    ref = max(sealed.files, key=lambda file: file.size)
    path = shelf.root / "files" / ref.path
    path.write_bytes(path.read_bytes()[: ref.size // 2])
    with pytest.raises(CorruptError, match=ref.name):
        shelf.contents(sealed)


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_the_inline_threshold_means_the_same_in_each_backend(backend: str, tmp_path: Path) -> None:
    """State up to it travels in the record; of larger state no file above it does."""

    def files(threshold: int) -> dict[bool, list[int]]:
        options = load(code={"inline_threshold": threshold}, env={}, folder=tmp_path)
        opened = open_backend(options)(backend)(
            Shard(0, 127, backend), tmp_path / f"{threshold}", lambda ref: tmp_path
        )
        opened.write(many(40, value=b"v" * 20))
        snapshot = opened.snapshot()
        sizes: dict[bool, list[int]] = {True: [], False: []}
        for new in snapshot.new:
            size = len(new.data) if new.data is not None else new.path.stat().st_size if new.path else 0
            sizes[new.data is not None].append(size)
        opened.close()
        return sizes

    whole = files(1 << 20)
    assert whole[False] == []
    total = sum(whole[True])
    assert files(total)[False] == []
    assert files(0)[True] == []
    least = min(whole[True]) - 1
    assert files(least)[True] == []


def test_scans_of_one_state_and_of_all_see_what_is_written_between_them(shelf: Shelf) -> None:
    backend = shelf.open()
    for number in range(3):
        backend.write((prefix(group, state) + bytes([number]), b"v") for group in (1, 2) for state in (3, 4))
        assert [k for k, _ in backend.scan(*state_range(1, 3))] == [
            prefix(1, 3) + bytes([n]) for n in range(number + 1)
        ]
        assert len(list(backend.scan(*group_range(1, 2)))) == 4 * (number + 1)
        assert backend.first(*state_range(2, 4)) == prefix(2, 4) + b"\0"
        assert len(list(backend.scan(prefix(1, 4), prefix(2, 3) + b"\1"))) == number + 1 + 1
