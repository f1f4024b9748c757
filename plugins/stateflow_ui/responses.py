"""Answers as JSON with a tag of their content, so that a page which asks again gets no body when nothing has changed."""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from stateflow import errors
from stateflow.errors import StateflowError

HEADERS = {"Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff"}
RETRY_AFTER = "2"
_STATUS: dict[type[StateflowError], int] = {
    errors.UsageError: 400,
    errors.NotFoundError: 404,
    # Nothing is wrong with the server, and asking again does not help: somebody has to mend what is stored.
    errors.CorruptError: 409,
    errors.BusyError: 503,
    errors.UnavailableError: 503,
}


def json_response(request: Request, document: Any) -> Response:
    body = msgspec.json.encode(document)
    tag = f'W/"{xxhash.xxh3_64_hexdigest(body)}"'
    headers = {**HEADERS, "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def error_response(status: int, text: str) -> JSONResponse:
    """An error: one sentence, where FastAPI has it too."""
    headers = {**HEADERS, "Retry-After": RETRY_AFTER} if status == 503 else HEADERS
    return JSONResponse({"detail": text}, status, headers)


def response_to(error: StateflowError) -> JSONResponse:
    status = next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), 500)
    return error_response(status, str(error))
