"""`stateflow savepoint create|list|show|dispose`: snapshots that belong to their makers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stateflow.cli.options import (
    Conf,
    Invocation,
    JobName,
    OfCheckpoint,
    SavepointNote,
    Settings,
    Yes,
    argument,
    command,
    flag,
    job_of,
    pairs,
    root_of,
)
from stateflow.cli.output import CommandOutput, Facts, Piece, TextTable
from stateflow.cli.text import moment, number, size
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.format.records import Savepoint
    from stateflow.jobs.savepoints import SavepointKind
    from stateflow.savepoints.format import ListedSavepoint

app = typer.Typer(no_args_is_help=True, help="Snapshots that belong to whoever makes them.")

Kind = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="native|canonical",
        help="native: the backend's files, linked or copied. canonical: Parquet tables that anything can read.",
    ),
]
SavepointTo = Annotated[str, flag("--to", metavar="URL", help="Where to; else into the checkpoint root.")]
Place = Annotated[str, argument(metavar="URL", help="Folder or URL of a savepoint.")]


@app.command("create")
@command
def create(
    call: Invocation,
    job: JobName,
    kind: Kind = "native",
    to: SavepointTo = "",
    checkpoint: OfCheckpoint = "latest",
    name: Annotated[str, flag("--name", help="Its name in the root.")] = "",
    note: SavepointNote = "",
    expires: Annotated[
        str, flag("--expires", metavar="DURATION", help="A clean-up may delete it then.")
    ] = "",
    max_files: Annotated[
        int,
        typer.Option("--max-files", min=0, help="native: pack small files until so many are left; 0: never."),
    ] = 0,
    split_size: Annotated[
        str, typer.Option("--split-size", metavar="SIZE", help="canonical: state that one task writes.")
    ] = "512 MB",
    detach: Annotated[bool, flag("--detach", help="Return at once; a process of its own goes on.")] = False,
    conf: Conf = None,
    option: Settings = None,
) -> None:
    """Makes a savepoint of a complete checkpoint. A running pipeline is not slowed, and need not run at all."""
    from stateflow.checkpoint.names import parse, slot_of
    from stateflow.format.layout import checked_name
    from stateflow.jobs.savepoints import checked_lifetime
    from stateflow.quantities import duration
    from stateflow.quantities import size as bytes_of

    wanted = kind_of(kind)
    if wanted == "native":
        call.refuse_beside("of a native savepoint: give --type canonical", "split_size")
    else:
        call.refuse_beside("of a canonical savepoint: give --type native", "max_files")
    options = call.options(option)
    found = job_of(options, job)
    # Said at once, not by a detached process: an unknown job, a checkpoint that is not there, what cannot be read.
    slot_of(parse(checkpoint), found, found.log())
    lasts = checked_lifetime(_parsed(duration, "--expires", expires) if expires else None)
    split_bytes, spark_conf = _parsed(bytes_of, "--split-size", split_size), pairs(conf, "--conf")
    if name:
        checked_name("savepoint", name)
    if detach:
        _detach(job, call.output, options)
        return
    with call.output.progress(f"savepoint of {job}", shown=options.progress) as progress:
        made = found.savepoint(
            wanted,
            options=options,
            progress=progress,
            checkpoint=checkpoint,
            to=to,
            name=name,
            note=note,
            expires=lasts,
            max_files=max_files,
            split_size=split_bytes,
            conf=spark_conf,
        )
    call.output.answer(described(made.url, made.savepoint), *_shown(made.url, made.savepoint))


@app.command("list")
@command
def list_(
    call: Invocation,
    job: Annotated[str, argument(metavar="[JOB]", help="Of one job only.")] = "",
) -> None:
    """The savepoints in a checkpoint root. Those made with --to are where they were put."""
    from stateflow.format.references import state_bytes
    from stateflow.savepoints.format import list_savepoints
    from stateflow.storage.roots import open_store

    options = call.options()
    place = root_of(options)
    store = open_store(place, options.storage_options)
    listed = [(f"{store.url}/{path}", each) for path, each in list_savepoints(store, job or None)]
    if job and not listed:
        job_of(options, job).log()  # a slip; savepoints of a job that is deleted are listed all the same
    rows: list[tuple[object, ...]] = []
    for url, each in listed:
        state = (
            "claimed by " + each.claim.name
            if each.claim and each.claim.job
            else "being deleted"
            if each.claim
            else ""
        )
        if (s := each.savepoint) is None:
            rows.append(("", "DAMAGED", "", "", "", "", each.problem, url))
        else:
            made = (s.job, s.kind, s.record.slot, moment(s.at), size(state_bytes(s)), s.owner.user)
            rows.append((*made, state or s.note, url))
    columns = ("job", "type", "checkpoint", "made", "size", "by", "note", "place")
    call.output.answer(
        {"root": place, "savepoints": [_listed(url, each) for url, each in listed]},
        TextTable(columns, rows, right=("checkpoint", "size")),
    )


def _listed(url: str, each: ListedSavepoint) -> dict[str, Any]:
    if each.savepoint is None:
        return {"place": url, "problem": each.problem}
    claim = {"job_uuid": each.claim.job, "job": each.claim.name} if each.claim else None
    return {**described(url, each.savepoint), "claimed": claim}


@app.command("show")
@command
def show(call: Invocation, place: Place) -> None:
    """One savepoint: its checkpoint, operators, states, offsets and files."""
    from stateflow.savepoints.format import read_savepoint
    from stateflow.storage.roots import open_store

    options = call.options()
    store = open_store(place, options.storage_options)
    savepoint = read_savepoint(store)
    call.output.answer(described(store.url, savepoint), *_shown(store.url, savepoint))


@app.command("dispose")
@command
def dispose(call: Invocation, place: Place, yes: Yes = False) -> None:
    """Deletes a savepoint. One that a job has claimed is refused, unless that job has been deleted."""
    import time

    from stateflow.checkpoint.process import this_process
    from stateflow.savepoints.dispose import dispose_savepoint, require_free
    from stateflow.savepoints.format import read_savepoint
    from stateflow.storage.roots import open_store

    options = call.options()
    store = open_store(place, options.storage_options)
    root = open_store(options.checkpoint_dir, options.storage_options) if options.checkpoint_dir else None
    if not yes:
        savepoint = read_savepoint(store)
        require_free(store, options.storage_options, root)
        call.output.answer(
            {**described(store.url, savepoint), "disposed": False},
            *_shown(store.url, savepoint),
            note="Nothing was done: --yes deletes it.",
        )
        return
    freed = dispose_savepoint(
        store,
        owner=this_process(),
        clock=lambda: time.time_ns() // 1000,
        storage_options=options.storage_options,
        root=root,
    )
    call.output.answer(
        {"place": store.url, "disposed": True, "bytes": freed},
        f"{store.url} is deleted; {size(freed)} are free",
    )


def kind_of(text: str) -> SavepointKind:
    if text not in ("native", "canonical"):
        raise UsageError(f"--type {text!r} is neither native nor canonical")
    return cast("SavepointKind", text)


def described(url: str, savepoint: Savepoint) -> dict[str, Any]:
    from stateflow.format.references import state_bytes

    record = savepoint.record
    return {
        "place": url,
        "id": savepoint.id,
        "type": savepoint.kind,
        "job": savepoint.job,
        "job_uuid": record.job,
        "checkpoint": record.slot,
        "timeline": record.timeline,
        "watermark": record.watermark,
        "final": record.final,
        "at": savepoint.at,
        "expires": savepoint.expires,
        "by": savepoint.owner.user,
        "note": savepoint.note,
        "bytes": state_bytes(savepoint),
        "operators": {
            uid: {
                "key": dict(operator.key),
                "max_parallelism": operator.max_parallelism,
                "states": {
                    name: {"kind": s.kind, "type": s.value, "map_key": s.map_key or None}
                    for name, s in operator.states.items()
                },
                "operator_states": {
                    name: {"kind": s.kind, "type": s.schema, "elements": sum(map(len, s.parts))}
                    for name, s in operator.operator_states.items()
                },
            }
            for uid, operator in record.operators.items()
        },
        "offsets": savepoint.offsets,
        "tables": {
            uid: {state: [f.path for f in files] for state, files in states.items()}
            for uid, states in savepoint.tables.items()
        },
        "versions": record.versions,
    }


def _shown(url: str, savepoint: Savepoint) -> Iterator[Piece]:
    from stateflow.format.references import state_bytes

    record = savepoint.record
    yield Facts(
        [
            ("savepoint", url),
            ("type", savepoint.kind),
            ("of", f"job {savepoint.job}, checkpoint {record.slot}, timeline {record.timeline}"),
            ("made", f"{moment(savepoint.at)} by {savepoint.owner.user or savepoint.owner.run}"),
            ("note", savepoint.note),
            ("expires", moment(savepoint.expires) if savepoint.expires else "never"),
            ("watermark", moment(record.watermark)),
            ("size", size(state_bytes(savepoint))),
        ]
    )
    rows = [
        (
            uid,
            name,
            s.kind,
            f"{f'{s.map_key} -> ' if s.map_key else ''}{s.value}",
            _rows(savepoint, uid, name),
        )
        for uid, operator in record.operators.items()
        for name, s in operator.states.items()
    ]
    rows += [
        (uid, name, f"operator {s.kind}", s.schema, number(sum(map(len, s.parts))))
        for uid, operator in record.operators.items()
        for name, s in operator.operator_states.items()
    ]
    if rows:
        yield ""
        yield TextTable(("operator", "state", "kind", "type", "rows"), rows, right=("rows",))
    if savepoint.offsets:
        yield ""
        positions = [
            (uid, "; ".join(str(o.get("position", "")) for o in offsets))
            for uid, offsets in savepoint.offsets.items()
        ]
        yield TextTable(("source", "position"), positions)


def _rows(savepoint: Savepoint, uid: str, state: str) -> str | None:
    files = savepoint.tables.get(uid, {}).get(state)
    return number(sum(f.rows for f in files)) if files is not None else None


def _parsed(parse: Any, flag: str, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _detach(job: str, output: CommandOutput, options: Options) -> None:
    """The same command without --detach, in a session of its own; what it says goes to a file."""
    from stateflow.config.options import cache_of
    from stateflow.private_folders import make_private
    from stateflow.spark.session.workers import imports_from_working_folder

    folder = cache_of(options) / "logs"
    make_private(folder)
    log = folder / f"savepoint-{job}-{os.getpid()}.log"
    arguments = [a for a in sys.argv[1:] if a != "--detach"]
    # Otherwise -m would import modules of the working folder, from where the script imports none.
    safe = [] if imports_from_working_folder() else ["-P"]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *safe, "-m", "stateflow.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    output.answer(
        {"job": job, "pid": process.pid, "log": str(log)},
        f"process {process.pid} makes the savepoint; what it says is in {log}",
    )
