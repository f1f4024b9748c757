"""Files of a test's rows, written as the options of their source read them.

Spark's writers know the options of its readers, so each file is written with the source's own. What no writer does is done here: several
rows as one JSON value, a whole file as one row, lines in another charset. Then the file is read once as a run reads it. Where other rows
come back, such as a null for a text that is the option's `nullValue`, the test is refused: it would try other rows than it says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.places import PATTERN
from stateflow.spark.inputs.given_rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MICROSECONDS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
"""As text files have times: Spark would cut them to milliseconds."""


@dataclass(frozen=True)
class GivenFiles:
    """The files of one source."""

    uid: str
    files: Files

    def write(
        self, spark: SparkSession, frame: DataFrame, lines: Sequence[str], folder: Path, first: int
    ) -> Iterator[Path]:
        """Files in `folder` with the rows, and behind them the lines as they are; their names count from `first`.

        UsageError for what no file that is read with these options can hold.
        """
        if self._says("wholetext"):
            for number, text in enumerate([*(row[0] for row in frame.collect()), *lines], start=first):
                yield self._of_text(folder / self._name(number), text)
            return
        path = folder / self._name(first)
        rows = frame.toArrow().to_pylist()
        one_value = self.files.format == "json" and self._says("multiLine")
        if one_value and lines and rows:
            raise self._refused("with multiLine a file is one value: add the rows and the texts apart")
        if one_value and lines:
            yield self._of_text(path, "\n".join(lines))
            return
        self._write(self._without_broken(frame, rows), path, one_value)
        self._check(spark, path, rows)
        if lines:
            end = self._option("lineSep") or "\n"
            with path.open("ab") as out:
                out.write(self._encoded("".join(f"{line}{end}" for line in lines)))
        yield path

    def _option(self, *names: str) -> str:
        """The value of the first of these names that the source gives, in any case; empty without one."""
        given = {name.lower(): value for name, value in self.files.reader_options.items()}
        return next((given[name.lower()] for name in names if name.lower() in given), "")

    def _says(self, flag: str) -> bool:
        return self._option(flag).strip().lower() == "true"

    def _name(self, number: int) -> str:
        """One that the source takes."""
        pattern = self._option("pathGlobFilter")
        if not pattern:
            return f"{number:05d}.{self.files.format}"
        if "*" not in pattern or (PATTERN - {"*"}) & set(pattern):
            raise self._refused(
                f"the harness makes no names for pathGlobFilter {pattern!r}: let a parameter of the pipeline give it, and one such as "
                "'orders-*.json' in tests"
            )
        return pattern.replace("*", f"{number:05d}", 1).replace("*", "")

    def _without_broken(self, frame: DataFrame, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        """Without the column that Spark fills with lines that it cannot read: no file has it."""
        column = self.files.column_of_broken_rows
        if column and any(row[column] is not None for row in rows):
            raise self._refused(
                f"column {column!r} has the lines that cannot be read: leave it out, and add such a line as a text"
            )
        return frame.drop(column) if column else frame

    def _write(self, frame: DataFrame, path: Path, one_value: bool) -> None:
        options = self._writer_options(one_value)
        aside = path.parent / "written"
        frame.coalesce(1).write.format(self.files.format).options(**options).save(str(aside))
        (part,) = (file for file in aside.iterdir() if file.name.startswith("part-"))
        if one_value:
            values = part.read_text(encoding="utf-8").split("\n")
            self._of_text(path, f"[{','.join(filter(None, values))}]\n")
        else:
            part.rename(path)
        shutil.rmtree(aside)

    def _writer_options(self, one_value: bool) -> dict[str, str]:
        given = {name.lower(): value for name, value in self.files.reader_options.items()}
        if self.files.format == "csv":
            # Spark's writer would cut spaces off that the row has.
            given |= {"ignoreleadingwhitespace": "false", "ignoretrailingwhitespace": "false"}
        if self.files.format in ("csv", "json"):
            given.setdefault("timestampformat", _MICROSECONDS)
        if one_value:
            given = {
                name: value for name, value in given.items() if name not in ("linesep", "encoding", "charset")
            }
        return given

    def _of_text(self, path: Path, text: str | None) -> Path:
        path.write_bytes(self._encoded(text or ""))
        return path

    def _encoded(self, text: str) -> bytes:
        charset = (self._option("encoding", "charset") if self.files.format != "text" else "") or "utf-8"
        try:
            if "".encode(charset):
                raise self._refused(
                    f"{charset} begins each text with a mark: say which order, as UTF-16LE does"
                )
            return text.encode(charset)
        except (LookupError, UnicodeEncodeError) as error:
            raise self._refused(f"a text cannot be written in {charset} ({error}): add another one") from None

    def _check(self, spark: SparkSession, path: Path, given: Sequence[Mapping[str, Any]]) -> None:
        """Reads the file as a run would."""
        instead = "give the test rows that such files can hold, or the line of a file as a text"
        try:
            read = rows_of(replace(self.files, path=str(path)).there(spark))
        except UsageError as error:
            raise self._refused(f"the rows cannot be read again ({error}): {instead}") from None
        for row, again in zip(given, read, strict=False):
            for column, value in row.items():
                if not _same(value, again[column]):
                    raise self._refused(
                        f"{column}={value!r} of a row is read as {again[column]!r} by these options: {instead}"
                    )
        if len(read) != len(given):
            raise self._refused(f"{len(given)} rows are read as {len(read)}: {instead}")

    def _refused(self, why: str) -> UsageError:
        options = ", ".join(f"{name}={value!r}" for name, value in self.files.options.items())
        return UsageError(
            f"source {self.uid!r} reads {self.files.format} files{f' with {options}' if options else ''}: {why}"
        )


def _same(value: Any, again: Any) -> bool:
    """Whether two values are equal, where a NaN is equal to another."""
    match value, again:
        case float(), float():
            return value == again or (value != value and again != again)
        case list() | tuple(), list() | tuple():
            return len(value) == len(again) and all(map(_same, value, again))
        case dict(), dict():
            return value.keys() == again.keys() and all(_same(value[name], again[name]) for name in value)
    return bool(value == again)
