"""A job whose code changes between its runs: real state with a ttl, through the real protocol, in miniature.

Every batch adds its number to the state of two keys. The plain model says what must be read, whichever release wrote it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import stateflow as sf
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import Writer
from stateflow.compatibility.flows import check_flow
from stateflow.compatibility.states import begun_shards, indexes, resolve_states, state_ids
from stateflow.format.encoding import prefix, split
from stateflow.format.records import FileRef, OperatorState, Record, Shard, ShownState, SourceState
from stateflow.operators.context import Moment
from stateflow.operators.keyed import KeyedEngine
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.backends.base import Backend
from tests.compatibility.allowed import allowing
from tests.in_memory import IN_MEMORY
from tests.jobs.files import stored
from tests.jobs.operators import operator_of
from tests.operators.expiring import BACKENDS, GROUPS, SECOND, chunk_of, full_key
from tests.operators.releases import flow_of
from tests.protocol.scenario import FEED, World, fed, offset_of, prepared

KEYS = 3
ONCE = 100
"""From here on keys are written by one batch only: their values keep the type of that batch's release."""
TWICE, WRITTEN_TWICE = 50, (1, 5)
"""A key that is written by these batches. The second moves its expiry to behind what the index says."""


@dataclass
class Amount:
    value: float
    note: str = "-"


def amount(old: float) -> Amount:
    return Amount(old)


def whole(old: int) -> Amount:
    return Amount(float(old))


def release(number: Callable[[int], Any], plain: Callable[[Any], Any], **states: Any) -> type[Any]:
    """A process with these states; `number` makes what it stores of a number, `plain` the number of that."""

    def process(self: Any, key: int, rows: Iterator[Any], ctx: sf.Context) -> Iterator[Any]:
        for what, n in rows:
            total = self.sum if hasattr(self, "sum") else self.total
            if what == "write":
                total.value = number((0 if total.value is None else plain(total.value)) + n)
                self.items.add(number(n))
                self.per[str(n % 2)] = number(n)
                self.ever.value = number((0 if self.ever.value is None else plain(self.ever.value)) + n)
                self.late.value = number(n)
            else:
                yield (
                    key,
                    None if total.value is None else plain(total.value),
                    [plain(each) for each in self.items.get()],
                    {name: plain(each) for name, each in sorted(self.per.items())},
                    None if self.ever.value is None else plain(self.ever.value),
                    None if self.late.value is None else plain(self.late.value),
                )

    return type("Made", (sf.KeyedProcess,), {**states, "process": process})


def _states(type_: Any, ttl: Any, late: Any, total: str = "total", **options: Any) -> dict[str, Any]:
    aliases = {"aliases": ["total"]} if total != "total" else {}
    return {
        total: sf.ValueState(type_, ttl=ttl, **options, **aliases),
        "items": sf.ListState(type_, ttl=ttl, **options),
        "per": sf.MapState(str, type_, ttl=ttl, **options),
        "ever": sf.ValueState(type_, **options),
        "late": sf.ValueState(type_, ttl=late, **options),
    }


def itself(n: Any) -> Any:
    return n


def from_now(seconds: int) -> Any:
    return sf.ttl(f"{seconds} s", existing="from now")


RELEASES: tuple[tuple[type[Any], int, int | None], ...] = (
    (release(int, itself, **_states(int, "4 s", None)), 4, None),
    (release(float, int, **_states(float, "4 s", from_now(5))), 4, 5),
    (
        release(lambda n: Amount(float(n)), lambda held: int(held.value),
                **_states(Amount, "2 s", None, migrate=[whole, amount])), 2, None,
    ),
    (
        release(lambda n: Amount(float(n)), lambda held: int(held.value),
                **_states(Amount, "5 s", None, "sum", migrate=[whole, amount])), 5, None,
    ),
)  # fmt: skip
"""Each with the ttl of its states in seconds, and that of `late`. It has none at first, and the third release takes it away:
what the second has given a time lives on, also in the fourth."""


def touched(number: int) -> tuple[int, ...]:
    return number % KEYS, ONCE + number, *([TWICE] if number in WRITTEN_TWICE else [])


@dataclass
class Model:
    """What there must be: values with the second at which they expire."""

    held: dict[tuple[Any, ...], tuple[int, int | None]] = field(default_factory=dict)

    def batch(self, number: int, ttl: int, late: int | None) -> None:
        self.expire(number, late)
        if late is not None:
            for place, (value, expires) in self.held.items():
                if place[1] == "late" and expires is None:
                    self.held[place] = value, number + late
        for key in touched(number):
            total, ever = self.held.get((key, "total"), (0, 0))[0], self.held.get((key, "ever"), (0, 0))[0]
            self.held[key, "total"] = total + number, number + ttl
            self.held[key, "items", number] = number, number + ttl
            self.held[key, "per", str(number % 2)] = number, number + ttl
            self.held[key, "ever"] = ever + number, None
            self.held[key, "late"] = number, None if late is None else number + late

    def expire(self, clock: int, late: int | None) -> None:
        """Without a ttl, what had one lives on."""
        self.held = {
            place: held
            for place, held in self.held.items()
            if held[1] is None or held[1] > clock or (place[1] == "late" and late is None)
        }

    def read(self, key: int) -> tuple[Any, ...]:
        def one(what: str) -> int | None:
            return self.held.get((key, what), (None, None))[0]

        own = sorted(place for place in self.held if place[0] == key and len(place) == 3)
        items = [self.held[place][0] for place in own if place[1] == "items"]
        per = {place[2]: self.held[place][0] for place in own if place[1] == "per"}
        return key, one("total"), items, per, one("ever"), one("late")


