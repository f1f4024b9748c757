"""Another parallelism: which subtask gets which piece of which shard, and what a piece remembers."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from stateflow.checkpoint import rescale
from stateflow.checkpoint.rescale import (
    clipped,
    joined,
    kept_key_groups,
    needs_rescale,
    redistributed,
    rescaled,
    rescaled_operators,
)
from stateflow.errors import UsageError
from stateflow.format.keygroups import default_assignment
from stateflow.format.records import ExpiryShare, FileRef, OperatorListState, OperatorState, Shard
from tests.jobs.log import record
from tests.jobs.operators import operator_of
from tests.refusals.refusal import refused

GROUPS = 16


def file(name: str, size: int = 10) -> FileRef:
    return FileRef(name=name, size=size, xxh3="0" * 16, path=f"orders/shared/e1-c1-{name}")


def shard(first: int, last: int, size: int = 10, **fields: Any) -> Shard:
    return Shard(first=first, last=last, backend="rocksdb", files=(file(f"{first}-{last}", size),), **fields)


def operator(parallelism: int, **fields: Any) -> OperatorState:
    return operator_of(
        [
            shard(first, last, entries=(last - first + 1) * 5)
            for first, last in default_assignment(parallelism, GROUPS)
        ],
        key=(("n", "long"),),
        groups=GROUPS,
        hosts=tuple(f"host-{n}" for n in range(parallelism)),
        **fields,
    )


def owners(state: OperatorState) -> dict[int, list[tuple[int, Shard]]]:
    """By key group, subtask and piece."""
    found: dict[int, list[tuple[int, Shard]]] = {group: [] for group in range(GROUPS)}
    for subtask, pieces in enumerate(state.shards):
        for piece in pieces:
            for group in range(piece.first, piece.last + 1):
                found[group].append((subtask, piece))
    return found


@pytest.mark.parametrize(("before", "after"), list(itertools.product((1, 2, 3, 5, 7, GROUPS), repeat=2)))
def test_every_key_group_has_one_owner_whose_piece_has_the_files_it_had(before: int, after: int) -> None:
    old, new = operator(before), rescaled(operator(before), after, "operator 'x'")
    assert new.assignment == default_assignment(after, GROUPS)
    had, has = owners(old), owners(new)
    for group in range(GROUPS):
        ((subtask, piece),) = has[group]
        first, last = new.assignment[subtask]
        assert first <= piece.first <= group <= piece.last <= last
        assert piece.files == had[group][0][1].files
    for pieces in new.shards:
        assert [p.first for p in pieces] == sorted(p.first for p in pieces)


@pytest.mark.parametrize("path", list(itertools.permutations((1, 3, 5, GROUPS), 4)))
def test_pieces_remember_how_wide_their_files_are_whatever_way_they_came(path: tuple[int, ...]) -> None:
    state = operator(2)
    for parallelism in path:
        state = rescaled(state, parallelism, "operator 'x'")
    for ((_, piece),) in owners(state).values():
        width = (0, 7) if piece.files == (file("0-7"),) else (8, 15)
        own = (piece.first, piece.last)
        remembered = (piece.physical_first, piece.physical_last)
        assert remembered == (width if own != width else (None, None))


class TestClipped:
    WHOLE = shard(4, 11, entries=80, next_event_timer=5, next_processing_timer=6)

    @pytest.mark.parametrize(
        ("first", "last", "piece"),
        [
            (0, 15, (4, 11)),
            (4, 11, (4, 11)),
            (0, 4, (4, 4)),
            (11, 15, (11, 11)),
            (6, 9, (6, 9)),
            (0, 3, None),
            (12, 15, None),
            (4, 10, (4, 10)),
            (5, 11, (5, 11)),
        ],
    )  # fmt: skip
    def test_bounds_are_inclusive(self, first: int, last: int, piece: tuple[int, int] | None) -> None:
        found = clipped(self.WHOLE, first, last)
        assert ((found.first, found.last) if found else None) == piece

    def test_a_shard_that_is_not_cut_is_the_same(self) -> None:
        assert clipped(self.WHOLE, 0, 15) is self.WHOLE

    def test_a_piece_keeps_files_and_timers_and_its_share_of_the_entries(self) -> None:
        piece = clipped(self.WHOLE, 6, 7)
        assert piece == msgspec.structs.replace(
            self.WHOLE, first=6, last=7, physical_first=4, physical_last=11, entries=20
        )

    def test_the_pieces_together_have_all_entries_however_often_they_are_cut(self) -> None:
        share = ExpiryShare(state=1, first=0, last=9, entries=3, size=7)
        state = operator_of([shard(0, GROUPS - 1, entries=4, expiring=(share,))], groups=GROUPS)
        for parallelism in (3, 5, 2, 7, 3):
            state = rescaled(state, parallelism, "operator 'x'")
            shares = [each for piece in state.all_shards for each in piece.expiring]
            assert sum(piece.entries for piece in state.all_shards) == 4
            assert (sum(each.entries for each in shares), sum(each.size for each in shares)) == (3, 7)

    def test_a_piece_of_a_piece_knows_the_first_width(self) -> None:
        piece = clipped(self.WHOLE, 4, 9)
        assert piece is not None
        again = clipped(piece, 4, 5)
        assert again is not None
        assert (again.first, again.last, again.physical_first, again.physical_last) == (4, 5, 4, 11)


def _counts(operators: dict[str, OperatorState]) -> dict[str, int]:
    return {uid: len(state.assignment) for uid, state in operators.items()}


class TestRescaled:
    def test_the_same_parallelism_changes_nothing(self) -> None:
        state = operator(3)
        assert rescaled(state, 3, "operator 'x'") is state

    @pytest.mark.parametrize("parallelism", [0, -1, GROUPS + 1])
    def test_what_cannot_be_names_the_operator_and_its_bound(self, parallelism: int) -> None:
        with refused(UsageError, "operator 'x' of job 'orders'", "use 1 to 16"):
            rescaled_operators({"x": operator(2)}, parallelism, "orders")

    @pytest.mark.parametrize("parallelism", [1, GROUPS])
    def test_its_bounds_can_be(self, parallelism: int) -> None:
        assert len(rescaled(operator(2), parallelism, "x").assignment) == parallelism

    def test_where_subtasks_ran_means_nothing_any_more(self) -> None:
        assert rescaled(operator(2), 3, "x").hosts == ()

    def test_every_operator_has_it(self) -> None:
        found = rescaled_operators({"a": operator(1), "b": operator(5)}, 3, "orders")
        assert {uid: len(state.shards) for uid, state in found.items()} == {"a": 3, "b": 3}

    def test_an_operator_that_has_its_own_keeps_it_unless_the_pipeline_says_otherwise(self) -> None:
        given = {"a": operator(1), "b": msgspec.structs.replace(operator(5), parallelism=5)}
        assert _counts(rescaled_operators(given, 3, "orders")) == {"a": 3, "b": 5}
        assert _counts(rescaled_operators(given, 3, "orders", {"a": 2})) == {"a": 2, "b": 3}
        assert _counts(rescaled_operators(given, 0, "orders", {"b": 4})) == {"a": 1, "b": 4}
        of = msgspec.structs.replace(record(3), operators=given)
        assert not needs_rescale(of, 1)
        assert needs_rescale(of, 1, {"b": 4})
        assert needs_rescale(of, 0, {"b": 4})
        assert not needs_rescale(of, 0, {"b": 5})
        assert not needs_rescale(of, 0)

    def test_operator_state_goes_round(self) -> None:
        parts = ((b"a", b"b", b"c"), (), (b"d", b"e"))
        given = OperatorListState(kind="list", schema="bytes", parts=parts)
        state = rescaled(operator(3, operator_states={"seen": given}), 2, "x")
        assert state.operator_states["seen"].parts == ((b"a", b"c", b"e"), (b"b", b"d"))
        wide = redistributed(given, 7).parts
        assert wide == ((b"a",), (b"b",), (b"c",), (b"d",), (b"e",), (), ())

    def test_a_union_goes_round_as_well_so_that_fewer_subtasks_still_have_all_of_it(self) -> None:
        given = OperatorListState(kind="union", schema="bytes", parts=((b"a",), (b"b",), (b"c",)))
        assert redistributed(given, 2).parts == ((b"a", b"c"), (b"b",))
        assert redistributed(given, 5).parts == ((b"a",), (b"b",), (b"c",), (), ())

    def test_a_broadcast_stays_the_one_copy_that_it_is(self) -> None:
        given = OperatorListState(kind="broadcast", schema="bytes", parts=((b"a",),))
        assert redistributed(given, 5) is given

    def test_it_is_needed_when_any_operator_has_another(self) -> None:
        of = msgspec.structs.replace(record(3), operators={"a": operator(2), "b": operator(3)})
        assert needs_rescale(of, 2)
        assert needs_rescale(of, 3)
        same = msgspec.structs.replace(record(3), operators={"a": operator(2)})
        assert not needs_rescale(same, 2)
        assert not needs_rescale(same, 0)
        assert not needs_rescale(None, 2)
        assert not needs_rescale(record(3), 2)


class TestJoined:
    def ranges(self, *shards: Shard, limit: int) -> list[list[int]]:
        groups = joined(shards, limit)
        assert [piece for group in groups for piece in group] == list(shards)
        return [[piece.first for piece in group] for group in groups]

    def test_the_two_neighbours_that_are_smallest_together(self) -> None:
        shards = shard(0, 1, 9), shard(2, 3, 4), shard(4, 5, 3), shard(6, 7, 5)
        assert self.ranges(*shards, limit=100) == [[0], [2, 4], [6]]

    def test_up_to_the_limit_and_not_beyond(self) -> None:
        shards = shard(0, 1, 4), shard(2, 3, 3)
        assert self.ranges(*shards, limit=7) == [[0, 2]]
        assert self.ranges(*shards, limit=6) == [[0], [2]]
        assert self.ranges(*shards, limit=0) == [[0], [2]]

    def test_none_that_are_no_neighbours_or_of_other_backends(self) -> None:
        assert self.ranges(shard(0, 1), shard(3, 4), limit=100) == [[0], [3]]
        other = msgspec.structs.replace(shard(2, 3), backend="memory")
        assert self.ranges(shard(0, 1), other, limit=100) == [[0], [2]]

    def test_a_shard_alone_or_none(self) -> None:
        assert self.ranges(shard(0, 15), limit=100) == [[0]]
        assert joined((), 100) == ()


def test_an_operator_with_state_keeps_its_key_groups_and_that_is_said_with_the_way_to_change_it() -> None:
    standing = msgspec.structs.replace(record(1), operators={"balance": operator(2)})
    assert kept_key_groups(standing, GROUPS, "orders") == ""
    said = kept_key_groups(standing, 256, "orders")
    assert "'balance' keeps 16" in said
    assert "savepoint create orders --type canonical" in said
    assert "--max-parallelism 256" in said
    assert kept_key_groups(record(1), 256, "orders") == ""


def test_a_rescale_looks_at_each_shard_only_where_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(shard: Shard, first: int, last: int) -> Shard | None:
        nonlocal looked
        looked += 1
        return clipped(shard, first, last)

    monkeypatch.setattr(rescale, "clipped", counted)
    shards = [shard(first, last) for first, last in default_assignment(1_000, 1_000)]
    many = operator_of(shards, key=(("n", "long"),), groups=1_000)
    rescaled(many, 500, "operator 'x'")
    assert looked == 1_000
