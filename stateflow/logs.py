"""Log lines that say which job, epoch and slot they are about, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Literal, TextIO

QUIET = ("py4j", "pyspark", "urllib3", "asyncio")

_about: dict[str, str | int] = {}
"""What the process works on. A process runs one job, and all its threads work for it."""


def about(**facts: str | int | None) -> None:
    """Adds job, epoch or slot to every later line. None removes one."""
    for name, value in facts.items():
        if value is None:
            _about.pop(name, None)
        else:
            _about[name] = value


_say: Callable[[str], object] | None = None


def on_wait(say: Callable[[str], object] | None) -> None:
    """Sets the function that `waiting` calls before something takes seconds without a sign; None for no function."""
    global _say
    _say = say


def waiting(what: str) -> None:
    """Tells the user what the process waits for, or serves meanwhile, and for which job."""
    if _say is not None:
        _say(f"{_about['job']}: {what}" if "job" in _about else what)


class _About(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        # A value that the line itself has, through `extra`, wins.
        record.about = {
            name: getattr(record, name, _about.get(name))
            for name in ("job", "epoch", "slot")
            if getattr(record, name, _about.get(name)) is not None
        }
        return True


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Whether the line does not come from py4j, which logs some lines through other loggers. It logs the stack of every error
    that it raises (stateflow reports that error in one sentence), and of batches that a stop interrupts."""
    return "py4j" not in PurePath(record.pathname).parts


class TextFormatter(logging.Formatter):
    """`12:30:01 WARNING [orders e7 c42] message`"""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        facts = getattr(record, "about", {})
        words = [str(facts["job"])] if "job" in facts else []
        words += [
            f"{letter}{facts[name]}" for letter, name in (("e", "epoch"), ("c", "slot")) if name in facts
        ]
        place = f" [{' '.join(words)}]" if words else ""
        text = f"{at} {record.levelname}{place} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            **getattr(record, "about", {}),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to the stderr of the moment: a live line at a terminal takes stderr's place, to stay below the log."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def set_up(
    form: Literal["text", "json"], *, level: int = logging.WARNING, stream: TextIO | None = None
) -> logging.Handler:
    """Sends the library's lines to stderr, and the warnings and errors of other libraries."""
    handler = logging.StreamHandler(stream) if stream is not None else _StandardError()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(_About())
    if level > logging.DEBUG:
        handler.addFilter(_is_not_py4j)
    root = logging.getLogger()
    for old in [h for h in root.handlers if any(isinstance(f, _About) for f in h.filters)]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger("stateflow").setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    return handler
