"""`stateflow history`, `diff` and `bisect`: what happened to a key, what changed, and when it went wrong. No Spark."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateflow.cli.options import (
    Conf,
    Invocation,
    JobName,
    KeyText,
    OperatorName,
    Parameters,
    argument,
    command,
    flag,
    pairs,
)
from stateflow.cli.output import Heading, Piece, TextTable
from stateflow.cli.text import moment, several, size
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.reading.bisect import FirstBad
    from stateflow.reading.diff import EntryChange
    from stateflow.reading.history import KeyHistory, KeyVersion, RowsOfVersion
    from stateflow.reading.predicates import Predicate

StateName = Annotated[str, argument(metavar="STATE", help="Name of the state or timer.")]
MapKey = Annotated[str | None, flag("--map-key", metavar="K", help="One entry of a map state.")]
Namespace = Annotated[
    str | None,
    flag("--namespace", metavar="N", help="Of a state with namespaces, instead of what is in none."),
]
Since = Annotated[
    str,
    flag("--since", metavar="N|tag:NAME|TIME", help="Leave out what is older than this checkpoint or time."),
]
FIRST = 10
"""Changes of a state that are shown, by default."""
_WIDE = 60


@command
def history(
    call: Invocation,
    job: JobName,
    operator: OperatorName,
    state: StateName,
    key: KeyText,
    map_key: MapKey = None,
    namespace: Namespace = None,
    since: Since = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most versions: the newest ones.")] = 100,
    rows: Annotated[
        str,
        flag(
            "--rows",
            metavar="FILE:PIPELINE",
            help="Also the rows of the key, read again from this pipeline's sources. This starts Spark.",
        ),
    ] = "",
    parameter: Parameters = None,
    master: Annotated[str | None, flag(help="With --rows: Spark's master, such as local[4].")] = None,
    conf: Conf = None,
) -> None:
    """What a state held for a key, after each kept checkpoint in which that changed."""
    if not rows and (parameter or master or conf):
        raise UsageError(
            "-p, --master and --conf are for reading rows again: name their pipeline with --rows FILE:PIPELINE, or leave them out"
        )
    asked: dict[str, Any] = {
        "map_key": map_key,
        "namespace": namespace,
        "since": since,
        "limit": limit,
        "options": call.options(),
    }
    if rows:
        from stateflow.jobs.running import shipped
        from stateflow.pipelines.loading import load_pipeline

        loaded = load_pipeline(rows, Path.cwd())
        asked |= {"rows": loaded.pipeline, "parameters": pairs(parameter, "-p")}
        asked |= shipped(loaded, master, pairs(conf, "--conf"))
    found = call.job(job).history_of(operator, state, key, **asked)
    notes = [f"{_counted(found)} read"]
    if found.nothing:
        notes.insert(0, found.nothing)
    if found.begins_later is not None:
        notes.append(f"nothing from before checkpoint {found.begins_later} is kept")
    notes += _otherwise(found)
    if found.more:
        notes.append(f"there are older versions: --limit above {limit} shows them")
    if found.collected:
        notes.append(
            f"{several(len(found.collected), 'checkpoint')} ({', '.join(map(str, found.collected))}) collected meanwhile, and left out"
        )
    notes += _cut(version.value for version in found.versions)
    call.output.answer(
        {
            "job": job,
            "operator": operator,
            "state": state,
            "key": key,
            "map_key": map_key,
            "namespace": namespace,
            "versions": [
                _version(version) | _rows(found.rows.get(version.slot)) for version in found.versions
            ],
            "checkpoints": found.checkpoints,
            "edits": found.edits,
            "look_ups": found.look_ups,
            "collected": list(found.collected),
            "other_keys": list(found.other_keys),
            "more": found.more,
            "begins_later": found.begins_later,
        },
        TextTable(
            ("checkpoint", "time", "what", "value", "code", "run"),
            [
                (
                    version.slot,
                    moment(version.at),
                    version.what if version.kind == "checkpoint" else f"{version.what} ({version.kind})",
                    _short(version.value) if version.result and version.result.found else "",
                    _code(version)[:19],
                    version.dag_run or version.run[:12],
                )
                for version in found.versions
            ],
        ),
        *_rows_by_version(found),
        note="; ".join(notes),
    )


def _otherwise(found: KeyHistory | FirstBad) -> list[str]:
    notes = []
    if found.other_keys:
        notes.append(
            f"in checkpoint {_slots(found.other_keys)} the operator had keys of another type, and the key was not looked up there"
        )
    for name in dict.fromkeys(found.renamed.values()):
        slots = [slot for slot, other in sorted(found.renamed.items()) if other == name]
        where = f"checkpoint {slots[0]}" if len(slots) == 1 else f"checkpoints {slots[0]} to {slots[-1]}"
        notes.append(f"in {where} the state is called {name!r}")
    return notes


def _slots(of: Sequence[int]) -> str:
    return ", ".join(map(str, of[:FIRST])) + ("..." if len(of) > FIRST else "")


def _counted(found: KeyHistory | FirstBad) -> str:
    """How many records there were."""
    edits = several(found.edits, "restore or other edit", "restores and other edits")
    return several(found.checkpoints, "kept checkpoint") + (f" and {edits}" if found.edits else "")


def _rows(found: RowsOfVersion | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {"rows": found.inputs, "rows_since": found.since, "rows_missing": found.why or None}


def _rows_by_version(found: KeyHistory) -> Iterator[Piece]:
    for slot, rows in found.rows.items():
        yield Heading(f"rows up to checkpoint {slot}" + (f", since {rows.since}" if rows.since else ""))
        if rows.why:
            yield f"not known: {rows.why}"
            continue
        for side, some in zip(("left", "right"), rows.inputs, strict=False):
            if len(rows.inputs) > 1:
                yield f"{side}:"
            yield (
                TextTable(tuple(some[0]), [tuple(map(_short, row.values())) for row in some])
                if some
                else "none"
            )


def _version(version: KeyVersion) -> dict[str, Any]:
    return {
        "checkpoint": version.slot,
        "at": version.at,
        "kind": version.kind,
        "what": version.what,
        "value": version.value,
        "more": version.result is not None and version.result.more,
        "run": version.run,
        "dag_run": version.dag_run,
        "versions": version.versions,
    }


def _code(version: KeyVersion) -> str:
    """The revision, else the hash of the modules or of the one file."""
    versions = version.versions
    code = versions.get("modules") or versions.get("pipeline", "")
    return versions.get("revision") or code.rpartition("sha256:")[2][:7]


@command
def diff(
    call: Invocation,
    job: JobName,
    before: Annotated[
        str, argument(metavar="BEFORE", help="A slot, tag:NAME, a time, or a savepoint's URL.")
    ],
    after: Annotated[str, argument(metavar="AFTER", help="The same.")],
    with_job: Annotated[
        str, flag("--with", metavar="JOB", help="AFTER is of this other job of the root.")
    ] = "",
    operators: Annotated[list[str] | None, flag("--operator", help="Only this operator.")] = None,
    states: Annotated[list[str] | None, flag("--state", help="Only this state.")] = None,
    look_up: Annotated[
        bool, flag("--before", help="Fetch files that both have, to find out what each key held before.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Most changes of a state that are shown.")
    ] = FIRST,
    everything: Annotated[
        Path | None, flag("--all", metavar="FILE", help="Write all changes, as .parquet or .jsonl.")
    ] = None,
) -> None:
    """Which entries of which state came, went or changed between two points. Reads the files that they do not share."""
    from stateflow.cli.change_files import change_file
    from stateflow.reading.diff import KINDS

    options = call.options()
    counts: dict[tuple[str, str], dict[str, int]] = {}
    shown: dict[tuple[str, str], list[EntryChange]] = {}
    with (
        call.job(job).diff(
            before,
            after,
            with_job=with_job,
            operators=operators or (),
            states=states or (),
            look_up=look_up or None,
            options=options,
        ) as found,
        change_file(everything) as write,
    ):
        fetched = found.before.context.cache, found.after.context.cache
        for change in found.changes():
            name = change.operator, change.state
            of_state = counts.setdefault(name, dict.fromkeys(KINDS, 0))
            of_state[change.kind] += 1
            first = shown.setdefault(name, [])
            if len(first) < limit:
                first.append(change)
            write(change)
        renamed = found.renamed
        notes, unread, names = list(found.notes), found.unread, (found.before.name, found.after.name)
    away = sum(ref.size for ref in unread.values())
    if unread:
        notes.append(
            f"{several(len(unread), 'file')} of {size(away)} that both have are not on this host, so that nobody knows what a written key "
            "held before: --before fetches them"
        )
    notes += _cut(
        of for some in shown.values() for each in some for of in (each.json["before"], each.json["after"])
    )
    call.output.answer(
        {
            "job": job,
            "with": with_job or None,
            "before": names[0],
            "after": names[1],
            "states": [
                {
                    "operator": name[0],
                    "state": name[1],
                    **of_state,
                    "first": [change.json for change in shown[name]],
                }
                for name, of_state in counts.items()
            ],
            "renamed": [dict(zip(("operator", "state", "before"), each, strict=True)) for each in renamed],
            "notes": notes,
            "unread_files": len(unread),
            "unread_bytes": away,
            "fetched_bytes": sum(cache.bytes_fetched for cache in fetched),
            "fetched_files": sum(cache.misses for cache in fetched),
        },
        *_differences(counts, shown),
        note="\n".join([f"from {names[0]} to {names[1]}{'' if counts else ': no entry differs'}", *notes]),
    )


def _differences(counts: Any, shown: Any) -> list[Piece]:
    if not counts:
        return []
    kinds = [kind for kind in next(iter(counts.values())) if any(of[kind] for of in counts.values())]
    pieces: list[Piece] = [
        TextTable(
            ("operator", "state", *kinds),
            [(*name, *(f"{of[kind]:,}" for kind in kinds)) for name, of in counts.items()],
            right=kinds,
        )
    ]
    for (operator, state), changes in shown.items():
        if changes:
            pieces += [
                Heading(f"{operator} {state}"),
                TextTable(
                    ("key", "entry", "what", "before", "after"),
                    [_row(change) for change in changes],
                ),
            ]
    return pieces


def _row(change: EntryChange) -> tuple[str, ...]:
    made = change.json
    entry = _entry(made)
    before, after = ("" if made[name] is None else _short(made[name]) for name in ("before", "after"))
    return made["key"], entry, change.kind, before, after


def _entry(made: Mapping[str, Any]) -> str:
    """What tells the entries of a key apart."""
    return ", ".join(_short(made[name]) for name in ("namespace", "part") if made[name] is not None)


@command
def bisect(
    call: Invocation,
    job: JobName,
    operator: OperatorName,
    state: StateName,
    key: Annotated[str | None, argument(metavar="KEY", help="Leave it out with --any.")] = None,
    first: Annotated[
        str,
        flag("--first", metavar="CONDITION|FILE:FUNCTION", help="SQL over value and previous, or Python."),
    ] = "",
    anything: Annotated[bool, flag("--any", help="For any key of the state.")] = False,
    scan: Annotated[
        bool, flag("--scan", help="Look at every checkpoint: for conditions that do not stay true.")
    ] = False,
    map_key: MapKey = None,
    namespace: Namespace = None,
    since: Since = "",
    until: Annotated[
        str, flag("--until", metavar="N|tag:NAME|TIME", help="Leave out what is newer than this checkpoint.")
    ] = "",
) -> None:
    """The first kept checkpoint for which a condition holds."""
    if not first:
        raise UsageError(
            "say what is wrong: --first 'value < 0', or a Python function as --first FILE:FUNCTION"
        )
    if (key is None) != anything:
        raise UsageError("name a key, or search all keys of the state with --any, and not both")
    if anything and (map_key is not None or namespace is not None):
        raise UsageError(
            "--any looks at every entry of the state: leave out --map-key and --namespace, or name a key in place of --any"
        )
    found = call.job(job).bisect(
        operator,
        state,
        key,
        _predicate(first),
        map_key=map_key,
        namespace=namespace,
        since=since,
        until=until,
        scan=scan,
        options=call.options(),
    )
    record, before, said = found.record, found.before, found.json
    counted = f"{several(found.look_ups, 'look-up')} of {_counted(found)}"
    shown: list[Piece] = []
    if record is None:
        note = f"{first} holds in no checkpoint that was looked at ({counted})"
        if not found.scanned:
            note += ": --scan looks at every one"
    else:
        text = key if key is not None else found.key_text
        entry = _entry(said) if found.entry is not None else ""
        shown = [
            TextTable(
                ("checkpoint", "time", "key", *(["entry"] if entry else []), "value"),
                [
                    (each.slot, moment(each.at), text, *([entry] if entry else []), _short(value))
                    for each, value in ((before, said["previous"]), (record, said["value"]))
                    if each is not None
                ],
            )
        ]
        note = f"checkpoint {record.slot} is the first one for which {first} holds ({counted})"
        if before is None:
            note += "; it is the oldest one that was looked at, so it may have held before"
        elif not found.scanned:
            note += "; a search by halves: --scan finds an earlier one if the condition did not stay true"
        if before is not None:
            note += f"\nstateflow diff {job} {before.slot} {record.slot} shows what changed"
            of = shlex.quote(text)
            note += f"\nstateflow debug FILE:PIPELINE {operator} {of} --at {record.slot} shows why"
    if found.other_types:
        slots = _slots(found.other_types)
        note += f"\nin checkpoint {slots} the state had another type, which the condition does not fit, and it was not looked at there"
    note += "".join(f"\n{line}" for line in _otherwise(found))
    note += "".join(
        f"\n{line}"
        for line in (*([found.nothing] if found.nothing else []), *_cut((said["previous"], said["value"])))
    )
    call.output.answer(
        {
            "job": job,
            "operator": operator,
            "state": state,
            "key": key,
            "first": first,
            **said,
        },
        *shown,
        note=note,
    )


def _predicate(text: str) -> str | Predicate:
    """A text that ends like a function in a Python file is one."""
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        return text
    import runpy

    from stateflow.reading.predicates import function

    if not Path(file).is_file():
        raise UsageError(f"there is no file {file} for --first {text}")
    made = runpy.run_path(file).get(name)
    if not callable(made):
        raise UsageError(f"{file} has no function {name!r} for --first")
    return function(text, made)


def _cut(values: Iterable[Any]) -> list[str]:
    """The note where two values may look the same only since they are cut."""
    is_cut = any(len(_text(value)) > _WIDE for value in values)
    return [f"values are cut after {_WIDE} characters: -o json has them whole"] if is_cut else []


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
