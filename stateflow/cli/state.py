"""`stateflow state export|import|erase`: state as data, and a key that is to be forgotten."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from stateflow.cli.options import (
    Conf,
    Debug,
    File,
    JobName,
    Note,
    Output,
    Parameters,
    Root,
    Settings,
    Takeover,
    Yes,
    configured,
    job_of,
    pairs,
)
from stateflow.cli.output import document, err, facts, number, out, size
from stateflow.cli.savepoint import Kind, described
from stateflow.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="State as tables, and keys that are to be forgotten.")


@app.command("export")
def export(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|URL", help="A job, or the folder or URL of a savepoint.", show_default=False
        ),
    ],
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="Its uid.", show_default=False)],
    state: Annotated[
        str, typer.Argument(metavar="STATE", help="Its name; _timers for timers.", show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="A new folder.", show_default=False)],
    form: Annotated[
        str, typer.Option("--format", metavar="parquet|json|csv", help="What to write.")
    ] = "parquet",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="N|tag:NAME|latest", help="Of which checkpoint.")
    ] = "latest",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="The folder may exist; it is replaced.")
    ] = False,
    conf: Conf = None,
    option: Settings = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Writes one state of a checkpoint or a savepoint as a table."""
    from stateflow.checkpoint.process import this_process
    from stateflow.spark.session.build import build_session
    from stateflow.spark.state_tables.export import checked_format, export_state
    from stateflow.spark.state_tables.snapshots import checkpoint_of, savepoint_at

    options = configured(root, option, debug=debug)
    if "/" in job:
        snapshot = savepoint_at(job, options)
    else:
        snapshot = checkpoint_of(job, checkpoint, options)
    checked_format(form)
    snapshot.table(operator, state)  # what it has not is said before Spark takes its seconds to start
    rows = export_state(
        build_session(f"stateflow export {operator}.{state}", conf=pairs(conf, "--conf")),
        snapshot,
        operator,
        state,
        to,
        cast(Any, form),
        owner=this_process(),
        ids=lambda: uuid.uuid4().hex,
        clock=lambda: time.time_ns() // 1000,
        overwrite=overwrite,
    )
    if output == "json":
        document({"of": job, "operator": operator, "state": state, "to": to, "format": form, "rows": rows})
        return
    out().print(f"{number(rows)} rows of {operator}.{state} are in {to}", markup=False, soft_wrap=True)


