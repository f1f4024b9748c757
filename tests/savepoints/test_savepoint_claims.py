"""Whose a savepoint is: claiming it, against others and against its disposal, and what keeps it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from stateflow.errors import (
    CorruptError,
    NotFoundError,
    UsageError,
)
from stateflow.format import records
from stateflow.format.records import Savepoint, SavepointClaim, encode
from stateflow.savepoints.format import (
    read_savepoint,
    read_savepoint_claim,
    to_pin,
    verify_savepoint,
)
from stateflow.storage.store import Store
from tests.jobs.files import objects
from tests.jobs.log import complete, log, pending, record
from tests.jobs.log import file as named_file
from tests.jobs.snapshots import JOB, OTHER, SOMEBODY, checkpoint, claim, dispose, native, outcome
from tests.memory_store import Call, MemoryStore
from tests.refusals.refusal import refused


class TestClaiming:
    def test_a_claim_says_whose_it_is_for_good(self, saved: MemoryStore) -> None:
        assert claim(saved) == read_savepoint(saved)
        standing = read_savepoint_claim(saved)
        assert standing is not None
        assert (standing.job, standing.name, standing.url) == (JOB, "orders", saved.url)
        before = saved.snapshot()
        claim(saved)
        assert saved.snapshot() == before

    def test_another_job_is_refused_and_told_whose_it_is(self, saved: MemoryStore) -> None:
        claim(saved)
        before = saved.snapshot()
        with refused(UsageError, "was claimed by job 'orders'", "no-claim"):
            claim(saved, OTHER, "fraud")
        assert saved.snapshot() == before

    def test_nothing_is_claimed_where_nothing_is(self) -> None:
        store = MemoryStore("empty")
        with refused(NotFoundError, "there is no savepoint"):
            claim(store)
        assert objects(store) == {}

    def test_one_that_is_being_disposed_of_is_gone(self, saved: MemoryStore) -> None:
        saved.create("_claimed", encode(SavepointClaim(job="", owner=SOMEBODY, savepoint="s")))
        with refused(NotFoundError, "is being disposed of"):
            claim(saved)

    def test_one_that_lacks_a_file_is_not_claimed(self, saved: MemoryStore) -> None:
        lost = next(path for path in objects(saved) if path.endswith(".sst"))
        saved.delete([lost])
        before = saved.snapshot()
        with refused(CorruptError, f"{lost} is missing"):
            claim(saved)
        assert saved.snapshot() == before

    def test_under_another_url_it_would_be_two_savepoints_to_the_collector(self, saved: MemoryStore) -> None:
        claim(saved)
        elsewhere = MemoryStore("same-by-another-name", saved.snapshot())
        with refused(UsageError, "memory://saved", "restore from that URL"):
            claim(elsewhere)

    @pytest.mark.parametrize("lost", ["_metadata", ".sst"])
    def test_a_claim_that_another_run_of_the_job_has_made_is_not_taken_back(
        self, lost: str, saved: MemoryStore
    ) -> None:
        claim(saved)
        body = saved.read("_claimed")

        def losing(call: Call) -> None:
            if call.verb == "create":
                saved.before = None
                saved.delete([path for path in objects(saved) if path.endswith(lost)])

        saved.before = losing
        with pytest.raises((NotFoundError, CorruptError)):
            claim(saved, run="second run")
        assert saved.read("_claimed") == body

    def test_a_savepoint_that_was_disposed_of_meanwhile_leaves_no_claim(
        self, saved: MemoryStore, tmp_path: Path
    ) -> None:
        root = MemoryStore("root")

        def disposal(call: Call) -> None:
            if call.verb == "create":
                saved.before = None
                dispose(saved)

        saved.before = disposal
        with refused(NotFoundError, "was disposed of meanwhile"):
            claim(saved)
        assert objects(saved) == {}

        native(root, checkpoint(root), saved, tmp_path)

        def replaced(call: Call) -> None:
            if call.verb == "create":
                saved.before = None
                dispose(saved)
                native(root, checkpoint(root), saved, tmp_path)

        saved.before = replaced
        with refused(NotFoundError, "was disposed of meanwhile"):
            claim(saved)
        assert "_claimed" not in objects(saved)
        assert verify_savepoint(saved, deep=True) == []


class TestClaimAgainstDisposal:
    """At every call of the one, the other begins and ends: one of them has it."""

    def interrupted(
        self, whole: Mapping[str, bytes], first: Callable[[Store], object], second: Callable[[Store], object]
    ) -> list[tuple[object, object, MemoryStore]]:
        alone = MemoryStore("saved", whole)
        first(alone)
        found = []
        for at in range(len(alone.calls)):
            store = MemoryStore("saved", whole)
            between: list[object] = []

            def hook(
                call: Call, at: int = at, store: MemoryStore = store, between: list[object] = between
            ) -> None:
                if call.number == at:
                    store.before = None
                    between.append(outcome(second, store))

            store.before = hook
            end = outcome(first, store)
            found.append((end, between[0], store))
        return found

    def test_two_claims_have_one_winner(self, saved: MemoryStore) -> None:
        for mine, theirs, store in self.interrupted(
            saved.snapshot(), claim, lambda store: claim(store, OTHER, "fraud")
        ):
            assert isinstance(mine, Savepoint) != isinstance(theirs, Savepoint)
            standing = read_savepoint_claim(store)
            assert standing is not None
            assert standing.job == (JOB if isinstance(mine, Savepoint) else OTHER)
            assert verify_savepoint(store, deep=True) == []

    @pytest.mark.parametrize("first", ["claim", "disposal"])
    def test_a_claim_and_a_disposal_have_one_winner(self, first: str, saved: MemoryStore) -> None:
        acts = (claim, dispose) if first == "claim" else (dispose, claim)
        winners = set()
        for one, other, store in self.interrupted(saved.snapshot(), *acts):
            claimed, disposed = (one, other) if first == "claim" else (other, one)
            assert isinstance(claimed, Savepoint) != isinstance(disposed, int)
            if isinstance(claimed, Savepoint):
                assert verify_savepoint(store, deep=True) == []
                assert read_savepoint_claim(store) is not None
            else:
                assert objects(store) == {}
            winners.add(type(claimed))
        assert len(winners) > 1


class TestWhatToPin:
    URL = "s3://bucket/saved"

    def naming(self, slot: int, **fields: object) -> records.Record:
        return record(slot, files=(named_file("state/a-000001.sst", base=self.URL),), **fields)  # type: ignore[arg-type]

    def test_the_newest_record_that_names_it(self) -> None:
        facts = log(
            complete(record(1)), complete(self.naming(2)), complete(self.naming(3)), complete(record(4))
        )
        found = to_pin(facts, self.URL + "/")
        assert found is not None
        assert found.slot == 3

    def test_one_that_is_pending_too(self) -> None:
        found = to_pin(log(complete(record(1)), pending(self.naming(2))), self.URL)
        assert found is not None
        assert found.slot == 2

    def test_one_that_a_collector_has_chosen_does_not_count(self) -> None:
        facts = log(
            complete(self.naming(1, floor=1)), complete(self.naming(2), "gc-1"), complete(record(3, floor=3))
        )
        found = to_pin(facts, self.URL)
        assert found is not None
        assert found.slot == 1
        facts = log(complete(self.naming(1), "gc-1"), complete(record(2, floor=2)))
        with refused(NotFoundError, "needs it no longer", "disposing of it"):
            to_pin(facts, self.URL)

    def test_none_when_no_record_names_it(self) -> None:
        facts = log(complete(record(1)), complete(record(2, files=(named_file("orders/shared/e1-c1-a"),))))
        assert to_pin(facts, self.URL) is None
        assert to_pin(log(), self.URL) is None
