"""Errors over HTTP: a status, and the same document that `-o json` prints on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow import errors
from stateflow.errors import (
    BusyError,
    NotFoundError,
    StateflowError,
    UnavailableError,
    UsageError,
)

RETRY_AFTER = {"Retry-After": "1"}
LONGEST_WAIT = 60.0
"""Seconds that a request may wait for a checkpoint."""
_STATUS: dict[type[StateflowError], int] = {
    UsageError: 400,
    NotFoundError: 404,
    BusyError: 503,
    UnavailableError: 503,
}


class Refusal(Exception):
    """An error with its own HTTP status instead of an answer."""

    def __init__(self, status: int, error: StateflowError, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(str(error))
        self.status, self.error, self.headers = status, error, dict(headers or {})


def unknown_token() -> Refusal:
    message = (
        "this server needs a token: send the header Authorization: Bearer TOKEN with a token that it knows"
    )
    return Refusal(401, UsageError(message), {"WWW-Authenticate": "Bearer"})


def no_right(name: str, what: str) -> Refusal:
    return Refusal(403, UsageError(f"the token {name!r} has no right to {what}: grant it in the tokens file"))


def refusal_of(error: StateflowError) -> Refusal:
    """The HTTP answer for the error of a look-up."""
    status = next((_STATUS[cls] for cls in type(error).__mro__ if cls in _STATUS), 500)
    return Refusal(status, error, RETRY_AFTER if status == 503 else None)


def document(error: StateflowError) -> dict[str, Any]:
    return {
        "error": {"type": type(error).__name__, "message": str(error), "exit_code": type(error).exit_code}
    }


def error_of(body: Any, status: int) -> StateflowError:
    """The error that a server's document describes."""
    description = body.get("error") if isinstance(body, dict) else None
    if not isinstance(description, dict) or not isinstance(description.get("message"), str):
        return UnavailableError(f"the server answered {status} without saying why: is it `stateflow serve`?")
    cls = getattr(errors, str(description.get("type")), None)
    if not (isinstance(cls, type) and issubclass(cls, StateflowError)):
        cls = StateflowError
    return cls(description["message"])


__all__ = [
    "LONGEST_WAIT",
    "RETRY_AFTER",
    "Refusal",
    "document",
    "error_of",
    "no_right",
    "refusal_of",
    "unknown_token",
]
