"""Tables are read without RocksDB: each key lies in the blocks that are said to have it, in whatever shape RocksDB wrote them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Rdict, SstFileWriter

from stateflow.state.backends.blocks import TRAILER, BlockPlace, entries
from stateflow.state.backends.rocksdb_options import RocksOptions, database_options
from stateflow.state.backends.table_filters import LONGEST, hash_of, may_have
from stateflow.state.backends.tables import UNREADABLE, TableTail, UnknownTable, decompressed

PRESETS = ("small", "large", "write-heavy")
COMPRESSIONS = ("lz4", "zstd", "snappy", "none")


def written(folder: Path, entries: dict[bytes, bytes | None], options: RocksOptions) -> bytes:
    path = folder / "table.sst"
    writer = SstFileWriter(database_options(options, 1))
    writer.open(str(path))
    for key in sorted(entries):
        value = entries[key]
        if value is None:
            del writer[key]
        else:
            writer[key] = value
    writer.finish()
    return path.read_bytes()


def keys_in(body: bytes, place: BlockPlace) -> list[bytes]:
    end = place.offset + place.size
    return [key[:-8] for key, _ in entries(decompressed(body[place.offset : end], body[end]))]


ENTRIES = st.dictionaries(
    st.binary(min_size=1, max_size=80),
    st.one_of(
        st.none(),
        st.binary(max_size=40),
        st.just(b"x" * 5_000),
        st.randoms().map(lambda r: r.randbytes(3_000)),
    ),
    min_size=1,
    max_size=300,
)


@settings(max_examples=60, deadline=None)
@given(
    entries=ENTRIES,
    preset=st.sampled_from(PRESETS),
    compression=st.sampled_from(COMPRESSIONS),
    others=st.lists(st.binary(max_size=80), max_size=20),
)
def test_each_key_is_in_its_blocks(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[bytes, bytes | None],
    preset: str,
    compression: str,
    others: list[bytes],
) -> None:
    folder = tmp_path_factory.mktemp("table")
    body = written(folder, entries, RocksOptions(preset=preset, compression=compression))  # type: ignore[arg-type]
    begin = TableTail(body[len(body) // 2 :] if len(body) > 8_192 else body, len(body)).begin()
    table = TableTail(body[begin:], len(body))
    stored = sorted(entries)
    every = table.blocks(None, None)
    assert [key for place in every for key in keys_in(body, place)] == stored
    # They lie one behind the other, and the tail behind them.
    ends = [place.offset + place.size + TRAILER for place in every]
    assert [place.offset for place in every] == [0, *ends[:-1]]
    assert ends[-1] == begin
    for key in stored:
        assert table.may_have(key)
        assert key in keys_in(body, table.blocks(key, key)[0])
    for first, last in pairwise(sorted(others)):
        within = [key for key in stored if first <= key < last]
        blocks = table.blocks(first, last)
        found = [key for place in blocks for key in keys_in(body, place)]
        assert set(within) <= set(found)
        # RocksDB ends a scan at the first entry behind it, which it has to read, too.
        at = bisect_left(stored, last)
        assert at == len(stored) or bisect_left(stored, first) == len(stored) or stored[at] in found


def test_a_key_between_two_blocks_needs_both(tmp_path: Path) -> None:
    """The index says of a key behind a block's last one that it is in this block; RocksDB finds out that it is not, and goes on."""
    body = written(tmp_path, dict.fromkeys((b"k1", b"k5", b"k9"), b"x" * 9000), RocksOptions())
    table = TableTail(body, len(body))
    for wanted, found in ((b"k2", [[b"k1"], [b"k5"]]), (b"k5", [[b"k5"], [b"k9"]]), (b"k9", [[b"k9"]])):
        assert [keys_in(body, place) for place in table.blocks(wanted, wanted)] == found


def test_a_filter_hides_most_keys_that_a_table_has_not(tmp_path: Path) -> None:
    for preset in PRESETS:
        entries: dict[bytes, bytes | None] = {b"\0\1\0\1%08d" % n: b"value" for n in range(20_000)}
        body = written(tmp_path, entries, RocksOptions(preset=preset))  # type: ignore[arg-type]
        table = TableTail(body, len(body))
        assert all(table.may_have(key) for key in entries)
        passed = sum(table.may_have(b"\0\1\0\1%08dx" % n) for n in range(10_000))
        assert passed < 300


def test_a_key_that_is_too_long_to_tell_may_be_anywhere() -> None:
    assert hash_of(b"x" * (LONGEST + 1)) is None
    assert hash_of(b"x" * LONGEST) is not None


@pytest.mark.parametrize(
    "body", [b"", b"short", bytes(69), bytes(64) + b"\xff\1\6\0\0", bytes(63) + b"\xff\0\6\0\0"]
)
def test_a_filter_of_another_kind_hides_nothing(body: bytes) -> None:
    assert may_have(body, 12345)


def test_the_ranges_that_a_table_deletes_are_told(tmp_path: Path) -> None:
    opened = Rdict(str(tmp_path / "db"), database_options(RocksOptions(), 1))
    for n in range(100):
        opened[b"%03d" % n] = b"value"
    opened.flush()
    opened.delete_range(b"010", b"020")
    opened.delete_range(b"040", b"055")
    opened.flush()
    (path,) = [
        tmp_path / "db" / str(file["name"]).lstrip("/")
        for file in opened.live_files()
        if int(file["num_deletions"])
    ]
    body = path.read_bytes()
    assert [(begin[:-8], end) for begin, end in TableTail(body, len(body)).tombstones()] == [
        (b"010", b"020"),
        (b"040", b"055"),
    ]
    opened.close()


def test_a_tail_that_is_too_short_is_said_to_be(tmp_path: Path) -> None:
    body = written(tmp_path, {b"%05d" % n: b"v" * 50 for n in range(5_000)}, RocksOptions())
    with pytest.raises(UnknownTable):
        TableTail(body[-60:], len(body)).begin()
    cut = TableTail(body[TableTail(body, len(body)).begin() + 1 :], len(body))
    with pytest.raises(UnknownTable):
        cut.may_have(b"00000")


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=300), at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_bytes_are_a_table_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, at: int, bit: int
) -> None:
    whole = bytearray(
        written(tmp_path_factory.mktemp("table"), {b"%03d" % n: body for n in range(50)}, RocksOptions())
    )
    begin = TableTail(bytes(whole), len(whole)).begin()
    whole[begin + at % (len(whole) - begin)] ^= 1 << bit
    for tried in (bytes(whole[begin:]), body):
        try:
            table = TableTail(tried, len(whole))
            table.blocks(b"010", b"020")
            table.may_have(b"010")
        except UNREADABLE:
            pass
