"""What must be there after all the killing, computed from the input alone; read without Spark and without the sinks."""

from __future__ import annotations

import json
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.verification import verify
from stateflow.config.options import load
from stateflow.format.encoding import group_range, prefix, split
from stateflow.format.keygroups import xxhash64
from stateflow.format.layout import JobLayout, origin_of
from stateflow.format.records import OperatorState, Owner, Record
from stateflow.format.references import job_files
from stateflow.operators.context import Moment
from stateflow.operators.keyed import KeyedEngine
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.pipelines.processes.process import Process
from stateflow.pipelines.rows.row_type import RowType
from stateflow.state.backends.choice import open_backend
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.spark import by_hand
from tests.spark.murder_pipelines import JOB, MODULUS, Digests, Order, Totals, is_big

USERS, ITEMS = 23, 7
_SCHEMA = {"id": "long", "user": "long", "item": "long", "amount": "long"}


@dataclass
class Inbox:
    """A Delta table of orders, written by hand, so that no Spark has to live for it."""

    path: Path
    chance: random.Random
    rows: list[Order] = field(default_factory=list)
    commits: int = 0

    def add(self, count: int = 40) -> None:
        """One more commit with one file."""
        first = len(self.rows)
        new = [
            Order(n, self.chance.randrange(USERS), self.chance.randrange(ITEMS), self.chance.randrange(100))
            for n in range(first, first + count)
        ]
        self.rows += new
        self.commit([(r.id, r.user, r.item, r.amount) for r in new], _SCHEMA)

    def commit(self, rows: list[tuple[Any, ...]], schema: dict[str, str]) -> None:
        id = "" if self.commits else str(uuid.UUID(int=self.chance.getrandbits(128)))
        by_hand.append(self.path, rows, schema, id=id, name=f"part-{self.commits:05d}.parquet")
        self.commits += 1


