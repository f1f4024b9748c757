"""A restore plan as Markdown, for the person who approves it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from stateflow.quantities import size_text, time_text
from stateflow.restore.digest import digest
from stateflow.restore.parameters import SOURCES
from stateflow.restore.text import code_parts, reader_sentence
from stateflow.restore.visible import code, prose

if TYPE_CHECKING:
    from stateflow.restore.plan import Plan


def markdown(plan: Plan) -> str:
    return "\n".join(_lines(plan))


def markdown_together(plans: Sequence[Plan], of_all: str) -> str:
    """Of a restore of several jobs, in the order in which they go back. `of_all`: the digest that an approval names."""
    *readers, first = plans
    if not readers:
        return markdown(first)
    job = code(first.request.job.name)
    rows = [
        (code(plan.request.job.name), code(plan.request.origin.label), code(digest(plan))) for plan in plans
    ]
    parts = [
        f"**Restore job {job} together with the jobs that have read what this undoes**",
        f"In this order; every plan stands below, that of {job} first. Digest of all: {code(of_all)}",
        "\n".join(_table(("job", "goes back to", "digest of its plan"), rows)),
        *(markdown(plan) for plan in (first, *readers)),
    ]
    return "\n\n".join(parts)


def _lines(plan: Plan) -> Iterator[str]:
    request, origin = plan.request, plan.request.origin
    record = origin.record
    what = f"{origin.savepoint.kind} savepoint of checkpoint" if origin.savepoint else "checkpoint"
    new = " (a new job)" if plan.new_job else ""
    yield f"**Restore job {code(request.job.name)}{new} from {code(origin.label)}**"
    yield ""
    mark = None if request.reset_watermark else record.watermark
    copied = "copied into the job" if plan.copies else "nothing is copied"
    savepoint = f"{code(origin.savepoint.id)}, " if origin.savepoint else ""
    facts = [
        ("snapshot", f"{what} {record.slot} of job {code(origin.job)}, taken {time_text(record.at)} UTC"),
        ("identity", f"{savepoint}record {code(record.writer)} of job {code(record.job)}"),
        ("watermark", f"{time_text(mark)} UTC" if mark is not None else "none yet"),
        ("state", f"{plan.files} files, {size_text(plan.bytes)}, {copied}"),
        ("timeline", f"{plan.timeline}"),
    ]
    if origin.savepoint is not None:
        facts.append(("claim mode", request.claim_mode))
    if request.parallelism:
        facts.append(("parallelism", f"{request.parallelism} from now on"))
    facts.append(("code", prose("; ".join(filter(None, code_parts(request.pipeline.code))))))
    if request.owner.note:
        facts.append(("note", code(request.owner.note)))
    facts.append(("digest", code(digest(plan))))
    yield from _table(("", ""), facts)
    yield from _section(
        "Parameters",
        ("parameter", "value", "comes from", "the snapshot has", "the job has"),
        [
            (
                code(p.name),
                "unset" if p.value is None else code(p.masked_text(p.value)) or "empty",
                SOURCES[p.origin],
                code(p.masked_text(p.snapshot)),
                code(p.masked_text(p.job)),
            )
            for p in plan.parameters
        ],
    )
    yield from _section(
        "Operators",
        ("operator", "verdict", "states"),
        [
            (
                code(o.uid),
                o.verdict,
                "; ".join(
                    part
                    for part in (
                        ", ".join(f"{code(name)} {prose(verdict)}" for name, verdict in o.states.items()),
                        o.conversion,
                    )
                    if part
                ),
            )
            for o in plan.check.operators
        ],
    )
    yield from _section(
        "Sources",
        ("source", "verdict", "goes on at", "is now at", "kind", "reads"),
        [
            (code(s.uid), s.verdict, code(s.position), code(s.now), code(s.kind), code(s.reads))
            for s in plan.sources
        ],
    )
    yield from _section(
        "Outputs",
        ("sink", "where", "what happens", "kind", "where so far"),
        [
            (
                code(s.uid),
                code(s.target),
                f"**{s.action}**: {prose(s.note)}",
                code(s.kind),
                code(s.before) or "the same",
            )
            for s in plan.sinks
        ],
    )
    if plan.readers:
        yield ""
        yield "**Readers of what would be undone**"
        yield ""
        yield from (
            f"- {prose(reader_sentence(reader, goes_along=request.with_readers))}" for reader in plan.readers
        )
    if plan.warnings:
        yield ""
        yield "**Note**"
        yield ""
        yield from (f"- {prose(warning)}" for warning in plan.warnings)


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
    # A bar inside a cell would end the cell, even in code.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
