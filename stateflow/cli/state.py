"""`stateflow state export|import|erase`: state as data, and a key that is to be forgotten."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stateflow.cli.options import (
    Conf,
    Invocation,
    JobName,
    JobOrUrl,
    Note,
    OfCheckpoint,
    OperatorName,
    PipelineArguments,
    SavepointNote,
    Settings,
    Takeover,
    Yes,
    argument,
    command,
    flag,
    job_of,
    pairs,
)
from stateflow.cli.output import Facts
from stateflow.cli.savepoint import Kind, described, kind_of
from stateflow.cli.text import several, size
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = typer.Typer(no_args_is_help=True, help="State as tables, and keys that are to be forgotten.")


@app.command("export")
@command
def export(
    call: Invocation,
    job: JobOrUrl,
    operator: OperatorName,
    state: Annotated[str, argument(metavar="STATE", help="Its name; _timers for timers.")],
    to: Annotated[str, flag("--to", metavar="PATH", help="A new folder.")],
    form: Annotated[
        str, typer.Option("--format", metavar="parquet|json|csv", help="What to write.")
    ] = "parquet",
    checkpoint: OfCheckpoint = "latest",
    overwrite: Annotated[bool, flag("--overwrite", help="Replace an earlier export in the folder.")] = False,
    conf: Conf = None,
    option: Settings = None,
) -> None:
    """Writes one state of a checkpoint or a savepoint as a table."""
    from stateflow.checkpoint.process import this_process
    from stateflow.spark.session.build import build_session
    from stateflow.spark.state_tables.export import checked_format, export_state
    from stateflow.spark.state_tables.export_target import require_target
    from stateflow.spark.state_tables.snapshots import held_checkpoint, savepoint_at

    options = call.options(option)
    checked_format(form)
    with ExitStack() as until_the_end:
        if "/" in job:
            call.refuse_beside("of a savepoint, which is one snapshot: name a job", "checkpoint")
            snapshot = savepoint_at(job, options)
        else:
            held = held_checkpoint(job, checkpoint, options, f"export of {operator}.{state}")
            snapshot = until_the_end.enter_context(held)
        require_target(to, snapshot, overwrite=overwrite)
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
    call.output.answer(
        {"of": job, "operator": operator, "state": state, "to": to, "format": form, "rows": rows},
        f"{several(rows, 'row')} of {operator}.{state} {'is' if rows == 1 else 'are'} in {to}",
    )


@app.command("import")
@command
def import_(
    call: Invocation,
    pipeline: PipelineArguments,
    to: Annotated[str, flag("--to", metavar="URL", help="A new folder: the savepoint.")],
    tables: Annotated[
        list[str],
        flag(
            "--table",
            metavar="OPERATOR.STATE=PATH",
            help="Parquet of one state, with the columns that export gives; again for others.",
        ),
    ],
    like: Annotated[
        str, flag("--like", metavar="JOB|URL", help="Whose other states and offsets are kept.")
    ] = "",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="N|tag:NAME|latest", help="Of the job in --like.")
    ] = "latest",
    offset: Annotated[
        list[str] | None,
        flag(
            "--offset",
            metavar="SOURCE=LINE",
            help="Where a source begins, as `show -o json` has it under `lines`; of files the time until which they are read.",
        ),
    ] = None,
    kind: Kind = "canonical",
    note: SavepointNote = "",
    conf: Conf = None,
    option: Settings = None,
) -> None:
    """Makes a savepoint of tables: state from elsewhere, or a snapshot's state with some of it edited.

    `stateflow restore` then takes it like any other savepoint.
    """
    from stateflow.checkpoint.process import this_process
    from stateflow.pipelines.parameters import known_parameters
    from stateflow.spark.session.build import build_session
    from stateflow.spark.session.shipping import by_value
    from stateflow.spark.state_tables.build import BuildRequest, build_savepoint, table_names
    from stateflow.spark.state_tables.snapshots import held_checkpoint, savepoint_at

    if not like or "/" in like:
        call.refuse_beside("without a job that it is of: give --like JOB", "checkpoint")
    wanted = kind_of(kind)  # said before Spark takes its seconds to start
    options = call.options(option)
    loaded = pipeline.load()
    by_value([loaded.module])
    paths = pairs(tables, "--table")
    for what, path in paths.items():
        if "." not in what:
            raise UsageError(f"--table {what}={path} is not usable: write OPERATOR.STATE=PATH")
    offsets = pairs(offset, "--offset")
    with ExitStack() as until_the_end:
        snapshot = None
        if like:
            snapshot = (
                savepoint_at(like, options)
                if "/" in like
                else until_the_end.enter_context(
                    held_checkpoint(like, checkpoint, options, f"read to build {to}")
                )
            )
        given = {
            **known_parameters(loaded.pipeline.function, snapshot.record if snapshot else None),
            **pipeline.values,
        }
        names = table_names(loaded.pipeline.build(given))
        spark = build_session(f"stateflow import {to}", conf=pairs(conf, "--conf"))
        request = BuildRequest(
            pipeline=loaded.pipeline,
            tables=_frames(spark, paths, names),
            to=to,
            options=options,
            owner=this_process(note=note),
            parameters=given,
            like=snapshot,
            offsets=offsets,
            kind=wanted,
            note=note,
        )
        made = build_savepoint(spark, request)
    call.output.answer(
        described(to, made),
        f"{to} is a {made.kind} savepoint; `stateflow restore JOB {pipeline.file} --from {to}` starts from it",
    )


def _frames(
    spark: SparkSession, paths: Mapping[str, str], names: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, DataFrame]]:
    """By operator and state the rows of a table. A name that the pipeline does not have is left to whoever builds of it."""
    from stateflow.spark.state_tables.parquet import parquet_frame

    frames: dict[str, dict[str, DataFrame]] = {}
    for what, path in paths.items():
        uid, _, state = what.rpartition(".")
        uid, state = names.get(what, (uid, state))
        frames.setdefault(uid, {})[state] = parquet_frame(spark, path, f"--table {what}={path}")
    return frames


@app.command("erase")
@command
def erase(
    call: Invocation,
    job: JobName,
    key: Annotated[str, argument(metavar="KEY", help="The key; a JSON list for one of several columns.")],
    operator: Annotated[str, flag("--operator", metavar="UID", help="Only from this operator.")] = "",
    empty: Annotated[
        list[str] | None,
        flag(
            "--empty", metavar="UID.STATE", help="Empty this operator state, too: its elements have no key."
        ),
    ] = None,
    absent: Annotated[
        bool,
        flag("--absent", help="Also if the newest checkpoint has nothing under the key: older ones may."),
    ] = False,
    takeover: Takeover = False,
    note: Note = "",
    yes: Yes = False,
    option: Settings = None,
) -> None:
    """Takes a key out of the job's state for good: a person's right to be forgotten.

    Older checkpoints and tags hold the key and go with it; savepoints that may hold it are listed, for their owners, and so is
    state without keys, which stays unless --empty names it.
    """
    from stateflow.checkpoint.process import this_process
    from stateflow.jobs.erasure import plan_erase

    options = call.options(option)
    plan = plan_erase(job_of(options, job), key, options, operator=operator, empty=empty or (), absent=absent)
    found = {
        "operators": sorted(plan.keys),
        "entries_found": dict(plan.entries),
        "not_looked_at": dict(plan.not_looked_at),
        "dropped_checkpoints": list(plan.dropped),
        "released": [p.name or p.kind for p in plan.pins],
        "savepoints": list(plan.savepoints),
        "rewritten_bytes": plan.rewritten_bytes,
        "emptied": list(plan.emptied),
        "unreached": list(plan.unreached),
        "feeds": list(dict.fromkeys(each.target for each in plan.feeds)),
    }
    body = {"job": job, "key": key, **found, "erased": False}
    call.output.say(Facts(_found(found)))
    if not yes:
        call.output.answer(body, note="Nothing was done: --yes erases it.")
        return
    done = plan.apply(this_process(note=note), takeover=takeover)
    new = {"erased": True, "record": done.checkpoint, "entries": done.entries, "savepoints": done.savepoints}
    lines = [
        f"record {done.checkpoint}: {several(done.entries, 'entry', 'entries')} of the key {'is' if done.entries == 1 else 'are'} gone"
    ]
    if plan.not_looked_at:
        lines.append(f"not looked at: {_not_looked_at(plan.not_looked_at)}")
    if made := sorted(set(done.savepoints).difference(plan.savepoints, done.left)):
        lines.append(f"made meanwhile, and may hold it: {', '.join(made)}")
    lines += [f"{url} may hold it, and stays: {why}" for url, why in done.left.items()]
    if plan.feeds:
        lines.append(
            "the tables of its feeds still have its rows; delete them there, and the table's versions that had them (Delta: VACUUM): "
            f"{'; '.join(plan.rows_elsewhere)}"
        )
    call.output.answer({**body, **new}, *lines)


def _found(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counts = found["entries_found"]
    yield (
        "operators",
        ", ".join(f"{uid} ({several(counts[uid], 'entry', 'entries')})" for uid in found["operators"]),
    )
    yield "not looked at", _not_looked_at(found["not_looked_at"]) or "none"
    yield "written anew", f"up to {size(found['rewritten_bytes'])}"
    yield "checkpoints that go", ", ".join(map(str, found["dropped_checkpoints"]))
    for label, name, none in (
        ("tags and pins let go", "released", "none"),
        ("savepoints that may hold it", "savepoints", "none in this root"),
        ("operator state that is emptied", "emptied", "none"),
        ("operator state that stays", "unreached", "none"),
        ("tables of feeds that keep its rows", "feeds", "none"),
    ):
        yield label, ", ".join(found[name]) or none


def _not_looked_at(forms: Mapping[str, str]) -> str:
    """Operators whose key is of another shape, and how it is written."""
    return "; ".join(f"{uid}, whose key is {form}" for uid, form in forms.items())
