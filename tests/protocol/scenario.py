"""A job in miniature that drives the real protocol over any store: the engine of every protocol test.

The source is the natural numbers, one per batch. Each batch writes a state file and a staged file, decides
its record, gives the number to two sinks and completes. So after any accident each sink must hold 0, 1, 2...
without a gap or a repetition, as many as the head's offset says. A third one has the feed of the state, so that a batch also
gives it what it lacks.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msgspec import structs

from stateflow.checkpoint.abandon import Abandoned, abandon
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.feeds import lag
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import tags
from stateflow.checkpoint.verification import verify
from stateflow.checkpoint.writer import CommitPermit, Writer
from stateflow.errors import DisagreementError, StateflowError
from stateflow.format.records import FileRef, Prepared, Record, ShownState, SourceState
from stateflow.format.references import job_files
from stateflow.storage.store import Store
from tests.jobs.builder import JobBuilder
from tests.jobs.files import stored
from tests.jobs.operators import one_shard

SINKS = ("left", "right")
FEED = "feed"


@dataclass
class Sink:
    """A table with a transaction version: commits once per slot, and notices when the log is not its own."""

    rows: list[int] = field(default_factory=list)
    commits: list[tuple[int, str]] = field(default_factory=list)
    """Slot and writer id of every record it took, in order."""
    poison: set[int] = field(default_factory=set)
    """Numbers that it refuses."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def version(self) -> int | None:
        return self.commits[-1][0] if self.commits else None

    def commit(self, record: Record, uid: str) -> str:
        prepared = record.sinks[uid]
        with self.lock:
            version = self.version
            if version is not None and version >= record.slot:
                return "already"
            if version != prepared.prev and version not in prepared.late:
                raise DisagreementError(f"{uid} has {version}, the log says {prepared.prev}")
            if set(prepared.payload["rows"]) & self.poison:
                raise StateflowError(f"{uid} refuses the rows of record {record.slot}")
            self.rows += prepared.payload["rows"]
            self.commits.append((record.slot, record.writer))
            return "committed"

    def has(self, record: Record) -> bool:
        return self.version is not None and self.version >= record.slot

    def __deepcopy__(self, memo: object) -> Sink:
        return Sink(list(self.rows), list(self.commits), set(self.poison))


Step = Callable[[str], None]
"""Called before and after each sink commit: `before left 3`, `after left 3`."""


class World(JobBuilder):
    """What outlives a process: the store and the sinks."""

    def __init__(self, store: Store, job: str = "orders", *, feeds: bool = True) -> None:
        super().__init__(store, job, run="")
        self.sinks = {uid: Sink() for uid in (*SINKS, *((FEED,) if feeds else ()))}
        self.step: Step | None = None
        self.kept_files = 3
        """A batch names its own state file and those of the two batches before it."""

    def commit(self, record: Record) -> dict[str, str]:
        outcomes = {}
        for uid in record.sinks:
            if self.step:
                self.step(f"before {uid} {record.slot}")
            outcomes[uid] = self.sinks[uid].commit(record, uid)
            if self.step:
                self.step(f"after {uid} {record.slot}")
        return outcomes

    def carry_out(self, record: Record, still_owner: Callable[[], None]) -> dict[str, str]:
        return self.commit(CommitPermit.to_carry_out(record).record)

    def offset(self) -> int:
        return offset_of(self.log().head)

    def prepare(self, writer: Writer) -> Draft:
        """Runs a batch up to its decision: files are written, nothing is decided."""
        offset = offset_of(writer.parent)
        epoch, slot = writer.epoch, writer.next_slot
        state = stored(
            self.store, self.layout.shared_file(epoch, slot, self.ids(), ".sst"), f"state {offset}".encode()
        )
        staged = stored(
            self.store,
            self.layout.staged_file(epoch, slot, self.ids(), ".parquet"),
            f"rows {offset}".encode(),
        )
        files = (*state_files(writer.parent), state)[-self.kept_files :]
        sinks = {
            "left": prepared("left", offset, (staged,)),
            "right": prepared("right", offset, ()),
        }
        feeds = FEED in self.sinks
        return Draft(
            "checkpoint",
            sources={"numbers": SourceState(lines=(str(offset + 1),))},
            operators={"count": one_shard(*files, key=("n", "long"))},
            sinks=sinks | ({FEED: fed(writer, offset)} if feeds else {}),
            feeds=(ShownState(FEED, "count", "n", slot, FEED),) if feeds else (),
        )

    def rewind(self, target: Record) -> Record:
        """A restore to an older record, as a draft: its state, and the sinks left alone."""
        return Draft(
            "restore",
            based_on=target.slot,
            sources=target.sources,
            operators=target.operators,
            timeline=target.timeline + 1,
        )

    def batch(self, writer: Writer) -> None:
        permit = writer.decide(self.prepare(writer))
        writer.complete(permit, self.commit(permit.record), {"processed_rows": 1})

    def abandon(self, slot: int, reason: str = "") -> Abandoned:
        return abandon(
            self.store,
            self.layout,
            slot,
            owner=self.owner("operator"),
            ids=self.ids,
            clock=self.clock,
            probe=lambda record: {uid: self.sinks[uid].has(record) for uid in record.sinks},
            reason=reason,
        )


