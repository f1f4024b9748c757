"""What the victims run: one input row makes one output row whatever the batches are, so that cuts do not show."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import stateflow as sf
from tests.spark.murder_points import passed

MODULUS = 1_000_003
JOB = "murder"


@dataclass
class Order:
    id: int
    user: int
    item: int
    amount: int


@dataclass
class Step:
    id: int
    user: int
    item: int
    total: int
    before: int
    seen: int
    recent: int


@dataclass
class Deep:
    id: int
    item: int
    n: int
    digest: int


@dataclass
class Marked:
    id: int
    user: int
    item: int
    last: int
    mark: str


@dataclass
class Remarked:
    id: int
    item: int
    mark: str
    own: str


@dataclass
class Tick:
    id: int
    user: int
    at: datetime


@dataclass
class Closed:
    user: int
    n: int


@dataclass
class Big:
    id: int
    total: int


BIG: sf.Output[Big] = sf.output("big", Big)
COPY: sf.Output[Marked] = sf.output("copy", Marked)


def is_big(row: Order) -> bool:
    return row.amount % 5 == 0


class Totals(sf.KeyedProcess[int, Order, Step]):
    total = sf.ValueState(int, default=0)
    last = sf.ValueState(int, default=-1)
    seen: sf.MapState[int, int] = sf.MapState(int, int)
    recent: sf.ListState[int] = sf.ListState(int)

    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        _straggle(float(ctx.parameters["straggle"]))
        for row in rows:
            self.total.value += row.amount
            self.seen[row.item] = self.seen.get(row.item, 0) + 1
            if len(self.recent) == 4:
                self.recent.clear()
            self.recent.add(row.amount)
            if is_big(row):
                ctx.emit(BIG, Big(row.id, self.total.value))
            yield Step(
                row.id,
                key,
                row.item,
                self.total.value,
                self.last.value,
                self.seen[row.item],
                sum(self.recent),
            )
            self.last.value = row.id


class Digests(sf.KeyedProcess[int, Step, Deep]):
    n = sf.ValueState(int, default=0)
    digest = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.n.value += 1
            self.digest.value = (self.digest.value * 31 + row.total + row.id) % MODULUS
            yield Deep(row.id, key, self.n.value, self.digest.value)


def _too_late(ctx_subtask: int) -> None:
    """Fails the first attempt of one task when all its rows, files and state are stored and only the ack is missing."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is not None and task.attemptNumber() == 0 and task.partitionId() == ctx_subtask:
        raise RuntimeError("the first attempt fails at the very end")


class Marks(sf.KeyedProcess[int, Order, Marked]):
    """Each attempt of a task marks its rows and its state with a mark of its own."""

    mark = sf.ValueState(str, default="")
    last = sf.ValueState(int, default=-1)

    def open(self, ctx: Any) -> None:
        self.own = uuid.uuid4().hex

    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        for row in rows:
            marked = Marked(row.id, key, row.item, self.last.value, self.own)
            ctx.emit(COPY, marked)
            yield marked
            self.last.value = row.id
        self.mark.value = self.own

    def close(self) -> None:
        _too_late(0)


class Remarks(sf.KeyedProcess[int, Marked, Remarked]):
    mark = sf.ValueState(str, default="")

    def open(self, ctx: Any) -> None:
        self.own = uuid.uuid4().hex

    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        for row in rows:
            yield Remarked(row.id, key, row.mark, self.own)
        self.mark.value = self.own

    def close(self) -> None:
        _too_late(1)


class Passed(sf.KeyedProcess[int, Marked, Remarked]):
    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        for row in rows:
            yield Remarked(row.id, key, row.mark, "")


class Copies(Marks):
    """The first attempt dawdles when everything is stored, until Spark starts a second one beside it."""

    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.at = (str(ctx.parameters["folder"]), ctx.checkpoint_id, ctx.subtask)

    def close(self) -> None:
        from pyspark import TaskContext

        task, (folder, slot, subtask) = TaskContext.get(), self.at
        assert task is not None
        with (Path(folder) / "attempts.log").open("a") as log:
            log.write(f"{slot} {subtask} {task.attemptNumber()} {self.own}\n")
        if task.attemptNumber() == 0 and subtask == 0:
            time.sleep(6)


class Windows(sf.KeyedProcess[int, Tick, Closed]):
    n = sf.ValueState(int, default=0)
    end = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        for row in rows:
            self.n.value += 1
            self.end.set(row.at + timedelta(hours=1))

    @end.fires
    def done(self, key: int, at: Any, ctx: Any) -> Any:
        yield Closed(key, self.n.value)
        self.n.clear()


