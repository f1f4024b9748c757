"""Where a command prints: data on stdout, everything else on stderr; text for people, JSON for programs.

A command says what its answer is (a document, and the pieces that a person reads); an Output decides how it is printed.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass
from math import isfinite
from typing import Any

import rich.table
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from stateflow.cli.text import advised, harmless, number, size
from stateflow.errors import StateflowError, frames_beside, user_frames
from stateflow.masking import without_secrets

WIDE = 200
"""Columns of a table that goes into a pipe: nothing there should be cut off."""
COUNTED = ("key groups", "batches")
"""Kinds of things that a bar counts."""
Advance = Callable[[str, int, int], object]


@dataclass(frozen=True)
class TextTable:
    """Rows under a header. A cell's text is shown as it is, brackets and all."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    right: Iterable[str] = ()
    """Columns of numbers."""
    colours: Mapping[str, str] = field(default_factory=dict)
    """Colours of words in the first column."""


@dataclass(frozen=True)
class Facts:
    """Names and values, one pair a line."""

    pairs: Iterable[tuple[str, object]]


@dataclass(frozen=True)
class Heading:
    text: str


Piece = str | Heading | Facts | TextTable
"""What a person reads; a text is a line of its own."""


class CommandOutput(ABC):
    """The output of a command. stderr is the same in both forms, but for notes and errors."""

    def __init__(self) -> None:
        self._err = _console(stderr=True)
        self.root: str | None = None
        """The checkpoint root, if it was typed: commands that the output advises have it, too."""

    @abstractmethod
    def answer(self, body: Any, *pieces: Piece, note: str = "") -> None:
        """The answer, whole: `body` for programs; for people the pieces, and then the note."""

    @abstractmethod
    def event(self, body: Any, *pieces: Piece) -> None:
        """One of several answers, at once: a program gets a line for each."""

    @abstractmethod
    def say(self, *pieces: Piece) -> None:
        """What a person reads before the answer; a program finds it in the answer."""

    @abstractmethod
    def note(self, text: str) -> None:
        """A line on stderr for people, such as how to go on."""

    @abstractmethod
    def error(self, error: Exception, code: int) -> None:
        """Why the command fails."""

    def log(self, text: str) -> None:
        """A line on stderr: progress, a warning, or another problem."""
        self._err.print(harmless(advised(text, self.root)), markup=False, soft_wrap=True)

    @property
    def interactive(self) -> bool:
        """Whether somebody at a terminal reads along."""
        return self._err.is_terminal

    @contextmanager
    def live(self) -> Iterator[Callable[[str], None]]:
        """Gives `show(text)`: at a terminal one line on stderr that each text replaces, elsewhere a line for each."""
        if not self.interactive:
            yield self.log
            return
        # What others write to stderr meanwhile appears above the line.
        with Live(console=self._err, auto_refresh=False, redirect_stdout=False) as line:
            # A run that is killed could not show it again.
            self._err.show_cursor(True)
            yield lambda text: line.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)

    @contextmanager
    def progress(self, title: str, *, shown: bool = True) -> Iterator[Advance]:
        """Gives `advance(what, done, total)`: one bar per kind of thing; those of `COUNTED` are counted, all else is bytes."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
        )
        tasks: dict[str, TaskID] = {}
        with Progress(
            *columns, console=self._err, transient=not self.interactive, disable=not shown
        ) as progress:

            def advance(what: str, done: int, total: int) -> None:
                form = number if what in COUNTED else size
                text = f"{form(done)} of {form(total)}"
                if what not in tasks:
                    tasks[what] = progress.add_task(f"{title}: {what}", total=total, amount=text)
                progress.update(tasks[what], completed=done, total=total, amount=text)

            yield advance


class ConsoleOutput(CommandOutput):
    """Text, for people."""

    def __init__(self) -> None:
        super().__init__()
        self._out = _console()

    def answer(self, body: Any, *pieces: Piece, note: str = "") -> None:
        self._show(pieces)
        if note:
            self.note(note)

    def event(self, body: Any, *pieces: Piece) -> None:
        self._show(pieces)

    def say(self, *pieces: Piece) -> None:
        self._show(pieces)

    def _show(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            match piece:
                case str():
                    self._out.print(harmless(advised(piece, self.root)), markup=False, soft_wrap=True)
                case Heading(text):
                    self._out.print(f"\n[bold]{_cell(text)}[/]")
                case Facts(pairs):
                    self._out.print(_facts(pairs))
                case TextTable():
                    self._out.print(_table(piece))

    def note(self, text: str) -> None:
        self.log(text)

    def error(self, error: Exception, code: int) -> None:
        text = advised(without_secrets(str(error)), self.root)
        if not isinstance(error, StateflowError):
            text = f"{type(error).__name__}: {text} (not expected: --debug shows where)"
        if frames := frames_beside(error):
            self.log(f"in the pipeline's own code:\n{frames}")
        self._err.print(f"[bold red]stateflow:[/] {_cell(text)}", soft_wrap=True)


class JsonOutput(CommandOutput):
    """JSON, for programs."""

    def answer(self, body: Any, *pieces: Piece, note: str = "") -> None:
        sys.stdout.write(json.dumps(_plain(body), indent=2, ensure_ascii=False) + "\n")

    def event(self, body: Any, *pieces: Piece) -> None:
        sys.stdout.write(json.dumps(_plain(body), ensure_ascii=False, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def say(self, *pieces: Piece) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def error(self, error: Exception, code: int) -> None:
        body = {
            "type": type(error).__name__,
            "message": advised(without_secrets(str(error)), self.root),
            "exit_code": code,
        }
        if frames := user_frames(error):
            body["frames"] = frames
        sys.stderr.write(json.dumps({"error": body}, ensure_ascii=False) + "\n")


def _console(*, stderr: bool = False) -> Console:
    """Shows texts as they are: `:x:` in the name of a tag is no emoji."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, width=width, highlight=False, emoji=False)


def _plain(body: Any) -> Any:
    """Values as JSON has them."""
    if is_dataclass(body) and not isinstance(body, type):
        return _plain(asdict(body))
    if isinstance(body, Mapping):
        return {str(name): _plain(value) for name, value in body.items()}
    if isinstance(body, list | tuple | set | frozenset):
        return [_plain(value) for value in body]
    if isinstance(body, bytes | bytearray):
        return b64encode(body).decode()
    if isinstance(body, float) and not isfinite(body):
        return "NaN" if body != body else "Infinity" if body > 0 else "-Infinity"
    if isinstance(body, str | int | float | bool) or body is None:
        return body
    return str(body)


def _table(table: TextTable) -> rich.table.Table:
    made = rich.table.Table(header_style="bold", box=None, pad_edge=False)
    numbers = set(table.right)
    for name in table.columns:
        made.add_column(_cell(name), justify="right" if name in numbers else "left", overflow="fold")
    for first, *rest in table.rows:
        colour = table.colours.get(str(first))
        shown = [_cell(cell) for cell in (first, *rest)]
        made.add_row(f"[{colour}]{shown[0]}[/]" if colour else shown[0], *shown[1:])
    return made


def _facts(pairs: Iterable[tuple[str, object]]) -> rich.table.Table:
    made = rich.table.Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(name, _cell("-" if value in (None, "") else value))
    return made


def _cell(value: object) -> str:
    return "" if value is None else escape(harmless(value))
