"""`stateflow debug`: one key in one batch that was, run again by today's code, step by step or at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from stateflow.cli.options import (
    Arguments,
    Invocation,
    KeyText,
    OperatorName,
    PipelineArguments,
    PipelinesJob,
    Settings,
    SparkArguments,
    command,
    flag,
    root_of,
)
from stateflow.cli.output import ConsoleOutput, Heading, Piece, TextTable
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.debugging.past_key import PastKey
    from stateflow.debugging.trial import Row, Run, Trial
    from stateflow.debugging.written_test import Expectation


@dataclass(frozen=True, kw_only=True)
class WrittenTestArguments(Arguments):
    """The test that is to be written, if any."""

    test: Annotated[
        Path | None,
        flag(
            "--test",
            metavar="FILE.py",
            help="Write the same as a test for pytest. It has values of rows and state.",
        ),
    ] = None
    expect: Annotated[
        str,
        flag(
            "--expect",
            metavar="CONDITION",
            help="With --test: what is right, in SQL over value and previous.",
        ),
    ] = ""
    expect_value: Annotated[
        str | None,
        flag("--expect-value", metavar="JSON", help="With --test: the right value, as query shows it."),
    ] = None
    state: Annotated[str, flag("--state", help="Of which state that is right; else the only one.")] = ""

    def expectation(self) -> Expectation | None:
        """What it asserts. Refuses a file that cannot be written."""
        from stateflow.debugging.written_test import Expectation, refuse_file

        if self.test is None and (self.expect or self.expect_value is not None or self.state):
            raise UsageError(
                "--expect, --expect-value and --state say what a test asserts: name its file with --test FILE.py"
            )
        if self.expect and self.expect_value is not None:
            raise UsageError("say what is right once: with --expect or with --expect-value")
        if self.test is None:
            return None
        refuse_file(self.test)
        return Expectation(self.state, self.expect, self.expect_value)


@command
def debug(
    call: Invocation,
    pipeline: PipelineArguments,
    operator: OperatorName,
    key: KeyText,
    at: Annotated[
        str, flag("--at", metavar="N|tag:NAME|TIME|latest", help="The checkpoint that the batch made.")
    ],
    wanted: WrittenTestArguments,
    spark: SparkArguments,
    job: PipelinesJob = None,
    no_stop: Annotated[
        bool,
        flag("--no-stop", help="Do not stop in the debugger: only show what comes in and what comes out."),
    ] = False,
    option: Settings = None,
) -> None:
    """One key in the batch of a checkpoint, run again by the code in FILE: at a terminal under pdb, elsewhere at once.

    The code gets the state that the key had before, the rows that it got, and the clock, chance and watermark of the batch. Its
    rows and state are shown beside what the checkpoint holds. Nothing is published.
    """
    from stateflow.debugging.written_test import write_test
    from stateflow.jobs.job import Job
    from stateflow.jobs.running import shipped

    expectation = wanted.expectation()
    options = call.options(option)
    loaded = pipeline.load()
    found = Job(root_of(options), job or loaded.pipeline.name, storage_options=options.storage_options)
    stops = (
        not no_stop and isinstance(call.output, ConsoleOutput) and sys.stdin.isatty() and sys.stdout.isatty()
    )
    trial = found.debug(
        loaded.pipeline,
        operator,
        key,
        at,
        pipeline.values,
        options=options,
        **shipped(loaded, spark.master, spark.settings),
        run=_under_pdb(call) if stops else None,
        expectation=expectation,
    )
    if trial is None:
        call.output.note("left before the batch was done")
        return
    written = []
    if wanted.test is not None and expectation is not None:
        written.append(write_test(trial, loaded, wanted.test, expectation))
    call.output.answer(
        trial.document() | {"test": "".join(written) or None},
        *pieces(trial),
        note="\n".join([trial.verdict, *trial.notes, *written]),
    )


def _under_pdb(call: Invocation) -> Run:
    from stateflow.debugging.stops import stopping
    from stateflow.debugging.trial import rows_in

    def show(past: PastKey) -> None:
        call.output.say(
            *_rows_in(rows_in(past)),
            Heading("state before"),
            TextTable(
                ("state", "value"), [(name, _text(value)) for name, value in past.before.values().items()]
            ),
        )

    return stopping(show)


def _rows_in(inputs: Sequence[Sequence[Row]]) -> Iterator[Piece]:
    names = ("rows in",) if len(inputs) == 1 else ("rows in, left", "rows in, right")
    for name, rows in zip(names, inputs, strict=True):
        yield Heading(name)
        yield _table(rows)


def pieces(trial: Trial) -> Iterator[Piece]:
    yield from _rows_in(trial.rows)
    yield Heading("state")
    names = list({**trial.before, **trial.after, **trial.then})
    yield TextTable(
        ("state", "before", "after", f"checkpoint {trial.past.slot}"),
        [(name, *(_text(of.get(name)) for of in (trial.before, trial.after, trial.then))) for name in names],
    )
    for output, rows in trial.output.items():
        yield Heading(f"rows out, {output}" if output else "rows out")
        yield _table(rows)


def _table(rows: Sequence[Row]) -> Piece:
    if not rows:
        return "none"
    return TextTable(tuple(rows[0]), [tuple(map(_text, row.values())) for row in rows])


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:197]}..."
