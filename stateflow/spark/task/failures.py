"""Errors on their way from a worker through Spark to the user, who can act on them."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from stateflow import errors
from stateflow.errors import ERROR_MARK, StateflowError, UserCodeError, frames_in, user_frames
from stateflow.spark.internals.gateway import failure_text, lost_connection, process_of_jvm
from stateflow.spark.internals.words import (
    CHANGED,
    GONE,
    HALF_RECORD,
    MISFIT,
    OTHER_TYPE,
    SHUT,
    UNREADABLE,
    UNSIGNED,
)
from stateflow.spark.session import lent

_MARKED = re.compile(re.escape(ERROR_MARK) + r"(\{.*\})")
_LIMIT, _SHORT = 2_000, 200
_DYING = 2.0
"""Seconds to wait, after a connection broke, for the process at its other end to end."""
_OUT_OF_MEMORY = 52
"""What Spark's JVM ends with when its heap is full."""
_NO_HEAP = "java.lang.OutOfMemoryError"
_SMALLER = "let its batches have fewer rows (per_batch of a folder, maxFilesPerTrigger of a table)"
_FULL = "No space left on device"
DISK_FULL = "a disk is full"
_GONE = re.compile(rf"\[{re.escape(GONE.texts[0])}\].*? reading file (\S+?)\.(?=\s|$)")
_BROKEN_LINES = (
    "if its records have line breaks in quotes, read them with options={'multiLine': 'true'}, and if a quote in quotes is doubled "
    "there, with {'escape': '\"'}; else "
)
"""Comes before the column for rows that do not fit: of such a record one half may be there, and the other a row that fits."""
_CHANGED = re.compile(rf"\[?({'|'.join(CHANGED.texts)})\]?")
_TRACE = "Traceback (most recent call last):"
_RAISED = re.compile(rf"{re.escape(_TRACE)}\n(?:[ \t].*\n)+(\S.*)")
"""A traceback of Python's, and what it ends in."""
_OTHER_TYPE = re.compile(rf"column: \[(.+?)\], {OTHER_TYPE.texts[0]}(\w+), {OTHER_TYPE.texts[1]}(\w+)")
_UNREADABLE = re.compile(rf"\[{UNREADABLE.texts[0]}[\w.]*\].*? reading file (\S+?)\.(?=\s|$)")


def task_error(error: StateflowError) -> RuntimeError:
    """Carries a user-facing error through Spark, which keeps only the text of a worker's exception."""
    body = {"type": type(error).__name__, "message": str(error), "frames": user_frames(error)}
    return RuntimeError(f"{ERROR_MARK}{json.dumps(body)}")


@contextmanager
def through_spark() -> Iterator[None]:
    """Lets the library's own errors through Spark."""
    try:
        yield
    except StateflowError as error:
        raise task_error(error) from error


@contextmanager
def own_words() -> Iterator[None]:
    """Raises what is `translated`, in place of Spark's errors."""
    try:
        yield
    except Exception as error:
        problem = translated(error)
        if problem is error:
            raise
        raise problem from error


def translated(error: BaseException) -> StateflowError:
    """The error that a worker or the library raised, if `error` contains one; else an error with Spark's first words."""
    for cause in _chain(error):
        if isinstance(cause, StateflowError):
            return cause
    if ended := _ended_jvm(error):
        return StateflowError(ended)
    text = failure_text(error)
    match = _MARKED.search(text)
    if match:
        try:
            body, _ = json.JSONDecoder().raw_decode(match[1])
        except ValueError:
            body = {"type": "StateflowError", "message": match[1][:_LIMIT]}
        kind = getattr(errors, body["type"], None) or (
            UserCodeError if body["type"] == "UserCodeError" else StateflowError
        )
        problem = kind(body["message"])
        problem.frames = body.get("frames", "")
        return problem
    full = next((line.strip() for line in text.splitlines() if _FULL in line), None)
    if full is not None:
        return errors.UnavailableError(
            f"{DISK_FULL} ({full[-_SHORT:].lstrip(': ')}): free space in the scratch folder and where the output goes, and run again"
        )
    if gone := _GONE.search(text):
        return StateflowError(
            f"the file {gone[1]} is gone: run again, which reads what is there by then; if that says the same, the source still names the file, so put it "
            "back (of a Delta table that is a shallow clone, the files are those of the original)"
        )
    if changed := _CHANGED.search(text):
        return errors.IncompatibleError(_told_of_changes(changed, text))
    unreadable = _UNREADABLE.search(text)
    if unreadable and MISFIT.is_in(text):
        return errors.IncompatibleError(
            f"the file {unreadable[1]} has a row that does not fit the row class: {_misfit(text)}; "
            f"{_BROKEN_LINES if HALF_RECORD.is_in(text) else ''}mend or move the file and run again, "
            "or let such rows come in a column of their own with options={'columnNameOfCorruptRecord': 'broken'} (docs/sources.md, bad rows)"
        )
    if unreadable and (other := _OTHER_TYPE.search(text)):
        column, physical, declared = other.groups()
        return errors.IncompatibleError(
            f"the file {unreadable[1]} has column {column!r} as {physical}, which is not read as {declared}, as the row class declares it: declare "
            "it as the file has it, or have the file written with the declared type"
        )
    if UNSIGNED.is_in(text):
        return errors.IncompatibleError(
            "a Parquet file has a column of unsigned 64-bit numbers, which a field of int cannot take: declare the field as "
            "Annotated[Decimal, 'decimal(20,0)'], or have the file written with signed numbers"
        )
    if unreadable:
        return StateflowError(
            f"the file {unreadable[1]} cannot be read: {_deepest(text)}; move it out of the folder, or put one that can be read in its place, and run again"
        )
    problem = StateflowError(f"the batch failed: {_first(text)}")
    problem.frames = frames_in(text)
    return problem


