"""Folders of files as users name them: a source whose columns are those of the flow's row type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError
from stateflow.names import with_options
from stateflow.pipelines.inputs.connection import check_connection
from stateflow.pipelines.inputs.input import Input
from stateflow.pipelines.inputs.places import between, on_s3
from stateflow.pipelines.inputs.reader_options import TO_UTF_8, check_reader_options
from stateflow.pipelines.rows.former_names import as_of_today, columns_to_read, has_former_names
from stateflow.pipelines.rows.misfits import Misfits, Reading
from stateflow.pipelines.rows.row_type import RowType, quoted, row_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("avro", "csv", "json", "orc", "parquet", "text")

_STRICT = {"mode": "FAILFAST"}
"""Spark's own default turns values that do not fit into nulls."""
_DEFAULTS = {
    # Columns are told by the header line. Spark would take them by their places, and an amount for a price.
    "csv": {"header": "true", "enforceSchema": "false", **_STRICT},
    # Spark would read digits alone as days since 1970: 01052026 would be in the year 4850.
    "json": {"enableDateTimeParsingFallback": "false", **_STRICT},
}
BROKEN = "columnNameOfCorruptRecord"
_BROKEN = "_corrupt_record"
"""What Spark calls the column by default."""


_ANY_AGE = {"maxFileAge": "36500d"}
"""Spark silently leaves out files that are a week older than the newest it has read, such as a copy that keeps its time."""


_TEXTS = frozenset({"csv", "json"})
"""Formats of values without types, which the reader parses."""
_BY_HEADER = frozenset({"csv", "text"})
"""Formats whose files have exactly the columns that are asked for, or none."""