def prepared(uid: str, offset: int, files: tuple[FileRef, ...]) -> Prepared:
    return Prepared(kind="fake", target=uid, payload={"rows": [offset]}, files=files, rows=1)


def fed(writer: Writer, offset: int) -> Prepared:
    """The rows of the feed: the number; before it -1 - n if the state has become n without one."""
    found = prepared(FEED, offset, ())
    shown = next(iter(writer.feeds), None)
    parent = writer.parent
    if parent is None:
        return found
    lacks = lag({FEED: shown}, writer.last_commits, writer.late, [parent.slot], holds=True)
    if lacks.why or not lacks.lacks:
        return found  # what was given up may have arrived
    return structs.replace(found, payload={"rows": [-offset - 1, offset]})


def shown_by(rows: Iterable[int], lost: Iterable[int] = ()) -> int:
    """The state that the rows of the feed are, applied in order."""
    state = 0
    for row in rows:
        while state in lost and row > state:
            state += 1
        assert row < 0 or row == state, f"the feed has {row} where the state was {state}"
        state = -row - 1 if row < 0 else row + 1
    return state


def offset_of(record: Record | None) -> int:
    """How many numbers the state of a record has seen."""
    return int(record.sources["numbers"].lines[0]) if record else 0


def state_files(record: Record | None) -> tuple[FileRef, ...]:
    return record.operators["count"].shards[0][0].files if record else ()


def expected_rows(log: Log, uid: str, abandoned: Iterable[int] = ()) -> list[int]:
    """What a sink must hold when everything decided is carried out."""
    return [n for n in range(offset_of(log.head)) if n not in set(abandoned)]


def settle(world: World, retained: int = 2) -> None:
    """A last run: carries out what is decided, does one batch, collects everything."""
    writer = world.claim("settle", retained=retained)
    world.batch(writer)
    writer.collect(retained, orphans=True)


