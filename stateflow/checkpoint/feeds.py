"""Which state each table of a feed shows. The rows of a feed up to a slot are the state at that slot: a table that shows an earlier
state than the next batch continues lacks rows, which that batch writes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.statistics import POSITIONS
from stateflow.format.records import Record, ShownState

Shown = tuple[ShownState, ...]


def shown_after(record: Record, outcomes: Mapping[str, str], before: Shown) -> Shown:
    """What the tables show after `record` ended with `outcomes`. A batch whose output was given up is not shown."""
    # What a restore takes back shows what it showed then, and nothing else.
    gone_back = set(record.sinks) if record.kind == "restore" else set()
    new = {each.name: each for each in record.feeds if outcomes.get(each.sink) != "abandoned"}
    written = {each.sink for each in new.values()}
    shown = {
        each.name: each
        for each in before
        if each.sink not in gone_back and not (each.sink in written and _is_left(each, record))
    }
    return tuple(_of_the_same_state(each, record) for each in (shown | new).values())


def _is_left(shown: ShownState, record: Record) -> bool:
    """Whether a table shows a state under a name that neither the pipeline nor the record has any more."""
    operator = record.operators.get(shown.operator)
    return operator is None or shown.state not in operator.states


def shown_by_copies(sinks: Iterable[str], origin: Record, shown: Shown, slot: int) -> Shown:
    """Of a fork in `slot`, whose sinks begin with copies of tables: these show what the tables showed at `origin`."""
    sinks = set(sinks)
    return tuple(
        msgspec.structs.replace(each, slot=slot if each.slot == origin.slot else 0)
        for each in shown
        if each.sink in sinks
    )


def shown_by_rewound(sinks: Iterable[str], origin: Record, shown: Shown, slot: int) -> Shown:
    """Of a restore of the job itself in `slot`, which takes these sinks back to what their tables showed at `origin`."""
    sinks = set(sinks)
    return tuple(
        msgspec.structs.replace(each, slot=slot) if each.slot == origin.slot else each
        for each in shown
        if each.sink in sinks
    )


def _of_the_same_state(shown: ShownState, record: Record) -> ShownState:
    """An edit takes the state of a record over, and so does a checkpoint that only puts sources somewhere: a table that shows that
    one shows this one's, too."""
    takes_over = record.kind not in ("checkpoint", "fence") or POSITIONS in record.statistics
    if takes_over and record.based_on and shown.slot == record.based_on:
        return msgspec.structs.replace(shown, slot=record.slot)
    return shown


def slots_of_state(parent: Record, record_at: Callable[[int], Record | None]) -> list[int]:
    """The slots of the records with the state of `parent`. An outcome of before checkpoints that only put sources somewhere took the
    state over says that tables show the record below."""
    slots = [parent.slot]
    record: Record | None = parent
    while record is not None and POSITIONS in record.statistics and record.based_on:
        slots.append(record.based_on)
        record = record_at(record.based_on)
    return slots


@dataclass(frozen=True)
class Lag:
    """What the tables of a feed lack before a batch."""

    late: tuple[str, ...] = ()
    """Readers whose tables show another state: sinks by their uids, operators as `operator_reader` names them."""
    since: int | None = None
    """The slot of that state, the earliest if there are several."""
    new: tuple[str, ...] = ()
    """Readers that have had nothing of the state."""
    why: str = ""
    """Why the batch cannot write the rows; empty if it can."""

    @property
    def lacks(self) -> bool:
        return bool(self.late or self.new)


def operator_reader(uid: str) -> str:
    """An operator that reads a feed, beside the uids of the sinks."""
    return f"operator {uid!r}"


def lag(
    shown: Mapping[str, ShownState | None],
    delivered: Iterable[str],
    abandoned: Mapping[str, tuple[int, ...]],
    slots: Collection[int],
    *,
    holds: bool,
) -> Lag:
    """`shown`: by reader of the feed what its table shows, or what an operator has had. `delivered`: the readers that have had
    rows of the job. `abandoned`: by sink the slots that may have arrived all the same. `slots`: those whose state the batch
    continues. `holds`: whether that has entries of the feed's state."""
    late = {uid: each.slot for uid, each in shown.items() if each is not None and each.slot not in slots}
    new = [uid for uid, each in shown.items() if each is None and holds]
    why = ""
    # All tables of a feed get the same rows, so that one would get them twice.
    if len(late) + len(new) < len(shown) or (late and new) or len(set(late.values())) > 1:
        why = "others of its readers are up to date with another slot"
    if other := sorted(set(new) & set(delivered)):
        reader = other[0] if other[0].startswith("operator ") else f"sink {other[0]!r}"
        why = f"{reader} has had rows before of which is not known what they show"
    if unclear := sorted(slot for uid in late for slot in abandoned.get(uid, ()) if slot > late[uid]):
        why = f"the output of slot {unclear[0]} was given up, and may have arrived all the same"
    return Lag(tuple(late), min(late.values(), default=None), tuple(new), why if late or new else "")
