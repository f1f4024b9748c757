"""`stateflow savepoint create|list|show|dispose`: snapshots that belong to their makers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stateflow.cli.bars import bars
from stateflow.cli.options import (
    Conf,
    Debug,
    JobName,
    Output,
    Root,
    Settings,
    Yes,
    configured,
    job_of,
    pairs,
    root_of,
)
from stateflow.cli.output import document, err, facts, moment, number, out, size, table
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.format.records import Savepoint
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
Place = Annotated[
    str, typer.Argument(metavar="URL", help="Folder or URL of a savepoint.", show_default=False)
]


@app.command("create")
def create(
    job: JobName,
    kind: Kind = "native",
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="Where to; else into the checkpoint root.", show_default=False
        ),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="N|tag:NAME|latest", help="Of which checkpoint.")
    ] = "latest",
    name: Annotated[str, typer.Option("--name", help="Its name in the root.", show_default=False)] = "",
    note: Annotated[str, typer.Option("--note", help="Why: kept with it.", show_default=False)] = "",
    expires: Annotated[
        str,
        typer.Option(
            "--expires", metavar="DURATION", help="A clean-up may delete it then.", show_default=False
        ),
    ] = "",
    max_files: Annotated[
        int,
        typer.Option("--max-files", min=0, help="native: pack small files until so many are left; 0: never."),
    ] = 0,
    split_size: Annotated[
        str, typer.Option("--split-size", metavar="SIZE", help="canonical: state that one task writes.")
    ] = "512 MB",
    detach: Annotated[
        bool, typer.Option("--detach", help="Return at once; a process of its own goes on.")
    ] = False,
    conf: Conf = None,
    option: Settings = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Makes a savepoint of a complete checkpoint. A running pipeline is not slowed, and need not run at all."""
    from stateflow.format.layout import checked_name
    from stateflow.quantities import duration
    from stateflow.quantities import size as bytes_of
    from stateflow.savepoints.origin import require_checkpoint, slot_named

    if kind not in ("native", "canonical"):
        raise UsageError(f"--type {kind!r} is neither native nor canonical")
    options = configured(root, option, debug=debug)
    found = job_of(options, job)
    # Said at once, not by a detached process: an unknown job, a checkpoint that is not there, what cannot be read.
    which, _, rest = named(checkpoint).partition(":")
    log = found.log()
    require_checkpoint(log, slot_named(which, rest, found, log))
    lasts = _parsed(duration, "--expires", expires) if expires else None
    split_bytes, spark_conf = _parsed(bytes_of, "--split-size", split_size), pairs(conf, "--conf")
    if name:
        checked_name("savepoint", name)
    if detach:
        return _detached(job, output)
    with bars(f"savepoint of {job}", shown=options.progress) as progress:
        made = found.savepoint(
            cast(Any, kind),
            options=options,
            progress=progress,
            checkpoint=named(checkpoint),
            to=to,
            name=name,
            note=note,
            expires=lasts,
            max_files=max_files,
            split_size=split_bytes,
            conf=spark_conf,
        )
    if output == "json":
        document(described(made.url, made.savepoint))
        return
    _show(made.url, made.savepoint)


@app.command("list")
def list_(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Of one job only.", show_default=False)] = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """The savepoints in a checkpoint root. Those made with --to are where they were put."""
    from stateflow.format.references import state_bytes
    from stateflow.savepoints.format import list_savepoints
    from stateflow.storage.roots import open_store

    options = configured(root, debug=debug)
    place = root_of(options)
    store = open_store(place, options.storage_options)
    listed = [(f"{store.url}/{path}", each) for path, each in list_savepoints(store, job or None)]
    if job and not listed:
        job_of(options, job).log()  # a slip; savepoints of a job that is deleted are listed all the same
    if output == "json":
        document({"root": place, "savepoints": [_listed(url, each) for url, each in listed]})
        return
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
    table("", columns, rows, right=("checkpoint", "size"))


def _listed(url: str, each: ListedSavepoint) -> dict[str, Any]:
    if each.savepoint is None:
        return {"place": url, "problem": each.problem}
    claim = {"job_uuid": each.claim.job, "job": each.claim.name} if each.claim else None
    return {**described(url, each.savepoint), "claimed": claim}


@app.command("show")
def show(place: Place, root: Root = None, output: Output = "text", debug: Debug = False) -> None:
    """One savepoint: of which checkpoint, its operators, states, offsets and files."""
    from stateflow.savepoints.format import read_savepoint
    from stateflow.storage.roots import open_store

    options = configured(root, debug=debug)
    store = open_store(place, options.storage_options)
    savepoint = read_savepoint(store)
    if output == "json":
        document(described(store.url, savepoint))
        return
    _show(store.url, savepoint)


@app.command("dispose")
def dispose(
    place: Place, yes: Yes = False, root: Root = None, output: Output = "text", debug: Debug = False
) -> None:
    """Deletes a savepoint. One that a job has claimed is refused, unless that job has been deleted."""
    import time

    from stateflow.checkpoint.process import this_process
    from stateflow.savepoints.dispose import dispose_savepoint
    from stateflow.savepoints.format import read_savepoint
    from stateflow.storage.roots import open_store

    options = configured(root, debug=debug)
    store = open_store(place, options.storage_options)
    if not yes:
        savepoint = read_savepoint(store)
        if output == "json":
            document({**described(store.url, savepoint), "disposed": False})
            return
        _show(store.url, savepoint)
        err().print("Nothing was done: --yes deletes it.", markup=False)
        return
    freed = dispose_savepoint(
        store,
        owner=this_process(),
        clock=lambda: time.time_ns() // 1000,
        storage_options=options.storage_options,
    )
    if output == "json":
        document({"place": store.url, "disposed": True, "bytes": freed})
        return
    out().print(f"{store.url} is deleted; {size(freed)} are free", markup=False, soft_wrap=True)


def named(checkpoint: str) -> str:
    """`42` as people write it is `checkpoint:42`."""
    return f"checkpoint:{checkpoint}" if checkpoint.isdigit() else checkpoint


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


def _show(url: str, savepoint: Savepoint) -> None:
    from stateflow.format.references import state_bytes

    record = savepoint.record
    facts(
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
    if rows:
        out().print()
        table("", ("operator", "state", "kind", "type", "rows"), rows, right=("rows",))
    if savepoint.offsets:
        out().print()
        table(
            "",
            ("source", "position"),
            [
                (uid, "; ".join(str(o.get("position", "")) for o in found))
                for uid, found in savepoint.offsets.items()
            ],
        )


def _rows(savepoint: Savepoint, uid: str, state: str) -> str | None:
    files = savepoint.tables.get(uid, {}).get(state)
    return number(sum(f.rows for f in files)) if files is not None else None


def _parsed(parse: Any, flag: str, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _detached(job: str, output: str) -> None:
    """The same command without --detach, in a session of its own; what it says goes to a file."""
    from stateflow.config.options import cache_folder

    folder = Path(cache_folder()) / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"savepoint-{job}-{os.getpid()}.log"
    arguments = [a for a in sys.argv[1:] if a != "--detach"]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "stateflow.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if output == "json":
        document({"job": job, "pid": process.pid, "log": str(log)})
        return
    out().print(
        f"process {process.pid} makes the savepoint; what it says is in {log}", markup=False, soft_wrap=True
    )
