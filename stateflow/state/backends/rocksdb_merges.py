"""How a database that was merged beside the batches gets what batches have added meanwhile.

A merge works on a copy of the shard's database. Batches only add files meanwhile, and each is one that any database can take
in: the merged one does, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rocksdict import IngestExternalFileOptions, Rdict

from stateflow.format.records import FileRef, Shard
from stateflow.state.backends.base import Fetch
from stateflow.state.backends.rocksdb import link, live_tables
from stateflow.state.backends.rocksdb_options import RocksOptions, database_options

TABLE = ".sst"
_OPENING = RocksOptions(merges="beside")


def tables_of(shard: Shard) -> tuple[FileRef, ...]:
    """The files with entries, oldest first: RocksDB numbers its files in the order in which they come."""
    tables = [ref for ref in shard.files if ref.name.endswith(TABLE)]
    return tuple(sorted(tables, key=lambda ref: int(ref.name.removesuffix(TABLE))))


def added_since(shard: Shard, merged: Sequence[FileRef]) -> tuple[FileRef, ...] | None:
    """The tables that the shard has got since these were merged; None if it has lost one of them, so that the merge is of no use."""
    tables = tables_of(shard)
    if not set(merged) <= set(tables):
        return None
    return tuple(ref for ref in tables if ref not in merged)


def take_in(directory: Path, tables: Sequence[FileRef], fetch: Fetch) -> tuple[FileRef, ...]:
    """Adds the tables to the database in `directory`, with the names that they have there.

    RocksDB refuses a table that no batch has written by itself: one of a merge, or of deleted ranges.
    """
    if not tables:
        return ()
    for path in directory.glob("OPTIONS-*"):
        # It would open with these settings, and merge once more.
        path.unlink()
    opened = Rdict(str(directory), database_options(_OPENING, 1 << 40))
    try:
        added, names = [], set(live_tables(opened))
        for ref in tables:
            path = directory / "taken-in.sst"
            if ref.data is not None:
                path.write_bytes(ref.data)
            else:
                link(fetch(ref), path)
            moving = IngestExternalFileOptions()
            moving.set_move_files(True)
            opened.ingest_external_file([str(path)], moving)
            (name,) = live_tables(opened).keys() - names
            names.add(name)
            added.append(msgspec.structs.replace(ref, name=name))
        return tuple(added)
    finally:
        opened.close()


def manifest_of(directory: Path) -> list[Path]:
    """The files that say which tables the closed database in `directory` has."""
    current = directory / "CURRENT"
    return [current, directory / current.read_text().strip()]
