"""A restore plan as Markdown, for whoever has to approve it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from stateflow.quantities import size_text, time_text

if TYPE_CHECKING:
    from stateflow.restore.plan import RestorePlan


def markdown(plan: RestorePlan) -> str:
    return "\n".join(_lines(plan))


def _lines(plan: RestorePlan) -> Iterator[str]:
    request, origin = plan.request, plan.request.origin
    record = origin.record
    what = f"{origin.savepoint.kind} savepoint of checkpoint" if origin.savepoint else "checkpoint"
    new = " (a new job)" if plan.new_job else ""
    yield f"**Restore job {_code(request.job.name)}{new} from {_code(origin.label)}**"
    yield ""
    mark = None if request.reset_watermark else record.watermark
    copied = "copied into the job" if plan.copies else "nothing is copied"
    facts = [
        ("snapshot", f"{what} {record.slot} of job {_code(origin.job)}, taken {time_text(record.at)} UTC"),
        ("watermark", f"{time_text(mark)} UTC" if mark is not None else "none yet"),
        ("state", f"{plan.files} files, {size_text(plan.bytes)}, {copied}"),
        ("timeline", f"{plan.timeline}"),
    ]
    if origin.savepoint is not None:
        facts.append(("claim mode", request.claim_mode))
    if request.parallelism:
        facts.append(("parallelism", f"{request.parallelism} from now on"))
    yield from _table(("", ""), facts)
    yield from _section(
        "Operators",
        ("operator", "verdict", "states"),
        [
            (
                _code(o.uid),
                o.verdict,
                ", ".join(f"{_code(name)} {verdict}" for name, verdict in o.states.items()),
            )
            for o in plan.check.operators
        ],
    )
    yield from _section(
        "Sources",
        ("source", "verdict", "goes on at", "is now at"),
        [(_code(s.uid), s.verdict, _code(s.position), _code(s.now)) for s in plan.sources],
    )
    yield from _section(
        "Outputs",
        ("sink", "where", "what happens"),
        [(_code(s.uid), _code(s.target), f"**{s.action}**: {s.note}") for s in plan.sinks],
    )
    if plan.warnings:
        yield ""
        yield "**Note**"
        yield ""
        yield from (f"- {warning}" for warning in plan.warnings)


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield ""
        yield f"**{title}**"
        yield ""
        yield from _table(header, rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(header)
    yield _row(["---"] * len(header))
    for row in rows:
        yield _row(row)


def _row(cells: Iterable[str]) -> str:
    # A bar inside of a cell would end it, even in code.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _code(text: str) -> str:
    """A name or path, whatever characters it has."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""
