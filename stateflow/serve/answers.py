"""Questions and answers, without HTTP. Runs in threads, because it reads state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from stateflow.errors import UsageError
from stateflow.format.records import OperatorState, Record, StateSchema
from stateflow.format.state_names import names_along
from stateflow.reading.query import LIMIT, LookupResult, Target
from stateflow.serve.access import Grant
from stateflow.serve.follow import FollowedJob, Served, Then
from stateflow.serve.problems import Refusal

MOST_ENTRIES = 10_000
"""Most entries of a list or map in one answer."""
MOST_KEYS = 1_000
"""Most keys in one batch."""
MOST_TOGETHER = 100_000
"""Most entries of all lists or maps together in one batch."""
_encode = msgspec.json.Encoder(decimal_format="number").encode
"""It repeats the numbers of a batch's keys as they came. Values are written as JSON before."""
_DECLARED = {
    "value": "ValueState",
    "list": "ListState",
    "map": "MapState",
    "reducing": "ReducingState",
    "aggregating": "AggregatingState",
}


@dataclass(frozen=True, slots=True)
class Question:
    """The entry that a request asks for. A `map_key` of None asks for the whole map."""

    operator: str
    state: str
    map_key: Any = None
    limit: int = LIMIT
    then: Then | None = None
    """The checkpoint that was asked for; None: the newest."""


def answer(job: FollowedJob, question: Question, key: str) -> bytes:
    """The answer for one key, which is written as on the command line."""
    with _asked(job, question) as (served, target):
        map_key = None if question.map_key is None else target.map_key_of_text(question.map_key)
        result = served.reader.look_up(
            question.operator, question.state, target.key_of_text(key), map_key, limit=question.limit
        )
        return msgspec.json.encode(
            {**_head(job.name, served.record, target), "key": key, **_body(result, question.map_key)}
        )


def answer_many(job: FollowedJob, question: Question, keys: list[Any]) -> bytes:
    """The answers for many keys, in their order. The keys are JSON values."""
    with _asked(job, question) as (served, target):
        map_key = None if question.map_key is None else target.map_key_of_plain(question.map_key)
        lookups = served.reader.look_up_many(
            question.operator,
            question.state,
            [target.key_of_plain(key) for key in keys],
            map_key,
            limit=question.limit,
            most=MOST_TOGETHER,
        )
        results = [{"key": key, **_body(one, None)} for key, one in zip(keys, lookups, strict=True)]
        return _encode(
            {**_head(job.name, served.record, target), "map_key": question.map_key, "results": results}
        )


def describe(job: FollowedJob, grant: Grant, then: Record | None = None) -> bytes:
    """The operators and states of the job that the token's rights name, also those that are not served: `queryable` says so."""
    with _reading(job, then) as served:
        record = served.record
        return msgspec.json.encode(
            {
                **_checkpoint(job.name, record),
                "watermark": record.watermark,
                "timeline": record.timeline,
                "operators": {
                    uid: _operator(operator, states)
                    for uid, operator in record.operators.items()
                    if (states := _open_to(grant, job.name, uid, operator))
                },
            }
        )


def _reading(job: FollowedJob, then: Record | None) -> AbstractContextManager[Served]:
    return job.reading() if then is None else job.reading_kept(then)


@contextmanager
def _asked(job: FollowedJob, question: Question) -> Iterator[tuple[Served, Target]]:
    """The checkpoint and the state. A state that has stopped to be served is not served from the past either."""
    then = question.then
    with _reading(job, None if then is None else then.record) as served:
        target = served.reader.target(question.operator, question.state)
        _refuse_closed(target.operator, target.name, target.schema)
        if then is not None and then.later:
            _refuse_closed_since(then, question.operator, question.state)
        yield served, target


def _refuse_closed_since(then: Then, uid: str, state: str) -> None:
    """Follows the state under all its names from then to the newest record."""
    states = [
        owner.states if (owner := record.operators.get(uid)) is not None else {}
        for record in (then.record, *then.later)
    ]
    names = names_along(states, state)
    for name, declared in zip(names, states, strict=True):
        if name is not None:
            _refuse_closed(uid, name, declared[name])
    if names[-1] is None:
        # Whether it may still be read, nobody says any more: it may have been removed because nobody was to read it.
        raise Refusal(
            403,
            UsageError(
                f"state {state!r} of operator {uid!r} is gone since checkpoint {then.record.slot}, and is not served from the past: "
                "`stateflow query --at` shows it to those who may read the checkpoints"
            ),
        )


def _refuse_closed(uid: str, name: str, schema: StateSchema) -> None:
    if schema.queryable:
        return
    kind = _DECLARED.get(schema.kind)
    advice = (
        f"opt in with sf.{kind}(..., queryable=True) and run the job once"
        if kind
        else "opt in with sf.columns(..., queryable=True), or with queryable=True of the operator, and run the job once"
        if schema.kind == "columns"
        else "timers cannot opt in; `stateflow query` shows them"
    )
    raise Refusal(
        403,
        UsageError(f"state {name!r} of operator {uid!r} is not queryable: {advice}"),
    )


def _checkpoint(job: str, record: Record) -> dict[str, Any]:
    return {"job": job, "checkpoint": record.slot, "at": record.at}


def _head(job: str, record: Record, target: Target) -> dict[str, Any]:
    return {
        **_checkpoint(job, record),
        "operator": target.operator,
        "state": target.name,
        "kind": target.schema.kind,
    }


def _body(result: LookupResult, map_key: Any) -> dict[str, Any]:
    body = {"found": result.found, "what": result.what, "value": result.json, "more": result.more}
    return body if map_key is None else {"map_key": map_key, **body}


def _open_to(grant: Grant, job: str, uid: str, operator: OperatorState) -> dict[str, StateSchema]:
    return {name: schema for name, schema in operator.states.items() if grant.allows(job, uid, name)}


def _operator(operator: OperatorState, states: dict[str, StateSchema]) -> dict[str, Any]:
    return {
        "key": [{"name": name, "type": kind} for name, kind in operator.key],
        "max_parallelism": operator.max_parallelism,
        "states": {
            name: {
                "kind": schema.kind,
                "type": schema.value,
                "map_key": schema.map_key or None,
                "ttl": schema.ttl,
                "queryable": schema.queryable,
            }
            for name, schema in states.items()
        },
    }


__all__ = ["MOST_ENTRIES", "MOST_KEYS", "Question", "answer", "answer_many", "describe"]
