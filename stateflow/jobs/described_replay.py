"""A kept report as a description, for the printers of plans: text for a log, Markdown for an approval. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stateflow.quantities import several
from stateflow.replay.reports import KeptReport, figure
from stateflow.restore.printing import Description, Name, Row, Section, Sentence, Words

KINDS = ("gone", "new", "different")
SHOWN = 10
"""Changes in the description."""
_LONG = 120
"""Characters of a value in a table."""


def described_report(kept: KeptReport) -> Description:
    found = kept.document
    ran = f"{several(found['batches'], 'batch', 'batches')} of {several(found['rows'], 'row')}"
    facts = [f"{ran} ran again on a fork; nothing was published", *found["notes"], *found["findings"]]
    if kept.excess:
        facts.append(kept.excess)
    if found["compared"]:
        outputs = Section(
            "Outputs", ("sink", "delivered", "now", *KINDS), [_sink(each) for each in found["sinks"]]
        )
    else:
        outputs = Section("Outputs", ("sink", "rows"), [_uncompared(each) for each in found["sinks"]])
    return Description(
        title=(
            "Replay of checkpoints ", Name(str(found["from"])), " to ", Name(str(found["to"])), " of job ", Name(found["job"]),
            " with pipeline ", Name(found["pipeline"]),
        ),
        sections=(
            Section("What ran", rows=[Row("", (Sentence(fact),)) for fact in facts]),
            outputs,
            Section(
                "State", ("state", *KINDS, "note"), [_state(each) for each in found["states"] if _differs(each)]
            ),
            Section(
                "The first differences" if found["compared"] else "The first rows",
                ("where", "checkpoint", "what", "key", "before", "after"),
                [_change(each) for each in described_changes(kept)[:SHOWN]],
            ),
        ),
    )  # fmt: skip


def described_changes(kept: KeptReport) -> list[dict[str, Any]]:
    """The first changes of all sinks and states, with where each is. The first of each come before the second of any."""
    groups = [list(_of_sink(each)) for each in kept.document["sinks"]]
    groups += [list(_of_state(each, kept.document["to"])) for each in kept.document["states"]]
    longest = max(map(len, groups), default=0)
    return [group[at] for at in range(longest) for group in groups if at < len(group)]


def _of_sink(sink: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for change in sink["changes"]:
        yield {"where": f"sink {sink['sink']}", **change}


def _of_state(state: Mapping[str, Any], last: int) -> Iterator[dict[str, Any]]:
    for change in state["changes"]:
        yield {"where": f"{state['operator']}.{state['state']}", "slot": last, **change}


def _sink(sink: Mapping[str, Any]) -> Row:
    # A report of an earlier version does not say how many.
    counts = [figure(sink[name], sink.get("unknown_batches", 0)) for name in ("before", "after", *KINDS)]
    line: Words = (
        Name(sink["sink"]), f": {counts[0]} delivered, {counts[1]} now; {counts[2]} gone, {counts[3]} new, {counts[4]} different",
    )  # fmt: skip
    return Row("sink", line, [(Name(sink["sink"]),), *((count,) for count in counts)])


def _uncompared(sink: Mapping[str, Any]) -> Row:
    """The replay has not looked at what was delivered."""
    count = sink["after"]
    return Row(
        "sink", (Name(sink["sink"]), f": {several(count, 'row')}"), [(Name(sink["sink"]),), (_number(count),)]
    )


def _state(state: Mapping[str, Any]) -> Row:
    counts = [_number(state[name]) for name in KINDS]
    name = Name(f"{state['operator']}.{state['state']}")
    note: Words = (Sentence(state["note"]),) if state["note"] else ()
    line: Words = (
        name, f": {counts[0]} gone, {counts[1]} new, {counts[2]} different of {several(state['keys'], 'key')} looked at",
        *(("; ", *note) if note else ()),
    )  # fmt: skip
    return Row("state", line, [(name,), *((count,) for count in counts), note])


def _differs(state: Mapping[str, Any]) -> bool:
    return any(state[kind] for kind in KINDS) or bool(
        state["note"] and state["note"] != "it belongs to subtasks"
    )


def _change(change: Mapping[str, Any]) -> Row:
    before, after = _short(change["before"]), _short(change["after"])
    line: Words = (
        Name(change["where"]), f" {change['slot']} {change['kind']} ", Name(_short(change["key"])), ": ",
        Name(before), " -> ", Name(after),
    )  # fmt: skip
    cells: list[Words] = [
        (Name(change["where"]),), (str(change["slot"]),), (str(change["kind"]),), (Name(_short(change["key"])),),
        (Name(before),), (Name(after),),
    ]  # fmt: skip
    return Row("", line, cells)


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."


def _number(count: Any) -> str:
    return f"{count:,}"
