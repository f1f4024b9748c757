"""`stateflow query`: what a state holds for a key, from one shard, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateflow.cli.options import (
    EntryArguments,
    Invocation,
    JobName,
    KeyText,
    OperatorName,
    argument,
    command,
    flag,
    root_of,
)
from stateflow.cli.output import Piece, TextTable
from stateflow.cli.text import in_json, moment
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.format.records import Record
    from stateflow.reading.query import LookupResult


@command
def query(
    call: Invocation,
    job: JobName,
    operator: OperatorName,
    state: Annotated[str, argument(metavar="STATE", help="Name of the state or timer.")],
    key: KeyText,
    entry: EntryArguments,
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", "--at", metavar="N|tag:NAME|TIME", help="Instead of the newest complete one."
        ),
    ] = "latest",
    savepoint: Annotated[
        str | None, flag("--from", metavar="URL", help="A native savepoint to look into.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most entries of a list or map.")] = 1000,
) -> None:
    """Looks one key up. Only the shard that owns it is fetched; what has expired is hidden."""
    import time
    import uuid

    from stateflow.checkpoint.process import this_process
    from stateflow.reading.snapshots import checkpoint_reader, reader_context, savepoint_reader

    if savepoint is not None and checkpoint != "latest":
        raise UsageError("--from and --checkpoint name two snapshots: leave one of them out")
    options = call.options()
    place = reader_context(options, "" if savepoint else root_of(options), lambda: time.time_ns() // 1000)

    def ids() -> str:
        return uuid.uuid4().hex

    opened = (
        savepoint_reader(place, savepoint, job)
        if savepoint is not None
        else checkpoint_reader(place, job, checkpoint, owner=this_process(run=ids()), ids=ids)
    )
    with opened as reader:
        target = reader.target(operator, state)
        map_key = None if entry.map_key is None else target.map_key_of_text(entry.map_key)
        within = None if entry.namespace is None else target.namespace_of_text(entry.namespace)
        found = reader.look_up(
            operator, state, target.key_of_text(key), map_key, namespace=within, limit=limit
        )
        record = reader.record
    call.output.answer(
        {
            "job": job,
            "checkpoint": record.slot,
            "at": record.at,
            "savepoint": savepoint,
            "operator": operator,
            "state": state,
            "kind": target.schema.kind,
            "key": key,
            **vars(entry),
            "found": found.found,
            "what": found.what,
            "value": found.json,
            "more": found.more,
            "fetched_bytes": place.cache.bytes_fetched,
        },
        *_shown(found),
        note=_note(found, record, key, limit),
    )


def _note(found: LookupResult, record: Record, key: str, limit: int) -> str:
    note = f"checkpoint {record.slot} of {moment(record.at)}"
    if not found.found and found.more:
        return (
            f"the first entries of key {key} have all expired in {note}, and there are more behind them: read the state as a "
            "table, with `stateflow state export`"
        )
    if not found.found:
        note = f"nothing is set for key {key} in {note}"
    elif found.what == "accumulator":
        note += "; an accumulator, of which the job's code makes the result"
    return f"{note}; there are more than {limit} entries: --limit shows more" if found.more else note


def _shown(found: LookupResult) -> list[Piece]:
    value = found.json
    if not found.found:
        return []
    if found.what == "map":
        return [TextTable(("map key", "value"), [(name, in_json(one)) for name, one in value.items()])]
    return [in_json(one) for one in (value if found.what == "list" else [value])]
