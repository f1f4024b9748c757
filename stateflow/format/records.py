"""The records of a job's log: what is frozen in bytes.

A body is one header line `stateflow <format> <xxh3 of the JSON> <length of the JSON>` and then JSON, so that a
person can read it and a flipped bit is found. Unknown fields are ignored on reading; a higher format is refused.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import xxhash

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME
from stateflow.format.keygroups import MAX_PARALLELISM_LIMIT

FORMAT = 1

# Whoever may write into one job's folder writes its numbers, and whoever looks at all jobs computes with them. So a number
# that would take gigabytes, or that no clock shows, is refused where it is decoded.
MOST = 1 << 53
"""The largest number that JSON carries to every reader."""
Micros = Annotated[int, msgspec.Meta(ge=-END_OF_TIME, le=END_OF_TIME)]
"""Microseconds since 1970-01-01 UTC. A watermark may lie before the first year, by the lateness of an event in it."""
ClockMicros = Annotated[int, msgspec.Meta(ge=BEGIN_OF_TIME, le=END_OF_TIME)]
"""The same of a clock: an instant that a datetime can name, so that people can be shown it."""
Long = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Microseconds that a user's code chose: a timer for the end of all days is no mistake."""


# Names in a record become names of files on the host that reads it, and whoever hands out a savepoint has written its
# record: these are checked where it is decoded, which is before anything opens, claims, copies or verifies it.
_SEGMENT = r"(?!\.\.?(?:/|\Z))(?!\.tmp-)[^/\\\x00]+"
_PLAIN = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]+"
Name = Annotated[str, msgspec.Meta(pattern=rf"^{_SEGMENT}\Z")]
"""Of an operator or a state: one segment of a path."""
FileName = Annotated[str, msgspec.Meta(pattern=rf"^{_PLAIN}(?:/{_PLAIN})*\Z")]
InnerPath = Annotated[str, msgspec.Meta(pattern=rf"^(?:{_SEGMENT}(?:/{_SEGMENT})*)?\Z")]
"""What a store's `checked_path` takes, or nothing."""
_DOT, _SLASH = r"(?:\.|%2[eE])", r"(?:/|%2[fF]|\\|%5[cC])"
# A folder inside the root becomes a part of its URL, and whoever opens a URL unquotes it.
_FOLDER = rf"(?!{_DOT}{{1,2}}(?:/|\Z))(?:(?!%2[fF]|%5[cC]|%00)[^/\x00])+"
_URL = rf"[A-Za-z][A-Za-z0-9+.-]*://(?![^\x00]*{_SLASH}{_DOT}{{2}}(?:{_SLASH}|\Z))[^\x00]*"
Base = Annotated[str, msgspec.Meta(pattern=rf"^(?:{_FOLDER}(?:/{_FOLDER})*/?|{_URL})?\Z")]
"""Of a savepoint: a folder inside the root, or a URL. Neither leads up, however it is written."""
Checksum = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]*\Z", min_length=1)]
"""XXH3-64. A savepoint's record must name it: without it any bytes would pass."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
KeyGroup = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARALLELISM_LIMIT)]
StateId = Annotated[int, msgspec.Meta(ge=0, le=65_534)]
"""A state's number in the keys of its entries has two bytes there, and a timer takes the next number too."""
Parallelism = Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM_LIMIT)]


class FileRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """An immutable file that state consists of, or its bytes when they are few."""

    name: FileName
    """The name that the state backend knows it by; a source's own begins with a folder."""
    size: Count
    xxh3: Checksum
    path: InnerPath = ""
    """Relative to `base`; empty when `data` holds the content."""
    base: Base = ""
    """Empty: the job's checkpoint root. Else the URL of the savepoint that the path is relative to; as stored, its path in
    the root if it is in there."""
    data: bytes | None = None
    offset: Count | None = None
    """Where it begins in a container of several files; None when it is a file of its own."""
    sha256: bytes = b""
    """Of the content, in JSON as Base64. Empty where `data` holds the content."""

    def __repr__(self) -> str:
        """Without the bytes: a record that somebody prints has the state of a small job in it."""
        shown = {name: repr(getattr(self, name)) for name in self.__struct_fields__ if name != "data"}
        shown["sha256"] = repr(self.sha256.hex())
        if self.data is not None:
            shown["data"] = f"<{len(self.data)} bytes>"
        return f"FileRef({', '.join(f'{name}={value}' for name, value in shown.items())})"

    @property
    def place(self) -> tuple[str, str, int]:
        """The same for references to the same bytes: after a rescale several shards share their files."""
        if not self.path:
            return "", f"inline {self.xxh3}", self.size
        # An empty file begins where the next one in its container does.
        return self.base, self.path, (self.offset or 0) if self.size else -1


