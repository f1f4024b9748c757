"""Every kind of sink, as far as it is known without Spark: its targets and options, and what it can do.

A new kind is a `SinkKind`, which names its class: in `KINDS` here, in `OURS` if it is a connector of the library, or behind an entry
point of another package. Whoever needs a fact about a kind reads it here, and asks for no kind by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Literal

from stateflow.errors import UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.code.signatures import never_runs, takes
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.inputs.places import canonical
from stateflow.pipelines.inputs.tables import DeltaTable, is_name
from stateflow.pipelines.offers import SINKS, Offer, claims, only
from stateflow.pipelines.rows.row_type import RowType

Check = Callable[[str, Any, Mapping[str, Any], RowType | None], None]
"""Refuses a sink: where it stands, its target, its options that are not None, and its rows if their type is declared."""


GETS_NEW_ROWS = "has nothing of this job yet, and gets only rows that follow the snapshot"
GETS_CHANGED_KEYS = "has nothing of this job yet, and gets only the keys that change after the snapshot"
"""What a restore expects of an append and of an upsert that begin, see `SinkKind.starts`."""


@dataclass(frozen=True, slots=True)
class SinkKind:
    """What a kind of sink takes, and what it can do."""

    name: str
    """In records."""
    mode: str
    """In pipelines, messages and plans."""
    takes: str
    """What its target has to be, in words."""
    accepts: Callable[[Any], bool]
    """Whether something is such a target."""
    implementation: str
    """Its class, a `Sink`, as `package.module:Class`. It is loaded when a run needs it."""
    made_by: str = ""
    """The function of `stateflow` that makes a target of a path or a name."""
    options: frozenset[str] = frozenset()
    check: Check = lambda where, target, options, rows: None
    """What else it refuses before Spark is there."""
    require: Callable[[Any], object] = lambda target: None
    """Raises UsageError for what it needs in the process of a run and does not find there, such as a package or a variable: before Spark
    is there, and without a connection."""
    changes: Literal["refused", "replace", "as rows"] = "as rows"
    """What it does with rows that replace each other. Where they `replace` those of its target, `keys` is one of its options."""
    one_row_per_key: bool = False
    """Whether it takes of several rows of a key in a batch one alone, by `order_by`, and refuses them without."""
    place: Callable[[Any], str] = lambda target: ""
    """Where a target is, in one spelling: no two sinks of a pipeline write to one place, and no source reads it. Other kinds than
    Delta's begin with what they are, as in `postgres://host:5432/shop.public.orders`, and put this into records as the target. Empty for
    a target that is no place."""
    renamed: Callable[[Any, str], bool] = lambda target, recorded: False
    """Whether a target is surely another one than the place that a record names, and not the same in another spelling or moved: no slot
    can be there, and a run refuses it before it touches anything. Others are found by their slots."""
    shown: Callable[[Any], str] | None = None
    """The place as the user has written it, for messages; None if that is the same."""
    dataset: str = ""
    """What the place is in lineage (delta, postgres, ...); empty if it is not reported."""
    table: bool = False
    """Whether its target is a Delta table at a path."""
    tells_slot: bool = False
    """Whether the target can be asked which slot it got last: see `Sink.last_slot`."""
    calls_function: bool = False
    """Whether its target is a function of the user's, which every commit calls."""
    keeps_rows: bool = False
    """Whether its target has the rows itself, as `rows`."""
    written_by_spark: bool = False
    """Whether Spark alone writes the rows, without Python. Then steps may stand between the sink and an operator that runs in its
    job, and no Arrow batches but those of the operator come to be."""
    rewound_as: str = ""
    """The name, in records, of an output that was taken back; empty if that cannot be done. Only what is written exactly once can be
    taken back: the payload says so under `exactly_once`."""
    cloned: bool = False
    """Whether a fork can begin with a copy of its target."""
    starts: str = "has nothing of this job yet"
    """What a restore expects of an output into which the job has never written."""

    def named(self, target: Any) -> str:
        """The place of a target for people; empty if it is none."""
        return self.place(target) if self.shown is None else self.shown(target)

    def is_at(self, target: Any, recorded: str, name: str = "") -> bool:
        """Whether a target is the place that a record names. `name` is what a catalog called it then: by that alone a table is known that
        no run has asked its catalog for yet."""
        if self.table and not target.path:
            return bool(target.is_called(name))
        return self.place(target) == (canonical(recorded) if self.table else recorded)


