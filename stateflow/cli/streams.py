"""stdout and stderr that fail no command: what it was called for is apart from whether its words find a place.

A pipe that nobody reads any more and a disk that is full are met here, below all that prints: Rich, the log, typer's help, and a
pipeline's own code.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Unfailing(io.FileIO):
    """A file that drops what cannot be written, and tries again with what comes next: a disk may have room by then."""

    lost = ""
    """Why something was dropped that somebody may miss; empty where nothing was."""
    above: TextIO | None = None
    """The stream that it was opened for: the descriptor would be closed when nobody holds that any more."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            pass  # the reader, such as `head`, has seen enough
        except OSError as error:
            self.lost = self.lost or error.strerror or str(error)
        return memoryview(data).nbytes


def open_unfailing() -> None:
    """Puts such files below stdout and stderr. Streams that are no files, as in a test, stay what they are."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # as with `>&-`: nobody wants to read it
            stream = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        if type(_file_below(stream)) is io.FileIO:
            file = Unfailing(stream.fileno(), "w", closefd=False)
            file.above = stream
            made = io.TextIOWrapper(
                file if stream.write_through else io.BufferedWriter(file),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, made)


def lost_answer() -> str:
    """Why something of the answer could not be written to stdout; empty where all of it was, or nobody has read to its end."""
    sys.stdout.flush()
    file = _file_below(sys.stdout)
    return file.lost if isinstance(file, Unfailing) else ""


def _file_below(stream: TextIO) -> object:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)