def delta_rows(path: Path) -> Counter[tuple[Any, ...]]:
    """The rows of a Delta table as its log says, each with how often it is there."""
    live: dict[str, None] = {}
    for commit in sorted((path / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                assert action["add"].get("deletionVector") is None, "this reader knows no deletion vectors"
                live[action["add"]["path"]] = None
    found: Counter[tuple[Any, ...]] = Counter()
    for name in live:
        table = pq.read_table(path / name)
        found.update(zip(*(table.column(c).to_pylist() for c in sorted(table.column_names)), strict=True))
    return found


@dataclass
class Expected:
    """Everything that the input amounts to, computed in one go."""

    steps: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    deeps: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    last_deeps: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    bigs: Counter[tuple[int, int]] = field(default_factory=Counter)
    totals: dict[int, dict[str, Any]] = field(default_factory=dict)
    digests: dict[int, dict[str, Any]] = field(default_factory=dict)


def expected(rows: Iterable[Order]) -> Expected:
    out = Expected()
    for row in rows:
        user = out.totals.setdefault(row.user, {"total": 0, "last": -1, "seen": {}, "recent": []})
        user["total"] += row.amount
        user["seen"][row.item] = user["seen"].get(row.item, 0) + 1
        user["recent"] = [*(user["recent"] if len(user["recent"]) < 4 else []), row.amount]
        step = {
            "id": row.id, "user": row.user, "item": row.item, "total": user["total"], "before": user["last"],
            "seen": user["seen"][row.item], "recent": sum(user["recent"]),
        }  # fmt: skip
        out.steps[tuple(step[n] for n in sorted(step))] += 1
        user["last"] = row.id
        if is_big(row):
            out.bigs[(row.id, user["total"])] += 1
        item = out.digests.setdefault(row.item, {"n": 0, "digest": 0})
        item["n"] += 1
        item["digest"] = (item["digest"] * 31 + user["total"] + row.id) % MODULUS
        deep = {"id": row.id, "item": row.item, **item}
        values = tuple(deep[n] for n in sorted(deep))
        out.deeps[values] += 1
        out.last_deeps[row.item] = values
    return out


def difference(found: Counter[Any], wanted: Counter[Any]) -> str:
    """Empty when both are the same, row for row."""
    lost, doubled = wanted - found, found - wanted
    if not lost and not doubled:
        return ""
    return (
        f"{sum(lost.values())} rows lost and {sum(doubled.values())} doubled or wrong; "
        f"lost {list(lost)[:3]}, too many {list(doubled)[:3]}"
    )


def examine(
    folder: Path, rows: Iterable[Order], *, upsert: bool = False, store: Store | None = None
) -> list[str]:
    """Everything that is wrong with a drained job: outputs, state, files. Its root is in the folder, or that store."""
    store, rows = store or open_store(str(folder / "root")), list(rows)
    want = expected(rows)
    wrong = {
        "steps": difference(delta_rows(folder / "steps"), want.steps),
        "deeps": difference(
            delta_rows(folder / "deeps"), Counter(want.last_deeps.values()) if upsert else want.deeps
        ),
        "bigs": difference(called_rows(folder / "bigs"), want.bigs),
        "function": "called with other rows for one checkpoint"
        if (folder / "bigs" / "differs").exists()
        else "",
        "feed": feed_difference(delta_rows(folder / "changes"), rows),
        "state of totals": _state_difference(store, "totals", Totals, want.totals),
        "state of digests": _state_difference(store, "digests", Digests, want.digests),
    }
    return [f"{what}: {text}" for what, text in wrong.items() if text] + examine_store(folder, store)


def feed_difference(found: Counter[tuple[Any, ...]], rows: Iterable[Order]) -> str:
    """What is wrong with the feed of the totals, wherever the batches were cut. Its columns by name: after, before, kind, slot, state,
    time, user."""
    totals: dict[int, list[int | None]] = {}
    for row in rows:
        known = totals.setdefault(row.user, [None])
        known.append((known[-1] or 0) + row.amount)
    held: dict[int, int | None] = dict.fromkeys(totals)
    slots: set[tuple[int, int]] = set()
    for after, before, kind, slot, _, _, user in sorted(found.elements(), key=lambda row: (row[6], row[3])):
        if kind != "put" or (user, slot) in slots:
            return f"{kind} of user {user} in slot {slot}, which has {'already a row' if kind == 'put' else 'deleted nothing'}"
        if before != held[user] or after not in totals[user]:
            return f"user {user} goes from {before} to {after} in slot {slot}, and had {held[user]} before"
        slots.add((user, slot))
        held[user] = after
    ends = {user: known[-1] for user, known in totals.items()}
    return "" if held == ends else f"it ends with {held}, and the totals are {ends}"


def called_rows(folder: Path) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for file in folder.glob("*.json"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            found[(row["id"], row["total"])] += 1
    return found


def examine_store(folder: Path, store: Store | None = None) -> list[str]:
    """The log is sound; after a collection by a new owner every file is one that a record names."""
    store, layout = store or open_store(str(folder / "root")), JobLayout(JOB)
    found = [f"verify: {f.text}" for f in verify(store, layout, deep=True) if f.severity == "error"]

    def carry_out(record: Record, still_owner: object) -> dict[str, str]:
        raise AssertionError(
            f"record {record.slot} was left for somebody to carry out, although the run had ended"
        )

    writer = claim(
        store,
        layout,
        owner=Owner(run=uuid.uuid4().hex, note="evidence"),
        ids=lambda: uuid.uuid4().hex,
        clock=lambda: time.time_ns() // 1000,
        carry_out=carry_out,
        retained=3,
    )
    writer.collect(3, orphans=True)
    log = read_log(store, layout)
    reached = set(job_files(slot.record for slot in log.slots.values() if slot.record is not None))
    listed = {entry.path for entry in (*store.list(layout.shared), *store.list(layout.staged))}
    assert log.decided is not None
    # What a task wrote for the newest record, and then again because the first answer was lost, goes with a later record.
    newest = (log.decided.epoch, log.decided.slot)
    orphans = (path for path in sorted(listed - reached) if origin_of(path) != newest)
    found += [f"orphan after a collection: {path}" for path in orphans]
    found += [f"missing file: {path}" for path in sorted(reached - listed)]
    found += [
        f"verify after a collection: {f.text}"
        for f in verify(store, layout, deep=True)
        if f.severity == "error"
    ]
    return found


def head(folder: Path) -> Record:
    return _head(open_store(str(folder / "root")))


def _head(store: Store) -> Record:
    record = read_log(store, JobLayout(JOB)).head
    assert record is not None, "the job has no complete checkpoint"
    return record


def _state_difference(
    store: Store, uid: str, process: type[Process[Any]], wanted: dict[int, dict[str, Any]]
) -> str:
    found = _state_of(store, _head(store).operators[uid], process, wanted)
    if found == wanted:
        return ""
    bad = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
    return f"keys {bad[:5]} differ: {[(found.get(k), wanted.get(k)) for k in bad[:2]]}"


def state_of(
    folder: Path, operator: OperatorState, process: type[Process[Any]], keys: Iterable[int]
) -> dict[int, dict[str, Any]]:
    """Every state of the given keys, read from the files that the record names; other keys must not be there."""
    return _state_of(open_store(str(folder / "root")), operator, process, keys)


def _state_of(
    store: Store, operator: OperatorState, process: type[Process[Any]], keys: Iterable[int]
) -> dict[int, dict[str, Any]]:
    some_rows = RowType("Any", (), lambda *values: values, False)
    spec = OperatorSpec(
        process.__name__, process, process, ("k",), tuple(t for _, t in operator.key), (some_rows,), some_rows,
        {"big": some_rows}, {name: s.id for name, s in operator.states.items()},
    )  # fmt: skip
    out: dict[int, dict[str, Any]] = {}
    values = next(s.id for s in operator.states.values() if s.kind == "value")
    entries = 0
    for group, backend in _groups(store, operator):
        begin, end = group_range(group, group)
        entries += sum(split(key).state_id == values for key, _ in backend.scan(begin, end))
        engine = KeyedEngine(spec, Moment(1, 0, 0, None), 0)
        engine.attach(backend)
        for key in keys:
            if xxhash64(key) % operator.max_parallelism != group:
                continue
            full = prefix(group, 0) + engine.codec.encode(key) + b"\0"
            cursor = engine.cursor
            cursor.base, cursor.i, cursor.key, cursor.keys = [full], 0, key, [key]
            cursor.serial += 1
            for state in engine.binding.stored:
                state.begin(1, None)
            out[key] = {name: _plain(getattr(engine.process, name)) for name in operator.states}
    if entries != len(out):
        out[-1] = {"keys in the files": entries, "keys expected": len(out)}
    return out


def _plain(state: Any) -> Any:
    if hasattr(state, "items"):
        return dict(state.items())
    return state.value if hasattr(state, "value") else list(state)


def _groups(store: Store, operator: OperatorState) -> Iterator[tuple[int, Any]]:
    opener = open_backend(load(env={}, folder=Path("/")))
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        for number, shard in enumerate(s for subtask in operator.shards for s in subtask):
            directory, fetched = Path(scratch) / f"{number}", Path(scratch) / f"{number}-files"
            directory.mkdir()
            fetched.mkdir()
            backend = opener(shard.backend)(shard, directory, _fetch(store, fetched))
            try:
                for group in range(shard.first, shard.last + 1):
                    yield group, backend
            finally:
                backend.close()


def _fetch(store: Store, folder: Path) -> Callable[[Any], Path]:
    def fetch(ref: Any) -> Path:
        target = folder / uuid.uuid4().hex
        if ref.data is not None:
            target.write_bytes(ref.data)
        else:
            store.download(ref.path, target)
        return target

    return fetch