def kind_of(mode: str, target: Any, where: str = "the sink") -> SinkKind:
    """The kind that writes to such a target in this mode. Other packages are looked at only if no built-in one does."""
    known = [kind for kind in KINDS.values() if kind.mode == mode]
    for kind in known:
        if kind.accepts(target):
            return kind
    failed = []
    for offered in _offered():
        if isinstance(offered, UsageError):
            failed.append(str(offered))
        elif offered.mode == mode:
            if offered.accepts(target):
                return offered
            known.append(offered)
    but = "".join(f"; {reason}" for reason in failed)
    if not known:
        modes = dict.fromkeys(kind.mode for kind in KINDS.values())
        raise UsageError(f"no kind of sink is called {mode!r}: {', '.join(modes)}{but}")
    is_path = known[0].made_by and target and isinstance(target, str | PathLike)
    maker = "table" if known[0].table and is_name(str(target)) else known[0].made_by
    instead = f", here sf.{maker}({str(target)!r})" if is_path else ""
    others = "".join(f", or {takes}" for takes in dict.fromkeys(kind.takes for kind in known[1:]))
    raise UsageError(f"{where} cannot write to {target!r}: give it {known[0].takes}{instead}{others}{but}")


def kind_in_record(name: str) -> SinkKind | None:
    """The kind of a prepared output; None for one of another version of the library, or of a package that is not here."""
    for kind in KINDS.values():
        if name in (kind.name, kind.rewound_as):
            return kind
    for offered in _offered():
        if isinstance(offered, SinkKind) and name in (offered.name, offered.rewound_as):
            return offered
    return None


def why_unknown(name: str) -> str:
    """The reason why `kind_in_record` finds none, if a package that is here is the reason; else empty."""
    try:
        offers = claims(SINKS, OURS).get(name)
        if offers is not None:
            _kind(name, offers)
    except UsageError as error:
        return str(error)
    return ""


def _offered() -> Iterator[SinkKind | UsageError]:
    """The kinds that are behind an entry point, and why some cannot be had."""
    for name, offers in claims(SINKS, OURS).items():
        try:
            yield _kind(name, offers)
        except UsageError as error:
            yield error


def _kind(name: str, offers: tuple[Offer, ...]) -> SinkKind:
    offer = only(offers)
    kind = offer.load()
    if not isinstance(kind, SinkKind) or kind.name != name:
        raise UsageError(
            f"{offer.package} offers {name!r} ({SINKS}), and {offer.value} is no SinkKind of that name: let the entry point "
            "be called as the kind is"
        )
    if name in KINDS:
        raise UsageError(
            f"{offer.package} offers {name!r} ({SINKS}), which is a kind of the library's: give it another name"
        )
    return kind


def is_table(name: str) -> bool:
    """Whether a prepared output with this name in its record goes to a Delta table."""
    kind = kind_in_record(name)
    return kind is not None and kind.table


def rewindable(prepared: Prepared) -> bool:
    """Whether a sink's output can be taken back, by the newest that it has prepared."""
    kind = kind_in_record(prepared.kind)
    if kind is None or not kind.rewound_as:
        return False
    return prepared.kind == kind.rewound_as or bool(prepared.payload.get("exactly_once"))


def names_of(columns: str | Iterable[str] | None) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns or ())


def _check_append(where: str, target: DeltaTable, options: Mapping[str, Any], rows: RowType | None) -> None:
    _refuse_reading(where, target)
    require_columns(where, rows, {"partition_by": target.partition_by})


def _check_delta_upsert(
    where: str, target: DeltaTable, options: Mapping[str, Any], rows: RowType | None
) -> None:
    _refuse_reading(where, target)
    check_upsert(where, target, options, rows)
    require_columns(where, rows, {"partition_by": target.partition_by})


def check_upsert(where: str, target: Any, options: Mapping[str, Any], rows: RowType | None) -> None:
    """What every upsert refuses, with the options `keys`, `order_by` and `delete_when`."""
    keys, condition = options.get("keys"), options.get("delete_when")
    if not keys:
        raise UsageError(f"{where} has no key columns: say keys=['id']")
    require_columns(where, rows, {"keys": keys, "order_by": options.get("order_by")})
    if condition is not None and not isinstance(condition, str):
        raise UsageError(
            f"{where}: delete_when is {condition!r}: give it a condition in SQL, such as \"op = 'delete'\""
        )
    if condition is not None and rows is not None:
        condition_of(f"{where}, delete_when", condition, rows)


