"""Exactly-once under kill -9: real drivers and workers die, and what they leave is what an undisturbed run leaves.

The long version is `python -m bench.kill`. Kills at random moments, and of runs that are frozen, have drivers with JVMs of their own. Where
a point of the protocol is what a test is about, the driver's Python dies at it, which has all of the protocol, beside a JVM that stays warm.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from bench.kill.jvms import Jvms
from stateflow.checkpoint.log import read_log
from stateflow.config.options import load
from stateflow.errors import BusyError, FencedError, NotFoundError, StateflowError
from stateflow.format.layout import JobLayout
from stateflow.jobs.job import Job
from stateflow.spark import runner
from stateflow.spark.loop import BatchReport
from stateflow.storage.roots import open_store
from tests.refusals.refusal import refused
from tests.spark.murder import Killer, Run
from tests.spark.murder_evidence import (
    Inbox,
    called_rows,
    delta_rows,
    difference,
    examine,
    examine_store,
    expected,
    feed_difference,
    head,
    state_of,
)
from tests.spark.murder_pipelines import JOB, Marks, Order, Remarks, chain
from tests.spark.murder_victim import Errand

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]  # on a machine that others use, too
SEED = 20_261
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "orders", random.Random(SEED))


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Runs of a test; none of their processes outlives it."""
    started: list[Run] = []
    yield started
    for run in started:
        run.thaw()
        run.bury()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Errand], Run]]:
    """Starts a run beside the warm JVM, when the one before it has ended."""
    jvms, started = Jvms(tmp_path_factory.mktemp("jvms")), list[Run]()

    def begin(errand: Errand) -> Run:
        jvm = jvms.lend(errand)
        for run in started:
            assert run.ended
        jvm.tidy()
        started.append(Run.start(errand, jvm, jvms.nursery))
        return started[-1]

    yield begin
    for run in started:
        run.bury()
    jvms.end()


