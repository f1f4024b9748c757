"""What a retention keeps, drawn as lines of time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from stateflow.checkpoint.kept_past import EDITS, NEWEST, OTHERS, KeptGroup, KeptPast
from stateflow.checkpoint.retention import YOUNG, Retention
from stateflow.cli.output import TextTable
from stateflow.cli.text import moment, several, size
from stateflow.config.retention_rule import RetentionRule
from stateflow.quantities import written_duration

CELLS = 48
_STAYS, _GOES, _NONE = "#", "o", "."
LEGEND = f"Each line reaches back as far as its part says, and ends now: {_STAYS} stays, {_GOES} goes, {_NONE} no checkpoint."
_MICROSECOND = timedelta(microseconds=1)


def drawing(past: KeptPast, retention: Retention) -> TextTable:
    """A row for each reason to stay, and one for what goes."""
    reach = {str(part): part.length // _MICROSECOND for part in retention.rule.parts} | {YOUNG: retention.age}
    words = {
        NEWEST: f"newest {retention.checkpoints}",
        YOUNG: f"younger than {written_duration(retention.age * _MICROSECOND)}",
        OTHERS: "tags, pins, undelivered",
        EDITS: "restores and other edits",
    }
    rows: list[tuple[object, ...]] = []
    for group in past.groups:
        if not group.slots and group.name in (OTHERS, YOUNG):
            continue
        cells = line(past, reach[group.name]) if group.name in reach else ""
        rows.append((words.get(group.name, group.name), cells, len(group.slots), size(group.bytes)))
    rows.append(("goes", _going(past), len(past.going), size(past.going_bytes)))
    return TextTable(
        ("part", "past", "checkpoints", "only they hold"), rows, right=("checkpoints", "only they hold")
    )


def line(past: KeptPast, reach: int) -> str:
    """The last `reach` microseconds in cells. A cell with several checkpoints shows whether one of them stays."""
    cells = [_NONE] * CELLS
    for slot, at in past.times.items():
        age = max(0, past.now - at)
        if age < reach:
            cell = CELLS - 1 - age * CELLS // reach
            if cells[cell] != _STAYS:
                cells[cell] = _STAYS if slot in past.staying else _GOES
    return "".join(cells)


def sentences(past: KeptPast, rule: RetentionRule) -> Iterator[str]:
    """What it comes to."""
    yield (
        f"{several(past.by_rule, 'checkpoint')} by the rule, with {size(past.rule_bytes)} that only they hold, beside the live state of "
        f"{size(past.live_bytes)}"
    )
    bounded = [(part, part.most) for part in rule.parts if part.most is not None]
    if bounded:
        parts = " and ".join(f"{part.step} up to {several(most, 'checkpoint')}" for part, most in bounded)
        most = size(sum(most for _, most in bounded) * past.live_bytes)
        yield f"in time {parts}: if each had changed all state, with up to {most} that only they hold"


def document(past: KeptPast, retention: Retention) -> dict[str, Any]:
    """The same for programs."""
    most = {str(part): part.most for part in retention.rule.parts}
    return {
        "retention": str(retention.rule),
        "retained": retention.checkpoints,
        "live_bytes": past.live_bytes,
        "rule_bytes": past.rule_bytes,
        "parts": [_group(group, most) for group in past.groups],
        "going": past.going,
        "going_edits": past.going_edits,
        "going_bytes": past.going_bytes,
        "times": {slot: moment(at) for slot, at in past.times.items()},
    }


def _group(group: KeptGroup, most: dict[str, int | None]) -> dict[str, Any]:
    return {
        "part": group.name,
        "checkpoints": group.slots,
        "bytes": group.bytes,
        "most": most.get(group.name),
    }


def _going(past: KeptPast) -> str:
    times = [past.times[slot] for slot in past.going]
    said = [f"from {moment(min(times))} to {moment(max(times))}"] if times else []
    if past.going_edits:
        said.append(several(len(past.going_edits), "restore or other edit", "restores and other edits"))
    return ", and ".join(said)
