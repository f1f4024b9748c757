"""How a task fails: with one sentence, and with a retry only where one may help."""

from __future__ import annotations

import logging
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
    frames_beside,
)

_log = logging.getLogger(__name__)
_LASTING = {
    error.exit_code
    for error in (
        UsageError, NotFoundError, IncompatibleError, FencedError, CorruptError, DisagreementError,
    )
}  # fmt: skip
_OF_SPARK = ("pyspark", "py4j")


@contextmanager
def spoken() -> Iterator[None]:
    """Turns errors of the library and of Spark into errors of the task."""
    try:
        yield
    except StateflowError as error:
        _tell(error)
        raise failure(error) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _OF_SPARK:
            raise
        from stateflow.spark.task.failures import translated  # a DAG file must not load stateflow.spark

        problem = translated(error)
        _tell(problem)
        raise failure(problem) from None


def _tell(error: StateflowError) -> None:
    if frames := frames_beside(error):
        _log.error("in the pipeline's own code:\n%s", frames)


def failure(error: StateflowError) -> AirflowException:
    """The error to raise. Airflow tries again only when a retry may help."""
    return failure_of(error.exit_code, str(error))


def failure_of(exit_code: int, sentence: str) -> AirflowException:
    """Like `failure`, for the exit code of a process that the task started."""
    return AirflowException(sentence) if may_pass(exit_code) else AirflowFailException(sentence)


def may_pass(exit_code: int) -> bool:
    """Whether a retry may help. The exit code of a killed process is none of the library's, and passes."""
    return exit_code not in _LASTING
