"""`stateflow tag`, `rescale` and `delete`: changes to a job that need no pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateflow.cli.options import Debug, JobName, Note, Output, Root, Takeover, Yes, configured, job_of
from stateflow.cli.output import document, err, facts, number, out, size, table
from stateflow.cli.savepoint import named

if TYPE_CHECKING:
    from stateflow.jobs.job import Job


def tag(
    job: JobName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tag's name.", show_default=False)],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="N|tag:NAME|latest", help="Which checkpoint it names.")
    ] = "latest",
    remove: Annotated[bool, typer.Option("--remove", help="Let the tag go.")] = False,
    note: Note = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Names a checkpoint and keeps it from being collected; copies nothing."""
    found = job_of(configured(root, debug=debug), job)
    if remove:
        slot = found.untag(name)
        if output == "json":
            document({"job": job, "tag": name, "checkpoint": slot, "removed": True})
            return
        out().print(f"tag {name} no longer keeps checkpoint {slot} of job {job}", markup=False)
        return
    made = found.tag(name, named(checkpoint), note=note)
    if output == "json":
        document({"job": job, "tag": name, "checkpoint": made.slot, "pin": made.id})
        return
    out().print(f"tag {name} keeps checkpoint {made.slot} of job {job}", markup=False)


def rescale(
    job: JobName,
    parallelism: Annotated[
        int,
        typer.Option("--parallelism", min=1, help="Subtasks of every keyed operator.", show_default=False),
    ],
    takeover: Takeover = False,
    note: Note = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Hands the state to another number of subtasks; copies no file, and takes effect at the next run."""
    done = job_of(configured(root, debug=debug), job).rescale(parallelism, note=note, takeover=takeover)
    operators = done.record.operators
    shards = {uid: sum(map(len, o.shards)) for uid, o in operators.items()}
    if output == "json":
        document({"job": job, "record": done.slot, "parallelism": parallelism, "shards": shards})
        return
    rows = [(uid, len(o.assignment), shards[uid]) for uid, o in operators.items()]
    table("", ("operator", "parallelism", "shards"), rows, right=("parallelism", "shards"))
    out().print(f"record {done.slot}: the next run of job {job} has parallelism {parallelism}", markup=False)


def delete(
    job: JobName,
    yes: Yes = False,
    takeover: Takeover = False,
    note: Note = "",
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Deletes a job with all its checkpoints and tags, and the savepoints it has claimed; others stay."""
    found = job_of(configured(root, debug=debug), job)
    claimed = _claimed(found)
    if not yes:
        entries = found.store.list(found.layout.folder)
        status = found.status() if found.exists or not entries else None
        if output == "json":
            document(
                {
                    "job": job,
                    "deleted": False,
                    "files": len(entries),
                    "bytes": sum(e.size for e in entries),
                    "savepoints": _listed(claimed.items()),
                }
            )
            return
        if status is None:
            err().print(
                f"Nothing was done: job {job} is deleted already; --yes deletes what runs have written there since.",
                markup=False,
            )
            return
        facts(
            [
                ("job", job),
                ("status", status.status),
                ("newest checkpoint", status.head),
                ("pending", ", ".join(map(str, status.pending)) or "none"),
                ("tags", ", ".join(status.tags) or "none"),
                ("files", f"{number(len(entries))}, {size(sum(e.size for e in entries))}"),
                ("claimed savepoints", _told(claimed) or "none"),
            ]
        )
        lost = " Output that is pending is given up." if status.pending else ""
        err().print(f"Nothing was done: --yes deletes all of it.{lost}", markup=False)
        return
    done = found.delete(note=note, takeover=takeover)
    gone = {url: claimed[url] for url in done.savepoints if url in claimed}
    if output == "json":
        document(
            {
                "job": job,
                "deleted": True,
                "files": done.files,
                "bytes": done.bytes,
                "savepoints": _listed(gone.items()),
                "undisposed": dict(done.undisposed),
            }
        )
        return
    for url, why in done.undisposed.items():
        err().print(
            f"{url}, which the job had claimed, stays: {why}; `stateflow savepoint dispose {url} --yes`, or delete the folder",
            markup=False,
            soft_wrap=True,
        )
    out().print(
        f"job {job} is deleted: {number(done.files)} files, {size(done.bytes)}"
        f"{f', and the savepoints that it had claimed: {_told(gone)}' if gone else ''}; a tombstone stays",
        markup=False,
        soft_wrap=True,
    )


def _claimed(job: Job) -> dict[str, int]:
    """URLs of the savepoints that are the job's own, with their bytes."""
    from stateflow.checkpoint.log import read_identity
    from stateflow.format.references import bases
    from stateflow.savepoints.format import read_savepoint_claim
    from stateflow.storage.roots import open_store

    if (identity := read_identity(job.store, job.layout)) is None:
        return {}
    records = (slot.record for slot in job.log().slots.values() if slot.record is not None)
    stores = {url: open_store(url, job.storage_options) for url in sorted(bases(records))}
    return {
        url: sum(entry.size for entry in store.list(""))
        for url, store in stores.items()
        if (claim := read_savepoint_claim(store)) is not None and claim.job == identity.uuid
    }


def _told(savepoints: dict[str, int]) -> str:
    return ", ".join(f"{url} ({size(count)})" for url, count in savepoints.items())


def _listed(savepoints: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"place": url, "bytes": count} for url, count in savepoints]
