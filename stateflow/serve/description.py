"""What /openapi.json says about the routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from stateflow.distribution import installed_version

Schema = dict[str, Any]

ABOUT: dict[str, Any] = {
    "title": "Stateflow queryable state",
    "version": installed_version(),
    "description": "Looks up what a job's states hold for a key, in its newest complete checkpoint or an older one. Only states that were "
    "declared with `queryable=True` are served, and only to tokens that may read them.",
}

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_MICROS: Schema = {"type": "integer", "description": "Microseconds since 1970-01-01 UTC."}
_CHECKPOINT: Schema = {
    "checkpoint": {"type": "integer", "description": "The checkpoint that the answer was read from."},
    "at": {**_MICROS, "description": "When it was decided, in microseconds since 1970-01-01 UTC."},
}
_FOUND: Schema = {
    "found": {
        "type": "boolean",
        "description": "False when the state has nothing for the key, or it has expired.",
    },
    "what": {
        "type": "string",
        "enum": ["value", "accumulator", "list", "map", "map entry", "timer", "columns"],
        "description": "An accumulator is what `add` has gathered: only the job's code makes the result.",
    },
    "value": {"description": "Any JSON. A map is an object whose keys are written as `map_key` takes them."},
    "more": {"type": "boolean", "description": "A list or map has entries beyond the limit."},
}


def _document(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


_ANSWER = _document(
    {
        "job": _TEXT,
        **_CHECKPOINT,
        "operator": _TEXT,
        "state": _TEXT,
        "kind": _TEXT,
        "key": _TEXT,
        "map_key": _TEXT,
        **_FOUND,
    }
)
_ANSWERS = _document(
    {
        "job": _TEXT,
        **_CHECKPOINT,
        "operator": _TEXT,
        "state": _TEXT,
        "kind": _TEXT,
        "map_key": {},
        "results": {"type": "array", "items": _document({"key": {}, **_FOUND})},
    }
)
_JOBS = _document(
    {
        "jobs": {
            "type": "array",
            "items": _document(
                {
                    "job": _TEXT,
                    "checkpoint": {
                        "type": ["integer", "null"],
                        "description": "Null until the job is asked for.",
                    },
                    "at": {"type": ["integer", "null"]},
                }
            ),
        }
    }
)
_STATE_OF_JOB = _document(
    {
        "kind": _TEXT,
        "type": {"type": "string", "description": "The declared type, in its canonical text."},
        "map_key": {"type": ["string", "null"]},
        "ttl": {"type": ["integer", "null"], "description": "Microseconds."},
        "queryable": {"type": "boolean"},
    }
)
_OPERATOR = _document(
    {
        "key": {"type": "array", "items": _document({"name": _TEXT, "type": _TEXT})},
        "max_parallelism": _WHOLE,
        "states": {"type": "object", "additionalProperties": _STATE_OF_JOB},
    }
)
_JOB = _document(
    {
        "job": _TEXT,
        **_CHECKPOINT,
        "watermark": {"type": ["integer", "null"]},
        "timeline": _WHOLE,
        "operators": {"type": "object", "additionalProperties": _OPERATOR},
    }
)
_ERROR = _document({"error": _document({"type": _TEXT, "message": _TEXT, "exit_code": _WHOLE})})

_REFUSALS = {
    400: "The request is not usable as it is written.",
    401: "No token, or one that the server does not know.",
    403: "The token has no right to it, or the state did not opt in with `queryable=True`.",
    404: "No such job, operator, state or checkpoint.",
    409: "`min_checkpoint` was not reached in time.",
    500: "State could not be read; the error says why.",
    503: "Too many queries at once, or the store cannot be reached; `Retry-After` says when to ask again.",
}


def _answers(schema: Schema, *refusals: int) -> dict[int | str, Any]:
    def answer(text: str, body: Schema) -> Schema:
        return {"description": text, "content": {"application/json": {"schema": body}}}

    return {
        200: answer("The answer.", schema),
        **{status: answer(_REFUSALS[status], _ERROR) for status in refusals},
    }


def _parameter(name: str, where: str, schema: Schema, text: str, *, required: bool = False) -> Schema:
    return {"name": name, "in": where, "required": required, "schema": schema, "description": text}


def _in_path(*names: str) -> list[Schema]:
    return [_parameter(name, "path", _TEXT, f"Name of the {name}.", required=True) for name in names]


_NEWER = [
    _parameter("min_checkpoint", "query", _WHOLE, "Answer from this checkpoint or a later one."),
    _parameter(
        "wait",
        "query",
        {"type": "number", "default": 0, "maximum": 60},
        "Seconds to wait for `min_checkpoint` before 409.",
    ),
    _parameter("Stateflow-Min-Checkpoint", "header", _WHOLE, "The same as `min_checkpoint`."),
]
_AT = _parameter(
    "at",
    "query",
    _TEXT,
    "Answer from an older checkpoint: `317`, `tag:NAME`, or the newest one of a time, `2026-11-20T10:00`. Not with "
    "`min_checkpoint`.",
)
_PATH = _in_path("job", "operator", "state")
_SECURED: Schema = {"security": [{"bearer": []}]}

HEALTH: Schema = {
    "operation_id": "health",
    "summary": "Whether the server is up; needs no token.",
    "responses": _answers(_document({"status": _TEXT})),
}
JOBS: Schema = {
    "operation_id": "jobs",
    "summary": "The jobs that a right of the token names.",
    "responses": _answers(_JOBS, 401, 503),
    "openapi_extra": _SECURED,
}
JOB: Schema = {
    "operation_id": "job",
    "summary": "A job's newest checkpoint, or an older one, and the states that the token's rights name.",
    "responses": _answers(_JOB, 400, 401, 403, 404, 503),
    "openapi_extra": {**_SECURED, "parameters": [*_in_path("job"), _AT]},
}
STATE: Schema = {
    "operation_id": "state",
    "summary": "What a state holds for one key.",
    "responses": _answers(_ANSWER, 400, 401, 403, 404, 409, 500, 503),
    "openapi_extra": {
        **_SECURED,
        "parameters": [
            *_PATH,
            _parameter(
                "key",
                "query",
                _TEXT,
                'The key as text: `42`, `2026-01-31`; of several columns `a,7` or the JSON array `["a", 7]`.',
                required=True,
            ),
            _parameter("map_key", "query", _TEXT, "One entry of a map, instead of the whole."),
            _parameter(
                "limit",
                "query",
                {"type": "integer", "default": 1000, "minimum": 1, "maximum": 10000},
                "Most entries of a list or map.",
            ),
            *_NEWER,
            _AT,
        ],
    },
}
STATES: Schema = {
    "operation_id": "states",
    "summary": "What a state holds for many keys, in their order.",
    "responses": _answers(_ANSWERS, 400, 401, 403, 404, 409, 500, 503),
    "openapi_extra": {
        **_SECURED,
        "parameters": [*_PATH, _NEWER[-1]],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        **_document(
                            {
                                "keys": {
                                    "type": "array",
                                    "maxItems": 1000,
                                    "items": {},
                                    "description": "Numbers, texts and so on; a key of several columns is an array or an object.",
                                },
                                "map_key": {},
                                "limit": {"type": "integer", "default": 1000, "minimum": 1, "maximum": 10000},
                                "min_checkpoint": _WHOLE,
                                "wait": {"type": "number", "default": 0, "maximum": 60},
                                "at": {"type": ["string", "integer"], "description": _AT["description"]},
                            }
                        ),
                        "required": ["keys"],
                    }
                }
            },
        },
    },
}


def openapi_document(app: FastAPI) -> Schema:
    """The OpenAPI document. It is made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            **{name: ABOUT[name] for name in ("title", "version", "description")}, routes=app.routes
        )
        bearer = {"type": "http", "scheme": "bearer"}
        document.setdefault("components", {})["securitySchemes"] = {"bearer": bearer}
        app.openapi_schema = document
    return app.openapi_schema