def total_size(refs: Iterable[FileRef]) -> int:
    """The bytes of all of them, those that several refer to once."""
    return sum({ref.place: ref.size for ref in refs}.values())


class ExpiryShare(msgspec.Struct, frozen=True, array_like=True):
    """About how much of one state of a shard expires within a range of time. An estimate, for people."""

    state: StateId
    first: Long
    last: Long
    entries: Count
    size: Count
    """The bytes of keys and values, before a database compresses them."""


class Shard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A handle: one state backend instance over a contiguous range of key groups (bounds inclusive)."""

    first: KeyGroup
    last: KeyGroup
    backend: str
    files: tuple[FileRef, ...] = ()
    physical_first: KeyGroup | None = None
    """Wider than `first..last` after a rescale; None means the same."""
    physical_last: KeyGroup | None = None
    next_event_timer: Long | None = None
    next_processing_timer: Long | None = None
    next_event_expiry: Long | None = None
    """When the first block of an expiry index comes due, in event time; None: nothing is known to expire."""
    next_processing_expiry: Long | None = None
    entries: Count = 0
    """An estimate, for people."""
    expiring: tuple[ExpiryShare, ...] = ()
    """What its index of expiries names, by state and time."""

    @property
    def bytes(self) -> int:
        return sum(f.size for f in self.files)


class SchemaVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A former type of a state, whose values may still be stored, and the type that took its place."""

    number: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """The mark of the values of this type; those of number 0 have no mark."""
    value: str
    """As in `StateSchema`."""
    next: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """The number of the type that took its place. From there it goes on to today's."""
    slot: Count = 0
    """The record that introduced it; 0: the state began with it."""
    into: str = ""
    """The text of the next type with the aliases of its fields; empty when it has none."""
    migrated: bool = False
    """Code converts its values, not rules."""


class StateSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a declared state was when the record was written; compared before a run starts."""

    id: StateId
    kind: str
    """value, list, map, reducing, aggregating, columns, timer"""
    value: str
    """The serializer's schema in its canonical text form."""
    map_key: str = ""
    ttl: Long | None = None
    queryable: bool = False
    aliases: tuple[str, ...] = ()
    ttl_time: str = "processing"
    """The time that a ttl counts: processing, event"""
    ttl_renew: str = "write"
    """What begins a ttl anew: write, or read as well"""
    ttl_existing: bool = False
    """Whether the sweep gives entries without an expiry one."""
    expiry_index: StateId = 0
    """The state id of the index of expiries; 0 when the state never had a ttl. Tables and queries do not show it."""
    expiry_sweep: Count = 0
    """The number of the sweep that looks for entries which the index may lack; 0 when there can be none."""
    forgotten: bool = False
    """The code lets go of it, by name: it may begin empty under another name. Its entries stay."""
    undeclared: bool = False
    """The code does not declare it, so what shards say of when they are next due may leave out its entries."""
    version: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    """The number of the type `value`."""
    since: Count = 0
    """The record that introduced it; 0: the state began with it."""
    versions: tuple[SchemaVersion, ...] = ()
    """Earlier types whose values may still be stored."""
    by: tuple[tuple[str, str], ...] = ()
    """Of kind `columns`: names and types of the columns that tell the entries of a key apart, behind the namespace."""
    timed: bool = False
    """Of kind `columns`: a time stands before the key, as in a timer's queue."""
    namespace: str = ""
    """The types of its namespaces; empty: it has none."""
    many: bool = False
    """Of kind `timer`: a key may have many times."""
    former: tuple[str, ...] = ()
    """Names that earlier releases gave it, also those whose alias the code has dropped."""

    @property
    def evolved(self) -> bool:
        """Whether values may be marked, or of another type than today's."""
        return bool(self.version or self.versions)

    def written_anew(self) -> StateSchema:
        """Of a state whose values are all written as today's type."""
        return msgspec.structs.replace(self, version=0, since=0, versions=())


