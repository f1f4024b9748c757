"""Every kind of sink, as far as it is known without Spark: its targets and options, and what it can do.

A new kind is a `SinkKind` in `KINDS` here, and its class in `SINKS` of `stateflow/spark/sinks/kinds.py`. Whoever needs a fact about
a kind reads it here, and asks for no kind by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stateflow.errors import UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.code.signatures import never_runs, takes
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.rows.row_type import RowType

Check = Callable[[str, Any, Mapping[str, Any], RowType | None], None]
"""Refuses a sink: where it stands, its target, its options that are not None, and its rows if their type is declared."""


def _nothing_more(where: str, target: Any, options: Mapping[str, Any], rows: RowType | None) -> None:
    pass


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
    made_by: str = ""
    """The function of `stateflow` that makes a target of a path or a name."""
    options: frozenset[str] = frozenset()
    check: Check = _nothing_more
    """What else it refuses before Spark is there."""
    changes: Literal["refused", "replace", "as rows"] = "as rows"
    """What it does with rows that replace each other. Where they `replace` those of its target, `keys` is one of its options."""
    table: bool = False
    """Whether its target is a Delta table at a path. Such a table says which slot it got last."""
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


def kind_of(mode: str) -> SinkKind:
    for kind in KINDS.values():
        if kind.mode == mode:
            return kind
    raise UsageError(f"no kind of sink is called {mode!r}: {', '.join(kind.mode for kind in KINDS.values())}")


def kind_in_record(name: str) -> SinkKind | None:
    """The kind of a prepared output; None for one of another version of the library."""
    return next((kind for kind in KINDS.values() if name in (kind.name, kind.rewound_as)), None)


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


def _is_delta_table(target: Any) -> bool:
    return isinstance(target, DeltaTable)


def _check_append(where: str, target: DeltaTable, options: Mapping[str, Any], rows: RowType | None) -> None:
    _refuse_reading(where, target)
    _require_columns(where, rows, {"partition_by": target.partition_by})


def _check_upsert(where: str, target: DeltaTable, options: Mapping[str, Any], rows: RowType | None) -> None:
    _refuse_reading(where, target)
    keys, condition = options.get("keys"), options.get("delete_when")
    if not keys:
        raise UsageError(f"{where} has no key columns: say keys=['id']")
    columns = {"keys": keys, "order_by": options.get("order_by"), "partition_by": target.partition_by}
    _require_columns(where, rows, columns)
    if condition is not None and not isinstance(condition, str):
        raise UsageError(
            f"{where}: delete_when is {condition!r}: give it a condition in SQL, such as \"op = 'delete'\""
        )
    if condition is not None and rows is not None:
        condition_of(f"{where}, delete_when", condition, rows)


def _refuse_reading(where: str, target: DeltaTable) -> None:
    if target.read_with:
        raise UsageError(
            f"{where}: option {target.read_with[0]!r} of {target} is for reading it and would do nothing: leave it out; "
            "'delta.*' sets properties of a table that the sink makes"
        )


def _require_columns(where: str, rows: RowType | None, columns: Mapping[str, Any]) -> None:
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
    accepts=_is_delta_table,
    made_by="delta",
    check=_check_append,
    changes="refused",
    table=True,
    written_by_spark=True,
    rewound_as="delta_rewind",
    cloned=True,
    starts="has nothing of this job yet, and gets only rows that follow the snapshot",
)
DELTA_UPSERT = SinkKind(
    name="delta_upsert",
    mode="upsert",
    takes="delta(path)",
    accepts=_is_delta_table,
    made_by="delta",
    options=frozenset({"keys", "order_by", "delete_when"}),
    check=_check_upsert,
    changes="replace",
    table=True,
    rewound_as="delta_rewind",
    cloned=True,
    starts="has nothing of this job yet, and gets only the keys that change after the snapshot: the others never arrive, "
    "unless the table is a copy that holds them",
)
FUNCTION = SinkKind(
    name="function",
    mode="function",
    takes="a function of (frame, delivery)",
    accepts=lambda target: callable(target) and takes(target, 2),
    check=_check_function,
    calls_function=True,
)
MEMORY = SinkKind(
    name="memory",
    mode="collect",
    takes="memory(name)",
    accepts=lambda target: getattr(target, "kind", "") == "memory",
    made_by="memory",
    keeps_rows=True,
)
KINDS: dict[str, SinkKind] = {kind.name: kind for kind in (DELTA_APPEND, DELTA_UPSERT, FUNCTION, MEMORY)}
"""By name in records."""
