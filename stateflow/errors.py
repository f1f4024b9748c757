"""Every error that a user can meet, in one tree. Each has an exit code for schedulers.

A message is one sentence that names the thing (job, record, file, state, key) and the next step.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stateflow.masking import without_secrets

ERROR_MARK = "STATEFLOW-ERROR "
"""Begins the line that carries an error out of a task. The driver finds it inside Spark's stack trace."""
MOST_FRAMES = 20
"""Frames that are shown; of a deep recursion the innermost ones."""
MOST_SHOWN = 500
"""Characters of an exception's text in a sentence."""
_LIBRARY = f"{Path(__file__).parent}/"
_OTHERS = (sysconfig.get_path("stdlib") + "/", "<frozen ")
_INSTALLED = ("/site-packages/", "/dist-packages/", "/pyspark.zip/", "/python/pyspark/", "/py4j-")
_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+?)\s*$')


class StateflowError(Exception):
    """The run failed; a retry may help."""

    exit_code = 1
    frames = ""
    """The frames of the user's code that raised it in another process: see `user_frames`."""


class UsageError(StateflowError):
    """The request cannot be carried out as written: a pipeline, an option or an argument is wrong."""

    exit_code = 2


class NotFoundError(StateflowError):
    """A job, checkpoint, tag, file or table that was named does not exist."""

    exit_code = 3


class IncompatibleError(StateflowError):
    """State, schema or format does not fit the code; no row was written."""

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
    """The error of another process, by its exit code. An unknown code gives an error that may be retried."""
    for kind in StateflowError.__subclasses__():
        if kind.exit_code == exit_code:
            return kind(message)
    return StateflowError(message)


class UserCodeError(StateflowError):
    """User code raised; the sentence names operator, key and the exception."""


@contextmanager
def without_exit(what: str) -> Iterator[None]:
    """Around user code that runs in the driver. `sys.exit()` there would end a run as if it had done all it had to, or the thread that Spark
    waits for."""
    try:
        yield
    except SystemExit as error:
        raise UserCodeError(
            f"{what} ends the process ({placed(error)}), which would leave the run's work undone without a word: let it return, or raise an error"
        ) from error


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the user's code in the traceback of this very exception."""
    return [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]


def placed(error: BaseException) -> str:
    """The exception and its place in the user's code, on one line. Secrets in its text are masked: the sentence goes wherever the run is seen."""
    frames = own_frames(error)
    place = (
        f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name}, in {frames[-1].name})"
        if frames
        else ""
    )
    said = without_secrets(str(error))
    what = " ".join(f"{type(error).__name__}: {said}".rstrip(": ").split()) + _fields_there(error)
    return (what if len(what) <= MOST_SHOWN else f"{what[: MOST_SHOWN - 3]}...") + place


def _fields_there(error: BaseException) -> str:
    """The fields of the row or the value that lacks the one the code names. Empty for any other error, and for one that says itself what was meant."""
    if not isinstance(error, AttributeError) or isinstance(error, StateflowError):
        return ""
    kind = type(error.obj)
    if issubclass(kind, tuple):  # a row of a schema string
        names = getattr(kind, "_fields", ())
    else:
        names = getattr(kind, "__struct_fields__", getattr(kind, "__dataclass_fields__", ()))
    return f"; {kind.__name__} has the fields {', '.join(names)}" if names else ""


def user_frames(error: BaseException) -> str:
    """The frames of the user's own code, outermost first, as Python prints them, and what was raised there; empty for none.

    A log without them makes people guess; a log with all of them hides them among the frames of Spark and of this library. Passwords that
    stand in the lines are masked.
    """
    shown, current, seen = "", error, set[int]()
    while id(current) not in seen:
        seen.add(id(current))
        own = current.frames if isinstance(current, StateflowError) else ""
        if not own:
            found = [] if _said(current) else own_frames(current)
            own = _printed(found[-MOST_FRAMES:], current) if found else ""
        shown = own or shown  # the cause knows more than what was made of it
        current = current.__cause__ or current.__context__ or current
    return masked_lines(shown)


def frames_beside(error: BaseException) -> str:
    """The frames for whoever also prints the error: without what was raised, where the error says it in its own sentence."""
    lines = user_frames(error).splitlines()
    of_frames = max((number for number, line in enumerate(lines, 1) if line.startswith("  ")), default=0)
    raised = " ".join(" ".join(lines[of_frames:]).split())
    name, _, text = raised.partition(": ")
    sentence = " ".join(masked_lines(str(error)).split())
    repeats = raised in sentence or (
        text and name.rpartition(".")[2] == type(error).__name__ and text in sentence
    )
    return "\n".join(lines[:of_frames] if repeats else lines)


def _said(error: BaseException) -> bool:
    """Whether the user's code has raised an error of ours itself: its sentence is all that its author wants to say."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, StateflowError) and bool(frames) and is_user_file(frames[-1].filename)


def _printed(frames: list[traceback.FrameSummary], error: BaseException) -> str:
    what = "".join(traceback.format_exception_only(error))
    return ("".join(traceback.format_list(frames)) + what).rstrip()


def frames_in(text: str) -> str:
    """The same from the text of a traceback, which is all that Spark keeps of a worker's exception."""
    lines = text.splitlines()
    shown: list[str] = []
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match is None or not is_user_file(match[1]):
            continue
        shown.append(f"  {line.strip()}")
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if following.strip() and not _FRAME.match(following):
            shown.append(f"    {following.strip()}")
    return masked_lines("\n".join(shown[-2 * MOST_FRAMES :]))


def masked_lines(frames: str) -> str:
    """A traceback, or some of its frames, without the secrets that stand in a line of code or in what was raised: they go into logs, and to whoever reads them."""
    shown: list[str] = []
    hidden = False
    for line in frames.splitlines():
        if hidden and not line.strip(" ^~"):
            continue  # Python's marks are below what was there
        # Code without a text in it has no value that anybody could read.
        code = line.startswith("    ") and not any(mark in line for mark in "'\"")
        kept = line if code else without_secrets(line)
        hidden = kept != line
        shown.append(kept)
    return "\n".join(shown)


def is_user_file(name: str) -> bool:
    """Whether code is the user's: neither Python's, nor an installed package's, nor this library's."""
    if name.startswith((_LIBRARY, *_OTHERS)) or any(part in name for part in _INSTALLED):
        return False
    return not (name.startswith("<") and name.endswith(">"))
