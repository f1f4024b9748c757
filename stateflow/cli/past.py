"""`stateflow history`, `diff` and `bisect`: what happened to a key, what changed, and when it went wrong. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateflow.cli.options import (
    Conf,
    EntryArguments,
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
from stateflow.cli.text import in_json, moment, several, size
from stateflow.errors import UsageError

if TYPE_CHECKING:
    from stateflow.reading.bisect import FirstBad
    from stateflow.reading.diff import EntryChange
    from stateflow.reading.history import KeyHistory, KeyVersion, RowsOfVersion
    from stateflow.reading.predicates import Predicate

StateName = Annotated[str, argument(metavar="STATE", help="Name of the state or timer.")]
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
    entry: EntryArguments,
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
    asked: dict[str, Any] = {**vars(entry), "since": since, "limit": limit, "options": call.options()}
    if rows:
        from stateflow.jobs.running import shipped
        from stateflow.pipelines.loading import load_pipeline

        loaded = load_pipeline(rows, Path.cwd())
        asked |= {"rows": loaded.pipeline, "parameters": pairs(parameter, "-p")}
        asked |= shipped(loaded, master, pairs(conf, "--conf"))
    found = call.job(job).history_of(operator, state, key, **asked)
    asked_for = {"job": job, "operator": operator, "state": state, "key": key, **vars(entry)}
    call.output.answer(
        {**asked_for, **_history(found)},
        TextTable(
            ("checkpoint", "time", "what", "value", "code", "run"), [_version_row(v) for v in found.versions]
        ),
        *_rows_by_version(found),
        note="; ".join(_notes(found, limit)),
    )


def _history(found: KeyHistory) -> dict[str, Any]:
    return {
        "versions": [_version(version) | _rows(found.rows.get(version.slot)) for version in found.versions],
        "checkpoints": found.checkpoints,
        "edits": found.edits,
        "look_ups": found.look_ups,
        "collected": list(found.collected),
        "other_keys": list(found.other_keys),
        "more": found.more,
        "begins_later": found.begins_later,
    }


def _version_row(version: KeyVersion) -> tuple[object, ...]:
    return (
        version.slot,
        moment(version.at),
        version.what if version.kind == "checkpoint" else f"{version.what} ({version.kind})",
        _short(version.value) if version.result and version.result.found else "",
        _code(version)[:19],
        version.dag_run or version.run[:12],
    )


def _notes(found: KeyHistory, limit: int) -> list[str]:
    notes = [f"{_counted(found)} read"]
    if found.nothing:
        notes.insert(0, found.nothing)
    notes += found.notes
    if found.more:
        notes.append(f"there are older versions: --limit above {limit} shows them")
    return notes + _cut(version.value for version in found.versions)


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

    changes = _Changes(limit)
    with (
        call.job(job).diff(
            before,
            after,
            with_job=with_job,
            operators=operators or (),
            states=states or (),
            look_up=look_up or None,
            options=call.options(),
        ) as found,
        change_file(everything) as write,
    ):
        fetched = found.before.context.cache, found.after.context.cache
        for change in found.changes():
            changes.take(change)
            write(change)
        names = found.before.name, found.after.name
    away = sum(ref.size for ref in found.unread.values())
    notes = [*found.notes, *_unread(len(found.unread), away), *changes.cut()]
    call.output.answer(
        {
            "job": job,
            "with": with_job or None,
            "before": names[0],
            "after": names[1],
            "states": changes.document(),
            "renamed": [
                dict(zip(("operator", "state", "before"), each, strict=True)) for each in found.renamed
            ],
            "notes": notes,
            "unread_files": len(found.unread),
            "unread_bytes": away,
            "fetched_bytes": sum(cache.bytes_fetched for cache in fetched),
            "fetched_files": sum(cache.misses for cache in fetched),
        },
        *changes.pieces(),
        note="\n".join(
            [
                f"from {names[0]} to {names[1]}{'' if changes.counts or found.on_one_side else ': no entry differs'}",
                *notes,
            ]
        ),
    )


def _unread(files: int, size_of_all: int) -> Iterator[str]:
    if files:
        yield (
            f"{several(files, 'file')} of {size(size_of_all)} that both have are not on this host, so that nobody knows what a written key "
            "held before: --before fetches them"
        )


@dataclass
class _Changes:
    """How many entries of each state changed, and the first of them."""

    limit: int
    counts: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    shown: dict[tuple[str, str], list[EntryChange]] = field(default_factory=dict)

    def take(self, change: EntryChange) -> None:
        from stateflow.reading.diff import KINDS

        name = change.operator, change.state
        self.counts.setdefault(name, dict.fromkeys(KINDS, 0))[change.kind] += 1
        first = self.shown.setdefault(name, [])
        if len(first) < self.limit:
            first.append(change)

    def cut(self) -> list[str]:
        made = (change.json for some in self.shown.values() for change in some)
        return _cut(value for each in made for value in (each["before"], each["after"]))

    def document(self) -> list[dict[str, Any]]:
        return [
            {"operator": uid, "state": state, **counts, "first": [c.json for c in self.shown[uid, state]]}
            for (uid, state), counts in self.counts.items()
        ]

    def pieces(self) -> Iterator[Piece]:
        if not self.counts:
            return
        kinds = [
            kind
            for kind in next(iter(self.counts.values()))
            if any(counts[kind] for counts in self.counts.values())
        ]
        yield TextTable(
            ("operator", "state", *kinds),
            [(*name, *(f"{of[kind]:,}" for kind in kinds)) for name, of in self.counts.items()],
            right=kinds,
        )
        for (operator, state), changes in self.shown.items():
            if changes:
                yield Heading(f"{operator} {state}")
                columns = ("key", "entry", "what", "before", "after")
                yield TextTable(columns, [_row(change) for change in changes])


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
    entry: EntryArguments,
    key: Annotated[str | None, argument(metavar="KEY", help="Leave it out with --any.")] = None,
    first: Annotated[
        str,
        flag("--first", metavar="CONDITION|FILE:FUNCTION", help="SQL over value and previous, or Python."),
    ] = "",
    anything: Annotated[bool, flag("--any", help="For any key of the state.")] = False,
    scan: Annotated[
        bool, flag("--scan", help="Look at every checkpoint: for conditions that do not stay true.")
    ] = False,
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
    if anything and any(each is not None for each in vars(entry).values()):
        raise UsageError(
            "--any looks at every entry of the state: leave out --map-key and --namespace, or name a key in place of --any"
        )
    found = call.job(job).bisect(
        operator,
        state,
        key,
        _predicate(first),
        **vars(entry),
        since=since,
        until=until,
        scan=scan,
        options=call.options(),
    )
    text = key if key is not None else found.key_text
    call.output.answer(
        {"job": job, "operator": operator, "state": state, "key": key, "first": first, **found.json},
        *_first_bad(found, text),
        note="\n".join(_said(found, first, job, operator, text)),
    )


def _first_bad(found: FirstBad, key: str) -> Iterator[Piece]:
    if found.record is None:
        return
    entry = _entry(found.json) if found.entry is not None else ""
    values = ((found.before, found.json["previous"]), (found.record, found.json["value"]))
    yield TextTable(
        ("checkpoint", "time", "key", *(["entry"] if entry else []), "value"),
        [
            (each.slot, moment(each.at), key, *([entry] if entry else []), _short(value))
            for each, value in values
            if each is not None
        ],
    )


def _said(found: FirstBad, first: str, job: str, operator: str, key: str) -> Iterator[str]:
    """What the search came to, and how to go on."""
    from stateflow.reading.key_state import as_last_argument
    from stateflow.reading.past_states import notes_on_records, slots_text
    from stateflow.replay.span import EDITS

    record, before = found.record, found.before
    counted = f"{several(found.look_ups, 'look-up')} of {_counted(found)}"
    if record is None:
        more = "" if found.scanned else ": --scan looks at every one"
        yield f"{first} holds in no checkpoint that was looked at ({counted}){more}"
    else:
        sure = ""
        if before is None:
            sure = "; it is the oldest one that was looked at, so it may have held before"
        elif not found.scanned:
            sure = "; a search by halves: --scan finds an earlier one if the condition did not stay true"
        yield f"checkpoint {record.slot} is the first one for which {first} holds ({counted}){sure}"
        if before is not None:
            yield f"`stateflow diff {job} {before.slot} {record.slot}` shows what changed"
            if record.kind == "checkpoint":
                words = f"{operator} --job {job} --at {record.slot} {as_last_argument(key)}"
                yield f"`stateflow debug FILE:PIPELINE {words}` shows why"
            else:
                what = EDITS.get(record.kind, "only handed state on")
                yield f"record {record.slot} {what}: no batch made it that could be debugged"
    if found.other_types:
        slots = slots_text(found.other_types)
        yield f"in checkpoint {slots} the state had another type, which the condition does not fit, and it was not looked at there"
    yield from notes_on_records(found.other_keys, found.renamed)
    if found.nothing:
        yield found.nothing
    yield from _cut((found.json["previous"], found.json["value"]))


def _predicate(text: str) -> str | Predicate:
    """A text that ends like a function in a Python file is one."""
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        return text
    from stateflow.pipelines.loading import load_functions
    from stateflow.reading.predicates import function

    if not Path(file).is_file():
        raise UsageError(f"there is no file {file} for --first {text}")
    made = getattr(load_functions(Path(file)), name, None)
    if not callable(made):
        raise UsageError(f"{file} has no function {name!r} for --first")
    return function(text, made)


def _cut(values: Iterable[Any]) -> list[str]:
    """The note where two values may look the same only since they are cut."""
    is_cut = any(len(in_json(value)) > _WIDE for value in values)
    return [f"values are cut after {_WIDE} characters: -o json has them whole"] if is_cut else []


def _short(value: Any) -> str:
    text = in_json(value)
    return text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