OPTION_KIND, OPTION_INPUTS = "operator", "inputs"
"""Of a ready-made operator's options, for people: its kind, and the uids of its inputs."""
OPTION_AGGREGATE = "aggregate "
"""Prefix of the option that says what an aggregate keeps of the rows; its name in quotes follows."""
OPTION_ROWS = "rows of "
"""Prefix of the option that has the columns of the rows in a state's blocks; the state's name follows."""


class OperatorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything one operator has at this record."""

    key: tuple[tuple[str, str], ...]
    """Key columns and their types, in order. Empty for an operator without keys: its subtasks have no shards."""
    max_parallelism: Parallelism
    assignment: tuple[tuple[KeyGroup, KeyGroup], ...]
    """Key groups (inclusive bounds) of each subtask."""
    shards: tuple[tuple[Shard, ...], ...]
    """Ordered shards of each subtask."""
    states: dict[Name, StateSchema] = {}
    next_state_id: Count = 1
    """Ids are never reused."""
    operator_states: dict[str, OperatorListState] = {}
    hosts: tuple[str, ...] = ()
    """Where each subtask last ran, as a scheduler's preferred location; a hint only."""
    parallelism: Count = 0
    """How many subtasks the pipeline gives it, whatever the run has; 0 when the pipeline leaves that to the run."""
    options: dict[str, str] = {}
    """Which columns its inputs have. Of a ready-made operator also the options that its state depends on, as text: code with another value could
    not read the state."""
    feeds: tuple[tuple[Name, Name], ...] = ()
    """The feeds that it reads, by operator and state: it has had rows for all that the state holds at this record."""

    @property
    def key_types(self) -> tuple[str, ...]:
        """What the bytes of its keys depend on: key columns may be renamed."""
        return tuple(kind for _, kind in self.key)

    @property
    def all_shards(self) -> Iterator[Shard]:
        return (shard for subtask in self.shards for shard in subtask)

    @property
    def files(self) -> Iterator[FileRef]:
        return (ref for shard in self.all_shards for ref in shard.files)


class OperatorListState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Operator state without keys: the elements of every subtask, or one copy for broadcast state."""

    kind: Literal["list", "union", "broadcast"]
    schema: str
    parts: tuple[tuple[bytes, ...], ...]
    former: tuple[str, ...] = ()
    """As in `StateSchema`."""


class PartitionTime(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far event time is in a partition of a source."""

    event_time: Micros | None = None
    """Highest event time seen so far."""
    active: Micros | None = None
    """When (batch time) it last had rows."""
    silent: Micros = 0
    """For how long it is known to have had none since, as of the source's `looked`."""


