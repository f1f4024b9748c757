"""The commit of a topic's messages against brokers that are a few dictionaries: it is killed at every call, loses every answer, and has
another run come in between at every one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

from stateflow.connectors import (
    CommitRequest,
    Committed,
    DisagreementError,
    FencedError,
    FileRef,
    NotFoundError,
    Prepared,
    SinkSlot,
    Stager,
    UnavailableError,
    tries,
)
from stateflow.connectors.kafka import sink, slots
from stateflow.connectors.kafka.cluster import TopicFacts
from tests.refusals.refusal import refused

BATCHES = {1: ["a", "b"], 2: ["c", "d"], 3: ["e"]}
"""The messages of each slot."""
JOB = "3f2b6c1e-1111-4a6e-9d3f-0123456789ab"
NAME = f"stateflow-{JOB}-out"


class Killed(BaseException):
    """The driver, by SIGKILL."""


@dataclass
class Brokers:
    """What a cluster keeps, and what happens at which call."""

    messages: list[str] = field(default_factory=list)
    """As readers see them who trust transactions."""
    group: dict[str, str] = field(default_factory=dict)
    topic: dict[str, str] = field(default_factory=dict)
    topic_id: str = "first"
    """Empty: it was deleted."""
    epochs: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    accident: tuple[int, str] = (0, "")
    """The number of a call, and what happens there."""
    between: Callable[[], object] = lambda: None
    """What another run does there."""

    def call(self, effect: Callable[[], Any] = lambda: None) -> Any:
        self.calls += 1
        if self.calls != self.accident[0]:
            return effect()
        match self.accident[1]:
            case "killed before":
                raise Killed
            case "refused":
                raise UnavailableError("no answer")
            case "absent":
                raise NotFoundError("something is not there")
            case "another run":
                self.between()
                return effect()
        effect()
        if self.accident[1] == "killed after":
            raise Killed
        raise UnavailableError("the answer was lost")


BROKERS = Brokers()


class FakeCluster:
    """What `Cluster` is to a sink."""

    what = what_by_slots = "Kafka topic out"

    def __init__(self, topic: Any) -> None:
        assert topic.topic == "out"

    def facts(self) -> TopicFacts:
        def told() -> TopicFacts:
            if not BROKERS.topic_id:
                raise NotFoundError("the topic is not there")
            return TopicFacts(BROKERS.topic_id, 1000, 1, "delete")

        return BROKERS.call(told)

    def chosen(self, partitions: int | None) -> Any:
        return None

    def group_slot(self, name: str) -> str | None:
        return BROKERS.call(lambda: BROKERS.group.get(name))

    def topic_slot(self, name: str) -> str | None:
        return BROKERS.call(lambda: BROKERS.topic.get(name))

    def make_slots(self) -> None:
        BROKERS.call(lambda: None)

    @contextmanager
    def transaction(self, name: str, rows: int, attempt: int) -> Iterator[FakeTransaction]:
        def opened() -> int:
            BROKERS.epochs[name] = BROKERS.epochs.get(name, 0) + 1
            return BROKERS.epochs[name]

        yield FakeTransaction(name, BROKERS.call(opened))

    @contextmanager
    def without_transaction(self, name: str) -> Iterator[FakeTransaction]:
        yield FakeTransaction(name, None)


class FakeTransaction:
    def __init__(self, name: str, epoch: int | None) -> None:
        self.name, self.epoch = name, epoch
        self.messages: list[str] = []
        self.kept = ""

    def begin(self) -> None:
        self._act()

    def produce(
        self, messages: Iterable[tuple[bytes | None, bytes | None]], headers: Any, chosen: Any = None
    ) -> None:
        assert dict(headers)["stateflow.job"] == JOB.encode()
        for key, value in messages:
            assert key is not None
            assert value is not None
            self._act(lambda value=value: self.messages.append(value.decode()))

    def keep(self, text: str) -> None:
        def keep() -> None:
            self.kept = text

        self._act(keep)

    def commit(self) -> None:
        self._act(self._publish)

    def _act(self, effect: Callable[[], object] = lambda: None) -> None:
        def fenced() -> None:
            if self.epoch is not None and BROKERS.epochs[self.name] != self.epoch:
                raise UnavailableError("another producer of this name has been opened")
            effect()
            if self.epoch is None:
                self._publish()

        BROKERS.call(fenced)

    def _publish(self) -> None:
        BROKERS.messages += self.messages
        self.messages = []
        if self.kept:
            BROKERS.group[self.name] = BROKERS.topic[self.name] = self.kept


class FakeStager:
    def batches(self, files: Any) -> Iterator[pa.RecordBatch]:
        values = [letter.encode() for letter in BATCHES[int(files[0].name)]]
        yield pa.record_batch({"key": values, "value": values})


@pytest.fixture(autouse=True)
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    monkeypatch.setattr(sink, "Cluster", FakeCluster)
    monkeypatch.setattr(tries, "PAUSES", (0.0, 0.0))
    _put(Brokers())
    return BROKERS


def _put(state: Brokers) -> None:
    BROKERS.__dict__.update(copy.deepcopy(state.__dict__))


def prepared(slot: int, exactly_once: bool = True) -> Prepared:
    payload = {
        "topic": "out", "bootstrap": "b:9092", "connection": "", "options": {}, "topic_id": "first", "exactly_once": exactly_once,
    }  # fmt: skip
    files = (FileRef(str(slot), 1, "x", "p"),)
    prev = slot - 1 or None
    return Prepared("kafka_append", "kafka://b:9092/out", prev=prev, payload=payload, files=files, rows=2)


def commit(
    slot: int, exactly_once: bool = True, record: str = "w", owner: Callable[[], None] = lambda: None
) -> Committed:
    at = SinkSlot(JOB, "orders", "out", slot, 1, record=f"{record}{slot}", prev=slot - 1 or None)
    stager = cast("Stager", FakeStager())
    return sink.KafkaAppend.commit(
        CommitRequest(prepared(slot, exactly_once), at, cast("Any", None), stager, owner)
    )


def slot_in() -> int | None:
    kept = slots.parsed(BROKERS.topic.get(NAME), "out")
    return kept.slot if kept is not None else None


def calls_of(act: Callable[[], object]) -> int:
    """How many calls of the brokers something makes; it leaves no trace."""
    before = copy.deepcopy(BROKERS)
    BROKERS.calls = 0
    act()
    calls = BROKERS.calls
    _put(before)
    return calls


def upto(slot: int) -> list[str]:
    return [letter for k in range(1, slot + 1) for letter in BATCHES[k]]


@pytest.mark.parametrize(
    "forgotten", [False, True], ids=["the group keeps its slot", "the group is forgotten"]
)
@pytest.mark.parametrize("accident", ["killed before", "killed after", "refused", "answer lost"])
def test_every_message_is_there_once_whatever_happens_at_any_call(accident: str, forgotten: bool) -> None:
    commit(1)
    if forgotten:
        BROKERS.group.clear()
    start = copy.deepcopy(BROKERS)
    calls = calls_of(lambda: commit(2))
    assert calls >= 8
    for number in range(1, calls + 1):
        _put(start)
        BROKERS.calls, BROKERS.accident = 0, (number, accident)
        try:
            commit(2)
        except Killed:
            assert BROKERS.messages in (upto(1), upto(2))
            if forgotten:
                BROKERS.group.clear()
            commit(2)
        assert (BROKERS.messages, slot_in()) == (upto(2), 2), f"{accident} at call {number}"
        assert commit(2) == "already"
        assert commit(3) == "committed"
        assert BROKERS.messages == upto(3)


@pytest.mark.parametrize("knows", [True, False], ids=["it learns of the other", "it never does"])
@pytest.mark.parametrize("further", [0, 1], ids=["the same slot", "the next slot, too"])
def test_of_two_runs_that_believe_to_be_the_newest_one_writes(further: int, knows: bool) -> None:
    """The second finishes the record while the first is between any two calls."""
    commit(1)
    start = copy.deepcopy(BROKERS)
    for number in range(1, calls_of(lambda: commit(2)) + 1):
        _put(start)
        replaced = []

        def second(replaced: list[bool] = replaced) -> None:
            replaced.append(True)
            for slot in range(2, 3 + further):
                commit(slot)

        def owner(replaced: list[bool] = replaced) -> None:
            if replaced and knows:
                raise FencedError("a newer run owns the job")

        BROKERS.calls, BROKERS.accident, BROKERS.between = 0, (number, "another run"), second
        with suppress(FencedError, DisagreementError):
            assert commit(2, owner=owner) == "already"
        assert BROKERS.messages == upto(2 + further), f"the second comes before call {number} of the first"


def test_a_run_that_was_replaced_begins_no_transaction() -> None:
    """The newer one may have given the record up, and then nobody else writes it."""
    commit(1)
    start = copy.deepcopy(BROKERS)
    for number in range(1, 4):
        _put(start)
        replaced: list[bool] = []

        def owner(replaced: list[bool] = replaced) -> None:
            if replaced:
                raise FencedError("a newer run owns the job")

        BROKERS.calls, BROKERS.accident = 0, (number, "another run")
        BROKERS.between = partial(replaced.append, True)
        with pytest.raises(FencedError):
            commit(2, owner=owner)
        assert BROKERS.messages == upto(1)


def test_the_slot_of_another_record_is_a_disagreement() -> None:
    commit(1, record="of the copy")
    with refused(DisagreementError, "sink and log disagree", "Kafka topic out", "slot 1 of this job"):
        commit(1)
    assert BROKERS.messages == upto(1)


def test_a_slot_that_is_gone_or_ahead_is_a_disagreement_and_never_doubles() -> None:
    commit(1)
    commit(2)
    with refused(DisagreementError, "has slot 2 of this job"):
        commit(1)
    BROKERS.group.clear()
    BROKERS.topic.clear()
    with pytest.raises(DisagreementError, match="Kafka topic out has no slot of this job"):
        commit(2)
    assert BROKERS.messages == upto(2)


def test_a_topic_that_was_made_anew_gets_nothing_of_a_record_for_the_old_one() -> None:
    commit(1)
    BROKERS.topic_id = "second"
    with refused(
        DisagreementError, "was deleted and made anew", "give sink 'out' a new uid", "stateflow abandon"
    ):
        commit(2)
    assert BROKERS.messages == upto(1)


def test_what_a_topic_had_got_before_it_was_deleted_is_delivered() -> None:
    commit(1)
    BROKERS.topic_id = ""
    assert commit(1) == "already"
    with refused(DisagreementError, "Kafka topic out was deleted", "stateflow abandon"):
        commit(2)


def test_only_what_brokers_say_of_the_topic_itself_means_that_it_is_gone() -> None:
    commit(1)
    calls = calls_of(lambda: commit(2))
    ends = []
    for number in range(1, calls + 1):
        BROKERS.calls, BROKERS.accident = 0, (number, "absent")
        with pytest.raises((DisagreementError, NotFoundError)) as caught:
            commit(2)
        ends.append("stateflow abandon" in str(caught.value))
    assert ends.count(True) == 1
    assert BROKERS.messages == upto(1)


def test_a_slot_that_cannot_be_read_is_no_slot_to_write_over() -> None:
    BROKERS.group[NAME] = '{"version":2}'
    with refused(DisagreementError, "a newer version of stateflow"):
        commit(1)
    assert BROKERS.messages == []


@pytest.mark.parametrize("accident", ["killed before", "killed after", "refused", "answer lost"])
def test_without_transactions_messages_may_come_twice_and_none_is_lost(accident: str) -> None:
    calls = calls_of(lambda: commit(1, exactly_once=False))
    for number in range(1, calls + 1):
        _put(Brokers())
        BROKERS.accident = number, accident
        try:
            commit(1, exactly_once=False)
        except Killed:
            commit(1, exactly_once=False)
        assert set(BROKERS.messages) == set(upto(1))
        before = list(BROKERS.messages)
        assert commit(1, exactly_once=False) == "already"
        assert BROKERS.messages == before


def test_brokers_that_stay_away_end_the_run_after_a_bounded_time() -> None:
    class Away(Brokers):
        def call(self, effect: Callable[[], Any] = lambda: None) -> Any:
            self.calls += 1
            raise UnavailableError("no answer")

    BROKERS.call = Away.call.__get__(BROKERS)  # type: ignore[method-assign]
    try:
        with pytest.raises(UnavailableError):
            commit(1)
        assert BROKERS.calls == 3
    finally:
        del BROKERS.call
