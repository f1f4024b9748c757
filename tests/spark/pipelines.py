"""Pipelines as users write them, and what runs them on small data: JSON files in, memory or Delta out."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.log import read_identity, read_log
from stateflow.config.options import Options
from stateflow.format.layout import JobLayout
from stateflow.format.records import Record
from stateflow.jobs.job import Job, permitted
from stateflow.spark.loop import BatchReport
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.storage.roots import open_store
from tests.jobs.builder import options_of

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


@dataclass
class Workbench:
    """A checkpoint root, folders of input files, and runs over them."""

    spark: SparkSession
    folder: Path
    reports: list[BatchReport] = field(default_factory=list)
    """Of the latest run."""
    files: int = 0

    def rows(self, source: str, rows: Iterable[Any]) -> None:
        """One more input file; the sources below read one per batch."""
        folder = self.folder / source
        folder.mkdir(exist_ok=True)
        self.files += 1
        text = "\n".join(json.dumps(_plain(row)) for row in rows)
        # Written aside and moved, each a second after the one before: the source takes files in order of their times.
        made = self.folder / f"file-{self.files}"
        made.write_text(text + "\n")
        os.utime(made, (time_of := 1_750_000_000 + self.files, time_of))
        made.rename(folder / f"{self.files:05d}.json")

    def source(self, name: str, schema: str, per_batch: int = 1) -> Callable[[SparkSession], Any]:
        path = self.folder / name
        path.mkdir(exist_ok=True)

        def opened(spark: SparkSession) -> Any:
            reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", per_batch)
            return reader.json(str(path))

        return opened

    def run(
        self, pipeline: sf.Pipeline, parameters: Mapping[str, Any] | None = None, **options: Any
    ) -> RunReport:
        allow = options.pop("allow_non_restored_state", False)
        drain, stop_after = options.pop("drain", False), options.pop("stop_after", 0)
        takeover, until = options.pop("takeover", False), options.pop("until", None)
        job = options.pop("job", "")
        stop = threading.Event()
        if options.pop("stopped", False):
            stop.set()

        def listen(report: BatchReport) -> None:
            self.reports.append(report)
            if len(self.reports) == stop_after:
                stop.set()

        self.reports = []
        request = RunRequest(
            permitted(pipeline, allow),
            self.options(**options),
            parameters or {},
            job=job,
            listener=listen,
            stop=stop,
            drain=drain,
            takeover=takeover,
            until=until,
        )
        return run(request)

    def options(self, **given: Any) -> Options:
        """Those of its runs, for commands to their jobs."""
        return options_of(self.folder / "root", **given)

    def job(self, name: str) -> Job:
        return Job(str(self.folder / "root"), name)

    def records(self, job: str) -> list[Record]:
        store = open_store(str(self.folder / "root"))
        if read_identity(store, JobLayout(job)) is None:
            return []
        return list(read_log(store, JobLayout(job)).checkpoints)

    def states(self, job: str) -> list[tuple[int, Any, Any]]:
        """What the job's checkpoints hold: state and positions."""
        return [(r.slot, r.operators, r.sources) for r in self.records(job) if r.kind == "checkpoint"]

    def listing(self) -> list[str]:
        """Every file under the root that decides something."""
        root = self.folder / "root"
        kept = (p for p in root.rglob("*") if p.is_file() and p.name in ("_pending", "_metadata"))
        return sorted(str(p.relative_to(root)) for p in kept)


def _plain(row: Any) -> dict[str, Any]:
    found = row if isinstance(row, dict) else asdict(row)
    return {name: _json(value) for name, value in found.items()}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    return value


# ---- every kind of state, every type of value ----


@dataclass
class Visit:
    user: int
    page: str
    seconds: float
    ts: datetime


@dataclass
class Told:
    """A key's state as text, so that all of it can be compared."""

    user: int
    text: str


@dataclass
class Profile:
    name: str
    visits: int
    tags: list[str]
    last: datetime | None = None


class Point(msgspec.Struct):
    x: int
    y: float


def _fraction_bytes(value: tuple[int, int]) -> bytes:
    return f"{value[0]}/{value[1]}".encode()


def _fraction(data: bytes, version: int) -> tuple[int, int]:
    above, _, below = data.decode().partition("/")
    return int(above), int(below)


FRACTION = sf.CustomSerializer("fraction", 1, _fraction_bytes, _fraction)