def _told_of_changes(changed: re.Match[str], text: str) -> str:
    """Instead of Delta's advice to leave such commits out, after which a sum would be wrong for ever."""
    version = re.search(r"at version (\d+)", text[changed.start() :])
    path = re.search(
        r"located at path (\S+?)[.,]?(?=\s|$)|at path (\S+?)[.,]?(?=\s|$)", text[changed.start() :]
    )
    where = f" {path[1] or path[2]}" if path else ""
    return (
        f"the Delta table{where} that a source reads has rows replaced or deleted{f' in version {version[1]}' if version else ''}, as by an "
        "upsert of another job, and a stream of its rows cannot take that: read its changes, with changes=True in sf.delta or "
        "sf.table and signed rows, under the same uid if the table kept a feed of them then, else as a new job (--job NAME) with outputs of its own "
        "(docs/recipes/changes.md); Delta's option skipChangeCommits would leave the changes out"
    )


def _misfit(text: str) -> str:
    """The misfit in words, without Spark's names of errors and its advice."""
    said = re.sub(r"^\[[\w.]+\] ", "", _deepest(text))
    return re.split(r"[.,]? SQLSTATE|\. Correct the value", said)[0]


def _ended_jvm(error: BaseException) -> str:
    """How the JVM ended, if it is gone, or ends while it still answers; else empty."""
    text = failure_text(error)
    without_memory = _NO_HEAP in text
    if not any(map(lost_connection, _chain(error))) and not SHUT.is_in(text) and not without_memory:
        return ""
    if (host := lent.name_of_host()) and lent.has_lost_spark(_DYING):
        return (
            f"the warm host {host} has lost its Spark, which was killed or ran out of memory, and the run with it: start the run again, "
            "it goes on from its newest checkpoint; if that ends so again, the run needs more memory than the host has: start the host with "
            f"more (`stateflow host start {host} --memory SIZE`), or {_SMALLER}"
        )
    process = process_of_jvm()
    try:
        code = None if process is None else process.wait(_DYING)
    except subprocess.TimeoutExpired:
        code = None
    if code is None:
        more = "--conf spark.driver.memory=SIZE, on a cluster spark.executor.memory=SIZE"
        return (
            f"a task ran out of Java's memory: give it more ({more}), or {_SMALLER}; the next run carries on"
            if without_memory
            else ""
        )
    if code == _OUT_OF_MEMORY:
        return f"Spark's JVM ran out of memory (exit code {code}): give it more (--conf spark.driver.memory=SIZE), or {_SMALLER}; the next run carries on"
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"Spark's JVM {how}: it was killed, or ran out of memory; run again, the next run carries on"


def _chain(error: BaseException) -> list[BaseException]:
    out: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in out:
        out.append(current)
        current = current.__cause__ or current.__context__
    return out


def _first(text: str) -> str:
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")
    ]
    said = " ".join(lines[:3])
    # Of code in a worker these lines end where the traceback begins, and what was raised stands at its end.
    raised = _RAISED.findall(text)
    if raised and raised[-1] not in said:
        said = f"{said.partition(_TRACE)[0].rstrip()} {raised[-1]}"
    return said[:_LIMIT]


def _deepest(text: str) -> str:
    """The message of the last of Java's causes, without the name of its class."""
    # Behind the trace of the last cause the text may begin anew.
    causes = [_before_trace(cause) for cause in text.split("Caused by: ")]
    said = [cause for cause in causes if cause and not _UNREADABLE.search(cause)] or causes
    return re.sub(r"^[\w.$]+(Exception|Error): ", "", said[-1])[:_LIMIT]


def _before_trace(cause: str) -> str:
    lines = itertools.takewhile(lambda line: not line.startswith("at "), map(str.strip, cause.splitlines()))
    return ", ".join(line.rstrip(".") for line in lines)
