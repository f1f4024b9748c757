"""State as of then, over HTTP and from Python: by slot, tag and time; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.checkpoint.pins import list_pins
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.instants import instant
from stateflow.serve.follow import FollowedJob
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.refusals.refusal import refused
from tests.serve.conftest import Serve, Served, served_over
from tests.serve.test_app import ORDERS, ask

NAMES = ("orders", "balance", "total")


class Past:
    """A job with three checkpoints, an hour apart, after which user 1 has 1.0, 3.0 and 6.0."""

    def __init__(self, folder: Path, backend: str = "rocksdb") -> None:
        self.job = QueriedJob(folder / "root", retained=1, backend=backend)
        self.slots: list[int] = []
        self.times: list[int] = []
        for rows in (2, 3, 4):
            self.job.clock.forward(hours=1)
            self.slots.append(self.job.checkpoint(entries_of(filled(1, rows=rows))))
            self.times.append(self.job.head().at)
        self.job.tag(self.slots[1], "before")
        self.job.clock.forward(minutes=1)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(tmp_path_factory.mktemp("past"))


@pytest.fixture(scope="module")
def then(past: Past, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_over(past.job, tmp_path_factory.mktemp("host")) as made:
        yield made


def test_a_slot_a_tag_and_a_time_are_answered_as_of_then(past: Past, then: Served) -> None:
    first, second, third = past.slots
    between = instant(past.times[1] + 60_000_000)
    texts = {str(first): 1.0, "tag:before": 3.0, between.strftime("%Y-%m-%dT%H:%M:%S"): 3.0, "latest": 6.0}
    for text, value in texts.items():
        answer = ask(then, f"{ORDERS}/total?key=1&at={text}").json
        assert (answer["value"], answer["found"]) == (value, True), text
    assert ask(then, f"{ORDERS}/total?key=1&at=tag:before").json["checkpoint"] == second
    assert ask(then, f"{ORDERS}/total?key=1").json["checkpoint"] == third
    many = ask(then, f"{ORDERS}/total", body={"keys": [1, 2], "at": first}).json
    assert (many["checkpoint"], [one["value"] for one in many["results"]]) == (first, [1.0, None])
    assert ask(then, f"/jobs/orders?at={second}").json["checkpoint"] == second
    assert ask(then, "/jobs/orders").json["checkpoint"] == third


def test_the_client_asks_as_of_then(past: Past, then: Served) -> None:
    with then.client() as client:
        assert client.get(*NAMES, 1, at=past.slots[0]) == 1.0
        assert client.get(*NAMES, 1, at="tag:before") == 3.0
        assert client.get(*NAMES, 1, at=instant(past.times[1])) == 3.0
        assert client.get("orders", "balance", "items", 1, at=past.slots[0]) == {"sku0": 1, "sku1": 1}
        assert client.get_many(*NAMES, [1, 5], at=instant(past.times[0])) == [1.0, None]
        assert client.look_up(*NAMES, 1, at=past.slots[1])["checkpoint"] == past.slots[1]
        assert client.look_up_many(*NAMES, [1], at="tag:before")["checkpoint"] == past.slots[1]
        assert client.job("orders", at="tag:before")["checkpoint"] == past.slots[1]
        with refused(UsageError, "has no zone"):
            client.get(*NAMES, 1, at=datetime(2026, 1, 1, 2))
        with refused(NotFoundError, "no checkpoint yet", "2020-01-01T00:00:00Z"):
            client.get(*NAMES, 1, at=datetime(2020, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("at", "status", "says"),
    [
        ("999", 404, "has no checkpoint 999"),
        ("tag:none", 404, "has no tag 'none'; its tags are: before"),
        ("2020-01-01T00:00", 404, "the first one that it keeps is 2 of 2026-"),
        ("2126-01-01T00:00", 400, "has not come yet"),
        ("2026-13-01T00:00", 400, "is no time: write 2026-11-20T10:00 (UTC)"),
        ("s3://elsewhere/savepoint", 400, "names no checkpoint: write latest, 42"),
        ("", 400, "names no checkpoint"),
        ("2&min_checkpoint=3", 400, "at and min_checkpoint exclude each other"),
    ],
)
def test_a_point_that_there_is_not_is_refused_with_what_there_is(
    then: Served, at: str, status: int, says: str
) -> None:
    answer = ask(then, f"{ORDERS}/total?key=1&at={at}")
    assert (answer.status, says in answer.error) == (status, True), answer.body


def test_what_a_job_does_not_take_is_refused(then: Served) -> None:
    assert (
        ask(then, "/jobs/orders?checkpoint=2").error == "the parameter 'checkpoint' is unknown here: use at"
    )
    header = {"Stateflow-Min-Checkpoint": "3"}
    assert ask(then, f"{ORDERS}/total?key=1&at=2", headers=header).status == 400


def test_a_collected_checkpoint_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    past = Past(tmp_path)
    past.job.untag("before")
    past.job.collect(retained=1)
    with served_over(past.job, tmp_path / "host") as served:
        gone = ask(served, f"{ORDERS}/total?key=1&at={past.slots[1]}")
        assert gone.status == 404
        assert f"has no checkpoint {past.slots[1]} (any more)" in gone.error
        then = ask(served, f"{ORDERS}/total?key=1&at={str(instant(past.times[1]))[:16].replace(' ', 'T')}")
        assert then.status == 404
        assert f"next to it the job keeps {past.slots[2]} of " in then.error


@contextmanager
def collected_first(past: Past, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    found = FollowedJob.kept

    def then_collected(self: FollowedJob, name: str) -> Any:
        record = found(self, name)
        past.job.untag("before")
        past.job.collect(retained=1)
        return record

    monkeypatch.setattr(FollowedJob, "kept", then_collected)
    yield


def test_a_checkpoint_that_is_collected_while_it_is_read_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = Past(tmp_path)
    with served_over(past.job, tmp_path / "host") as served, collected_first(past, monkeypatch):
        answer = ask(served, f"{ORDERS}/total?key=1&at={past.slots[0]}")
    assert answer.status == 404
    assert f"checkpoint {past.slots[0]} of job 'orders' was collected while it was read" in answer.error


def test_a_look_at_the_past_leaves_no_pin(past: Past, then: Served) -> None:
    ask(then, f"{ORDERS}/total?key=1&at={past.slots[0]}")
    assert {pin.slot for pin in list_pins(past.job.store, past.job.layout)} <= set(past.slots[1:])


def test_the_memory_backend_is_read_as_of_then(tmp_path: Path) -> None:
    past = Past(tmp_path, "memory")
    with served_over(past.job, tmp_path / "host") as served, served.client() as client:
        assert client.get(*NAMES, 1, at=past.slots[0]) == 1.0


def test_a_state_that_has_stopped_to_be_served_is_not_served_from_the_past(
    job: QueriedJob, serve: Serve
) -> None:
    first = job.checkpoint(entries_of(filled(1)))
    job.states = {**job.states, "total": msgspec.structs.replace(job.states["total"], queryable=False)}
    job.checkpoint(entries_of(filled(1)))
    served = serve(job)
    assert ask(served, f"{ORDERS}/total?key=1&at={first}").status == 403
    assert ask(served, f"{ORDERS}/items?key=1&at={first}").json["value"] == {"sku0": 1, "sku1": 1}


@pytest.mark.parametrize("after", ["renamed", "renamed and opted in again", "removed", "operator removed"])
def test_a_state_that_opted_out_stays_closed_whatever_became_of_it(
    job: QueriedJob, serve: Serve, after: str
) -> None:
    first = job.checkpoint(entries_of(filled(1)))
    closed = msgspec.structs.replace(job.states["total"], queryable=False)
    job.states = {**job.states, "total": closed}
    job.checkpoint(entries_of(filled(1)))
    job.states = {name: schema for name, schema in job.states.items() if name != "total"}
    if "renamed" in after:
        job.states["amount"] = msgspec.structs.replace(
            closed, aliases=("total",), former=("total",), queryable="again" in after
        )
    if after == "operator removed":
        job.operator = "other"
    job.checkpoint(entries_of(filled(1)))
    assert ask(serve(job), f"{ORDERS}/total?key=1&at={first}").status == 403


def test_a_state_that_is_gone_is_not_served_from_the_past_and_one_that_was_renamed_is(
    job: QueriedJob, serve: Serve
) -> None:
    first = job.checkpoint(entries_of(filled(1)))
    total = job.states["total"]
    job.states = {name: schema for name, schema in job.states.items() if name not in ("total", "items")}
    job.states["amount"] = msgspec.structs.replace(total, aliases=("total",), former=("total",))
    job.checkpoint(entries_of(filled(1)))
    served = serve(job)
    assert ask(served, f"{ORDERS}/total?key=1&at={first}").json["value"] == 1.0
    gone = ask(served, f"{ORDERS}/items?key=1&at={first}")
    assert (gone.status, "`stateflow query --at`" in gone.error) == (403, True), gone.error


def test_a_state_that_was_not_served_then_is_refused(job: QueriedJob, serve: Serve) -> None:
    states = job.states
    job.states = {**states, "total": msgspec.structs.replace(states["total"], queryable=False)}
    first = job.checkpoint(entries_of(filled(1)))
    job.states = states
    job.checkpoint(entries_of(filled(1)))
    assert ask(serve(job), f"{ORDERS}/total?key=1&at={first}").status == 403