def test_two_runs_started_at_once_and_kills_at_random_moments_leave_no_trace(
    tmp_path: Path, inbox: Inbox, runs: list[Run]
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - so that a failure can be played again
    chance = random.Random(SEED)
    inbox.add()
    inbox.add()
    options = {"local_fsync": False, "retained_checkpoints": 2, "max_concurrent_checkpoints": 2}
    errand = Errand(str(tmp_path), takeover=False, options=options)
    runs += [Run.start(errand), Run.start(errand)]
    codes = sorted(run.wait(600) for run in runs)
    # Who claims first has the job; the other finds it busy and has touched nothing, or begins when the first has ended.
    assert codes[0] == 0
    assert codes[1] in (BusyError.exit_code, 0)
    killer = Killer(lambda: Errand(str(tmp_path), straggle=0.2, options=errand.options), chance)
    # A run can be through before its moment comes; then it is tried again, a few times.
    for moment in ("driver", "worker", "driver", "worker"):
        if len(killer.kills) < 2:
            inbox.add()
            inbox.add()
            killer.once(moment, patience=600)
    killer.drain(600)
    assert killer.kills, "nothing was killed: this run has shown nothing"
    assert examine(tmp_path, inbox.rows) == []


def test_a_batch_that_is_decided_when_the_driver_dies_is_delivered_once_and_shows_when_every_sink_has_it(
    tmp_path: Path, inbox: Inbox, start: Callable[[Errand], Run], spark: SparkSession
) -> None:
    inbox.add()
    inbox.add()
    run = start(Errand(str(tmp_path), at="decided:3:kill", upsert=True))
    run.wait(600)
    assert run.told("kill"), run.story()
    # Sources' positions and a first batch are complete; of the second batch there is only the decision.
    log = read_log(open_store(str(tmp_path / "root")), JobLayout(JOB))
    pending = log.pending[0]
    assert [record.slot for record in log.pending] == [pending.slot]
    assert set(pending.sinks) == {"steps", "deeps", "bigs", "changes"}
    assert sum(delta_rows(tmp_path / "steps").values()) == 40

    # The next run dies, too, when one of the four sinks has got the second batch. Readers have the batch before it.
    run = start(Errand(str(tmp_path), at="carried:1:kill", upsert=True))
    run.wait(600)
    assert run.told("kill"), run.story()
    assert sum(delta_rows(tmp_path / "steps").values()) == 80
    job = Job(str(tmp_path / "root"), JOB)
    found = job.versions()
    assert found.slot < pending.slot
    assert {uid: each.why for uid, each in found.sinks.items() if each.why} == {
        "bigs": f"it has no versions, perhaps slot {pending.slot}"
    }
    before = expected(inbox.rows[:40])
    for name, rows in (("steps", before.steps), ("deeps", before.last_deeps.values())):
        read = Counter(
            tuple(row[c] for c in sorted(row.asDict())) for row in found.sinks[name].read(spark).collect()
        )
        assert read == Counter(rows), name
    with pytest.raises(NotFoundError, match="not every sink has its output yet"):
        job.versions(pending.slot)

    # Not run again: there was nothing left to read, and the record was carried out as it stood.
    run = start(Errand(str(tmp_path), upsert=True))
    assert run.wait(600) == 0, run.story()
    assert run.told("batch") == []
    assert (tmp_path / "bigs" / f"{pending.slot:08d}.json").exists()
    assert examine(tmp_path, inbox.rows, upsert=True) == []


def test_zombies_of_every_phase_wake_up_fenced_and_deliver_nothing(
    tmp_path: Path, inbox: Inbox, runs: list[Run], start: Callable[[Errand], Run]
) -> None:
    for _ in range(4):
        inbox.add()
    # The first one stops when its tasks are done and nothing is decided.
    in_mid_batch = Run.start(Errand(str(tmp_path), at="acked:4:stop"))
    runs.append(in_mid_batch)
    in_mid_batch.until(lambda run: run.told("stop"), 600, "stop in mid-batch")
    # The second one has decided, and stops before the user's function is called with the second batch.
    before_the_call = Run.start(Errand(str(tmp_path), at="committing:7:stop"))
    runs.append(before_the_call)
    before_the_call.until(lambda run: run.told("stop"), 600, "stop before the function")
    assert start(Errand(str(tmp_path))).wait(600) == 0
    calls = (tmp_path / "bigs" / "calls.log").read_text()
    for zombie in (before_the_call, in_mid_batch):
        zombie.thaw()
        assert zombie.wait(300) == FencedError.exit_code, zombie.story()
        assert "do not retry" in zombie.told("error")[0]["message"]
    # Whatever they had ready, nobody was called late.
    assert (tmp_path / "bigs" / "calls.log").read_text() == calls
    assert examine(tmp_path, inbox.rows) == []


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory, start: Callable[[Errand], Run]) -> Path:
    """A job that starts at `latest` and dies before its first batch, then again when timers are due."""
    folder = tmp_path_factory.mktemp("windows")
    schema = {"id": "long", "user": "long", "at": "timestamp"}
    inbox = Inbox(folder / "orders", random.Random(SEED))
    inbox.commit([(0, 1, NOON)], schema)
    for at in ("completed:1:kill", "completed:1:kill", ""):
        run = start(Errand(str(folder), story="windows", at=at))
        code = run.wait(600)
        assert bool(run.told("kill")) == bool(at), run.story()
        assert at or code == 0, run.story()
        if inbox.commits == 1:
            users = [(n + 1, n % 3, NOON + timedelta(minutes=n)) for n in range(9)]
            inbox.commit([*users, (10, 99, NOON + timedelta(hours=2))], schema)
    return folder


def test_latest_is_resolved_once_so_a_crash_before_the_first_batch_loses_nothing(windows: Path) -> None:
    assert {user for user, _ in _closed(windows)} == {0, 1, 2}
    assert sum(n for _, n in _closed(windows)) == 9


def test_timers_that_are_due_after_a_crash_fire_once_without_new_input(windows: Path) -> None:
    assert sorted(_closed(windows)) == [(0, 3), (1, 3), (2, 3)]
    assert examine_store(windows) == []
    runs = sorted((windows / "runs").glob("*.log"))
    assert '"free": true' in runs[-1].read_text()
    assert '"free": true' not in runs[-2].read_text()


def _closed(folder: Path) -> list[tuple[int, int]]:
    return [(user, n) for n, user in delta_rows(folder / "closed").elements()]


