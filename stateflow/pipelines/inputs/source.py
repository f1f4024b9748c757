"""What a connector of a source is written with: positions, plans and rows. docs/connectors.md shows one."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from stateflow.errors import DisagreementError, IncompatibleError, StateflowError, UsageError
from stateflow.pipelines.inputs.input import Declarable, Input
from stateflow.pipelines.rows.row_type import RowType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Position = dict[str, Any]
"""How far a source was read: texts and whole numbers by name, or such objects by name, as JSON has them. A number never gets smaller, and
no name goes away."""
Row = Mapping[str, Any]
BATCH_ROWS = 10_000
ROWS_LOOKED_AT = 20
"""Rows, record batches of them, or lines of JSON, whose names are taken for those of all."""


class Source(Declarable):
    """Something that rows are read from, in an order that stays: each row lies between two positions, for as long as the source has it.

    Spark sends the object to its workers, so it has what names the place, and opens nothing before it is asked. Passwords do not belong
    into its attributes or positions: let it read them where it connects.
    """

    place: str = ""
    """Where it reads, as in `sqlite:/data/shop.db#orders`: no sink of the pipeline may write there. Empty where that cannot be told."""
    identity: str = ""
    """What it reads, however its address is spelled, as the sink says it that writes there: a run asks for it before it begins. Empty where that
    cannot be told."""
    offset_kind: ClassVar[str] = "package"
    """Of which kind its positions are, as records have them. It is the library's alone to say another one."""

    @abstractmethod
    def position(self, start: Position | None) -> Position:
        """How far there are rows now, for a job that has read up to `start`: `start` itself when there are no more. With None, where a job
        begins that has read nothing."""

    def cut(self, start: Position, end: Position) -> Position:
        """Where a batch ends that begins at `start`, when there are rows up to `end`: nearer, so that batches stay small."""
        return end

    @abstractmethod
    def plan(self, start: Position, end: Position) -> Sequence[Any]:
        """The parts of a batch, as JSON has them. A task reads each. Between the same positions it is always the same plan."""

    @abstractmethod
    def read(self, part: Any) -> Iterable[Row | pa.RecordBatch]:
        """The rows of a part: values by the names of the row class. Whenever a part is read, by this process or another, it has the
        same rows."""

    def require(self) -> None:
        """UsageError for what this process lacks to read it, such as a package or a variable with a password. `stateflow check` tells it
        before a run does."""
        return

    def columns(self, part: Any) -> Iterable[str] | None:
        """Names of the columns that the rows of a part have where they come from, also of those that `read` leaves out. Where a field has no
        value in any row, a run looks here for what it may be called. None, as here, for those of the part's first rows."""
        return None

    def declared(self, uid: str, rows: RowType | None) -> DeclaredSource:
        """The source with the uid and the row class that a flow gives it."""
        if rows is None:
            raise UsageError(
                f"source {uid!r}: the columns of {self} are those of a row class: give it one, as in flow.source({uid!r}, ..., Order)"
            )
        return DeclaredSource(uid, self, rows)


