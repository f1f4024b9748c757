"""What a replay found: per sink and state what is gone, new or different, and what could not be compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stateflow.quantities import several
from stateflow.replay.rows import RowChange, RowChanges
from stateflow.replay.states import OPERATOR_GONE, OTHER_KEYS, OTHER_NAMESPACES, STATE_GONE, StateChanges

SHOWN = 20
"""Changes of a sink or a state that are kept for people."""


@dataclass
class SinkChanges:
    """How the rows for one sink differ from those that it was given."""

    sink: str
    key: tuple[str, ...] = ()
    """The columns by which rows are paired."""
    before: int = 0
    """Rows that were delivered."""
    after: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    changes: list[tuple[int, RowChange]] = field(default_factory=list)
    """The first ones, each with the slot of its batch."""
    columns_gone: tuple[str, ...] = ()
    columns_new: tuple[str, ...] = ()
    shortened: int = 0
    """Rows that are as they were but for values in columns that are gone."""
    retyped: tuple[str, ...] = ()
    """Columns whose old type cannot hold the new values, each with both types."""
    gone_batches: int = 0
    """Batches that gave it rows, or could have, while the code that ran now has no such sink."""
    new_rows: int = 0
    """Of batches whose pipeline had no such sink."""
    new_batches: int = 0
    abandoned_rows: int = 0
    """Now, of batches whose output for it was given up."""
    abandoned_batches: int = 0
    unknown: dict[int, str] = field(default_factory=dict)
    """By slot: why nobody knows any more what was delivered."""

    @property
    def changed(self) -> int:
        return sum(self.counts.values())

    @property
    def others(self) -> int:
        """Rows that would not be as they were."""
        return self.changed + self.shortened

    @property
    def share(self) -> float:
        """Such rows per row that was delivered, at most 1. It is 1 for a sink that the code does not have."""
        return 1.0 if self.gone_batches else min(1.0, self.others / max(self.before, 1))

    @property
    def excess(self) -> str:
        """What is more than a limit lets pass, before the limit is named."""
        if self.gone_batches:
            return f"the code has no sink {self.sink!r}, so its {several(self.before, 'row')} would be gone"
        if self.shortened:
            lacks = f", since the code does not put out {', '.join(self.columns_gone)} any more"
        else:
            lacks = ""
        return (
            f"{self.others:,} of {several(self.before, 'row')} of sink {self.sink!r} would be others{lacks}"
        )

    def take(self, slot: int, found: RowChanges) -> None:
        self.before += found.before
        self.after += found.after
        self.shortened += found.shortened
        for kind, n in found.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + n
        self.changes += [(slot, change) for change in found.changes[: SHOWN - len(self.changes)]]
        self.columns_gone = tuple(dict.fromkeys((*self.columns_gone, *found.columns_gone)))
        self.columns_new = tuple(dict.fromkeys((*self.columns_new, *found.columns_new)))
        self.retyped = tuple(dict.fromkeys((*self.retyped, *found.retyped)))


@dataclass(frozen=True)
class Unsteady:
    """An operator whose second try at the same batch did something else."""

    where: str
    """Its uid, or the sink behind steps that did."""
    slot: int
    what: str
    """A state, or the rows that it puts out."""
    key: Any
    first: Any
    second: Any
    state: str = ""
    """The name of the state that differs, if one does."""
    key_columns: tuple[str, ...] = ()
    """Of that state's operator."""

    def document(self) -> dict[str, Any]:
        return {**vars(self), "key_columns": list(self.key_columns)}

    @property
    def advice(self) -> str:
        return (
            "take ctx.now for the clock, ctx.random for chance, and sorted(...) for the order of a set; what it asks elsewhere comes "
            "in with enrich, and what a step makes comes from its rows alone"
        )