def test_ready_made_operators_lose_and_double_nothing_when_a_run_is_killed(
    tmp_path: Path, start: Callable[[Errand], Run]
) -> None:
    schema = {"id": "long", "user": "long", "at": "timestamp"}
    inbox = Inbox(tmp_path / "orders", random.Random(SEED))
    ticks: list[tuple[int, int, datetime]] = []
    # In mid-batch, when a batch is decided, and between two; the next run carries on each time.
    for at in ("acked:4:kill", "decided:3:kill", "completed:2:kill", ""):
        for _ in range(2):
            first = len(ticks)
            # Up to 20 minutes out of order, which the watermark waits for.
            new = [
                (n, n * 7 % 5, NOON + timedelta(minutes=n - n * 13 % 20)) for n in range(first, first + 60)
            ]
            ticks += new
            inbox.commit(new, schema)
        if not at:
            inbox.commit([(10_000, 99, NOON + timedelta(days=2))], schema)
            inbox.commit([(10_001, 99, NOON + timedelta(days=2, hours=1))], schema)
        run = start(Errand(str(tmp_path), story="ready", at=at))
        code = run.wait(600)
        assert bool(run.told("kill")) == bool(at), run.story()
        assert at or code == 0, run.story()
    seen, hours, visits, once, met = _ready_made(ticks)
    assert Counter({row: n for row, n in delta_rows(tmp_path / "seen").items() if 99 not in row}) == seen
    for name, wanted in (("hours", hours), ("visits", visits), ("once", once), ("met", met)):
        assert difference(_without_zones(delta_rows(tmp_path / name)), _without_zones(wanted)) == "", name
    assert examine_store(tmp_path) == []


def test_state_that_changes_with_every_run_and_expires_loses_and_doubles_nothing_when_runs_are_killed(
    tmp_path: Path, start: Callable[[Errand], Run]
) -> None:
    schema = {"id": "long", "user": "long", "at": "timestamp"}
    inbox = Inbox(tmp_path / "orders", random.Random(SEED))
    wanted: Counter[Any] = Counter()
    n, ids, recent = Counter[int](), Counter[int](), Counter[int]()
    # A release is killed in mid-batch, when a batch is decided, and between two; the next one carries on each time.
    for release, at in ((0, "acked:2:kill"), (1, "decided:3:kill"), (2, "completed:2:kill"), (2, "")):
        for _ in range(2):
            # A day for each commit, which is a batch: what the batch before has written has expired.
            first, day = inbox.commits * 20, NOON + timedelta(days=inbox.commits)
            ticks = [(first + i, i * 7 % 5, day + timedelta(minutes=i)) for i in range(20)]
            # The time of what is written before there is a watermark begins with the first one, in the second batch.
            recent = recent if inbox.commits == 1 else Counter[int]()
            for id, user, _ in ticks:
                n[user], ids[user], recent[user] = n[user] + 1, ids[user] + id, recent[user] + 1
                wanted[id, ids[user], n[user], recent[user], user] += 1
            inbox.commit(ticks, schema)
        run = start(Errand(str(tmp_path), story="growing", release=release, at=at))
        code = run.wait(600)
        assert bool(run.told("kill")) == bool(at), run.story()
        assert at or code == 0, run.story()
    assert difference(delta_rows(tmp_path / "grown"), wanted) == ""
    growing = head(tmp_path).operators["growing"]
    assert [len(growing.states["sums"].versions), growing.states["sums"].evolved] == [2, True]
    assert examine_store(tmp_path) == []


def _without_zones(rows: Counter[Any]) -> Counter[Any]:
    """Instants as Parquet has them, in UTC; without the user whose rows only move the watermark."""

    def plain(value: Any) -> Any:
        return np.datetime64(value.replace(tzinfo=None)) if isinstance(value, datetime) else value

    return Counter({tuple(map(plain, row)): n for row, n in rows.items() if 99 not in row})


