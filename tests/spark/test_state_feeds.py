"""State as a feed on Spark: applied to nothing it gives the state at every slot, across kinds of state, runs, rescales and rewinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import stateflow as sf
from stateflow.config.options import load
from stateflow.format.records import Record
from stateflow.state.backends.choice import open_backend
from stateflow.state.backends.watched import ChangedEntry
from stateflow.state.change_rows import ChangeRows, changed
from stateflow.state.tabular import tables_of
from stateflow.state.values.expiries import plain_value
from tests.spark.pipelines import VISIT, Everything, Visit, Workbench, at

FED = ("profile", "weights", "perhaps", "pages", "per_day")
OF_BATCHES = ("kind", "before", "after", "slot", "time")


def visits(batch: int, users: int = 8) -> list[Visit]:
    pages = ["home", "cart", "search", "clear"]
    return [
        Visit(user, pages[(user * 7 + batch + n) % (4 if n == 1 else 3)], user + n / 4, at(batch * 600 + n))
        for user in range(users)
        for n in range(2)
        if (user + batch) % 3
    ]


def entry(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name not in OF_BATCHES)


def stored(bench: Workbench, record: Record, uid: str, state: str) -> dict[tuple[Any, ...], Any]:
    """The state that a record names, as the rows of a feed would have given it."""
    operator, found = record.operators[uid], {}
    rows = ChangeRows(operator.key, state, operator.states[state])
    root = bench.folder / "root"
    for number, shard in enumerate(each for subtask in operator.shards for each in subtask):
        folder = bench.folder / f"opened-{record.slot}-{state}-{number}"
        backend = open_backend(load(folder=bench.folder))(shard.backend)(
            shard, folder, lambda ref: root / ref.path
        )
        for begin, end in tables_of(operator)[state].ranges(shard.first, shard.last):
            entries = [ChangedEntry(key, None, raw, False) for key, raw in backend.scan(begin, end)]
            if entries:
                for row in rows.rows(changed(entries, plain_value), 0, 0).to_pylist():
                    found[entry(row)] = row["after"]
        backend.close()
    return found


def test_applied_to_nothing_the_feed_is_the_state_at_every_slot(bench: Workbench) -> None:
    feeds = {state: sf.memory(f"feed-{state}") for state in FED}
    for feed in feeds.values():
        feed.clear()

    @sf.pipeline("fed")
    def fed(flow: sf.Flow) -> None:
        rows = flow.source("visits", bench.source("visits", VISIT), Visit)
        rows.key_by("user", order_by="ts").process("everything", Everything)
        for state in FED:
            flow.state_changes("everything", state=state).collect(state, feeds[state])

    for batch in range(4):
        bench.rows("visits", visits(batch))
        if batch in (1, 3):
            bench.run(fed, parallelism=2 + batch)
    records = {record.slot: record for record in bench.records("fed")}
    kinds = set()
    for state, feed in feeds.items():
        held: dict[tuple[Any, ...], Any] = {}
        for slot, rows in feed.batches:
            assert len({entry(row) for row in rows}) == len(rows)
            for row in rows:
                kinds.add(row["kind"])
                assert row["slot"] == slot
                assert held.get(entry(row)) == row["before"]
                held.pop(entry(row), None)
                if row["kind"] == "put":
                    held[entry(row)] = row["after"]
            if slot in records:
                expected = stored(bench, records[slot], "everything", state)
                assert str(sorted(held.items(), key=str)) == str(sorted(expected.items(), key=str)), state
    assert kinds == {"put", "delete"}
