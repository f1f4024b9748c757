"""State of two checkpoints, key by key and namespace by namespace, against a plain model: no difference is left out, and none is made up."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.format.records import OperatorListState, OperatorState
from stateflow.reading.query import StateReader
from stateflow.replay.comparison import ReplayReport
from stateflow.replay.states import state_changes
from tests.jobs.log import record as made_record
from tests.reading.test_diff_oracle import grown

NO_MORE = 10_000


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
@pytest.mark.parametrize("seed", range(2))
def test_every_key_that_differs_is_counted_and_shown_once(backend: str, seed: int, tmp_path: Path) -> None:
    job = grown(tmp_path, backend, seed)
    slots = [record.slot for record in job.log().chain if record.slot in job.models]
    rng = random.Random(seed)

    def held(slot: int, now: int, mark: int) -> dict[tuple[str, str], list[Any]]:
        """By state and key, all that a person is to see at this time."""
        entries: dict[tuple[str, str], list[str]] = {}
        for entry in job.models[slot].items():
            each = job.meanings.get(entry)
            if each is None or (
                each.expiry is not None and each.expiry <= (mark if job.times[each.state] == "event" else now)
            ):
                continue
            key = str(each.user) if each.namespace is None else f"{each.user}[{each.namespace}]"
            entries.setdefault((each.state, key), []).append(json.dumps([each.part, each.value], default=str))
        shown = {key: sorted(some) for key, some in entries.items()}
        # Nobody sees where the elements of a list stand, only in which order.
        return {
            key: [json.loads(each)[1] for each in some] if key[0] in ("log", "chat") else some
            for key, some in shown.items()
        }

    for one, other in [tuple(rng.sample(slots, 2)) for _ in range(6)]:
        # As in a replay: both sides are of one time.
        record = job.at(other)
        time, mark = record.now, record.watermark or 0
        context = replace(job.place(tmp_path / "host"), clock=lambda time=time: time)
        readers = [
            context.reader(msgspec.structs.replace(job.at(slot), watermark=mark)) for slot in (one, other)
        ]
        was, now = held(one, time, mark), held(other, time, mark)
        expected = {
            key: "gone" if key not in now else "new" if key not in was else "different"
            for key in was.keys() | now.keys()
            if was.get(key) != now.get(key)
        }
        found: dict[tuple[str, str], Any] = {}
        heard: list[tuple[str, Any]] = []

        def hear(part: Any, heard: list[tuple[str, Any]] = heard) -> None:
            heard.extend((part.state, change) for change in part.changes)

        for state in state_changes(readers[0], readers[1], NO_MORE, hear):
            found |= {(state.state, str(change.key)): change.kind for change in state.changes}
            assert state.counts == Counter(change.kind for change in state.changes)
            assert state.keys >= state.changed
            assert state.key_columns == tuple(name for name, _ in job.at(other).operators[state.operator].key)
        for reader in readers:
            reader.close()
        assert found == expected, (one, other)
        assert {(state, str(change.key)): change.kind for state, change in heard} == expected
        assert len(heard) == len(expected)


def test_a_renamed_state_is_compared_with_what_it_was_called(tmp_path: Path) -> None:
    job = grown(tmp_path, "memory", 0)
    slot = job.log().chain[-1].slot
    record = job.at(slot)
    operator = record.operators["balance"]
    states = {name: schema for name, schema in operator.states.items() if name != "total"}
    states["sum"] = msgspec.structs.replace(operator.states["total"], aliases=("total",))
    operators = {"balance": msgspec.structs.replace(operator, states=states)}
    names = {}
    for newer in (True, False):
        readers = [
            job.place(tmp_path / "host").reader(each)
            for each in (record, msgspec.structs.replace(record, operators=operators))
        ]
        found = list(state_changes(*(readers if newer else reversed(readers)), NO_MORE))
        assert [change for change in found if change.note or change.changed] == []
        names[newer] = {change.state for change in found}
        for reader in readers:
            reader.close()
    assert names[True] - names[False] == {"sum"}
    assert names[False] - names[True] == {"total"}


@pytest.mark.parametrize(
    ("before", "after", "notes", "same"),
    [
        ({"seen": "ab"}, {"seen": "ba"}, {"seen": "it belongs to subtasks"}, True),
        ({"seen": "ab"}, {"seen": "ac"}, {"seen": "it belongs to subtasks"}, False),
        ({"seen": "ab"}, {}, {"seen": "the state is gone"}, False),
        ({}, {"seen": "ab"}, {"seen": "the state is new"}, False),
        ({"old": "ab"}, {"seen": "ab"}, {"seen": "it belongs to subtasks"}, True),
        (
            {"old": "ab", "seen": "c"},
            {"seen": "ab"},
            {"old": "the state is gone", "seen": "it belongs to subtasks"},
            False,
        ),
    ],
)
def test_state_without_keys_is_compared_under_all_its_names(
    tmp_path: Path, before: dict[str, str], after: dict[str, str], notes: dict[str, str], same: bool
) -> None:
    """`seen` was once called `old`."""
    context = grown(tmp_path, "memory", 0).place(tmp_path / "host")

    def reader(states: dict[str, str]) -> StateReader:
        elements = {
            name: OperatorListState(
                "list", "str", (tuple(each.encode() for each in parts),), ("old",) if name == "seen" else ()
            )
            for name, parts in states.items()
        }
        operator = OperatorState(
            key=(), max_parallelism=1, assignment=((0, 0),), shards=((),), operator_states=elements
        )
        return context.reader(made_record(1, operators={"x": operator}))

    heard: list[Any] = []
    found = list(state_changes(reader(before), reader(after), NO_MORE, heard.append))
    assert {change.state: change.note for change in found} == notes
    assert [(part.state, len(part.changes)) for part in heard] == [
        (state.state, state.changed) for state in found if state.changed
    ], "it is in the file of all changes as often as it counts"
    assert ReplayReport("orders", "x", 1, 2, states=found).is_same is same