def _ready_made(ticks: list[tuple[int, int, datetime]]) -> tuple[Counter[Any], ...]:
    """What `ready` puts out, columns in alphabetical order, computed from the input alone."""
    seen, hours, visits, once = Counter[Any](), Counter[Any](), Counter[Any](), Counter[Any]()
    met = Counter[Any]()
    for user in {user for _, user, _ in ticks}:
        mine = sorted(((at, id) for id, owner, at in ticks if owner == user))
        seen[len(mine), max(id for _, id in mine), user] += 1
        for start in {at.replace(minute=0) for at, _ in mine}:
            ids = [id for at, id in mine if at.replace(minute=0) == start]
            hours[sum(ids), len(ids), user, start] += 1
        visit: list[tuple[datetime, int]] = []
        until: datetime | None = None
        for at, id in [*mine, (datetime.max.replace(tzinfo=UTC), 0)]:
            if visit and at - visit[-1][0] > timedelta(minutes=7):
                visits[sum(i for _, i in visit), len(visit), user, visit[0][0]] += 1
                even, odd = ([i for _, i in visit if i % 2 == rest] for rest in (0, 1))
                # The rows of both inputs make the sessions; one without rows of the other input comes out alone.
                met.update(
                    (one, other, user, visit[0][0]) for one in even or [None] for other in odd or [None]
                )
                visit = []
            visit.append((at, id))
        for at, id in mine:
            if until is None or at > until:
                once[at, id, user] += 1
                until = at + timedelta(minutes=15)
    return seen, hours, visits, once, met


def test_rows_state_and_chained_rows_come_from_one_attempt_of_a_task(
    tmp_path: Path, inbox: Inbox, start: Callable[[Errand], Run]
) -> None:
    """Every first attempt has stored everything when it fails; what it left must not be seen anywhere."""
    inbox.add()
    inbox.add()
    run = start(Errand(str(tmp_path), story="attempts"))
    assert run.wait(600) == 0, run.story()
    first = sorted(delta_rows(tmp_path / "first").elements())
    assert [row[0] for row in first] == [order.id for order in inbox.rows]
    assert difference(delta_rows(tmp_path / "copies"), delta_rows(tmp_path / "first")) == ""
    mark_of = {row[0]: row[3] for row in first}
    second = sorted(delta_rows(tmp_path / "second").elements())
    assert [(row[0], row[2]) for row in second] == list(mark_of.items())
    # Order within a key: each row knows the one before it, although the task was run twice.
    before: dict[int, int] = {}
    for id, _, last, _, user in first:
        assert last == before.get(user, -1)
        before[user] = id
    operators = head(tmp_path).operators
    marks = state_of(tmp_path, operators["marks"], Marks, before)
    assert {user: s["mark"] for user, s in marks.items()} == {
        user: mark_of[id] for user, id in before.items()
    }
    own = {item: mark for _, item, _, mark in second}
    remarks = state_of(tmp_path, operators["remarks"], Remarks, own)
    assert {item: s["mark"] for item, s in remarks.items()} == own
    assert examine_store(tmp_path) == []


def test_a_batch_whose_record_is_complete_is_not_run_again_when_a_listener_fails(
    tmp_path: Path, inbox: Inbox, spark: SparkSession
) -> None:
    inbox.add()
    options = load(
        code={
            "checkpoint_dir": str(tmp_path / "root"),
            "tolerable_failed_batches": 3,
            "failure_backoff": "1 ms",
        },
        env={},
        folder=tmp_path,
    )

    def listener(report: BatchReport) -> None:
        raise OSError("the pipe to the dashboard is broken")

    request = runner.RunRequest(
        chain, options, {"folder": str(tmp_path), "upsert": False, "straggle": 0.0}, listener=listener
    )
    with refused(StateflowError, "dashboard"):
        runner.run(request)
    assert examine(tmp_path, inbox.rows) == []


def test_the_evidence_would_show_a_lost_a_doubled_and_a_wrong_row(tmp_path: Path, inbox: Inbox) -> None:
    inbox.add()
    rows = expected(inbox.rows).steps
    row = next(iter(rows))
    assert "1 rows lost and 0 doubled" in difference(rows - type(rows)([row]), rows)
    assert "0 rows lost and 1 doubled" in difference(rows + type(rows)([row]), rows)
    first, second = (Order(n, 7, 1, 5) for n in range(2))
    put = (5, None, "put", 2, "total", NOON, 7)
    then = (10, 5, "put", 3, "total", NOON, 7)
    assert feed_difference(Counter([put, then]), [first, second]) == ""
    assert "it ends with {7: 5}" in feed_difference(Counter([put]), [first, second])
    assert "already a row" in feed_difference(Counter([put, put, then]), [first, second])
    assert "and had 5 before" in feed_difference(Counter([put, (10, None, *then[2:])]), [first, second])
    (tmp_path / "bigs").mkdir()
    assert called_rows(tmp_path / "bigs") != expected(inbox.rows).bigs
