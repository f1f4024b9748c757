"""Progress of long work, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stateflow.cli.output import err, number, size

Advance = Callable[[str, int, int], object]


@contextmanager
def bars(title: str, *, shown: bool = True) -> Iterator[Advance]:
    """Gives `advance(what, done, total)`: one bar per kind of thing; 'key groups' are counted, all else is bytes."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[told]}"),
        TimeElapsedColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=err(), transient=not err().is_terminal, disable=not shown) as progress:

        def advance(what: str, done: int, total: int) -> None:
            told = number if what == "key groups" else size
            text = f"{told(done)} of {told(total)}"
            if what not in tasks:
                tasks[what] = progress.add_task(f"{title}: {what}", total=total, told=text)
            progress.update(tasks[what], completed=done, total=total, told=text)

        yield advance
