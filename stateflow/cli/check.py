"""`stateflow check`: would a run of this file fit the job's state? Without Spark, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stateflow.cli.options import Debug, File, Output, Parameters, Root, Settings, configured, pairs, root_of
from stateflow.cli.output import document, err, out, table
from stateflow.errors import IncompatibleError


def check(
    file: File,
    job: Annotated[
        str | None, typer.Option("--job", help="Name of the job; else the pipeline's.", show_default=False)
    ] = None,
    parameter: Parameters = None,
    parallelism: Annotated[int | None, typer.Option(min=1, show_default=False)] = None,
    allow_non_restored_state: Annotated[
        bool,
        typer.Option(
            "--allow-non-restored-state",
            help="State without an operator may be dropped, and what looks renamed is new.",
        ),
    ] = False,
    option: Settings = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Plans a pipeline and compares it with the job's newest record. Exit code 4 if it does not fit."""
    from stateflow.compatibility.flows import compare
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import load_pipeline

    options = configured(root, option, debug=debug, parallelism=parallelism)
    loaded = load_pipeline(file, Path.cwd())
    given = pairs(parameter, "-p")
    name = job or loaded.pipeline.name
    if job is not None or options.checkpoint_dir:
        place = root_of(options) if job is not None else options.checkpoint_dir
        found = Job(place, name, storage_options=options.storage_options)
        if job is not None:
            found.log()  # a job that was named has to be there
        result = found.check(
            loaded.pipeline,
            given,
            parallelism=options.parallelism,
            allow_non_restored_state=allow_non_restored_state,
        )
    else:
        result = compare(loaded.pipeline.build(given), name, None)
    if output == "json":
        plain = {name: value for name, value in _plain(result).items() if name != "problem"}
        document({**plain, "problems": result.problems})
    else:
        against = (
            f"checkpoint {result.checkpoint} of job {name}"
            if result.checkpoint
            else "no checkpoint: a new job"
        )
        out().print(f"pipeline {result.pipeline}, compared with {against}", markup=False)
        rows: list[tuple[str, ...]] = [
            ("operator", o.uid, o.verdict, ", ".join(f"{n}: {v}" for n, v in o.states.items()))
            for o in result.operators
        ]
        rows += [("source", uid, verdict, "") for uid, verdict in result.sources.items()]
        rows += [("sink", uid, verdict, "") for uid, verdict in result.sinks.items()]
        table("", ("", "uid", "verdict", "states"), rows)
    if not result.compatible:
        for problem in result.problems[1:]:
            err().print(problem, markup=False, soft_wrap=True)
        raise IncompatibleError(result.problems[0])


def _plain(result: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(result)  # type: ignore[call-overload, no-any-return]