_straggled: set[int] = set()


def _straggle(share: float) -> None:
    from pyspark import TaskContext

    task = TaskContext.get()
    if share and task is not None and task.attemptNumber() == 0 and task.taskAttemptId() not in _straggled:
        _straggled.add(task.taskAttemptId())
        if random.random() < share:
            time.sleep(3)


def calls_of(folder: Path) -> Callable[[Any, int], None]:
    """A user's sink that ignores checkpoints which it has: one create-only file for each."""

    def call(frame: Any, checkpoint: int) -> None:
        passed("calling")
        rows = sorted(json.dumps(row.asDict()) for row in frame.collect())
        body = "\n".join(rows)
        with (folder / "calls.log").open("a") as log:
            log.write(f"{os.getpid()} {checkpoint}\n")
        target = folder / f"{checkpoint:08d}.json"
        temporary = folder / f".{checkpoint}-{os.getpid()}"
        temporary.write_text(body)
        try:
            os.link(temporary, target)
        except FileExistsError:
            if target.read_text() != body:
                (folder / "differs").write_text(str(checkpoint))
        temporary.unlink()
        passed("called")

    return call


@sf.pipeline(JOB)
def chain(
    flow: sf.Flow, *, folder: str, upsert: bool, straggle: float, kafka: str = "", most: int = 15
) -> None:
    at = Path(folder)
    orders = flow.source("orders", _topic(kafka, most) if kafka else _orders(at), Order)
    steps = orders.key_by("user", order_by="id").process("totals", Totals, outputs=[BIG])
    steps.append("steps", sf.delta(str(at / "steps")))
    deeps = steps.key_by("item", order_by="id").process("digests", Digests)
    if upsert:
        deeps.upsert("deeps", sf.delta(str(at / "deeps")), keys="item", order_by="n")
    else:
        deeps.append("deeps", sf.delta(str(at / "deeps")))
    (at / "bigs").mkdir(exist_ok=True)
    steps.side(BIG).for_each_batch("bigs", calls_of(at / "bigs"))
    flow.state_changes("totals", state="total").append("changes", sf.delta(str(at / "changes")))


@sf.pipeline(JOB)
def attempts(flow: sf.Flow, *, folder: str) -> None:
    at = Path(folder)
    orders = flow.source("orders", _orders(at), Order)
    first = orders.key_by("user", order_by="id").process("marks", Marks, outputs=[COPY])
    first.append("first", sf.delta(str(at / "first")))
    first.side(COPY).append("copies", sf.delta(str(at / "copies")))
    first.key_by("item", order_by="id").process("remarks", Remarks).append(
        "second", sf.delta(str(at / "second"))
    )


@sf.pipeline(JOB)
def copies(flow: sf.Flow, *, folder: str) -> None:
    at = Path(folder)
    orders = flow.source("orders", _orders(at), Order)
    first = orders.key_by("user", order_by="id").process("marks", Copies, outputs=[COPY])
    first.append("first", sf.delta(str(at / "first")))
    first.side(COPY).append("copies", sf.delta(str(at / "copies")))
    passed_on = first.key_by("item", order_by="id").process("remarks", Passed)
    passed_on.append("second", sf.delta(str(at / "second")))


@sf.pipeline(JOB)
def windows(flow: sf.Flow, *, folder: str) -> None:
    at = Path(folder)
    ticks = flow.source(
        "ticks", _orders(at, startingVersion="latest"), Tick, event_time="at", watermark="10 minutes"
    )
    ticks.key_by("user", order_by="id").process("windows", Windows).append(
        "closed", sf.delta(str(at / "closed"))
    )


@dataclass
class Seen:
    user: int
    n: int
    newest: int


@dataclass
class Hour:
    user: int
    window_start: datetime
    n: int
    ids: int


@dataclass
class Met:
    user: int
    window_start: datetime
    even: int | None
    odd: int | None


def of_ids(rest: int) -> Any:
    def numbered(frame: Any) -> Any:
        return frame.where(f"id % 2 = {rest}").withColumnRenamed("id", "odd" if rest else "even")

    return numbered


