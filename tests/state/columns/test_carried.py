"""What else reads stored entries knows those of columnar state: queries, loading of tables, erasure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.format.keygroups import key_group
from stateflow.format.records import Shard
from stateflow.jobs.erasure import _Keep
from stateflow.spark.state_tables.load import SortedEntries
from stateflow.state.backends.memory import memory_backend
from stateflow.state.columns.state import ColumnState
from tests.jobs.operators import operator_of
from tests.jobs.queried import QueriedJob

GROUPS = 128
SCHEMAS = {
    name: msgspec.structs.replace(layout.schema(), id=number)
    for number, (name, layout) in enumerate(
        {
            "plain": sf.columns({"n": int}),
            "carts": sf.columns({"n": int}, by={"sku": str}),
            "open": sf.columns({"n": int}, timed=True),
            "due": sf.columns(by={"sku": str}, timed=True),
        }.items(),
        1,
    )
}
OPERATOR = operator_of(groups=GROUPS, states=SCHEMAS)
USERS = range(40)
TIMES = {user: 1_000 - user for user in USERS}


@pytest.fixture
def entries(tmp_path: Path) -> dict[bytes, bytes]:
    """Three entries of each user in states with `by`, else one."""
    backend = memory_backend()(Shard(0, GROUPS - 1, "memory"), tmp_path / "shard", lambda _: tmp_path)
    for name, schema in SCHEMAS.items():
        state = ColumnState(OPERATOR.key, schema, GROUPS, name)
        state.attach(backend, range(GROUPS), empty=True)
        for number in range(3 if schema.by else 1):
            where: dict[str, Any] = {"by": pa.array([f"sku{number}"] * len(USERS))} if schema.by else {}
            if schema.timed:
                where["at"] = pa.array([TIMES[user] + number for user in USERS])
            values = pa.table({"n": [user + number for user in USERS]}) if state.schema.names else None
            state.put(pa.array(USERS), values, **where)
    return dict(backend.scan(b"", b"\xff" * 8))


def test_a_query_gives_all_entries_of_a_key(tmp_path: Path, entries: dict[bytes, bytes]) -> None:
    job = QueriedJob(tmp_path / "root")
    job.states = SCHEMAS
    job.checkpoint(entries)
    reader = job.reader(tmp_path / "host")
    found = reader.look_up("balance", "carts", 7, limit=2)
    assert (found.value, found.more) == ([{"sku": "sku0", "n": 7}, {"sku": "sku1", "n": 8}], True)
    assert reader.get("balance", "plain", 7) == {"n": 7}
    assert reader.get("balance", "carts", 999) == []
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=TIMES[7])
    assert reader.get("balance", "open", 7) == [{"at": at, "n": 7}]
    reader.close()


def test_loading_notes_when_the_first_entry_is_due_and_finds_duplicates(entries: dict[bytes, bytes]) -> None:
    seen = SortedEntries("x", OPERATOR)
    keys = sorted(entries)
    assert seen.checked(keys) == keys
    assert seen.next_timers == (min(TIMES.values()), None)
    timed = [key for key in keys if key[2:4] == b"\0\3"]
    with pytest.raises(UsageError, match=r"state 'open': key \d+ has two rows"):
        SortedEntries("x", OPERATOR).checked([timed[0], timed[0]])


def test_erasing_a_key_finds_its_entries_in_every_order(entries: dict[bytes, bytes]) -> None:
    keep = _Keep(OPERATOR, 7)
    kept = [key for key, value in entries.items() if keep(key, value)]
    assert len(entries) - len(kept) == keep.dropped == 1 + 3 + 1 + 3
    other = next(user for user in USERS if user != 7 and key_group(user, GROUPS) != key_group(7, GROUPS))
    assert sum(not _Keep(OPERATOR, other)(key, entries[key]) for key in kept) == 8