@dataclass(frozen=True, slots=True)
class Files(Input):
    """A folder that gets new files, each of which is read once."""

    path: str
    format: str
    per_batch: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows: RowType | None = None
    """What the source declares: the columns."""
    connection: str = ""
    """Of a sink: a file with the settings and credentials of the store, or `env:NAME` for a variable that holds them."""

    offset_kind = "file"

    def declared(self, uid: str, rows: RowType | None) -> Files:
        """With the columns that the source declares."""
        if self.connection:
            raise UsageError(
                f"source {uid!r}: connection={self.connection!r} is for a sink, and Spark would not use it: leave it out, and give Spark the "
                "credentials, such as the settings spark.hadoop.fs.s3a.access.key and .secret.key"
            )
        if rows is None and self.format == "text":
            return replace(self, rows=row_type("value string"))
        if rows is None:
            raise UsageError(
                f"source {uid!r}: the columns of {self} are those of a row class: give it one, as in "
                f"flow.source({uid!r}, sf.files(...), Order)"
            )
        broken = self._option(BROKEN)
        if broken and (broken, "string") not in {(each.name, each.type) for each in rows.fields}:
            raise UsageError(
                f"source {uid!r}: {BROKEN} is {broken!r}, and {rows.name} has no such column of text, so that rows which do not fit would be "
                f"nulls without a word: add a field {broken}: str | None = None"
            )
        return replace(self, rows=rows)

    def columns(self, rows: RowType | None) -> RowType | None:
        return self.rows

    def streaming(self, spark: SparkSession) -> DataFrame:
        """The files as a stream."""
        reader = self._described(spark.readStream.options(**_ANY_AGE))
        if self.per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", self.per_batch)
        return self._as_of_today(self._fitted(reader.load(self.path)))

    @property
    def named(self) -> str:
        return self.path

    @property
    def jars(self) -> str:
        return "s3" if on_s3(self.path) else ""

    def reads(self, place: str) -> bool:
        """Whether a source of them would read what is written to a place."""
        if between(place, self.path) is not None:
            return True
        below = between(self.path, place)
        # Of the folders below its own, Spark reads those of partitions, or all if it is told to.
        return below is not None and (self.reads_subfolders or all("=" in name for name in below))

    def listed(self, spark: SparkSession) -> DataFrame:
        """The files that there are now, for their names and times: the rows are as Spark's reader takes them."""
        return self._described(spark.read).load(self.path)  # type: ignore[no-any-return]

    def of(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The rows of some of the files, whose values need not fit."""
        reader = self._described(spark.read)
        if not set(self.path) & set("*?[]{}\\"):
            # As a stream of the folder has it: Spark knows columns of partition folders only from where the reading begins.
            reader = reader.option("basePath", self.path)
        return self._as_of_today(reader.load(list(paths)))

    def there(self, spark: SparkSession) -> DataFrame:
        """The files that there are now, as a table."""
        return self._as_of_today(self._fitted(self.listed(spark)))

    def _described(self, reader: Any) -> Any:
        reader = reader.format(self.format).options(**self.reader_options)
        if self.rows is None:
            return reader
        columns = self._columns(self.rows).items()
        return reader.schema(
            ", ".join(f"{quoted(name)} {self._reading.type(type)}" for name, type in columns)
        )

    def _columns(self, rows: RowType) -> dict[str, str]:
        """The types of the columns that are read, by their names of today and their earlier names."""
        if self.format in _BY_HEADER:
            return {field.name: field.type for field in rows.fields}
        return columns_to_read(rows)

    @property
    def _reading(self) -> Reading:
        # Whoever names a locale has numbers as they are written there, which only Spark reads.
        texts = self.format in _TEXTS and not self._option("locale")
        said = self._option("encoding") or self._option("charset")
        return Reading(
            texts,
            dates=texts and not self._option("dateFormat"),
            utf8=self.format == "csv" and not said,
            doubled=self.format == "csv"
            and not {"escape", "quote"} & {name.lower() for name in self.options},
            raw=self.format == "text",
        )

    def _fitted(self, frame: DataFrame) -> DataFrame:
        """The rows, without values that Spark's reader would misread."""
        if self.rows is None:
            return frame
        given = {name.lower(): value for name, value in self.reader_options.items()}
        # A column for rows that do not fit has no effect on files with types of their own.
        broken = self.column_of_broken_rows if self.format in _TEXTS else ""
        mode = given.get("mode", "PERMISSIVE" if self.format in _TEXTS else "FAILFAST").upper()
        misfits = Misfits(self._columns(self.rows), self._reading, mode, broken)
        if self.format == "text":
            misfits = replace(misfits, advice=f"; {TO_UTF_8}, or move it, and run again", apart="")
        if not misfits.condition and not broken:
            return frame
        if mode == "DROPMALFORMED" and not broken:
            frame = frame.where(f"not coalesce({misfits.condition}, false)")
        return frame.selectExpr(*misfits.selected)

    @property
    def reader_options(self) -> dict[str, str]:
        """The options of Spark's reader: the user's, and defaults for the others."""
        defaults = dict(_DEFAULTS.get(self.format, {}))
        if self.column_of_broken_rows:
            # Rows that do not fit have a column of their own.
            defaults.pop("mode", None)
        given = {name.lower() for name in self.options}
        return {name: value for name, value in defaults.items() if name.lower() not in given} | dict(
            self.options
        )

    @property
    def column_of_broken_rows(self) -> str:
        """The column that Spark fills with a row of text that does not fit; empty without one."""
        if named := self._option(BROKEN):
            return named
        return _BROKEN if self.rows is not None and self.rows.field(_BROKEN) else ""

    @property
    def reads_subfolders(self) -> bool:
        """True if files of all folders below are read, too."""
        return self._option("recursiveFileLookup").lower() == "true"

    def _option(self, name: str) -> str:
        return next((value for each, value in self.options.items() if each.lower() == name.lower()), "")

    def _as_of_today(self, frame: DataFrame) -> DataFrame:
        """Columns under the names that they have now."""
        if self.rows is None or self.format in _BY_HEADER or not has_former_names(self.rows):
            return frame
        return frame.selectExpr(*as_of_today(self.rows))

    def __str__(self) -> str:
        return f"{self.format} files in {self.path}"


@with_options
def files(
    path: str,
    format: str,
    *,
    per_batch: int | None = None,
    connection: str = "",
    options: Mapping[str, str] | None = None,
) -> Files:
    """The files in the folder `path`, and those that come later: "json", "csv", "parquet", "orc", "avro" or "text".

    The row type of the source gives the columns. `per_batch` is how many files a batch takes at most; without it a batch
    takes all that are new. `options` go to Spark's reader of the format.

    `connection` is for a sink whose folder is in an object store: the path of a file with the settings and credentials of the store's
    client, or "env:NAME" with a variable that holds them. Without it those of the driver's environment count.

    A row of JSON or CSV that does not fit the row type fails the batch, unless `options` say otherwise.
    """
    if not path:
        raise UsageError("a source of files needs a folder: write files('/data/orders', 'json')")
    if format not in FORMATS:
        raise UsageError(
            f"files({path!r}) cannot read the format {format!r}: say one of {', '.join(FORMATS)}"
        )
    if per_batch is not None and (isinstance(per_batch, bool) or not isinstance(per_batch, int)):
        raise UsageError(
            f"files({path!r}): per_batch is a number of files, not {per_batch!r}: say 100, or leave it out"
        )
    if per_batch is not None and per_batch < 1:
        raise UsageError(f"files({path!r}): a batch of per_batch={per_batch} files is none: say 1 or more")
    given = {name: str(value) for name, value in (options or {}).items()}
    check_reader_options(f"files({path!r}, {format!r})", format, given)
    if per_batch is not None and "maxfilespertrigger" in {name.lower() for name in given}:
        raise UsageError(
            f"files({path!r}): per_batch and maxFilesPerTrigger are the same: leave one of them out"
        )
    check_connection(f"files({path!r})", str(connection), "LAKE")
    return Files(path, format, per_batch, given, connection=str(connection))
