"""`stateflow replay`: batches that were, run again by other code on a fork, and what would have been otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stateflow.cli.options import (
    Arguments,
    Invocation,
    PipelineArguments,
    PipelinesJob,
    Settings,
    SparkArguments,
    command,
    flag,
    root_of,
)
from stateflow.cli.output import Piece, TextTable
from stateflow.errors import IncompatibleError, UsageError
from stateflow.quantities import several

if TYPE_CHECKING:
    from stateflow.replay.comparison import ReplayReport

_KINDS = ("gone", "new", "different")


@dataclass(frozen=True, kw_only=True)
class ReplayArguments(Arguments):
    begin: Annotated[str, flag("--from", metavar="N|tag:NAME|TIME", help="The first batch's checkpoint.")] = (
        ""
    )
    end: Annotated[str, flag("--to", metavar="N|tag:NAME|TIME", help="The last one's; else the newest.")] = (
        "latest"
    )
    newest: Annotated[
        int | None,
        flag(
            "--last", metavar="N", min=1, help="Instead of --from: the newest N batches, or those that can."
        ),
    ] = None
    job: PipelinesJob = None
    compare: Annotated[
        bool, flag("--compare", help="Compare outputs and state with what the job delivered and kept.")
    ] = False
    check: Annotated[
        bool,
        flag(
            "--check",
            help="Evaluate each batch twice, and name the first operator that is not deterministic.",
        ),
    ] = False
    changes: Annotated[
        Path | None,
        flag("--changes", metavar="FILE", help="With --compare: all of them, as .jsonl or .parquet."),
    ] = None
    max_changed: Annotated[
        float | None,
        flag(
            "--max-changed",
            min=0.0,
            max=1.0,
            help="Exit with 4 if a larger share of rows or keys would be others.",
        ),
    ] = None
    keep: Annotated[
        str, flag("--keep", metavar="NAME", help="Keep the report beside the job, where the pages show it.")
    ] = ""
    note: Annotated[str, flag("--note", help="Why: kept with the report.")] = ""
    dag_run: Annotated[
        str, flag("--dag-run", help="The scheduler's run that this is part of: kept likewise.")
    ] = ""
    task: Annotated[str, flag("--task", help="The task of that run.")] = ""
    option: Settings = None

    def refuse_unclear(self) -> None:
        """Refuses what cannot be meant, before anything is loaded."""
        from stateflow.format.layout import checked_name
        from stateflow.replay.listing import refuse_other_names

        if bool(self.begin) is (self.newest is not None) or (
            self.newest is not None and self.end != "latest"
        ):
            raise UsageError("say which batches: --from N, with --to N if not up to the newest, or --last N")
        if self.changes is not None:
            refuse_other_names(self.changes)
        if self.keep:
            checked_name("report", self.keep)


@command
def replay(
    call: Invocation, pipeline: PipelineArguments, spark: SparkArguments, arguments: ReplayArguments
) -> None:
    """Runs the input of past batches through a pipeline again, cut as it was, on a fork of the job. Nothing is published.

    The clock, chance and the watermark are those of then, and the answers of `enrich` come from the state of then.
    """
    from stateflow.checkpoint.process import this_process
    from stateflow.jobs.job import Job
    from stateflow.jobs.run_secrets import handed_over
    from stateflow.jobs.running import replay_loaded
    from stateflow.replay.listing import listing

    arguments.refuse_unclear()
    if not arguments.keep:
        call.refuse_beside("without a report that stays: give --keep NAME", "note")
    options = call.options(arguments.option)
    loaded = pipeline.load()
    name, limit = arguments.job or loaded.pipeline.name, arguments.max_changed
    found = Job(root_of(options), name, storage_options=options.storage_options)
    secrets = handed_over()
    with listing(arguments.changes) as take, call.output.progress("replaying") as advance:
        report = replay_loaded(
            loaded,
            found,
            arguments.begin,
            arguments.end,
            {**secrets.parameters, **pipeline.values},
            options=options,
            master=spark.master,
            conf={**secrets.conf, **spark.settings},
            newest=arguments.newest,
            keep=arguments.keep,
            owner=this_process(dag_run=arguments.dag_run, task=arguments.task, note=arguments.note),
            max_changed=limit,
            compare=arguments.compare or arguments.changes is not None or limit is not None,
            check=arguments.check,
            listener=lambda done, of: advance("batches", done, of),
            changes=take,
        )
    call.output.answer(report.document(), *pieces(report))
    if limit is not None and (excess := report.excess(limit)):
        raise IncompatibleError(
            f"{excess}; look at the changes, and give a higher --max-changed if they are meant"
        )
    if arguments.check and report.unsteady is not None:
        raise IncompatibleError(f"{report.unsteady.where} is not deterministic: {report.unsteady.advice}")


def pieces(report: ReplayReport) -> Iterator[Piece]:
    """The report as text."""
    from stateflow.replay.reports import figure

    live = f"; they took {report.live_seconds:.1f} s then" if report.live_seconds else ""
    yield (
        f"{several(report.batches, 'batch', 'batches')} of {several(report.rows, 'row')} ran again in {report.seconds:.1f} s, from checkpoint {report.first} to "
        f"{report.last} of job {report.job}{live}"
    )
    yield from report.notes
    if report.unsteady is not None:
        yield from unsteady_pieces(report)
        return
    if not report.compared:
        yield TextTable(("sink", "rows"), [(s.sink, f"{s.after:,}") for s in report.sinks.values()])
        shown = [(s.sink, slot, _short(c.after)) for s in report.sinks.values() for slot, c in s.changes]
        yield TextTable(("sink", "checkpoint", "row"), shown)
        return
    yield TextTable(
        ("sink", "delivered", "now", "gone", "new", "different"),
        [
            (s.sink, *(figure(count, len(s.unknown)) for count in counts))
            for s in report.sinks.values()
            for counts in [(s.before, s.after, *(s.counts.get(kind, 0) for kind in _KINDS))]
        ],
    )
    yield TextTable(
        ("operator", "state", "gone", "new", "different", ""),
        [(s.operator, s.state, *_counts(s.counts), s.note) for s in report.states],
    )
    rows = [
        (f"sink {s.sink}", slot, c.kind, _short(c.key), _short(c.before), _short(c.after))
        for s in report.sinks.values()
        for slot, c in s.changes
    ]
    rows += [
        (f"{s.operator} {s.state}", report.last, c.kind, _short(c.key), _short(c.before), _short(c.after))
        for s in report.states
        for c in s.changes
    ]
    if rows:
        yield TextTable(("where", "checkpoint", "what", "key", "before", "after"), rows)
    yield from report.findings


def unsteady_pieces(report: ReplayReport) -> Iterator[Piece]:
    """What was found not to be deterministic."""
    found = report.unsteady
    assert found is not None
    yield f"{found.where} is not deterministic: two tries at the batch of checkpoint {found.slot} differ in {found.what}"
    yield TextTable(
        ("key", "first try", "second try"), [(_short(found.key), _short(found.first), _short(found.second))]
    )


def _counts(counts: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"{counts.get(kind, 0):,}" for kind in _KINDS)


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:197]}..."
