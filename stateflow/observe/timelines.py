"""A job's history as a graph, like `git log --graph`: newest first, one lane per timeline. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.quantities import time_text

AUDITED = ("restore", "rescale", "erase")


@dataclass(frozen=True)
class Span:
    """One row of the graph: one special record, or several plain checkpoints in a row."""

    newest: int
    oldest: int
    count: int
    kind: str
    timeline: int
    parent: int | None
    """Slot of the record below it."""
    text: str


def graph(
    lines: Sequence[HistoryLine],
    tags: Mapping[str, int],
    head: int | None,
    stored: Collection[int] | None = None,
) -> list[str]:
    """The rows of the graph as text. `stored`: the slots that still have a record; the others are shown as collected."""
    return list(_draw(list(spans(lines, tags, head, stored))))


def spans(
    lines: Sequence[HistoryLine],
    tags: Mapping[str, int],
    head: int | None,
    stored: Collection[int] | None = None,
) -> Iterator[Span]:
    """Newest first. Plain checkpoints that follow each other are one span, if all are stored or all collected."""
    by_slot = {line.id: line for line in lines if line.kind != "fence"}
    # A record continues an earlier one; a damaged one that names a later one would lead in a circle.
    parents = {
        slot: line.based_on if line.based_on is not None and line.based_on < slot else None
        for slot, line in by_slot.items()
    }
    children: dict[int, int] = {}
    for parent in parents.values():
        if parent is not None:
            children[parent] = children.get(parent, 0) + 1
    named: dict[int, list[str]] = {}
    for name, slot in sorted(tags.items()):
        named.setdefault(slot, []).append(name)

    def plain(slot: int) -> bool:
        line = by_slot[slot]
        special = slot in named or slot == head or line.status != "COMPLETED"
        return line.kind == "checkpoint" and not special and children.get(slot, 0) <= 1

    done: set[int] = set()
    for slot in sorted(by_slot, reverse=True):
        if slot in done:
            continue
        run = [slot]
        while plain(run[-1]):
            below = parents[run[-1]]
            if below is None or below not in by_slot or not plain(below) or below in done:
                break
            if stored is not None and (below in stored) != (slot in stored):
                break
            run.append(below)
        done.update(run)
        line = by_slot[slot]
        yield Span(
            newest=slot,
            oldest=run[-1],
            count=len(run),
            kind=line.kind,
            timeline=line.timeline,
            parent=parents[run[-1]],
            text=_text(line, len(run), run[-1], named.get(slot, []), slot == head)
            + ("" if stored is None or slot in stored else ", collected"),
        )


def audit(lines: Iterable[HistoryLine]) -> list[HistoryLine]:
    """What people did to the job, newest first: restores, rescales, erasures, abandoned outputs."""
    return [line for line in reversed(list(lines)) if line.kind in AUDITED or line.status == "ABANDONED"]


def _text(line: HistoryLine, count: int, oldest: int, tags: list[str], head: bool) -> str:
    at = time_text(line.latest_ack_timestamp * 1000)
    marks = ", ".join([*(["head"] if head else []), *(f"tag {name}" for name in tags)])
    marked = f" ({marks})" if marks else ""
    if count > 1:
        return f"{line.id}..{oldest}  {count} checkpoints, the newest of {at}"
    what = "" if line.kind == "checkpoint" else f" {line.kind}"
    if line.origin:
        what += f" from {line.origin}"
    status = "" if line.status == "COMPLETED" else f" {line.status.lower().replace('_', ' ')}"
    who = f" by {line.user}" if line.user and line.kind in AUDITED else ""
    note = f": {line.note}" if line.note and line.kind in AUDITED else ""
    return f"{line.id}{what}{status}{marked}  {at}{who}{note}"


def _draw(rows: Sequence[Span]) -> Iterator[str]:
    """Draws the rows. Each lane waits for the slot below its newest row. Lanes that wait for the same slot join."""
    lanes: list[int | None] = []
    for row in rows:
        waiting = [k for k, slot in enumerate(lanes) if slot == row.newest]
        if not waiting:
            lanes.append(row.newest)
            waiting = [len(lanes) - 1]
        mine, *others = waiting
        if others:
            yield " ".join("/" if k in others else "|" for k in range(len(lanes))).rstrip()
            for k in reversed(others):
                del lanes[k]
        yield " ".join("*" if k == mine else "|" for k in range(len(lanes))) + f"  {row.text}"
        if row.parent:
            lanes[mine] = row.parent
        else:
            del lanes[mine]