@dataclass
class ReplayReport:
    """A replay, as it ended."""

    job: str
    pipeline: str
    first: int
    last: int
    batches: int = 0
    rows: int = 0
    """Rows that were read again."""
    seconds: float = 0.0
    """The time in batches."""
    live_seconds: float = 0.0
    """The time that the same batches took when they ran."""
    compared: bool = True
    sinks: dict[str, SinkChanges] = field(default_factory=dict)
    states: list[StateChanges] = field(default_factory=list)
    unsteady: Unsteady | None = None
    """The first operator that is not deterministic, if that was looked for and found."""
    lets_go: bool = False
    """Whether the code was run with leave to drop state (`allow_non_restored_state`)."""
    forgotten: frozenset[tuple[str, str]] = frozenset()
    """Operators and states of theirs that the code says it lets go (`forgets`)."""
    fork_bytes: int = 0
    """What the fork had written when it began: nothing was copied."""
    notes: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether nothing differs, as far as it could be compared."""
        return (
            not any(
                sink.others
                or sink.columns_gone
                or sink.columns_new
                or sink.retyped
                or sink.new_batches
                or sink.gone_batches
                for sink in self.sinks.values()
            )
            and not any(
                state.changed or (state.note and not state.keys and not state.counts)
                for state in self.new_or_changed
            )
            and self.unsteady is None
        )

    @property
    def new_or_changed(self) -> list[StateChanges]:
        return [state for state in self.states if state.changed or state.note.startswith(("the ", "its "))]

    @property
    def uncompared(self) -> list[str]:
        """What could not be compared, a sentence each."""
        return [
            f"sink {sink.sink!r}, {several(len(sink.unknown), 'batch', 'batches')} from checkpoint {min(sink.unknown)}: {next(iter(sink.unknown.values()))}"
            for sink in self.sinks.values()
            if sink.unknown
        ]

    @property
    def findings(self) -> list[str]:
        """What there is to say of the comparison beside its counts, a sentence each."""
        if not self.compared or self.unsteady is not None:
            return []
        columns = [
            f"sink {sink.sink!r} {what} {', '.join(names)}: compared without"
            for sink in self.sinks.values()
            for what, names in (("no longer has", sink.columns_gone), ("now has", sink.columns_new))
            if names
        ]
        types = [
            f"sink {sink.sink!r} has columns of other types: {', '.join(sink.retyped)}"
            for sink in self.sinks.values()
            if sink.retyped
        ]
        uncompared = [f"not compared: {sentence}" for sentence in self.uncompared]
        return [
            *columns,
            *types,
            *uncompared,
            *([] if uncompared or not self.is_same else ["nothing differs"]),
        ]

    def excess(self, max_changed: float) -> str:
        """Why the changes are more than `max_changed` lets pass, as a sentence; empty when they are not.

        What could not be compared may be all others, so that 1 alone lets it pass. A state or operator that is gone has no key as it was.
        """
        for sink in self.sinks.values():
            if sink.unknown and max_changed < 1:
                said = next(each for each in self.uncompared if each.startswith(f"sink {sink.sink!r}, "))
                return f"what sink {sink.sink!r} was given cannot be compared ({said}), and only max_changed=1 lets that pass"
            if sink.share > max_changed:
                return f"{sink.excess}, and max_changed={max_changed:g} lets {int(sink.before * max_changed):,} pass"
        for state in self.states:
            if state.note in (OTHER_KEYS, OTHER_NAMESPACES) and max_changed < 1:
                return f"the state of operator {state.operator!r} cannot be compared ({state.note}), and only max_changed=1 lets that pass"
            meant = self.lets_go or (state.operator, state.state) in self.forgotten
            if state.note in (OPERATOR_GONE, STATE_GONE) and max_changed < 1 and not meant:
                what = f"state {state.state!r} of operator" if state.state else "operator"
                return f"the code has no {what} {state.operator!r}, and max_changed={max_changed:g} lets none of its keys go"
            if state.changed > max_changed * max(state.keys, 1):
                return (
                    f"{state.changed:,} of {several(state.keys, 'key')} of state {state.state!r} of operator {state.operator!r} would "
                    f"have other values, and max_changed={max_changed:g} lets {int(state.keys * max_changed):,} pass"
                )
        return ""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "job": self.job,
            "pipeline": self.pipeline,
            "from": self.first,
            "to": self.last,
            "batches": self.batches,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "live_seconds": round(self.live_seconds, 3),
            "compared": self.compared,
            "same": self.is_same if self.compared else None,
            "sinks": [_sink_document(sink) for sink in self.sinks.values()],
            "states": [_state_document(state) for state in self.states],
            "nondeterministic": self.unsteady.document() if self.unsteady else None,
            "uncompared": self.uncompared,
            "findings": self.findings,
            "notes": self.notes,
        }


def _sink_document(sink: SinkChanges) -> dict[str, Any]:
    return {
        "sink": sink.sink,
        "before": sink.before,
        "after": sink.after,
        "new_rows": sink.new_rows,
        "new_batches": sink.new_batches,
        "abandoned_rows": sink.abandoned_rows,
        "abandoned_batches": sink.abandoned_batches,
        **{kind: sink.counts.get(kind, 0) for kind in ("gone", "new", "different")},
        "columns_gone": list(sink.columns_gone),
        "columns_new": list(sink.columns_new),
        "shortened": sink.shortened,
        "retyped": list(sink.retyped),
        "gone_batches": sink.gone_batches,
        "unknown": {str(slot): why for slot, why in sink.unknown.items()},
        "changes": [
            {"slot": slot, "kind": c.kind, "key": c.key, "before": c.before, "after": c.after}
            for slot, c in sink.changes
        ],
    }


def _state_document(state: StateChanges) -> dict[str, Any]:
    return {
        "operator": state.operator,
        "state": state.state,
        "key_columns": list(state.key_columns),
        "keys": state.keys,
        **{kind: state.counts.get(kind, 0) for kind in ("gone", "new", "different")},
        "note": state.note,
        "changes": [
            {"kind": c.kind, "key": c.key, "before": c.before, "after": c.after} for c in state.changes
        ],
    }
