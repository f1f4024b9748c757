"""Checkpoints and savepoints in small, over any store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from stateflow.errors import StateflowError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FileRef, Owner, Prepared, Record, Savepoint, SourceState
from stateflow.format.references import references
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import claim_savepoint
from stateflow.savepoints.native import create_native
from stateflow.savepoints.outputs import JobOutputs
from stateflow.savepoints.publish import SavepointFacts
from stateflow.storage.files import inline
from stateflow.storage.store import Store
from tests.jobs.files import body, stored
from tests.jobs.log import record
from tests.jobs.operators import one_shard

LAYOUT = JobLayout("orders")
JOB, OTHER = "22222222-orders", "33333333-fraud"
"""Jobs that claim savepoints."""
SOMEBODY = Owner(run="somebody", user="ann")
DEAD = "dead" * 8
"""The id of an attempt to make a savepoint that was killed."""
_numbers = itertools.count(1)


def ids() -> str:
    return f"{next(_numbers):032x}"


def clock() -> int:
    return 1_000_000


def checkpoint(store: Store, sizes: Sequence[int] = (300, 20, 7), extra: Sequence[FileRef] = ()) -> Record:
    """Record 3 of job `orders`: one shard of such files and some bytes of its own, and a source with a log."""
    files = [
        stored(store, f"orders/shared/e1-c3-{n}.sst", body(f"state{n}", size), name=f"{n:06d}.sst")
        for n, size in enumerate(sizes, 1)
    ]
    log = stored(store, "orders/shared/e1-c2-log.log", b"offsets 1 2 3", name="0/7.compact")
    operator = one_shard(
        *files, *extra, inline("CURRENT", b"MANIFEST-7"), key=("user", "long"), groups=4, times=2, hosts=("host-1",)
    )  # fmt: skip
    staged = stored(store, "orders/staged/e1-c3-rows.parquet", b"rows")
    return record(
        3,
        previous=None,
        owner=SOMEBODY,
        sources={"events": SourceState(lines=('{"at": 7}',), files=(log,), kind="file")},
        operators={"balance": operator},
        sinks={"totals": Prepared(kind="fake", target="t", prev=2, files=(staged,))},
        watermark=77,
    )


def native(
    root: Store,
    record: Record,
    target: Store,
    scratch: Path,
    *,
    open_base: Callable[[str], Store] | None = None,
    new_id: Callable[[], str] = ids,
    **options: Any,
) -> Savepoint:
    def none(base: str) -> Store:
        raise AssertionError(f"{base} was opened")

    facts = {each.name: options.pop(each.name) for each in fields(SavepointFacts) if each.name in options}
    return create_native(
        root,
        LAYOUT,
        record,
        target,
        SavepointFacts(
            name="one",
            owner=SOMEBODY,
            note="before the upgrade",
            offsets={"events": [{"at": 7}]},
            **{"outputs": JobOutputs(targets={"totals": "t"}), **facts},
        ),
        ids=new_id,
        clock=clock,
        open_base=open_base or none,
        scratch=scratch,
        **options,
    )


def content(record: Record, store_of: Callable[[str], Store] | Store) -> dict[tuple[str, str], bytes]:
    """What the files of a record hold, by name and checksum."""
    found = {}
    for ref in references(record):
        if ref.data is not None:
            found[ref.name, ref.xxh3] = ref.data
            continue
        store = store_of(ref.base) if callable(store_of) else store_of
        if ref.offset is not None:
            found[ref.name, ref.xxh3] = store.read_range(ref.path, ref.offset, ref.size)
        else:
            found[ref.name, ref.xxh3] = store.read(ref.path)
    return found


def state(record: Record, store_of: Callable[[str], Store] | Store) -> Mapping[tuple[str, str], bytes]:
    """The same without what its sinks staged: what a savepoint of it has to hold."""
    return content(msgspec.structs.replace(record, sinks={}), store_of)


def claim(store: Store, job: str = JOB, name: str = "orders", run: str = "first run") -> Savepoint:
    return claim_savepoint(store, job=job, name=name, owner=Owner(run=run), clock=clock)


def dispose(store: Store, by_job: str = "") -> int:
    return dispose_savepoint(store, owner=SOMEBODY, clock=clock, by_job=by_job)


def outcome(act: Callable[[Store], object], store: Store) -> object:
    """What it gives, or the error."""
    try:
        return act(store)
    except StateflowError as error:
        return error