class LeftTopic(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a topic of Kafka was read that its source does not name any more, or those of its partitions that it does not."""

    offsets: dict[str, Count]
    """By partition the next message to read."""
    id: str = ""
    """What brokers call it; empty where they did not say."""


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a source is: Spark's offset lines of its leaves, and what its scratch log needs to carry on."""

    lines: tuple[str, ...]
    files: tuple[FileRef, ...] = ()
    """The file source's own log, content-named in `shared/`; `name` is `<leaf>/<entry>`."""
    kind: str = ""
    """delta, file, kafka, iceberg, package, other: also those of packages in records from before this was told apart"""
    event_time: Micros | None = None
    """Highest event time seen so far."""
    active: Micros | None = None
    """When (batch time) this source last had rows."""
    since: str = ""
    """What the source said of where it begins, in the pipeline of this record; empty for its default."""
    topic_ids: dict[str, str] = {}
    """By `<leaf>/<topic>` what brokers call a topic of Kafka: one that is made anew under its name has another id."""
    commits: dict[str, str] = {}
    """By `<leaf>` what tells the newest commit that is read of its Delta table from another one of that version."""
    partitions: dict[str, PartitionTime] = {}
    """By `<topic>/<partition>`: the partitions that have had rows, of a source whose watermark is held per partition."""
    looked: Micros | None = None
    """Until when somebody has looked into it: all that it had by then is read. None in records from before this was noted: until their
    `now`."""
    silent: Micros = 0
    """For how long it is known to have had no rows, as of `looked`; an idle source stops holding the watermark back."""
    change_feeds: tuple[Count, ...] = ()
    """Its leaves that read the change feed of a Delta table. None in records from before this was noted."""
    left: dict[str, LeftTopic] = {}
    """By `<leaf>/<topic>` the topics of Kafka, or partitions of them, that it has read and does not name any more. One that comes back goes on from there."""
    time_column: str = ""
    """The column that its event times are of. Empty in records from before this was noted."""
    columns: tuple[str, ...] = ()
    """The columns that its rows had in the code that `time_column` is of: that name may be another column's since. Empty where the code declared
    none, and in records from before this was noted."""


CATALOG_NAME = "catalog_name"
"""In the payload of a sink: what a catalog calls its target."""
MANAGED = "managed"
"""In the payload of a sink: true if the commits of its target go through its catalog."""


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a sink needs to commit this record, by anybody, at any time."""

    kind: str
    target: str
    """Path or name, for people and for the sink."""
    prev: Count | None = msgspec.field(
        default_factory=lambda: None
    )  # made, so that a record names it also where it is None
    """The slot last committed to this sink; None when none was. Whoever decides the record knows it, not the sink."""
    late: tuple[Count, ...] = ()
    """Abandoned slots above `prev`, which are right, too: a fenced run may have delivered one after all. Not rows behind the watermark."""
    payload: dict[str, Any] = {}
    """The sink's own, JSON-serialisable: actions, table id, keys, options."""
    files: tuple[FileRef, ...] = ()
    """Staged output files that commit reads; live as long as the record is."""
    rows: Count = 0
    back_to: Count | None = None
    """Of a way back: the slot whose output the target has behind it, 0 for none of the job's. None where rows come."""

    @property
    def name(self) -> str:
        """What a catalog called the target; empty if the pipeline gave its path."""
        return str(self.payload.get(CATALOG_NAME, ""))

    @property
    def is_managed(self) -> bool:
        """Whether the target's commits go through its catalog."""
        return self.payload.get(MANAGED) is True


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who wrote a record or claimed an epoch."""

    run: str
    host: str = ""
    pid: int = 0
    pid_scope: str = ""
    """The boot and the namespaces in which `pid` is unique: containers, and machines with the same host name, have others."""
    user: str = ""
    dag_run: str = ""
    task: str = ""
    note: str = ""


class Link(msgspec.Struct, frozen=True):
    """The record before this one in the chain."""

    slot: Count
    writer: str


class ShownState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state that a feed's table shows: the feed's rows in it, applied in order, are the state of a record."""

    sink: str
    operator: Name
    state: Name
    slot: Count
    """Of that record; 0 if it is one of another job."""
    target: str
    """As in `Prepared`."""
    erased: bool = False
    """Whether it still has rows of a key that was erased since."""

    @property
    def name(self) -> tuple[str, str, str]:
        return self.sink, self.operator, self.state


Kind = Literal["checkpoint", "fence", "restore", "rescale", "erase"]


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One numbered entry of a job's log, decided by the creation of `_pending`."""

    format: int = FORMAT
    kind: Kind
    job: str
    """UUID of the job: a job recreated under an old name is another job."""
    slot: Count
    epoch: Count
    writer: str
    """Unique to this very body; tells 'mine' from 'theirs' after an unclear create."""
    previous: Link | None = None
    based_on: Count | None = None
    """The record whose state this one continues; a fence repeats that of the record below it."""
    timeline: Count = 1
    floor: Count = 1
    """The lowest slot that the contiguous chain still starts from."""
    kept: tuple[Count, ...] = ()
    """Slots below the floor whose records stay as well, ascending: the job's retention rule keeps them."""
    owner: Owner
    at: ClockMicros = 0
    """Wall clock at the decision, for people: nothing is decided by it."""
    now: ClockMicros = 0
    """The batch's fixed processing time."""
    seed: int = 0
    watermark: Micros | None = None
    """Fixed when the batch began; timers at or below it have fired."""
    sources: dict[str, SourceState] = {}
    operators: dict[Name, OperatorState] = {}
    sinks: dict[str, Prepared] = {}
    feeds: tuple[ShownState, ...] = ()
    """What tables of feeds show once this record is carried out. Of the others the record changes nothing."""
    statistics: dict[str, Any] = {}
    versions: dict[str, str] = {}
    parameters: dict[str, str] = {}
    shift: Count = 0
    """What is added to slots where stored entries and rows of feeds are ordered by them: what came from a job with higher slots
    stays below what is appended here. It never falls in a job."""
    final: bool = False
    """Drained: the watermark was raised to its end and every event-time timer has fired."""
    origin: str = ""
    """Where a restore took its state from: `checkpoint:42`, `tag:v1`, or the URL of a savepoint."""
    cut: Count = 0
    """The newest restore or rescale up to here: since then files may have bytes of key groups that their shard does not have. 0
    when there was none."""

    @property
    def carries_state(self) -> bool:
        return self.kind != "fence"

    @property
    def state_size(self) -> int:
        """Bytes of keyed state."""
        return total_size(ref for operator in self.operators.values() for ref in operator.files)


Spans = tuple[tuple[Count, Count], ...]
"""First and last slots."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `_metadata`: what became of a record in every sink. Its existence makes the record complete."""

    format: int = FORMAT
    slot: Count
    record: str
    """`writer` of the record that was carried out."""
    writer: str
    """Unique to this body."""
    epoch: Count
    sinks: dict[str, Literal["committed", "already", "abandoned", "none"]] = {}
    at: ClockMicros = 0
    owner: Owner | None = None
    last_commits: dict[str, Count] = {}
    """Per sink uid the highest slot whose output it has: the next record's `prev`."""
    late: dict[str, tuple[Count, ...]] = {}
    """Per sink uid the abandoned slots that may have arrived since: the next record's `late`. Not rows behind the watermark."""
    lacks: dict[str, Spans] = {}
    """Per sink uid the spans of slots, first and last, whose output a way back has taken out of it."""
    feeds: tuple[ShownState, ...] = ()
    """What the tables of all feeds show."""
    statistics: dict[str, Any] = {}


class EpochClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `epochs/N`."""

    format: int = FORMAT
    epoch: Count
    writer: str
    owner: Owner
    at: ClockMicros = 0
    job: str = ""
    """Of a tombstone: the UUID of the job that was deleted."""
    restores: bool = False
    """It was claimed for a restore, not for a run."""


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `job`."""

    format: int = FORMAT
    uuid: str
    name: str
    at: ClockMicros = 0


class Pin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `pins/<id>`: keeps one record and everything it reaches."""

    format: int = FORMAT
    id: str
    slot: Count
    kind: Literal["tag", "savepoint", "fork", "reader", "abandoned"]
    name: str = ""
    owner: Owner
    reason: str = ""
    at: ClockMicros = 0
    writer: str = ""
    """Of the record that is kept: what was created in its slot later is not meant."""


class TableFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Parquet file of a canonical savepoint: whole key groups of one state, in their order."""

    path: InnerPath
    """Relative to the savepoint."""
    size: Count
    xxh3: Checksum
    rows: Count
    groups: tuple[tuple[int, int], ...] = ()
    """Lowest and highest key group of each row group: the index."""
    sha256: bytes = b""


class Savepoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `<savepoint>/_metadata`: a snapshot that needs nothing but its own folder."""

    format: int = FORMAT
    id: str
    kind: Literal["native", "canonical"]
    job: str
    """The job's name; `record.job` is its UUID."""
    record: Record
    """The checkpoint, without sinks. Its files are relative to the savepoint; a canonical one has no shards."""
    tables: dict[Name, dict[Name, tuple[TableFile, ...]]] = {}
    """Canonical: by operator uid and state name."""
    targets: dict[str, str] = {}
    """Per sink uid where the job wrote: a fork must not write there too."""
    names: dict[str, str] = {}
    """Per sink uid what a catalog called that place: it may have no other name in the pipeline."""
    last_commits: dict[str, Count] | None = None
    """Per sink uid the slot of the last output that the job had delivered, for a way back of its outputs; None: it is not known."""
    feeds: tuple[ShownState, ...] = ()
    """What the tables of feeds showed."""
    offsets: dict[str, list[dict[str, Any]]] = {}
    """Per source uid the decoded position of each of its streams, for people and other programs."""
    owner: Owner
    note: str = ""
    at: ClockMicros = 0
    expires: Long | None = None
    """When a clean-up may dispose of it; None: never."""


class SavepointClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `<savepoint>/_claimed`: a job has taken its files over, or somebody disposes of it."""

    format: int = FORMAT
    job: str
    """The job's UUID; empty for a disposal."""
    name: str = ""
    url: str = ""
    """Under which the job names it: the same folder under another URL would look like another savepoint."""
    owner: Owner
    at: ClockMicros = 0
    savepoint: str
    """The id of the claimed savepoint; empty when a disposal claims the remains of an unfinished one."""
    root: str = ""
    """Where the job is: a copy of its root has a job with the same UUID, which must not delete what the other one uses."""


class DeadMark(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `_dead-<collector>` and of `_doomed-<collector>`. A `_doomed-` that names another collector than its own name does dooms
    nothing: that one took the name, so that this collector cannot doom the record any more."""

    format: int = FORMAT
    slot: Count
    collector: str


def encode(body: msgspec.Struct) -> bytes:
    """The frozen bytes of a body."""
    text = msgspec.json.encode(body)
    return b"stateflow %d %s %d\n%s\n" % (FORMAT, xxhash.xxh3_64_hexdigest(text).encode(), len(text), text)


LONGEST_LINE = 64
"""No first line of a body is longer, in bytes."""


_FIRST = b"stateflow "


def stated_size(beginning: bytes) -> int | None:
    """The size of a body, by its first line; None if this is no body's beginning. Give `LONGEST_LINE` bytes, or all
    there are: a first line that breaks off states more than there is."""
    if not beginning.startswith(_FIRST):
        return len(beginning) + 1 if beginning and _FIRST.startswith(beginning) else None
    line, end, _ = beginning.partition(b"\n")
    if not end:
        return len(beginning) + 1 if len(beginning) < LONGEST_LINE else None
    words = line.split(b" ")
    return len(line) + int(words[3]) + 2 if len(words) == 4 and _NUMBER.match(words[3]) else None


T = TypeVar("T", bound=msgspec.Struct)


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Made by one thread: the process crashes when several let msgspec (0.22) look at a type for the first time."""
    made = _decoders.get(kind)
    if made is None:
        with _making:
            made = _decoders[kind] = msgspec.json.Decoder(kind)
    return made


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()


def _after_fork() -> None:
    # The lock may have been held by a thread that the child does not have.
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


_NUMBER = re.compile(rb"[0-9]{1,15}\Z")


def decode(data: bytes, kind: type[T], path: str) -> T:
    """The body that was read from `path`; an error names the path."""
    header, _, rest = data.partition(b"\n")
    words = header.split(b" ")
    if (
        len(words) != 4
        or words[0] != b"stateflow"
        or not (_NUMBER.match(words[1]) and _NUMBER.match(words[3]))
    ):
        raise CorruptError(
            f"{path} is not a stateflow record: its first line is damaged; run `stateflow verify`"
        )
    if int(words[1]) > FORMAT:
        raise IncompatibleError(
            f"{path} was written in format {int(words[1])} by a newer stateflow; this one reads up to {FORMAT}: upgrade it"
        )
    text = rest[: int(words[3])]
    if len(text) != int(words[3]) or xxhash.xxh3_64_hexdigest(text).encode() != words[2]:
        raise CorruptError(
            f"{path} is truncated or damaged: its checksum does not match; run `stateflow verify`"
        )
    try:
        return decoder(kind).decode(text)
    except RecursionError:
        raise CorruptError(f"{path} was not written by stateflow: its JSON is nested too deep") from None
    except UnicodeDecodeError:
        raise CorruptError(f"{path} was not written by stateflow: a text in it is no UTF-8") from None
    except msgspec.DecodeError as error:
        said, _, where = str(error).rpartition(" - at ")
        if "matching regex" in said:
            raise CorruptError(
                f"{path} was not written by stateflow, or was changed since: a name in it may lead out of its folder "
                f"({where}); use another one, and ask where this one comes from"
            ) from None
        raise CorruptError(f"{path} does not have the fields of a {kind.__name__}: {error}") from error
