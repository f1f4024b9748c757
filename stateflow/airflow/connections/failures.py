"""What a task says when it fails: one sentence, and whether a retry may help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.errors import (
    CorruptError,
    DisagreementError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    StateflowError,
    UsageError,
)

_LASTING = {
    error.exit_code
    for error in (
        UsageError, NotFoundError, IncompatibleError, FencedError, CorruptError, DisagreementError,
    )
}  # fmt: skip
_OF_SPARK = ("pyspark", "py4j")


@contextmanager
def spoken() -> Iterator[None]:
    """Around what calls the library: its errors, and Spark's, become the task's."""
    try:
        yield
    except StateflowError as error:
        raise failure(error) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _OF_SPARK:
            raise
        from stateflow.spark.task.failures import translated

        raise failure(translated(error)) from None


def failure(error: StateflowError) -> AirflowException:
    """What to raise: only where the same task may do better a little later does Airflow try again."""
    return failure_of(error.exit_code, str(error))


def failure_of(exit_code: int, sentence: str) -> AirflowException:
    """The same for the exit code of a process that was started for the task."""
    return AirflowException(sentence) if may_pass(exit_code) else AirflowFailException(sentence)


def may_pass(exit_code: int) -> bool:
    """Whether a retry may help. A code that the library does not have is that of a process that was ended."""
    return exit_code not in _LASTING