def check(
    world: World,
    *,
    settled: bool,
    abandoned: Mapping[str, set[int]] | None = None,
    gone_back: bool = False,
) -> None:
    """The invariants. `settled`: nothing is in flight, and the last thing that ran was a collection. `gone_back`: a restore has
    left the sinks alone, so that all but the feed have got numbers again."""
    log = world.log()
    log.require_sound()
    if log.identity is None:
        assert not settled
        return
    findings = verify(world.store, world.layout, deep=True)
    errors = [f.text for f in findings if settled or f.severity == "error"]
    assert errors == []
    epochs = [record.epoch for record in log.chain]
    assert epochs == sorted(epochs), "a fenced run decided above the fence"
    by_slot: dict[int, set[str]] = {}
    for uid, sink in world.sinks.items():
        slots = [slot for slot, _ in sink.commits]
        assert slots == sorted(set(slots)), f"{uid} took a slot twice or out of order: {slots}"
        for slot, writer in sink.commits:
            by_slot.setdefault(slot, set()).add(writer)
        # What was abandoned may be missing; a fenced run may also have delivered it at the last moment.
        lost = (abandoned or {}).get(uid, set()) - set(sink.rows)
        if settled and uid == FEED:
            assert shown_by(sink.rows, lost) == offset_of(log.head), "the feed is not the state"
        if settled and not gone_back:
            assert sink.rows == expected_rows(log, uid, lost), f"{uid} is not exactly once"
    for record in log.chain:
        by_slot.setdefault(record.slot, set()).add(record.writer)
    assert {s: w for s, w in by_slot.items() if len(w) > 1} == {}, "two records were carried out in one slot"
    if settled:
        assert log.pending == ()
        kept = job_files(log.chain)
        stored = {
            e.path for folder in (world.layout.shared, world.layout.staged) for e in world.store.list(folder)
        }
        assert stored == set(kept), "files and records do not match"


# The story that crashes are enumerated over. Each life is one process; when it dies it is started again, so
# each is written as what a scheduler would start: it reaches its goal from wherever the job is.


def drain(target: int, *, retained: int = 2) -> Callable[[World], None]:
    """A bounded run: until so many numbers are in."""

    def life(world: World) -> None:
        writer = world.claim(f"drain {target}")
        writer.collect(retained, orphans=True)
        while offset_of(writer.parent) < target:
            world.batch(writer)
            writer.collect(retained, orphans=False)

    return life


def drain_ahead(target: int, *, retained: int = 2) -> Callable[[World], None]:
    """The same with two in flight: a batch writes its files while the record before is decided and not yet carried out."""

    def life(world: World) -> None:
        writer = world.claim(f"drain ahead {target}")
        writer.collect(retained, orphans=True)
        ready = world.prepare(writer) if offset_of(writer.parent) < target else None
        while ready is not None:
            permit = writer.decide(ready)
            ready = world.prepare(writer) if offset_of(writer.parent) < target else None
            writer.complete(permit, world.commit(permit.record), {"processed_rows": 1})
            writer.collect(retained, orphans=False)

    return life


def make_tag(world: World) -> None:
    if "v1" not in tags(world.store, world.layout):
        head = world.log().head
        assert head is not None
        world.tag(head.slot, "v1")


def drop_tag(world: World) -> None:
    world.untag("v1")


def sweep(world: World) -> None:
    """`stateflow gc`, from outside any run."""
    world.collect(2)


def stumble(world: World) -> None:
    """A run whose right sink refuses number 4 after the left one has taken it."""
    world.sinks["right"].poison = {4}
    try:
        drain(5)(world)
    except StateflowError as error:
        if "refuses the rows" not in str(error):
            raise


def give_up(world: World) -> None:
    """An operator abandons the record that cannot be carried out."""
    stuck = [r.slot for r in world.log().pending if r.carries_state]
    if stuck:
        world.abandon(stuck[0])


STORY: tuple[tuple[str, Callable[[World], None]], ...] = (
    ("first run", drain(2)),
    ("tag", make_tag),
    ("second run", drain(4)),
    ("poisoned run", stumble),
    ("abandon", give_up),
    ("third run", drain_ahead(7)),
    ("untag", drop_tag),
    ("sweep", sweep),
)


def tell(store: Store) -> World:
    """The whole story without an accident, over any store, judged after every life."""
    world = World(store)
    for name, life in STORY:
        life(world)
        check(world, settled=False)
        for sink in world.sinks.values():
            sink.poison = {4} if name == "poisoned run" else set()
    settle(world)
    check(world, settled=True, abandoned=abandoned_after(STORY[-1][0]))
    return world


def abandoned_after(life: str) -> dict[str, set[int]]:
    """What the sinks will lack once a life of the story has run."""
    names = [name for name, _ in STORY]
    return {"right": {4}, FEED: {4}} if names.index(life) >= names.index("abandon") else {}


def copy_sinks(world: World) -> dict[str, Sink]:
    return copy.deepcopy(world.sinks)
