"""Mistakes in what a pipeline reads: each changes one thing in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

from tests.mistakes.case import CASES, Case, Row
from tests.mistakes.in_code import misspelt
from tests.mistakes.play import Mistake, files_in_turn
from tests.mistakes.scene import Scene, lines

_MISFITS: dict[type, tuple[Any, ...]] = {
    float: ("many", "2,5", True, [1.5], {"value": 1.5}),
    int: (1.5, "one", 1e30, False, [1]),
    str: (),  # whatever stands there is read as its text, on purpose: a column of JSON
    datetime: ("01.02.2026 12:00", "noon", True, ["2026-01-01T12:00:00Z"]),
}
_MISFITS_OF_TEXT: dict[type, tuple[Any, ...]] = {float: ("many", "2;5", "1.5e"), str: ()}


def mistakes() -> Iterator[Mistake]:
    for case in CASES.values():
        for folder, files in case.files.items():
            last = len(files) - 1
            for name in files[0][0]:
                yield from _of_a_field(case, folder, name, last)
            yield from _of_a_file(case, folder, last)


def _of_a_field(case: Case, folder: str, name: str, last: int) -> Iterator[Mistake]:
    def renamed(row: Row) -> Row:
        return {misspelt(name) if field == name else field: value for field, value in row.items()}

    everywhere = range(last + 1)
    yield _rows("a misspelt name in every file", f"{folder}.{name}", case, folder, everywhere, renamed)
    yield _rows("a misspelt name in one file", f"{folder}.{name}", case, folder, [last], renamed)

    def left_out(row: Row) -> Row:
        return {field: value for field, value in row.items() if field != name}

    yield _rows("a field left out of one file", f"{folder}.{name}", case, folder, [last], left_out)

    def capital(row: Row) -> Row:
        return {name.capitalize() if field == name else field: value for field, value in row.items()}

    yield _rows("a name in capitals in one file", f"{folder}.{name}", case, folder, [last], capital)
    kind = type(case.files[folder][0][0][name])
    misfits = _MISFITS if case.format == "json" else _MISFITS_OF_TEXT
    for value in misfits[kind]:
        yield _value(
            "a value that does not fit", f"{folder}.{name}: {value!r}", case, folder, name, last, value
        )
    if kind is datetime:
        time = case.files[folder][last][0][name]
        seconds = int(time.timestamp())
        for other in (seconds, seconds * 1000, seconds * 1_000_000, str(seconds * 1000)):
            what = f"{folder}.{name}: {other!r}"
            yield _value("a time in another unit", what, case, folder, name, last, other)
    yield _value("a null", f"{folder}.{name}", case, folder, name, last, None, None)


def _of_a_file(case: Case, folder: str, last: int) -> Iterator[Mistake]:
    file = lines(case, case.files[folder][last])
    half = file.rstrip()[:-4] + "\n"
    yield _file("a file cut off", folder, case, folder, last, half)
    yield _file("an empty file", folder, case, folder, last, "")
    yield _file("a file in another encoding", folder, case, folder, last, file.encode("utf-16"))
    yield _file("a byte order mark", folder, case, folder, last, "\ufeff" + file, fits=True)
    if case.format == "json":
        listed = "[\n" + ",\n".join(file.splitlines()) + "\n]\n"
        yield _file("a list for lines", folder, case, folder, last, listed, fits=True)
        spread = file.replace(", ", ",\n")
        yield _file("an object on several lines", folder, case, folder, last, spread, fits=True)
    else:
        header, *rest = file.splitlines()
        names, cells = header.split(","), [line.split(",") for line in rest]
        turned = "\n".join(",".join(reversed(line)) for line in (names, *cells)) + "\n"
        yield _file("columns in another order", folder, case, folder, last, turned, fits=True)
        yield _file("another separator", folder, case, folder, last, file.replace(",", ";"), fits=True)
        yield _file("a header left out", folder, case, folder, last, "\n".join(rest) + "\n", fits=True)
        yield _file("a column too many", folder, case, folder, last, file.replace("\n", ",1\n", 1), fits=True)
    yield Mistake(
        "a file that was written earlier", folder, case, case.text, partial(_old_file, folder=folder)
    )


def _old_file(scene: Scene, folder: str) -> None:
    """What comes last is a month older than what was read, as a copy that keeps its time is."""
    case = scene.case
    for run in range(case.runs):
        for each, files in case.files.items():
            old = each == folder and run == case.runs - 1
            scene.write(each, lines(case, files[run]), minutes_older=60 * 24 * 30 if old else 0)
        scene.check()
        scene.run(final=run == case.runs - 1)


def _rows(kind: str, what: str, case: Case, folder: str, runs: Any, changed: Callable[[Row], Row]) -> Mistake:
    """Rows of some files under other names: what is right is what the rows say under the right ones."""
    content = {run: lines(case, [changed(row) for row in case.files[folder][run]]) for run in runs}
    return Mistake(kind, what, case, case.text, partial(_played, folder=folder, content=content))


def _value(
    kind: str, what: str, case: Case, folder: str, name: str, run: int, value: Any, meant: Any = ...
) -> Mistake:
    """The first row of a file with another value. Right is the table of the row as it was meant."""
    first, *others = case.files[folder][run]
    content = {run: lines(case, [{**first, name: value}, *others])}
    rows = case.rows()
    if meant is not ...:
        rows[folder] = [{**row, name: meant} if row is first else row for row in rows[folder]]
    return Mistake(kind, what, case, case.text, partial(_played, folder=folder, content=content), rows)


def _file(
    kind: str, what: str, case: Case, folder: str, run: int, content: str | bytes, *, fits: bool = False
) -> Mistake:
    """Another file in its place. Where its rows are in it, they count; else right is what the other files say."""
    rows = case.rows()
    if not fits and not content:
        rows[folder] = [
            row for number, file in enumerate(case.files[folder]) if number != run for row in file
        ]
    play = partial(_played, folder=folder, content={run: content})
    return Mistake(kind, what, case, case.text, play, rows)


def _played(scene: Scene, folder: str, content: dict[int, str | bytes]) -> None:
    def text(each: str, run: int, file: str) -> str | bytes:
        return content.get(run, file) if each == folder else file

    files_in_turn(scene, lambda scene, run: None, text)
