"""A call that is refused: with which error, and what the message names. The words between are free to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Refusal:
    """One row: the exact class of the error, what its message has to name, and the call.

    Named is what the user wrote (a name, a path, a value, an option) and what to write or to run instead. A word of prose is for a
    refusal that another one of the same call would be taken for.
    """

    error: type[Exception]
    named: tuple[str, ...]
    call: Callable[[], object]
    hidden: str = ""
    """What the message may not repeat, such as a password."""


def raised(error: Exception) -> None:
    """For a row whose call only makes the error."""
    raise error


def played(row: Refusal) -> Exception:
    """The error that the call ends with, whatever it is."""
    try:
        row.call()
    except Exception as error:
        return error
    raise AssertionError(f"nobody refused it: {row.error.__name__} was to name {', '.join(row.named)}")


def lacking(message: str, named: tuple[str, ...]) -> list[str]:
    """What a message does not name."""
    return [each for each in named if each not in message]


@contextmanager
def refused(
    error: type[Exception] | tuple[type[Exception], ...], *named: str
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """For a refusal that needs more than one call, such as a running job: what is within fails with this error, which names all this."""
    assert named, "say what the message names"
    with pytest.raises(error) as caught:
        yield caught
    missing = lacking(str(caught.value), named)
    assert not missing, f"{missing} are not named in: {caught.value}"
