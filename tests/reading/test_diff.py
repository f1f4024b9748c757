"""What a diff reads, names and refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from stateflow.errors import IncompatibleError, NotFoundError
from stateflow.format.references import references
from stateflow.jobs.job import Job
from stateflow.reading.diff import ComparedSnapshot, Differences
from stateflow.reading.files.shard_files import identity
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.local import LocalStore
from tests.jobs.builder import options_of
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.reading.grown import GROUPS, TOTAL, GrownJob, full
from tests.refusals.refusal import refused

_int = serializer_for(int)


def many(job: GrownJob, users: range, value: int) -> int:
    return job.batch(lambda model: {full(TOTAL, user): _int.dumps(value) for user in users})


@pytest.fixture
def job(tmp_path: Path) -> GrownJob:
    return GrownJob(tmp_path / "root")


def test_only_files_that_the_two_do_not_share_are_fetched(
    job: GrownJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = many(job, range(3000), 1), many(job, range(0, 3000, 10), 2)
    monkeypatch.setattr(LocalStore, "local_root", None)
    one, other = job.snapshot(before, tmp_path / "host"), job.snapshot(after, tmp_path / "host")
    found = Differences(one, other)
    kinds = [change.kind for change in found.changes()]
    assert kinds == ["written"] * 300
    shared = {identity(ref) for ref in references(one.record)} & {
        identity(ref) for ref in references(other.record)
    }
    differing = {
        identity(ref): ref.size
        for record in (one.record, other.record)
        for ref in references(record)
        if identity(ref) not in shared and ref.path
    }
    caches = one.context.cache, other.context.cache
    assert sum(cache.bytes_fetched for cache in caches) == sum(differing.values()) > 0
    assert {ref.path for ref in found.unread.values()} <= {ref.path for ref in references(one.record)}
    assert len(found.unread) == 2

    asked = Differences(one, other, look_up=True)
    changes = list(asked.changes())
    assert [(change.kind, change.before, change.after) for change in changes] == [("changed", 1, 2)] * 300
    assert asked.unread == {}
    now_here = Differences(*(job.snapshot(slot, tmp_path / "host") for slot in (before, after)))
    assert [change.kind for change in now_here.changes()] == ["changed"] * 300


def test_a_merge_that_nobody_wrote_to_is_no_difference(job: GrownJob, tmp_path: Path) -> None:
    for value in range(3):
        many(job, range(200), value)
    before = max(job.models)
    # The next files make the runs too many, and RocksDB merges them.
    after = [many(job, range(1), 7), many(job, range(1, 2), 7)][-1]
    names = [{ref.path for ref in job.at(slot).operators["balance"].files} for slot in (before, after)]
    assert names[0] - names[1], "nothing was merged"
    found = list(Differences(job.snapshot(before, tmp_path), job.snapshot(after, tmp_path)).changes())
    assert sorted((change.key, change.before, change.after) for change in found) == [(0, 2, 7), (1, 2, 7)]


def test_a_rescale_is_no_difference_and_reads_nothing(job: GrownJob, tmp_path: Path) -> None:
    before = many(job, range(500), 1)
    after = job.rescale(5)
    one, other = job.snapshot(before, tmp_path / "host"), job.snapshot(after, tmp_path / "host")
    assert list(Differences(one, other).changes()) == []
    assert one.context.cache.misses == other.context.cache.misses == 0


def test_values_are_read_by_the_types_of_then(job: GrownJob, tmp_path: Path) -> None:
    before = many(job, range(3), 5)
    job.schemas["total"] = msgspec.structs.replace(job.schemas["total"], value="str")
    text = serializer_for(str)
    after = job.batch(lambda model: {full(TOTAL, 1): text.dumps("five")})
    found = Differences(job.snapshot(before, tmp_path), job.snapshot(after, tmp_path))
    assert [(c.key, c.before, c.after) for c in found.changes()] == [(1, 5, "five")]
    assert "the type of state 'total' of operator 'balance' changed from int to str" in found.notes[0]


def test_a_later_type_is_compared_with_an_earlier_one_in_both_directions(
    job: GrownJob, tmp_path: Path
) -> None:
    before = many(job, range(4), 5)
    job.evolve()
    after = job.batch(lambda model: {full(TOTAL, 1): job.total.dumps(5), full(TOTAL, 2): job.total.dumps(6)})
    for points, expected in (((before, after), (2, 5, 6.0)), ((after, before), (2, 6.0, 5))):
        found = Differences(*(job.snapshot(slot, tmp_path) for slot in points))
        assert [(c.key, c.before, c.after) for c in found.changes()] == [expected]


def test_another_job_with_other_ids_is_compared_by_the_names_of_its_states(tmp_path: Path) -> None:
    one, other = GrownJob(tmp_path / "root"), GrownJob(tmp_path / "root", "copy")
    other.schemas["total"] = msgspec.structs.replace(other.schemas["total"], id=9)
    before = many(one, range(4), 1)
    moved = {key[:2] + b"\0\x09" + key[4:]: raw for key, raw in one.models[before].items()}
    moved[full(9, 2)] = _int.dumps(8)
    # Another state has the number there, and the very bytes that this one has lost.
    other.schemas["points"] = msgspec.structs.replace(one.schemas["total"], id=TOTAL)
    moved[full(TOTAL, 3)] = moved.pop(full(9, 3))
    after = other.batch(lambda model: moved)  # type: ignore[arg-type,return-value]
    found = Differences(one.snapshot(before, tmp_path), other.snapshot(after, tmp_path))
    changes = sorted((c.state, c.key, c.before, c.after) for c in found.changes())
    assert changes == [("points", 3, None, 1), ("total", 2, 1, 8), ("total", 3, 1, None)]


def test_what_cannot_be_compared_is_refused_in_one_sentence(job: GrownJob, tmp_path: Path) -> None:
    slot = many(job, range(3), 1)
    one = job.snapshot(slot, tmp_path)
    operator = msgspec.structs.replace(one.record.operators["balance"], key=(("user", "str"),))
    keyed = ComparedSnapshot(
        "another", msgspec.structs.replace(one.record, operators={"balance": operator}), one.context
    )
    with refused(IncompatibleError, "operator 'balance'", "other keys in the two"):
        list(Differences(one, keyed).changes())
    regrouped = msgspec.structs.replace(one.record.operators["balance"], max_parallelism=GROUPS * 2)
    grouped = ComparedSnapshot(
        "another", msgspec.structs.replace(one.record, operators={"balance": regrouped}), one.context
    )
    with refused(IncompatibleError, "operator 'balance'", f"{GROUPS} key groups", "stateflow state export"):
        list(Differences(one, grouped).changes())
    with refused(NotFoundError, "operator 'nobody'", "their operators are balance"):
        list(Differences(one, one, operators=["nobody"]).changes())
    with refused(NotFoundError, "state 'nothing'", "their states are brief, idle, items"):
        list(Differences(one, one, states=["nothing"]).changes())


def test_an_operator_that_one_side_lacks_is_told_with_what_became_of_its_entries(
    job: GrownJob, tmp_path: Path
) -> None:
    one = job.snapshot(many(job, range(3), 1), tmp_path)
    none = ComparedSnapshot("before", msgspec.structs.replace(one.record, operators={}), one.context)
    for points, became in (((none, one), "came"), ((one, none), "went")):
        found = Differences(*points)
        assert list(found.changes()) == []
        assert found.on_one_side == ["balance"]
        assert found.notes == [
            f"operator 'balance' is only in {one.name}: all of its entries {became}, and are not counted"
        ]


def test_a_state_that_one_side_lacks_is_noted_and_its_entries_come_or_go(
    job: GrownJob, tmp_path: Path
) -> None:
    before = many(job, range(3), 1)
    job.schemas["sum"] = msgspec.structs.replace(job.schemas.pop("total"), id=50)
    after = job.batch(lambda model: {**dict.fromkeys(model), full(50, 2): _int.dumps(2)})
    for points, told in (((before, after), "went came"), ((after, before), "came went")):
        total, made = told.split()
        found = Differences(*(job.snapshot(slot, tmp_path) for slot in points))
        changes = sorted((c.state, c.key, c.kind) for c in found.changes())
        assert changes == [("sum", 2, made), *(("total", user, total) for user in range(3))]
        assert sorted(note.split(" is ")[0] for note in found.notes) == [
            "state 'sum' of operator 'balance'",
            "state 'total' of operator 'balance'",
        ]


def test_a_number_that_another_state_has_now_is_no_name(job: GrownJob, tmp_path: Path) -> None:
    """A restore to before a state was declared gives its number to the next new one."""
    before = many(job, range(3), 1)
    job.schemas["sum"] = job.schemas.pop("total")
    after = many(job, range(2), 1)
    found = Differences(job.snapshot(before, tmp_path), job.snapshot(after, tmp_path))
    changes = sorted((c.state, c.key, c.before, c.after) for c in found.changes())
    assert changes == [
        *(("sum", user, None, 1) for user in range(3)),
        *(("total", user, 1, None) for user in range(3)),
    ]


def test_a_renamed_state_is_compared_with_itself_in_both_directions(job: GrownJob, tmp_path: Path) -> None:
    before = many(job, range(3), 1)
    job.schemas["sum"] = msgspec.structs.replace(job.schemas.pop("total"), aliases=("total",))
    after = many(job, range(1), 2)
    for points, name, expected in (
        ((before, after), "sum", (0, 1, 2)),
        ((after, before), "total", (0, 2, 1)),
    ):
        for asked in ((), ("sum",), ("total",)):
            found = Differences(*(job.snapshot(slot, tmp_path) for slot in points), states=asked)
            changes = [(c.state, c.key, c.before, c.after) for c in found.changes()]
            assert changes == [(name, *expected)]
            other = {"sum": "total", "total": "sum"}[name]
            assert found.notes == [
                f"state {name!r} of operator 'balance' is called {other!r} in checkpoint {points[0]}"
            ]


def test_key_columns_that_were_renamed_are_the_same_keys(tmp_path: Path) -> None:
    made = QueriedJob(tmp_path / "root")
    before = made.checkpoint(entries_of(filled(3, 4)))
    made.key = (("customer", "int"),)
    after = made.checkpoint(entries_of(filled(3, 4, rows=5)))
    job, options = Job(made.root, "orders"), options_of(made.root)
    with job.diff(str(before), str(after), states=["total"], options=options) as found:
        assert sorted((c.kind, c.key, c.before, c.after) for c in found.changes()) == [
            ("changed", 3, 1.0, 10.0),
            ("changed", 4, 1.0, 10.0),
        ]
    assert job.bisect("balance", "total", None, "value > 5", options=options).record.slot == after


def test_a_savepoint_s_folder_may_be_written_with_a_slash_at_its_end(tmp_path: Path) -> None:
    job = QueriedJob(tmp_path / "root")
    job.checkpoint(entries_of(filled(*range(1500))))
    folder = str(tmp_path / "elsewhere" / "savepoint")
    job.native(folder, max_files=1)
    job.checkpoint(entries_of(filled(*range(1500), rows=3)))
    options = options_of(job.root)
    for written in (folder, f"{folder}/"):
        with Job(job.root, "orders").diff(written, "latest", states=["total"], options=options) as found:
            assert Counter(change.kind for change in found.changes()) == {"changed": 1500}, written