@dataclass(frozen=True, slots=True)
class DeclaredSource(Input):
    """A source in a flow. It refuses what a source got wrong, in a sentence that names the flow's source."""

    uid: str
    source: Source
    rows: RowType

    def streaming(self, spark: SparkSession) -> DataFrame:
        return import_module("stateflow.spark.inputs.connected").stream_of(spark, self)  # type: ignore[no-any-return]

    @property
    def cuts_batches(self) -> bool:
        return type(self.source).cut is not Source.cut

    def columns(self, rows: RowType | None) -> RowType | None:
        return self.rows

    @property
    def place(self) -> str:
        return self.source.place

    @property
    def offset_kind(self) -> str:  # type: ignore[override]
        return self.source.offset_kind

    @property
    def identity(self) -> str:
        with self._asked("identity"):
            return self.source.identity

    def require(self) -> None:
        self.source.require()

    def __str__(self) -> str:
        return str(self.source)

    def beginning(self) -> Position:
        with self._asked("position(None)"):
            return self._position(self.source.position(None), {}, "position(None)")

    def newest(self, start: Position) -> Position:
        """How far there are rows now."""
        with self._asked("position"):
            try:
                found = self.source.position(start)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                if self._has_names(start):
                    raise
                raise IncompatibleError(
                    f"source {self.uid!r}: {self.source} cannot go on at {_text(start)}, where the checkpoint says it stands: that is a position of "
                    "another source, so give this one a new uid"
                ) from error
            return self._position(found, start, "position()")

    def _has_names(self, start: Any) -> bool:
        """Whether a position can be one of this source: no name of where it begins goes away."""
        return isinstance(start, dict) and self.source.position(None).keys() <= start.keys()

    def end(self, start: Position, newest: Position) -> Position:
        """Where the batch ends that begins at `start`."""
        if start == newest:
            return start
        with self._asked("cut"):
            found = self._position(self.source.cut(start, newest), start, "cut()")
        if beyond := _went_back(found, newest):
            raise UsageError(
                f"source {self.uid!r}: cut() of {self.source} ends a batch beyond {_text(newest)}, up to where there are rows ({beyond}): let it give a "
                "nearer position"
            )
        if found == start:
            raise UsageError(
                f"source {self.uid!r}: cut() of {self.source} ends a batch at {_text(start)}, where it begins, though there are rows up to "
                f"{_text(newest)}, so that nobody would ever read them: let it give a later position"
            )
        return found

    def parts(self, start: Position, end: Position, *, twice: bool) -> list[Any]:
        """The plan of a batch. `twice`: it is asked for again, to see that it stays the same."""
        plan = self._plan(start, end)
        if twice and self._plan(start, end) != plan:
            raise UsageError(
                f"source {self.uid!r}: plan() of {self.source} gave two plans between the positions {_text(start)} and {_text(end)}, so "
                "that rows read again would be others: let it depend on the two positions alone"
            )
        return plan

    def _plan(self, start: Position, end: Position) -> list[Any]:
        with self._asked("plan"):
            plan = list(self.source.plan(start, end))
        try:
            return list(json.loads(_text(plan)))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"source {self.uid!r}: plan() of {self.source} has a part that is no JSON ({error}): let a part be texts, numbers, lists and "
                "objects of them, such as [first, last]"
            ) from error

    def names_read(self, start: Position | None, end: Position) -> frozenset[str]:
        """Names of the columns that the first rows between two positions have."""
        parts = self._plan(self.beginning() if start is None else start, end)
        if not parts:
            return frozenset()
        with self._asked("columns"):
            if (columns := self.source.columns(parts[0])) is not None:
                return frozenset(columns)
        with self._asked("read"):
            first = islice(self.source.read(parts[0]), ROWS_LOOKED_AT)
            return frozenset(
                name
                for given in first
                for name in (given if isinstance(given, Mapping) else given.schema.names)
            )

    def batches(self, part: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a part with the columns of the row class."""
        with self._asked("read"):
            some: list[Row] = []
            for given in self.source.read(part):
                if isinstance(given, Mapping):
                    some.append(given)
                    if len(some) == BATCH_ROWS:
                        yield self.batch_of(some, schema)
                        some = []
                    continue
                yield self._selected(given, schema)
            if some:
                yield self.batch_of(some, schema)

    def batch_of(self, rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
        """Rows as a record batch. IncompatibleError names the column that does not fit."""
        import pyarrow as pa

        from stateflow.state.values.arrow.lossless import MISFITS, array_of

        columns = []
        for field in self.rows.fields:
            if not (field.nullable or field.default) and any(field.name not in row for row in rows):
                lacking = next(row for row in rows if field.name not in row)
                raise self._misfit(field.name, f"a row has none; it has {', '.join(map(str, lacking))}")
            values = [row.get(field.name) for row in rows]
            try:
                columns.append(array_of(values, schema.field(field.name).type))
            except MISFITS as error:
                raise self._misfit(field.name, f"it has values that are no {field.type}: {error}") from error
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _selected(self, given: Any, schema: pa.Schema) -> pa.RecordBatch:
        import pyarrow as pa

        if not isinstance(given, pa.RecordBatch):
            raise UsageError(
                f"source {self.uid!r}: read() of {self.source} gave a {type(given).__name__}: let each row be a dict by column, or give record "
                "batches of Arrow"
            )
        for field in self.rows.fields:
            if field.name not in given.schema.names:
                raise self._misfit(
                    field.name, f"a record batch has none; it has {', '.join(given.schema.names)}"
                )
            there, wanted = given.schema.field(field.name).type, schema.field(field.name).type
            if there != wanted:
                raise self._misfit(field.name, f"it is {there} in a record batch, and has to be {wanted}")
        return given.select(self.rows.names).cast(schema)

    def _misfit(self, column: str, what: str) -> IncompatibleError:
        return IncompatibleError(
            f"source {self.uid!r}: column {column!r}, which {self.rows.name} declares, does not fit what read() of {self.source} gave: {what}"
        )

    def _position(self, found: Any, start: Position, method: str) -> Position:
        if not isinstance(found, dict) or not _is_position(found):
            raise UsageError(
                f"source {self.uid!r}: {method} of {self.source} gave {found!r}, which is no position: let it be texts and whole numbers by name, "
                "such as {'id': 41}"
            )
        if back := _went_back(start, found):
            raise DisagreementError(
                f"source {self.uid!r}: {method} of {self.source} went back, {back}: the job has read up to {_text(start)}, and rows would come twice or be "
                "lost; if its place was emptied or put back, restore the job to a checkpoint of that time or give the source a new uid, and "
                "the operators behind it and all their other sources, too"
            )
        return found

    @contextmanager
    def _asked(self, method: str) -> Iterator[None]:
        try:
            yield
        except StateflowError:
            raise
        except Exception as error:
            raise StateflowError(
                f"source {self.uid!r}: {method.partition('(')[0]}() of {self.source} failed: {type(error).__name__}: {error}"
            ) from error


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _is_position(value: dict[Any, Any]) -> bool:
    return all(
        isinstance(name, str)
        and (_is_position(each) if isinstance(each, dict) else isinstance(each, str | int))
        for name, each in value.items()
    )


def _went_back(start: Mapping[str, Any], end: Mapping[str, Any], inside: str = "") -> str:
    """What is lower or gone in a later position; empty for nothing."""
    for name, before in start.items():
        where, after = f"{inside}{name}", end.get(name)
        if after is None:
            return f"{where!r} is gone"
        if isinstance(before, dict) != isinstance(after, dict) or isinstance(before, str) != isinstance(
            after, str
        ):
            return f"{where!r} is {after!r} and was {before!r}"
        if isinstance(before, dict):
            if back := _went_back(before, after, f"{where}."):
                return back
        elif isinstance(before, int) and after < before:
            return f"{where!r} is {after} and was {before}"
    return ""
