"""A pipeline that is stopped anywhere, snapshotted, restored and finished gives what an uninterrupted one gives.

Every kind of snapshot, restore mode, change of parallelism and backend; STATEFLOW_LONG=1 runs all combinations.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.log import read_log
from stateflow.config.options import Options
from stateflow.errors import IncompatibleError, NotFoundError, UsageError
from stateflow.format.references import bases
from stateflow.jobs.job import Job
from stateflow.storage.local import LocalStore
from tests.refusals.refusal import refused
from tests.spark.pipelines import VISIT, Everything, Told, Visit, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")

BATCHES, KEYS = 6, 7


class Idle(sf.KeyedProcess[int, Visit, Told]):
    """Tells of every key that was silent for five minutes, and how often it had come."""

    count = sf.ValueState(int, default=0)
    idle = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.count.value += 1
            self.idle.set(row.ts + timedelta(minutes=5))
        return ()

    @idle.fires
    def silent(self, key: int, at: datetime, ctx: sf.Context) -> Any:
        yield Told(key, f"silent at {at.isoformat()} after {self.count.value}")
        self.count.clear()


def visits(batch: int, bulk: int = 1) -> list[Visit]:
    """With `bulk`, state that is too large to travel inside the records."""
    chance = random.Random(batch)
    return [
        Visit(
            user,
            chance.choice(["home", "cart", "pay", "clear"]) if bulk == 1 else chance.randbytes(bulk).hex(),
            float(batch * 10 + user),
            at(batch * 4 + user / 10),
        )
        for user in range(KEYS)
        if chance.random() < 0.7
    ]


@dataclass
class Story:
    """One pipeline over one input, as several jobs of one root; what each put out is kept under its name."""

    bench: Workbench
    name: str

    def pipeline(self, job: str) -> sf.Pipeline:
        everything, idle = sf.memory(f"{self.name}-{job}-everything"), sf.memory(f"{self.name}-{job}-idle")

        @sf.pipeline(job)
        def story(flow: sf.Flow) -> None:
            rows = flow.source(
                "visits", self.bench.source("visits", VISIT), Visit, event_time="ts", watermark="1 minute"
            )
            rows.key_by("user", order_by="ts").process("everything", Everything).collect("all", everything)
            rows.key_by("user", order_by="ts").process("idle", Idle).collect("silent", idle)

        return story

    def output(self, *jobs: str) -> list[tuple[str, int, str]]:
        return sorted(
            (kind, row["user"], row["text"])
            for job in jobs
            for kind in ("everything", "idle")
            for row in sf.memory(f"{self.name}-{job}-{kind}").rows
        )

    def feed(self, batches: range, bulk: int = 1) -> None:
        for batch in batches:
            self.bench.rows("visits", visits(batch, bulk))

    def run(self, pipeline: sf.Pipeline, **options: Any) -> Any:
        return self.bench.run(pipeline, inline_threshold="0", **options)

    def options(self, **given: Any) -> Options:
        # Files of their own, as large state has: what is small would travel inside the records.
        return self.bench.options(**{"inline_threshold": "0", **given})

    def job(self, name: str) -> Job:
        return Job(str(self.bench.folder / "root"), name)


@pytest.fixture
def story(spark: SparkSession, tmp_path: Path) -> Story:
    return Story(Workbench(spark, tmp_path), tmp_path.name)


SYSTEM = pytest.mark.system
KINDS = ("checkpoint", "tag", "native", "native claimed", "canonical")
SCALES = ((2, 2), (1, 3), (3, 2))
BACKENDS = ("rocksdb", "memory")


def combinations() -> list[tuple[str, tuple[int, int], str, str]]:
    """The kind of the snapshot, the parallelism and the backend of its job, and of the fork."""
    every = [
        (kind, scale, old, new)
        for kind, scale, old, new in itertools.product(KINDS, SCALES, BACKENDS, BACKENDS)
        if old == new or kind == "canonical"
    ]
    if os.environ.get("STATEFLOW_LONG"):
        return every
    pairs = {one: set(itertools.combinations(enumerate(one), 2)) for one in every}
    missing = set[tuple[Any, Any]]().union(*pairs.values())
    chosen = []
    while missing:
        best = max(every, key=lambda one: len(pairs[one] & missing))
        missing -= pairs[best]
        chosen.append(best)
    return chosen


@dataclass
class Base:
    """A job that was stopped at some batch, with the rest of its input waiting, and what one puts out that takes all of it."""

    story: Story
    expected: list[tuple[str, int, str]]


@pytest.fixture(scope="module")
def base_of(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Base]:
    def fed(name: str) -> Story:
        folder = tmp_path_factory.mktemp(name)
        story = Story(Workbench(spark, folder), folder.name)
        story.feed(range(BATCHES))
        return story

    @functools.cache
    def expected() -> list[tuple[str, int, str]]:
        """The same for every job: neither its parallelism nor its backend shows in its output."""
        story = fed("twin")
        story.run(story.pipeline("twin"), parallelism=2)
        return story.output("twin")

    @functools.cache
    def made(parallelism: int, backend: str) -> Base:
        story = fed(f"base-{parallelism}-{backend}")
        # Enough slots for lists to be out of order, and two batches or more are left: what one adds to a list shows in the next.
        cut = random.Random(f"{parallelism} {backend}").randrange(3, BATCHES - 1)
        # Stopped, not drained: what is drained fires its due timers before the next rows are there.
        story.run(story.pipeline("first"), backend=backend, parallelism=parallelism, stop_after=cut)
        return Base(story, expected())

    return made


@pytest.mark.system
@pytest.mark.parametrize(
    ("kind", "scale", "old", "new"),
    # Of a job's own files, a fork takes seconds; the other kinds of snapshots have to be made first.
    [
        pytest.param(*one, marks=() if one[0] in ("checkpoint", "native") else SYSTEM)
        for one in combinations()
    ],
    ids=str,
)
def test_a_fork_from_any_snapshot_goes_on_as_if_nothing_had_happened(
    base_of: Callable[[int, str], Base], kind: str, scale: tuple[int, int], old: str, new: str
) -> None:
    base = base_of(scale[0], old)
    story, job = base.story, base.story.job("first")
    name = f"{kind}-{scale[1]}-{new}".replace(" ", "-")
    origin, claim_mode = "latest", "no_claim"
    if kind == "tag":
        origin = f"tag:{job.tag(name).name}"
    elif kind != "checkpoint":
        form: Any = "canonical" if kind == "canonical" else "native"
        origin = job.savepoint(form, options=story.options(), to=str(story.bench.folder / f"to-{name}")).url
        claim_mode = "claim" if kind == "native claimed" else "no_claim"
    fork, pipeline = story.job(name), story.pipeline(name)
    plan = fork.restore(
        origin, pipeline, options=story.options(backend=new), from_job="first", claim_mode=claim_mode,
        parallelism=scale[1],
    )  # fmt: skip
    assert [s.verdict for s in plan.sources] == ["resumes"]
    plan.apply()
    story.run(pipeline, backend=new)
    head = fork.log().head
    assert head is not None
    assert {len(o.assignment) for o in head.operators.values()} == {scale[1]}
    assert story.output("first", name) == base.expected
    assert [f.text for f in fork.verify(deep=True) if f.severity == "error"] == []


@pytest.mark.slow
def test_going_back_is_a_new_timeline_and_forward_again_an_older_one(story: Story) -> None:
    story.feed(range(4))
    pipeline = story.pipeline("first")
    story.run(pipeline, retained_checkpoints=10)
    job = story.job("first")
    slots = [record.slot for record in job.checkpoints()]
    before = {r.slot: r.operators for r in job.checkpoints()}
    job.restore(f"checkpoint:{slots[1]}", pipeline, options=story.options()).apply()
    head = job.log().head
    assert head is not None
    assert (head.kind, head.timeline, head.based_on) == ("restore", 2, slots[1])
    story.run(pipeline, retained_checkpoints=10)
    again = [r for r in job.checkpoints() if r.timeline == 2]
    assert len(again) == len(slots) - 2
    with job.diff(str(slots[1]), str(slots[-1]), options=story.options()) as grown:
        assert any(grown.changes())
    with job.diff(str(slots[-1]), str(again[-1].slot), options=story.options()) as compared:
        changes = list(compared.changes())
    # Elements of lists are kept under their slots.
    assert {change.state for change in changes} == {"pages", "profiles"}
    went = [(change.state, change.key, change.before) for change in changes if change.kind == "went"]
    assert went == [(change.state, change.key, change.after) for change in changes if change.kind == "came"]
    assert len(changes) == 2 * len(went)
    job.restore(f"checkpoint:{slots[-1]}", pipeline, options=story.options()).apply()
    head = job.log().head
    assert head is not None
    assert head.timeline == 3
    assert head.operators["everything"].shards == before[slots[-1]]["everything"].shards


@pytest.mark.slow
def test_up_down_and_up_again_without_a_batch_between_copies_nothing_and_loses_nothing(story: Story) -> None:
    story.feed(range(3), bulk=500)
    pipeline = story.pipeline("first")
    story.run(pipeline, parallelism=1, stop_after=3)
    job = story.job("first")
    files = sorted(p for p in (story.bench.folder / "root" / "first" / "shared").iterdir())
    for parallelism in (4, 3, 5):
        job.rescale(parallelism)
    assert sorted(p for p in (story.bench.folder / "root" / "first" / "shared").iterdir()) == files
    story.feed(range(3, BATCHES), bulk=500)
    story.run(pipeline, parallelism=2)
    rescaled = story.output("first")
    twin = Story(story.bench, f"{story.name}-twin")
    twin.run(twin.pipeline("twin"), parallelism=1)
    assert rescaled == twin.output("twin")


@pytest.mark.slow
def test_a_drained_job_has_fired_every_timer_and_is_not_resumed_as_if_nothing_had_happened(
    story: Story,
) -> None:
    story.feed(range(3))
    pipeline = story.pipeline("first")
    run = story.run(pipeline)
    waiting = {row[1] for row in story.output("first") if row[0] == "idle"}
    story.run(pipeline, drain=True)
    fired = {row[1] for row in story.output("first") if row[0] == "idle"}
    assert fired > waiting
    job = story.job("first")
    head = job.log().head
    assert head is not None
    assert head.final
    assert run.checkpoint is not None
    assert head.slot > run.checkpoint
    with refused(IncompatibleError, "drained"):
        story.run(pipeline)
    with refused(IncompatibleError, "drained"):
        job.restore("latest", pipeline, options=story.options())
    job.restore("latest", pipeline, options=story.options(), reset_watermark=True).apply()
    story.feed(range(3, 5))
    assert story.run(pipeline).rows > 0


def test_what_cannot_be_restored_is_refused_before_anything_is_written(story: Story) -> None:
    story.feed(range(2))
    pipeline = story.pipeline("first")
    story.run(pipeline)
    job = story.job("first")
    before = story.bench.listing()
    with refused(NotFoundError, "no checkpoint 99"):
        job.restore("checkpoint:99", pipeline, options=story.options())
    with refused(NotFoundError, "no tag 'v9'"):
        job.restore("tag:v9", pipeline, options=story.options())
    with refused(UsageError, "1 to 128"):
        job.restore("latest", pipeline, options=story.options(), parallelism=1000)
    with refused(UsageError, "canonical"):
        job.restore("latest", pipeline, options=story.options(), max_parallelism=64)
    with pytest.raises(NotFoundError):
        job.restore(str(story.bench.folder / "nothing"), pipeline, options=story.options())

    @sf.pipeline("first")
    def without(flow: sf.Flow) -> None:
        rows = flow.source("visits", story.bench.source("visits", VISIT), Visit)
        rows.key_by("user").process("everything", Everything).collect("all", sf.memory("other"))

    with refused(IncompatibleError, "'idle'"):
        job.restore("latest", without, options=story.options())
    assert story.bench.listing() == before
    job.restore("latest", without, options=story.options(), allow_non_restored_state=True).apply()
    head = job.log().head
    assert head is not None
    assert set(head.operators) == {"everything"}


@pytest.mark.slow
def test_a_claimed_savepoint_goes_when_nothing_needs_it_and_an_unclaimed_one_is_never_touched(
    story: Story,
) -> None:
    story.feed(range(3), bulk=500)
    pipeline = story.pipeline("first")
    story.run(pipeline)
    job = story.job("first")
    folder = story.bench.folder
    kept = job.savepoint("native", options=story.options(), to=str(folder / "kept"))
    taken = job.savepoint("native", options=story.options(), to=str(folder / "taken"))
    content = {p: p.read_bytes() for p in (folder / "kept").rglob("*") if p.is_file()}
    story.job("copy").restore(kept.url, story.pipeline("copy"), options=story.options()).apply()
    owner = story.job("owner")
    owner.restore(taken.url, story.pipeline("owner"), options=story.options(), claim_mode="claim").apply()
    with refused(UsageError, "claimed"):
        story.job("late").restore(
            taken.url, story.pipeline("late"), options=story.options(), claim_mode="claim"
        ).apply()
    assert {p: p.read_bytes() for p in (folder / "kept").rglob("*") if p.is_file()} == content
    assert _bases(owner) == {taken.url}
    story.feed(range(3, 12), bulk=500)
    story.run(story.pipeline("owner"), retained_checkpoints=1)
    while _bases(owner):
        # Merges write the state anew bit by bit.
        story.feed(range(3, 6), bulk=500)
        story.run(story.pipeline("owner"), retained_checkpoints=1)
    owner.collect(1)
    assert list((folder / "taken").rglob("*")) == []
    assert LocalStore(folder / "kept").list("_metadata")


def _bases(job: Job) -> set[str]:
    """Savepoints whose files the job still needs."""
    return bases(read_log(job.store, job.layout).chain)


@pytest.mark.system
@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_copy_that_was_damaged_on_a_host_is_fetched_anew_and_the_run_goes_on(
    story: Story, backend: str
) -> None:
    story.feed(range(3), bulk=500)
    pipeline = story.pipeline("first")
    story.run(pipeline, stop_after=3, backend=backend)
    damaged = 0
    for copy in (story.bench.folder / "cache" / "state").iterdir():
        if copy.is_file() and copy.stat().st_size > 4096:
            body = bytearray(copy.read_bytes())
            body[len(body) // 4 : len(body) // 2] = bytes(len(body) // 2 - len(body) // 4)
            copy.unlink()  # the store may be linked to it
            copy.write_bytes(body)
            damaged += 1
    assert damaged
    story.feed(range(3, BATCHES), bulk=500)
    story.run(pipeline, backend=backend)
    twin = Story(story.bench, f"{story.name}-twin")
    twin.run(twin.pipeline("twin"))
    assert story.output("first") == twin.output("twin")
