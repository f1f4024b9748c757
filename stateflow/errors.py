"""Every error that a user can meet, in one tree. Each has an exit code for schedulers.

A message is one sentence that names the thing (job, record, file, state, key) and the next step.
"""

from __future__ import annotations


class StateflowError(Exception):
    """The run failed; a retry may help."""

    exit_code = 1


class UsageError(StateflowError):
    """What was asked for cannot be done as written: a pipeline, an option or an argument is wrong."""

    exit_code = 2


class NotFoundError(StateflowError):
    """A job, checkpoint, tag, file or table that was named does not exist."""

    exit_code = 3


class IncompatibleError(StateflowError):
    """State, schema or format does not fit the code; nothing was written."""

    exit_code = 4


class FencedError(StateflowError):
    """A newer run owns the job. Never retry: the newer run carries on."""

    exit_code = 5


class CorruptError(StateflowError):
    """A stored file or record is damaged or missing."""

    exit_code = 6


class DisagreementError(StateflowError):
    """A sink or source is not where the job's log says it is."""

    exit_code = 7


class BusyError(StateflowError):
    """Another live run owns the job; wait for it or take it over."""

    exit_code = 8


class UnavailableError(StateflowError):
    """The store cannot be reached or refused an operation; a retry may help."""

    exit_code = 9


class StateTypeError(UsageError):
    """A value does not have the type that its state declares. The caller adds the state, the operator and the key."""


def error_of(exit_code: int, message: str) -> StateflowError:
    """The error with which another process ended, by its exit code. An unknown code gives an error that may be retried."""
    for kind in StateflowError.__subclasses__():
        if kind.exit_code == exit_code:
            return kind(message)
    return StateflowError(message)


class UserCodeError(StateflowError):
    """User code raised; the sentence names operator, key and the exception."""
