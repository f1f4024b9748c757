"""What the pages show of one checkpoint, of the history as a graph, of savepoints and of storage. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

from stateflow.checkpoint.names import newest_up_to
from stateflow.checkpoint.statistics import HistoryLine
from stateflow.format.records import OperatorState, Outcome, Record, SourceState
from stateflow.format.references import state_bytes
from stateflow.observe.operator_words import combiner_text, operator_text
from stateflow.observe.status import decoded_offsets, owner_document, position_of
from stateflow.quantities import written_duration
from stateflow.savepoints.format import ListedSavepoint, expected_files, expired
from stateflow_ui.documents import masked, millis
from stateflow_ui.job_reader import JobFacts
from stateflow_ui.storage import Amount, StorageFacts

MOST_SPANS, MOST_ACTS = 500, 100


def checkpoint(
    facts: JobFacts, line: HistoryLine, body: tuple[Record, Outcome | None] | None
) -> dict[str, Any]:
    """One record; of one that was collected only its line is left. `kept`: its state can be read, and compared with that of `since`,
    the newest kept record up to the one that it continues."""
    document = facts.lines.document(line)
    document_of_line: dict[str, Any] = {
        "line": document,
        "collected": body is None,
        "kept": body is not None and newest_up_to(facts.log, line.id) == line.id,
        "since": None if body is None or not line.based_on else newest_up_to(facts.log, line.based_on),
        "tags": sorted(name for name, slot in facts.status.tags.items() if slot == line.id),
        "head": facts.status.head == line.id,
        "operators": [],
        "sources": [],
        "sinks": [
            {"uid": uid, "kind": "", "target": "", "rows": None, "prev": None, "outcome": outcome}
            for uid, outcome in document["sinks"].items()
        ],
        "owner": {},
        "statistics": document["metrics"],
        "parameters": {},
        "versions": {},
    }
    if body is None:
        return document_of_line
    record, outcome = body
    return {
        **document_of_line,
        "operators": [operator(uid, state, record.statistics) for uid, state in record.operators.items()],
        "sources": [source(uid, state) for uid, state in record.sources.items()],
        "sinks": _sinks(record, outcome),
        "owner": owner_document(record.owner),
        "statistics": {**record.statistics, **(outcome.statistics if outcome else {})},
        "parameters": masked(dict(record.parameters)),
        "versions": dict(record.versions),
    }


def operator(uid: str, state: OperatorState, statistics: Mapping[str, Any]) -> dict[str, Any]:
    notes = statistics.get("combiner")
    shards = [
        {
            "subtask": subtask,
            "first": shard.first,
            "last": shard.last,
            "entries": shard.entries,
            "bytes": shard.bytes,
            "files": len(shard.files),
            "backend": shard.backend,
            "host": state.hosts[subtask] if subtask < len(state.hosts) else "",
        }
        for subtask, owned in enumerate(state.shards)
        for shard in owned
    ]
    return {
        "uid": uid,
        "what": operator_text(state.options),
        "combiner": combiner_text(notes.get(uid) if isinstance(notes, dict) else None),
        "key": ", ".join(f"{name} {kind}" for name, kind in state.key),
        "parallelism": len(state.assignment),
        "max_parallelism": state.max_parallelism,
        "states": [
            {
                "name": name,
                "kind": schema.kind,
                "type": f"{schema.map_key} -> {schema.value}" if schema.map_key else schema.value,
                "ttl": millis(schema.ttl),
                "queryable": schema.queryable,
            }
            for name, schema in state.states.items()
        ]
        + [
            {
                "name": name,
                "kind": listed_state.kind,
                "type": listed_state.schema,
                "ttl": None,
                "queryable": False,
            }
            for name, listed_state in state.operator_states.items()
        ],
        "shards": shards,
        "key_groups": key_groups(state),
    }


def key_groups(state: OperatorState) -> list[int]:
    """Bytes per key group. A shard does not know them one by one: its bytes are spread evenly over its range."""
    # Where the sum changes from one group to the next: a record may name thousands of shards that each span every group.
    changes = [0.0] * (state.max_parallelism + 1)
    for shard in state.all_shards:
        first, last = max(0, shard.first), min(state.max_parallelism - 1, shard.last)
        if first <= last:
            share = shard.bytes / (last - first + 1)
            changes[first] += share
            changes[last + 1] -= share
    return [max(0, round(value)) for value in accumulate(changes[:-1])]


def source(uid: str, state: SourceState) -> dict[str, Any]:
    return {
        "uid": uid,
        "kind": state.kind,
        "position": position_of(state),
        "offsets": decoded_offsets(state),
        "event_time": millis(state.event_time),
        "active": millis(state.active),
    }


def _sinks(record: Record, outcome: Outcome | None) -> list[dict[str, Any]]:
    became = dict(outcome.sinks) if outcome else {}
    return [
        {
            "uid": uid,
            "kind": prepared.kind,
            "target": prepared.target,
            "rows": prepared.rows,
            "prev": prepared.prev,
            "outcome": became.get(uid, "pending" if outcome is None else "none"),
        }
        for uid, prepared in record.sinks.items()
    ]


def graph(facts: JobFacts, listed: Sequence[tuple[str, ListedSavepoint]], now: int) -> dict[str, Any]:
    """The history as a graph of commits, newest first, and what people did."""
    spans = facts.spans
    return {
        "spans": [asdict(span) for span in spans[:MOST_SPANS]],
        "more": len(spans) > MOST_SPANS,
        "tags": facts.status.tags,
        "savepoints": savepoints(facts.status.root, listed, now),
        "head": facts.status.head,
        "audit": [facts.lines.document(line) for line in facts.audit[:MOST_ACTS]],
        "partial": not facts.whole,
    }


def savepoints(root: str, listed: Sequence[tuple[str, ListedSavepoint]], now: int) -> list[dict[str, Any]]:
    """Newest first. One that cannot be read says so."""
    rows = [_savepoint(f"{root.rstrip('/')}/{path}", each, now) for path, each in listed]
    return sorted(rows, key=lambda each: (each["at"] or 0, each["url"]), reverse=True)


def _savepoint(url: str, listed: ListedSavepoint, now: int) -> dict[str, Any]:
    savepoint = listed.savepoint
    claimed = listed.claim.name if listed.claim is not None else None
    if savepoint is None:
        return {
            **dict.fromkeys(("kind", "checkpoint", "at", "bytes", "files", "expires")),
            "url": url,
            "name": url.rpartition("/")[2],
            "note": "",
            "by": {},
            "claimed_by": claimed,
            "expired": False,
            "problem": listed.problem,
        }
    return {
        "url": url,
        "name": url.rpartition("/")[2],
        "kind": savepoint.kind,
        "checkpoint": savepoint.record.slot,
        "at": millis(savepoint.at),
        "bytes": state_bytes(savepoint),
        "files": len({each.path for each in expected_files(savepoint) if each.path}),
        "expires": millis(savepoint.expires),
        "note": savepoint.note,
        "by": owner_document(savepoint.owner),
        "claimed_by": claimed,
        "expired": expired(savepoint, now),
        "problem": None,
    }


def storage(facts: StorageFacts) -> dict[str, Any]:
    freed: Mapping[str, Amount] = facts.freed
    return {
        "retained": facts.retained,
        "age": written_duration(facts.age),
        "retention": str(facts.rule) if facts.rule else "",
        "kept": {
            "checkpoints": facts.kept_checkpoints,
            "files": facts.staying.files,
            "bytes": facts.staying.bytes,
        },
        "roots": facts.roots,
        "freed": [
            {"reason": reason, "files": amount.files, "bytes": amount.bytes}
            for reason, amount in sorted(freed.items())
        ],
        "freed_records": facts.freed_records,
        "elsewhere": {"files": facts.elsewhere.files, "bytes": facts.elsewhere.bytes},
        "total_bytes": facts.staying.bytes + sum(amount.bytes for amount in freed.values()),
    }