class Everything(sf.KeyedProcess[int, Visit, Told]):
    count = sf.ValueState(int, default=0)
    seconds = sf.ValueState(float, default=0.0)
    known = sf.ValueState(bool, default=False)
    text = sf.ValueState(str, default="")
    raw = sf.ValueState(bytes, default=b"\0")
    last = sf.ValueState(datetime)
    day = sf.ValueState(date)
    money = sf.ValueState(Decimal, default=Decimal("0.00"))
    profile = sf.ValueState(Profile)
    point = sf.ValueState(Point)
    numbers = sf.ValueState(list[int], default=list)
    weights = sf.ValueState(dict[str, float], default=dict)
    perhaps = sf.ValueState(int | None)
    fraction = sf.ValueState(FRACTION, default=(0, 1))
    pages = sf.ListState(str)
    profiles = sf.ListState(Profile)
    per_page = sf.MapState(str, int)
    per_day = sf.MapState(date, Profile)
    longest = sf.ReducingState(float, max)
    mean = sf.AggregatingState(
        dict[str, float],
        create=lambda: {"n": 0.0, "sum": 0.0},
        add=lambda acc, value: {"n": acc["n"] + 1, "sum": acc["sum"] + value},
        result=lambda acc: acc["sum"] / acc["n"],
    )

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            if row.page == "clear":
                self._clear()
                continue
            self._visited(row)
        yield Told(key, self._text())

    def _visited(self, row: Visit) -> None:
        self.count.value += 1
        self.seconds.value += row.seconds
        self.known.value = not self.known.value
        self.text.value += row.page[:1]
        self.raw.value += bytes([self.count.value])
        self.last.value = row.ts
        self.day.value = row.ts.date()
        self.money.value += Decimal("0.10")
        tags = [*(self.profile.value.tags if self.profile.value else []), row.page]
        self.profile.value = Profile("é", self.count.value, tags, row.ts if self.count.value % 2 else None)
        self.point.value = Point(self.count.value, row.seconds)
        self.numbers.value = [*self.numbers.value, self.count.value]
        self.weights.value = {**self.weights.value, row.page: row.seconds}
        self.perhaps.value = None if self.count.value % 2 else self.count.value
        above, below = self.fraction.value
        self.fraction.value = (above + 1, below * 2)
        self.pages.add(row.page)
        self.profiles.add(self.profile.value)
        self.per_page[row.page] = self.per_page.get(row.page, 0) + 1
        self.per_day[row.ts.date()] = self.profile.value
        self.longest.add(row.seconds)
        self.mean.add(row.seconds)
        if self.count.value % 3 == 0:
            self.pages.update(list(self.pages)[-2:])
            self.per_page.pop(row.page)

    def _clear(self) -> None:
        for state in (
            self.count, self.seconds, self.known, self.text, self.raw, self.last, self.day, self.money, self.profile,
            self.point, self.numbers, self.weights, self.perhaps, self.fraction, self.pages, self.profiles,
            self.per_page, self.per_day, self.longest, self.mean,
        ):  # fmt: skip
            state.clear()  # type: ignore[attr-defined]

    def _text(self) -> str:
        values = [
            self.count.value, self.seconds.value, self.known.value, self.text.value, self.raw.value, self.last.value,
            self.day.value, self.money.value, self.profile.value, self.point.value, self.numbers.value,
            self.weights.value, self.perhaps.value, self.perhaps.exists(), self.fraction.value, list(self.pages),
            [profile.visits for profile in self.profiles], self.profiles.get()[-1:], dict(self.per_page.items()), list(self.per_day),
            self.longest.get(), self.mean.get(), bool(self.per_page), "clear" in self.per_page,
        ]  # fmt: skip
        return " | ".join(map(repr, values))


VISIT = "user long, page string, seconds double, ts timestamp"


# ---- streams: connect, side outputs, broadcast, operator state ----

ORDER = "user long, sku string, amount double, ts timestamp"


@dataclass
class Order:
    user: int
    sku: str
    amount: float
    ts: datetime


@dataclass
class Name:
    user: int
    name: str


@dataclass
class Total:
    user: int
    total: float


class Count(sf.KeyedProcess[Any, Any, Any]):
    """How often its key came: `(text of the key, so far)`."""

    count = sf.ValueState(int, default=0)

    def process(self, key: Any, rows: Any, ctx: sf.Context) -> Any:
        self.count.value += sum(1 for _ in rows)
        yield repr(key), self.count.value


COUNTED = "key string, count long"
LARGE = sf.output("large", Order)