@app.command("import")
def import_(
    file: File,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="A new folder: the savepoint.", show_default=False)
    ],
    tables: Annotated[
        list[str],
        typer.Option(
            "--table",
            metavar="OPERATOR.STATE=PATH",
            help="Parquet of one state, with the columns that export gives; again for others.",
            show_default=False,
        ),
    ],
    like: Annotated[
        str,
        typer.Option(
            "--like", metavar="JOB|URL", help="Whose other states and offsets are kept.", show_default=False
        ),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="N|tag:NAME|latest", help="Of the job in --like.")
    ] = "latest",
    offset: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            metavar="SOURCE=LINE",
            help="Where a source begins, as `show -o json` has it under `lines`.",
            show_default=False,
        ),
    ] = None,
    kind: Kind = "canonical",
    parameter: Parameters = None,
    note: Annotated[str, typer.Option("--note", help="Why: kept with it.", show_default=False)] = "",
    conf: Conf = None,
    option: Settings = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Makes a savepoint of tables: state from elsewhere, or a snapshot's state with some of it edited.

    `stateflow restore` then takes it like any other savepoint.
    """
    from stateflow.checkpoint.process import this_process
    from stateflow.pipelines.loading import load_pipeline
    from stateflow.pipelines.parameters import known_parameters
    from stateflow.spark.session.build import build_session
    from stateflow.spark.session.shipping import by_value
    from stateflow.spark.state_tables.build import BuildRequest, build_savepoint
    from stateflow.spark.state_tables.frames import parquet_frame
    from stateflow.spark.state_tables.snapshots import checkpoint_of, savepoint_at

    options = configured(root, option, debug=debug)
    loaded = load_pipeline(file, Path.cwd())
    by_value([loaded.module])
    snapshot = None
    if like:
        snapshot = savepoint_at(like, options) if "/" in like else checkpoint_of(like, checkpoint, options)
    given = {
        **known_parameters(loaded.pipeline.function, snapshot.record if snapshot else None),
        **pairs(parameter, "-p"),
    }
    paths = pairs(tables, "--table")
    for what, path in paths.items():
        if "." not in what:
            raise UsageError(f"--table {what}={path} is not usable: write OPERATOR.STATE=PATH")
    offsets = pairs(offset, "--offset")
    spark = build_session(f"stateflow import {to}", conf=pairs(conf, "--conf"))
    frames: dict[str, dict[str, Any]] = {}
    for what, path in paths.items():
        uid, _, state = what.partition(".")
        frames.setdefault(uid, {})[state] = parquet_frame(spark, path, f"--table {what}={path}")
    made = build_savepoint(
        spark,
        BuildRequest(
            pipeline=loaded.pipeline,
            tables=frames,
            to=to,
            options=options,
            owner=this_process(note=note),
            parameters=given,
            like=snapshot,
            offsets=offsets,
            kind=cast(Any, kind),
            note=note,
        ),
    )
    if output == "json":
        document(described(to, made))
        return
    out().print(
        f"{to} is a {made.kind} savepoint; `stateflow restore JOB {file} --from {to}` starts from it",
        markup=False,
        soft_wrap=True,
    )


@app.command("erase")
def erase(
    job: JobName,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="The key; a JSON list for one of several columns.", show_default=False
        ),
    ],
    operator: Annotated[
        str, typer.Option("--operator", metavar="UID", help="Only from this operator.", show_default=False)
    ] = "",
    takeover: Takeover = False,
    note: Note = "",
    yes: Yes = False,
    option: Settings = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Takes a key out of the job's state for good: a person's right to be forgotten.

    Older checkpoints and tags hold the key and go with it; savepoints that may hold it are listed, for their owners.
    """
    from stateflow.checkpoint.process import this_process
    from stateflow.jobs.erasure import plan_erase

    options = configured(root, option, debug=debug)
    plan = plan_erase(job_of(options, job), key, options, operator=operator)
    body: dict[str, Any] = {
        "job": job,
        "key": key,
        "operators": sorted(plan.keys),
        "dropped_checkpoints": list(plan.dropped),
        "released": [p.name or p.kind for p in plan.pins],
        "savepoints": list(plan.savepoints),
        "rewritten_bytes": plan.rewritten_bytes,
        "erased": False,
    }
    if output == "text":
        facts(
            [
                ("operators", ", ".join(sorted(plan.keys))),
                ("written anew", f"up to {size(plan.rewritten_bytes)}"),
                ("checkpoints that go", ", ".join(map(str, plan.dropped))),
                ("tags and pins let go", ", ".join(p.name or p.kind for p in plan.pins) or "none"),
                ("savepoints that may hold it", ", ".join(plan.savepoints) or "none in this root"),
            ]
        )
    if yes:
        done = plan.apply(this_process(note=note), takeover=takeover)
        body |= {"erased": True, "record": done.checkpoint, "entries": done.entries}
        body["savepoints"] = list(done.savepoints)
    if output == "json":
        document(body)
    elif yes:
        out().print(
            f"record {done.checkpoint}: {number(done.entries)} entries of the key are gone", markup=False
        )
        if made := sorted(set(done.savepoints) - set(plan.savepoints)):
            out().print(f"made meanwhile, and may hold it: {', '.join(made)}", markup=False, soft_wrap=True)
    else:
        err().print("Nothing was done: --yes erases it.", markup=False)