class ReleasedWorld(World):
    """A world whose batches change real state, by the code of the release that runs."""

    def __init__(self, store: Any, job: str = "orders", backend: str = "memory") -> None:
        super().__init__(store, job)
        self.backend = backend
        self.release = 0

    def prepare(self, writer: Writer) -> Draft:
        number = offset_of(writer.parent)
        epoch, slot = writer.epoch, writer.next_slot
        releases = f"{releases_of(writer.parent)}{self.release}"
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            operator = self._computed(writer, number, Path(folder))
        staged = stored(
            self.store,
            self.layout.staged_file(epoch, slot, self.ids(), ".parquet"),
            f"rows {number}".encode(),
        )
        return Draft(
            "checkpoint",
            now=number * SECOND,
            sources={"numbers": SourceState(lines=(str(number + 1), releases))},
            operators={"op": operator},
            sinks={
                "left": prepared("left", number, (staged,)),
                "right": prepared("right", number, ()),
                FEED: fed(writer, number),
            },
            feeds=(ShownState(FEED, "op", "n", slot, FEED),),
        )

    def _computed(self, writer: Writer, number: int, folder: Path) -> OperatorState:
        rows = {key: [("write", number)] for key in touched(number)}
        job = _Batch(self, writer.parent, self.release, writer.next_slot, number, folder)
        job.run(rows)
        return job.sealed(
            lambda content, name: stored(
                self.store,
                self.layout.shared_file(writer.epoch, writer.next_slot, self.ids(), ".bin"),
                content,
                name=name,
            )
        )

    def read(self, release: int) -> list[tuple[Any, ...]]:
        """Every key that the head has, read by the code of a release."""
        head = self.log().head
        assert head is not None
        number = offset_of(head)
        keys = [*range(KEYS), TWICE, *range(ONCE, ONCE + number)]
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            job = _Batch(self, head, release, head.slot + 1, number, Path(folder), expire=False)
            found = job.run({key: [("read", 0)] for key in keys})
            job.backend.close()
        return sorted(found)

    def entries(self) -> int:
        """How many entries of states there are, expired ones too."""
        head = self.log().head
        assert head is not None
        own = {schema.id for schema in head.operators["op"].states.values()}
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
            backend = opened(self, head.operators["op"], Path(folder), self.backend)
            found = sum(
                split(key).state_id in own for key, _ in backend.scan(prefix(0, 0), prefix(GROUPS, 0))
            )
            backend.close()
        return found

    def model(self) -> Model:
        """What the head must hold: its numbers, as the releases that wrote them let them expire."""
        model = Model()
        for number, release in enumerate(releases_of(self.log().head)):
            model.batch(number, *RELEASES[int(release)][1:])
        return model


def releases_of(record: Record | None) -> str:
    """The release of each batch up to a record, a digit each."""
    return record.sources["numbers"].lines[1] if record else ""


def opened(world: ReleasedWorld, operator: OperatorState | None, folder: Path, backend: str) -> Backend:
    shard = operator.shards[0][0] if operator is not None else Shard(0, GROUPS - 1, backend)
    refs = tuple(
        ref
        if ref.data is not None
        else msgspec.structs.replace(ref, data=world.store.read(ref.path), path="")
        for ref in shard.files
    )
    shutil.rmtree(folder / "shard", ignore_errors=True)
    shard = msgspec.structs.replace(shard, files=refs)
    return BACKENDS[backend]()(shard, folder / "shard", lambda ref: Path(ref.path))


class _Batch:
    """One batch of the operator, as a task runs it."""

    def __init__(
        self, world: ReleasedWorld, parent: Record | None, release: int, slot: int, number: int, folder: Path,
        *, expire: bool = True,
    ) -> None:  # fmt: skip
        process = RELEASES[release][0]
        flow = allowing(flow_of(process))
        before = parent.operators.get("op") if parent is not None else None
        if parent is not None:
            check_flow(flow, parent)
        [node] = flow.operators
        self.states, self.next_id = resolve_states(node, before, slot)
        shards = (
            begun_shards(node, before, self.states)
            if before is not None
            else ((Shard(0, GROUPS - 1, world.backend),),)
        )
        self.shard = shards[0][0]
        row = row_type("n long")
        spec = OperatorSpec(
            "op", process, process, ("user",), ("int",), (row,), row, {}, state_ids(self.states),
            indexes=indexes(self.states),
            evolved={name: schema for name, schema in self.states.items() if schema.evolved},
        )  # fmt: skip
        self.backend = opened(world, before, folder, world.backend)
        self.engine = KeyedEngine(spec, Moment(slot, number * SECOND, 1, None), 0)
        self.engine.attach(self.backend, self.shard.expiring)
        self.groups = range(GROUPS)
        if expire:
            due = self.shard.next_event_expiry, self.shard.next_processing_expiry
            self.engine.expiry.expire(self.groups, due, self.shard.entries)

    def run(self, rows: dict[int, list[tuple[str, int]]]) -> list[Any]:
        self.engine.run(chunk_of(sorted(rows, key=full_key), rows))
        return list(self.engine.out)

    def sealed(self, put: Callable[[bytes, str], FileRef]) -> OperatorState:
        event, processing = self.engine.expiry.finish()
        snapshot = self.backend.snapshot()
        before = {ref.name: ref for ref in self.shard.files}
        kept = tuple(before[ref.name] for ref in snapshot.kept)
        new = tuple(
            put(each.data if each.data is not None else Path(str(each.path)).read_bytes(), each.name)
            for each in snapshot.new
        )
        self.backend.close()
        shard = msgspec.structs.replace(
            self.shard, files=(*kept, *new), next_event_expiry=event, next_processing_expiry=processing,
            entries=snapshot.entries, expiring=self.engine.expiry.shares,
        )  # fmt: skip
        return operator_of([shard], groups=GROUPS, states=self.states, next_state_id=self.next_id)