class Sum(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += row.amount
            if row.amount > 50:
                ctx.emit(LARGE, row)
                ctx.metrics.counter("large orders").inc()
        yield Total(key, self.total.value)


class Named(sf.ConnectedProcess[int, Name, Order, str]):
    """Orders with the name that came last; names of a batch count for its orders."""

    name = sf.ValueState(str, default="?")
    orders = sf.ValueState(int, default=0)

    def process_left(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.name.value = row.name

    def process_right(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.orders.value += 1
            yield key, self.name.value, row.sku, self.orders.value


@dataclass
class Rate:
    sku: str
    factor: float


class Priced(sf.KeyedProcess[int, Order, str]):
    """Rates that everybody knows, and elements of each subtask."""

    rates = sf.BroadcastState(str, float)
    seen = sf.OperatorListState(str)
    batches = sf.UnionListState(int)

    def open(self, ctx: sf.Context) -> None:
        self.log: list[str] = []

    def restore(self, ctx: sf.Context) -> None:
        self.log = list(self.seen.get())
        self.everybody = sorted(self.batches.get())

    def snapshot(self, ctx: sf.Context) -> None:
        self.seen.update(self.log)
        self.batches.update([ctx.checkpoint_id * 10 + ctx.subtask])

    def process_broadcast(self, name: str, rows: Any, ctx: sf.Context) -> None:
        for row in rows:
            self.rates[row.sku] = row.factor

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.log.append(row.sku)
            yield key, row.amount * self.rates.get(row.sku, 1.0), len(self.log), len(self.everybody)


def renamed(key: Any, row: Any, state: list[str] | None) -> Any:
    """For map_with_state: puts out every second row, forgets after four."""
    state = [*(state or []), row.sku]
    out = (key, ",".join(state)) if len(state) % 2 == 0 else None
    return out, None if len(state) == 4 else state


# ---- time ----

LATE = sf.output("late", Order)
TOLD = "what string, user long, at timestamp, late boolean, now timestamp"


class Timed(sf.KeyedProcess[int, Order, str]):
    """Puts out what happens, in the order in which it does."""

    expiring = sf.ValueState(str, ttl="1 hour")
    idle = sf.Timer("event")
    soon = sf.Timer("processing")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            yield "row", key, row.ts, ctx.late, ctx.now
            if row.sku == "cancel":
                self.idle.clear()
            else:
                self.idle.set(row.ts + timedelta(minutes=10))
            if row.sku == "soon":
                self.soon.set(timedelta(0))
            if row.sku == "never":
                self.soon.set(timedelta(hours=10))

    @idle.fires
    def on_idle(self, key: int, when: datetime, ctx: sf.Context) -> Any:
        yield "idle", key, when, ctx.late, ctx.now
        if key == 7 and when == at(10):
            self.idle.set(when + timedelta(minutes=3))

    @soon.fires
    def on_soon(self, key: int, when: datetime, ctx: sf.Context) -> Any:
        yield "soon", key, None, ctx.late, ctx.now


class Remembering(sf.KeyedProcess[int, Order, str]):
    """Values that expire at once and values that stay."""

    gone = sf.ValueState(int, ttl="1 ms")
    gone_map = sf.MapState(str, int, ttl="1 ms")
    gone_list = sf.ListState(int, ttl="1 ms")
    stays = sf.ValueState(int, ttl="1 day")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        found = [self.gone.value, dict(self.gone_map.items()), list(self.gone_list), self.stays.value]
        for _ in rows:
            self.gone.value = self.stays.value = 1
            self.gone_map["a"] = 1
            self.gone_list.add(1)
        yield key, repr(found), self.gone.value or 0


# ---- what fails ----


class Fragile(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)
    skus = sf.ListState(str)
    idle = sf.Timer("processing")

    def open(self, ctx: sf.Context) -> None:
        if ctx.parameters.get("log"):
            self.log = Path(ctx.parameters["log"])
            self._say("open", ctx.subtask)

    def close(self) -> None:
        if hasattr(self, "log"):
            self._say("close", 0)

    def _say(self, what: str, subtask: int) -> None:
        with self.log.open("a") as file:
            file.write(f"{what}\n")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += row.amount
            self.skus.add(row.sku)
            self.idle.set(timedelta(hours=1))
            ctx.emit(LARGE, row)
            yield Total(key, self.total.value)
            if row.sku == "bad":
                raise ValueError("a bad sku\nwith more lines")
            if row.sku == "wrong type":
                self.total.value = "many"  # type: ignore[assignment]
            if row.sku == "wrong element":
                self.skus.add(5)  # type: ignore[arg-type]
            if row.sku == "misfit":
                yield Total(key, "much")  # type: ignore[arg-type]

    @idle.fires
    def on_idle(self, key: int, when: datetime, ctx: sf.Context) -> Any:
        yield Total(key, -1.0)
