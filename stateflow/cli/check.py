"""`stateflow check`: would a run of this file fit the job's state? Without Spark, for CI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from stateflow.cli.options import (
    Count,
    Invocation,
    PipelineArguments,
    PipelinesJob,
    Settings,
    Strict,
    command,
    flag,
    root_of,
)
from stateflow.cli.output import Piece, TextTable
from stateflow.errors import IncompatibleError, NotFoundError


@command
def check(
    call: Invocation,
    pipeline: PipelineArguments,
    job: PipelinesJob = None,
    parallelism: Annotated[int | None, flag(min=1)] = None,
    strict: Strict = False,
    count: Count = False,
    option: Settings = None,
) -> None:
    """Plans a pipeline and compares it with the job's newest record. Exit code 4 if it does not fit."""
    from stateflow.config.options import unread_variables
    from stateflow.hosts.configured import lacking_host
    from stateflow.jobs.checking import checked as checked_flow
    from stateflow.jobs.counting import by_name, newest_sizes
    from stateflow.jobs.job import Job

    options = call.options(option, parallelism=parallelism)
    loaded = pipeline.load()
    given = pipeline.values
    name = job or loaded.pipeline.name
    against, absent = "no checkpoint", ""
    if job is not None or options.checkpoint_dir:
        place = options.checkpoint_dir
        try:
            place = root_of(options)
        except NotFoundError as error:
            if job is not None:
                raise
            absent = f"nothing was compared, because {error}"
        found = Job(place, name, storage_options=options.storage_options)
        if job is not None:
            found.log()  # a job that was named has to be there
        checked = partial(found.check, loaded.pipeline, given, parallelism=options.parallelism)
        result = checked()
        if count and any(operator.evolution for operator in result.operators):
            result = checked(counts=by_name(newest_sizes(found, options)[1]))
        slot = result.checkpoint
        against = f"checkpoint {slot} of job {name}" if slot else f"{against}: a new job"
        result = replace(result, warnings=tuple(filter(None, (absent, *result.warnings))))
    else:
        result = checked_flow(loaded.pipeline.build(given), name, None)
        result = replace(result, warnings=(_nothing_compared(unread_variables()), *result.warnings))
    body = {
        name: value for name, value in asdict(result).items() if name not in ("problem", "misfits", "drops")
    }
    call.output.answer(
        {**body, "problems": result.problems},
        f"pipeline {result.pipeline}, compared with {against}",
        TextTable(
            ("", "uid", "verdict", "states"),
            [
                *(("operator", o.uid, o.verdict, _states(o.states)) for o in result.operators),
                *(("source", uid, verdict, "") for uid, verdict in result.sources.items()),
                *(("sink", uid, verdict, "") for uid, verdict in result.sinks.items()),
            ],
        ),
        *_ready_made((o.uid, o.options, o.combines) for o in result.operators),
    )
    for warning in filter(None, (*result.warnings, lacking_host(options))):
        call.output.log(f"warning: {warning}")
    for o in result.operators:
        if o.conversion:
            call.output.log(f"operator {o.uid}: {o.conversion}")
    if result.compatible and strict:
        result.refuse_evolution()
    if not result.compatible:
        for problem in result.problems[1:]:
            call.output.log(problem)
        raise IncompatibleError(result.problems[0])


def _states(verdicts: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {verdict}" for name, verdict in verdicts.items())


def _nothing_compared(unread: Sequence[str]) -> str:
    """A gate that has lost its variable would pass every release."""
    hint = f" ({', '.join(unread)} sets no option: the root is in STATEFLOW_CHECKPOINT_DIR)" if unread else ""
    return f"no checkpoint root is set, so nothing was compared{hint}"


def _ready_made(operators: Iterable[tuple[str, Mapping[str, str], bool]]) -> Iterator[Piece]:
    """What each ready-made operator is, by its options and by whether batches may be combined."""
    from stateflow.observe.operator_words import operator_text

    summed = "; a batch is summed up before the shuffle if that pays"
    rows = [
        (uid, f"{text}{summed if combines else ''}")
        for uid, options, combines in operators
        if (text := operator_text(options))
    ]
    if rows:
        yield ""
        yield TextTable(("operator", "what it is"), rows)
