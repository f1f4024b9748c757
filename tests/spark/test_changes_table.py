"""What changed, as a Spark table: the rows that `stateflow diff --all` writes, and what is refused. Most of it needs no session."""

from __future__ import annotations

import json
import logging
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from stateflow.config.options import load
from stateflow.errors import IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.instants import instant
from stateflow.jobs.job import Job
from stateflow.reading.diff import TEXTS
from stateflow.spark.state_tables.changes import ChangesReader
from stateflow.spark.state_tables.frames import read_state
from stateflow.spark.state_tables.source import StateDataSource
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.local import LocalStore
from tests.reading.grown import TOTAL, GrownJob, full
from tests.refusals.refusal import refused

_int = serializer_for(int)
Rows = Counter[tuple[str | None, ...]]


class Grown(GrownJob):
    def give(self, **totals: int | None) -> int:
        changes = {
            full(TOTAL, int(user[1:])): None if value is None else _int.dumps(value)
            for user, value in totals.items()
        }
        return self.batch(lambda model: changes)

    def source(self, **options: str) -> StateDataSource:
        host = {"cache_dir": str(self.folder / "host"), "scratch_dir": str(self.folder / "scratch")}
        return StateDataSource({"job": self.name, "checkpoint_dir": self.root, **host, **options})

    def reader(self, **options: str) -> ChangesReader:
        source = self.source(**options)
        made = source.reader(source.schema())
        assert isinstance(made, ChangesReader)
        return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]  # as Spark sends it

    def table(self, **options: str) -> Rows:
        reader = self.reader(**options)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return Counter(tuple(row[name] for name in TEXTS) for batch in batches for row in batch.to_pylist())

    def told(self, before: str, after: str, **options: Any) -> Rows:
        """What the command writes with `--before --all`."""
        own = load(
            code={"checkpoint_dir": self.root, "cache_dir": str(self.folder / "other")},
            env={},
            folder=self.folder,
        )
        with Job(self.root, self.name).diff(before, after, look_up=True, options=own, **options) as found:
            return Counter(tuple(change.texts[name] for name in TEXTS) for change in found.changes())


@pytest.fixture
def job(tmp_path: Path) -> Grown:
    return Grown(tmp_path / "root")


def row(user: int, kind: str, before: Any, after: Any) -> tuple[str | None, ...]:
    texts = (None if value is None else json.dumps(value) for value in (before, after))
    return ("balance", "total", kind, str(user), None, None, *texts)


@pytest.mark.slow
def test_a_session_reads_what_changed_as_a_table(spark: SparkSession, job: Grown) -> None:
    one, other = job.give(u1=5, u2=1, u4=4), job.give(u1=None, u2=2, u3=7)
    expected = {row(1, "went", 5, None), row(2, "changed", 1, 2), row(3, "came", None, 7)}
    options = {"checkpoint_dir": job.root, "cache_dir": str(job.folder / "host"), "job": "orders"}
    frame = spark.read.format("stateflow").options(**options, diff=f"{one}..latest").load()
    assert frame.columns == list(TEXTS)
    job.give(u9=9)
    assert {tuple(each) for each in frame.collect()} == expected, "the points were chosen by load()"
    found = read_state(spark, **options, diff=f"{one}..{other}").where("kind = 'changed'")
    assert [(each["key"], each["before"], each["after"]) for each in found.collect()] == [("2", "1", "2")]


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_the_rows_are_those_of_the_command(tmp_path: Path, backend: str) -> None:
    job = Grown(tmp_path / "root", backend=backend, seed=5)
    slots = [job.batch(job.some(9, most=12)) for _ in range(4)]
    slots += [
        job.rescale(3),
        job.batch(job.some(9, most=12)),
        job.rescale(1),
        job.batch(job.some(9, most=12)),
    ]
    for before, after in (
        (slots[0], slots[1]),
        (slots[0], slots[-1]),
        (slots[-1], slots[2]),
        (slots[3], slots[4]),
    ):
        rows = job.told(str(before), str(after))
        assert job.table(diff=f"{before}..{after}") == rows
    assert rows == Counter(), "a rescale changes nothing"
    assert job.told(str(slots[0]), str(slots[-1])), "nothing was compared"