def upsert_kind(append: SinkKind, name: str, implementation: str, **other: Any) -> SinkKind:
    """The kind that upserts into the targets of an append; `other` has what else is different."""
    upsert: dict[str, Any] = {
        "mode": "upsert",
        "options": frozenset({"keys", "order_by", "delete_when"}),
        "check": check_upsert,
        "changes": "replace",
        "one_row_per_key": True,
        "starts": GETS_CHANGED_KEYS,
    }
    return replace(append, name=name, implementation=implementation, **{**upsert, **other})


def for_reading(where: str, what: str, target: Any, instead: str = "") -> UsageError:
    """The error for what a sink was given of its target, and only a source heeds."""
    more = f"; {instead}" if instead else ""
    return UsageError(
        f"{where}: {what} of {target} is for reading it and would do nothing: leave it out{more}"
    )


def _refuse_reading(where: str, target: DeltaTable) -> None:
    if target.reads_changes:
        raise for_reading(where, "changes=True", target)
    if options := [*target.reader_options]:
        own = "'delta.*' sets properties of a table that the sink makes"
        raise for_reading(where, f"option {options[0]!r}", target, own)


def require_columns(where: str, rows: RowType | None, columns: Mapping[str, Any]) -> None:
    """UsageError for a column that the rows lack; `columns` has the names by what they are for."""
    if rows is None:
        return
    # Delta's columns are the same in capitals.
    known = {name.lower() for name in rows.names}
    for what, names in columns.items():
        for name in names_of(names):
            if name.lower() not in known:
                raise UsageError(
                    f"{where}: {rows.name} has no column {name!r} for {what}; it has {', '.join(rows.names)}"
                )


def _check_function(where: str, target: Any, options: Mapping[str, Any], rows: RowType | None) -> None:
    if never_runs(target):
        raise UsageError(
            f"{where}: {target!r} is an async function or a generator, which does nothing where it is only called: give a "
            "plain function, which may call asyncio.run(...)"
        )


DELTA_APPEND = SinkKind(
    name="delta_append",
    mode="append",
    takes="delta(path)",
    accepts=lambda target: isinstance(target, DeltaTable),
    implementation="stateflow.spark.sinks.delta_append:DeltaAppend",
    place=lambda table: table.place,
    shown=lambda table: table.named,
    dataset="delta",
    tells_slot=True,
    made_by="delta",
    check=_check_append,
    changes="refused",
    table=True,
    written_by_spark=True,
    rewound_as="delta_rewind",
    cloned=True,
    starts=GETS_NEW_ROWS,
)
DELTA_UPSERT = upsert_kind(
    DELTA_APPEND,
    "delta_upsert",
    "stateflow.spark.sinks.delta_upsert:DeltaUpsert",
    check=_check_delta_upsert,
    written_by_spark=False,
    starts=f"{GETS_CHANGED_KEYS}: the others never arrive, unless the table is a copy that holds them",
)
FUNCTION = SinkKind(
    name="function",
    mode="function",
    takes="a function of (frame, delivery)",
    accepts=lambda target: callable(target) and takes(target, 2),
    implementation="stateflow.spark.sinks.function:FunctionSink",
    check=_check_function,
    calls_function=True,
)
MEMORY = SinkKind(
    name="memory",
    mode="collect",
    takes="memory(name)",
    accepts=lambda target: getattr(target, "kind", "") == "memory",
    implementation="stateflow.spark.sinks.memory:MemorySink",
    made_by="memory",
    keeps_rows=True,
)
KINDS: dict[str, SinkKind] = {kind.name: kind for kind in (DELTA_APPEND, DELTA_UPSERT, FUNCTION, MEMORY)}
"""By name in records."""
OURS: dict[str, str] = {
    "files_append": "stateflow.connectors.files.kind:APPEND",
    "iceberg_append": "stateflow.connectors.iceberg.table:APPEND",
    "iceberg_upsert": "stateflow.connectors.iceberg.table:UPSERT",
    "kafka_append": "stateflow.connectors.kafka.kinds:APPEND",
    "kafka_upsert": "stateflow.connectors.kafka.kinds:UPSERT",
    "postgres_append": "stateflow.connectors.postgres.table:APPEND",
    "postgres_upsert": "stateflow.connectors.postgres.table:UPSERT",
}
"""The kinds of the library's own connectors, by name in records: where each `SinkKind` is. They are found as those of other packages
are, so that a pipeline without them loads nothing of theirs."""
