"""`stateflow tag`, `rescale` and `delete`: changes to a job that need no pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateflow.cli.options import Invocation, JobName, Note, Takeover, Yes, argument, command, flag
from stateflow.cli.output import Facts, TextTable
from stateflow.cli.text import number, size
from stateflow.errors import CorruptError

if TYPE_CHECKING:
    from stateflow.jobs.job import Job


@command
def tag(
    call: Invocation,
    job: JobName,
    name: Annotated[str, argument(metavar="NAME", help="The tag's name.")],
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", metavar="N|tag:NAME|latest", help="Which checkpoint it names.")
    ] = "latest",
    remove: Annotated[bool, flag("--remove", help="Let the tag go.")] = False,
    note: Note = "",
) -> None:
    """Names a checkpoint and keeps it from being collected; copies nothing."""
    if remove:
        call.refuse_beside("of a tag that goes: leave out --remove", "checkpoint", "note")
    found = call.job(job)
    if remove:
        slot = found.untag(name)
        call.output.answer(
            {"job": job, "tag": name, "checkpoint": slot, "removed": True},
            f"tag {name} no longer keeps checkpoint {slot} of job {job}",
        )
        return
    made = found.tag(name, checkpoint, note=note)
    call.output.answer(
        {"job": job, "tag": name, "checkpoint": made.slot, "pin": made.id},
        f"tag {name} keeps checkpoint {made.slot} of job {job}",
    )


@command
def rescale(
    call: Invocation,
    job: JobName,
    parallelism: Annotated[
        int, flag("--parallelism", min=1, help="Subtasks of every operator without its own.")
    ],
    takeover: Takeover = False,
    note: Note = "",
) -> None:
    """Hands the state to another number of subtasks; copies no file, and takes effect at the next run."""
    done = call.job(job).rescale(parallelism, note=note, takeover=takeover)
    operators = done.record.operators
    shards = {uid: sum(map(len, o.shards)) for uid, o in operators.items()}
    rows = [(uid, len(o.assignment), shards[uid]) for uid, o in operators.items()]
    for uid, operator in operators.items():
        if operator.parallelism:
            call.output.log(f"operator {uid} keeps {operator.parallelism}, which its pipeline gives it")
    call.output.answer(
        {"job": job, "record": done.slot, "parallelism": parallelism, "shards": shards},
        TextTable(("operator", "parallelism", "shards"), rows, right=("parallelism", "shards")),
        f"record {done.slot}: the next run of job {job} has parallelism {parallelism}",
    )


@command
def delete(
    call: Invocation, job: JobName, yes: Yes = False, takeover: Takeover = False, note: Note = ""
) -> None:
    """Deletes a job with all its checkpoints and tags, and the savepoints it has claimed; others stay."""
    found = call.job(job)
    claimed = _claimed(found)
    if not yes:
        _show_deletion(call, found, claimed)
        return
    done = found.delete(note=note, takeover=takeover)
    gone = {url: claimed[url] for url in done.savepoints if url in claimed}
    for url, why in done.undisposed.items():
        call.output.note(
            f"{url}, which the job had claimed, stays: {why}; `stateflow savepoint dispose {url} --yes`, or delete the folder"
        )
    for url, why in done.left.items():
        call.output.note(f"{url} stays: {why}")
    for url, count in done.unfinished.items():
        call.output.note(f"{url}, a savepoint that was never finished, is deleted, too: {size(count)}")
    call.output.answer(
        {
            "job": job,
            "deleted": True,
            "files": done.files,
            "bytes": done.bytes,
            "savepoints": _listed(gone),
            "undisposed": {**done.undisposed, **done.left},
            "unfinished_savepoints": _listed(dict(done.unfinished)),
        },
        f"job {job} is deleted: {number(done.files)} files, {size(done.bytes)}"
        f"{f', and the savepoints that it had claimed: {_sizes(gone)}' if gone else ''}; a tombstone stays",
    )


def _show_deletion(call: Invocation, job: Job, claimed: dict[str, int]) -> None:
    from stateflow.checkpoint.deletion import refuse_pinned

    refuse_pinned(job.store, job.layout)  # as --yes would
    entries = job.store.list(job.layout.folder)
    body = {
        "job": job.name,
        "deleted": False,
        "files": len(entries),
        "bytes": sum(e.size for e in entries),
        "savepoints": _listed(claimed),
    }
    if entries and not job.exists:
        again = f"job {job.name} is deleted already; --yes deletes what runs have written there since."
        call.output.answer(body, note=f"Nothing was done: {again}")
        return
    facts: list[tuple[str, object]] = [("job", job.name)]
    lost = ""
    try:
        status = job.status()
    except CorruptError as error:  # such as an unreadable pin: it keeps nobody from deleting the whole job
        facts.append(("status", f"not known: {error}"))
    else:
        lost = " Output that is pending is given up." if status.pending else ""
        facts += [
            ("status", status.status),
            ("newest checkpoint", status.head),
            ("pending", ", ".join(map(str, status.pending)) or "none"),
            ("tags", ", ".join(status.tags) or "none"),
        ]
    facts += [
        ("files", f"{number(len(entries))}, {size(sum(e.size for e in entries))}"),
        ("claimed savepoints", _sizes(claimed) or "none"),
    ]
    call.output.answer(body, Facts(facts), note=f"Nothing was done: --yes deletes all of it.{lost}")


def _claimed(job: Job) -> dict[str, int]:
    """URLs of the savepoints that are the job's own, with their bytes."""
    from stateflow.checkpoint.log import read_identity
    from stateflow.format.references import bases
    from stateflow.savepoints.format import belongs, read_savepoint_claim

    if (identity := read_identity(job.store, job.layout)) is None:
        return {}
    records = (slot.record for slot in job.log().slots.values() if slot.record is not None)
    stores = {url: job.open_base(url) for url in sorted(bases(records))}
    return {
        url: sum(entry.size for entry in store.list(""))
        for url, store in stores.items()
        if (claim := read_savepoint_claim(store)) is not None
        and claim.job == identity.uuid
        and belongs(claim, job.store.url, store.url)
    }


def _sizes(savepoints: dict[str, int]) -> str:
    return ", ".join(f"{url} ({size(count)})" for url, count in savepoints.items())


def _listed(savepoints: dict[str, int]) -> list[dict[str, Any]]:
    return [{"place": url, "bytes": count} for url, count in savepoints.items()]