@sf.pipeline(JOB)
def ready(flow: sf.Flow, *, folder: str) -> None:
    at = Path(folder)
    # One name for a source, an operator and a sink: kinds are apart in all that a killed run leaves behind.
    ticks = flow.source("seen", _orders(at), Tick, event_time="at", watermark="30 minutes")
    keyed = ticks.key_by("user", order_by="id")
    keyed.aggregate("seen", Seen, n=sf.count(), newest=sf.last("id")).upsert(
        "seen", sf.delta(str(at / "seen"))
    )
    for name, window in {"hours": sf.tumbling("1 hour"), "visits": sf.session("7 minutes")}.items():
        keyed.window(window).aggregate(name, Hour, n=sf.count(), ids=sf.sum("id")).append(
            name, sf.delta(str(at / name))
        )
    ticks.deduplicate("once", by="user", within="15 minutes").append("once", sf.delta(str(at / "once")))
    even, odd = (
        ticks.transform(of_ids(rest), type=f"{name} long, user long, at timestamp").key_by("user")
        for rest, name in enumerate(("even", "odd"))
    )
    even.window(sf.session("7 minutes")).join("met", odd, Met, how="full").append(
        "met", sf.delta(str(at / "met"))
    )


@dataclass
class Tally:
    """The state of the first release."""

    n: int
    ids: int


@dataclass
class WiderTally:
    """Of the second one: a field is renamed and wider, another is new."""

    n: int
    total: Annotated[float, sf.field(aliases=["ids"])]
    note: str = "-"


@dataclass
class Summed:
    """Of the third one, which no rule makes."""

    text: str


def summed(old: WiderTally) -> Summed:
    return Summed(f"{old.n} {round(old.total)}")


@dataclass
class Grown:
    id: int
    user: int
    n: int
    ids: int
    recent: int


class Growing(sf.KeyedProcess[int, Tick, Grown]):
    """Puts out the same whatever the release; `recent` counts what came within the hour of the watermark."""

    def add(self, id: int) -> tuple[int, int]:
        raise NotImplementedError

    recent = sf.ValueState(int, ttl=sf.ttl("1 hour", time="event"))
    marks = sf.MapState(int, Tally, ttl=sf.ttl("1 hour", time="event"))

    def process(self, key: int, rows: Any, ctx: Any) -> Any:
        for row in rows:
            n, ids = self.add(row.id)
            self.recent.value = (self.recent.value or 0) + 1
            self.marks[row.id] = Tally(n, ids)
            assert len(self.marks) == self.recent.value, "both have the same life"
            yield Grown(row.id, key, n, ids, self.recent.value)


class FirstRelease(Growing):
    tally = sf.ValueState(Tally)

    def add(self, id: int) -> tuple[int, int]:
        before = self.tally.value or Tally(0, 0)
        self.tally.value = Tally(before.n + 1, before.ids + id)
        return before.n + 1, before.ids + id


class SecondRelease(Growing):
    tally = sf.ValueState(WiderTally)

    def add(self, id: int) -> tuple[int, int]:
        before = self.tally.value or WiderTally(0, 0.0)
        self.tally.value = WiderTally(before.n + 1, before.total + id)
        return before.n + 1, round(before.total) + id


class ThirdRelease(Growing):
    sums = sf.ValueState(Summed, aliases=["tally"], migrate=summed)

    def add(self, id: int) -> tuple[int, int]:
        n, ids = map(int, (self.sums.value or Summed("0 0")).text.split())
        self.sums.value = Summed(f"{n + 1} {ids + id}")
        return n + 1, ids + id


RELEASES = (FirstRelease, SecondRelease, ThirdRelease)


@sf.pipeline(JOB)
def growing(flow: sf.Flow, *, folder: str, release: int) -> None:
    at = Path(folder)
    ticks = flow.source("ticks", _orders(at), Tick, event_time="at", watermark="10 minutes")
    grown = ticks.key_by("user", order_by="id").process("growing", RELEASES[release])
    grown.append("grown-table", sf.delta(str(at / "grown")))


def _orders(folder: Path, **options: str) -> Any:
    return sf.delta(
        str(folder / "orders"), options={"maxFilesPerTrigger": "1", "startingVersion": "0", **options}
    )


def _topic(server: str, most: int) -> Callable[[Any], Any]:
    """The same orders from a topic with one partition, so that its order is theirs."""

    def stream(spark: Any) -> Any:
        options = {
            "kafka.bootstrap.servers": server,
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(most),
        }
        frame = spark.readStream.format("kafka").options(**options).load()
        fields = "id bigint, user bigint, item bigint, amount bigint"
        return frame.selectExpr(f"from_json(cast(value as string), '{fields}') as o").select("o.*")

    return stream