def test_a_host_that_has_nothing_still_knows_what_was_before(
    job: Grown, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job.give(**{f"u{n}": n for n in range(200)})
    other = job.give(u1=-1)
    monkeypatch.setattr(LocalStore, "local_root", None)
    assert job.table(diff=f"{one}..{other}") == Counter([row(1, "changed", 1, -1)])


def test_tags_times_savepoints_and_other_jobs_are_points(job: Grown, tmp_path: Path) -> None:
    one = job.give(u1=5)
    job.tag(one, "good")
    url = str(tmp_path / "sp")
    job.save(one, url)
    other = job.give(u1=6)
    expected = Counter([row(1, "changed", 5, 6)])
    at = job.at(one).at
    assert job.table(diff=f"tag:good..{other}") == expected
    assert job.table(diff=f"{url}..{other}") == expected
    then = instant(at).isoformat()
    assert job.table(diff=f"{then}..latest") == expected
    copy = Grown(tmp_path / "root", "copy")
    copy.give(u1=9)
    assert job.table(diff="latest..latest", **{"with": "copy"}) == Counter([row(1, "changed", 6, 9)])


def test_operator_and_state_narrow_the_table(job: Grown) -> None:
    one = job.give(u1=1)
    other = job.batch(job.some(9, most=12))
    whole = job.table(diff=f"{one}..{other}")
    assert {each[1] for each in whole} > {"total"}
    narrowed = job.table(diff=f"{one}..{other}", operator="balance", state="total")
    assert narrowed == Counter({each: n for each, n in whole.items() if each[1] == "total"})


def test_what_cannot_be_told_entry_by_entry_is_logged_once(
    job: Grown, caplog: pytest.LogCaptureFixture
) -> None:
    one = job.give(u1=1)
    job.schemas["sum"] = job.schemas.pop("total")
    other = job.give(u1=2)
    with caplog.at_level(logging.WARNING):
        came = ("balance", "sum", "came", "1", None, None, None, "2")
        assert job.table(diff=f"{one}..{other}") == Counter([row(1, "went", 1, None), came])
    assert [each.getMessage().split(" is ")[0] for each in caplog.records] == [
        "state 'sum' of operator 'balance'",
        "state 'total' of operator 'balance'",
    ]


def test_a_renamed_state_is_compared_with_itself_and_said_to_be_once(
    job: Grown, caplog: pytest.LogCaptureFixture
) -> None:
    one = job.give(u1=1)
    job.schemas["sum"] = msgspec.structs.replace(job.schemas.pop("total"), aliases=("total",))
    between = job.give(u1=2)
    job.schemas["all"] = msgspec.structs.replace(job.schemas.pop("sum"), aliases=("sum",))
    other = job.give(u1=3)
    url = str(job.folder / "sp")
    job.save(between, url)
    for points, called, now, values in (
        (f"{one}..{other}", f"is called 'total' in checkpoint {one} of", "all", ("1", "3")),
        (f"{url}..{other}", "is called 'sum' in the savepoint", "all", ("2", "3")),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            table = job.table(diff=points)
        assert table == Counter([("balance", now, "changed", "1", None, None, *values)])
        assert [called in each.getMessage() for each in caplog.records] == [True]


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"diff": "2"}, UsageError, "option diff is '2': write two points as 317..318"),
        ({"diff": "2..3..4"}, UsageError, "write two points as 317..318"),
        ({"diff": "..3"}, UsageError, "write two points as 317..318"),
        ({"diff": "2..99"}, NotFoundError, "has no checkpoint 99"),
        ({"diff": "2..tag:x"}, NotFoundError, "has no tag 'x'"),
        ({"diff": "2..nowhere/at/all"}, NotFoundError, "there is no savepoint"),
        ({"diff": "2..tga:x"}, NotFoundError, "'tga:x' is no point: .*; write a slot such as 42, tag:NAME"),
        ({"diff": "2..3", "with": "other"}, NotFoundError, "there is no job 'other'"),
        ({"diff": "2..3", "at": "2"}, UsageError, "option at does not go with option diff"),
        ({"diff": "2..3", "key": "2"}, UsageError, "option key does not go with option diff"),
        (
            {"diff": "2..3", "operator": "none"},
            NotFoundError,
            "has an operator 'none': their operators are balance",
        ),
        ({"diff": "2..3", "state": "none"}, NotFoundError, "has a state 'none': their states are"),
        ({"diff": "2..3", "difff": "x"}, UsageError, "option 'difff' of the stateflow source does not exist"),
        (
            {"with": "other", "operator": "balance", "state": "total"},
            UsageError,
            "option with goes with option diff",
        ),
    ],
)
def test_a_wrong_question_is_refused_when_the_table_is_loaded(
    job: Grown, options: dict[str, str], kind: type[StateflowError], says: str
) -> None:
    job.give(u1=1)
    job.give(u1=2)
    with pytest.raises(kind, match=says):
        job.source(**options).schema()


def test_other_keys_are_refused_when_the_table_is_loaded(job: Grown, tmp_path: Path) -> None:
    job.give(u1=1)
    other = Grown(tmp_path / "root", "copy")
    operator = msgspec.structs.replace(other.operator(), key=(("user", "str"),))
    other.record(operator, {})
    with refused(IncompatibleError, "operator 'balance'", "other keys in the two"):
        job.source(diff="latest..latest", **{"with": "copy"}).schema()


def test_a_point_that_is_collected_while_it_is_read_is_not_taken_for_damage(job: Grown) -> None:
    job.retained = 1
    job.begin("again")
    one = job.give(**{f"u{n}": n for n in range(50)})
    other = job.give(u1=2)
    reader = job.reader(diff=f"{one}..{other}")
    for _ in range(9):
        job.give(**{f"u{n}": n + 1 for n in range(50)})
    job.collect(retained=1)
    with refused(NotFoundError, f"checkpoint {one} of job 'orders'", "collected while it was read"):
        [list(reader.read(part)) for part in reader.partitions()]
