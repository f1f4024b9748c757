"""Appends to a folder of Parquet, JSON lines or CSV: staged rows become files with names of their slot, then a manifest says that they count."""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from stateflow.connectors import (
    CommitRequest,
    Committed,
    CorruptError,
    Files,
    IncompatibleError,
    Prepared,
    Sink,
    SinkKind,
    SinkSlot,
    Stager,
    UnavailableError,
    as_json,
    canonical,
    check_as_json,
    from_json,
    open_store,
)
from stateflow.connectors.files.kind import APPEND, credentials
from stateflow.connectors.files.manifests import LATEST, LoggedFolder, Manifests

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LARGE = 128 << 20
"""Bytes of rows in memory that make a file."""
_TRIES = 100
_IN_CSV = re.compile(
    r"tinyint|smallint|int|bigint|float|double|decimal\(.*|boolean|string.*|char\(.*|varchar\(.*|date|timestamp|timestamp_ntz"
)
"""Types whose values readers of CSV take back as they were."""


class FilesAppend(Sink):
    """The sink `stream.append(uid, files(path, format))`."""

    declared: ClassVar[SinkKind] = APPEND
    target: Files

    def open(self, spark: SparkSession, schema: StructType) -> None:
        if self.target.format == "csv":
            for field in schema:
                kind = field.dataType.simpleString()
                if not _IN_CSV.fullmatch(kind):
                    raise IncompatibleError(
                        f"column {field.name!r} is {kind}, which CSV in {self.target.path} cannot hold: write json or parquet, or make a text of it in transform()"
                    )
        if self.target.format == "json":
            check_as_json(self.target.path, _columns(schema))
        self._refuse_other(_log(self.target.path, self.target.connection).newest(), _columns(schema))

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        folder = _log(self.target.path, self.target.connection).newest()
        columns = _columns(frame.schema)
        self._refuse_other(folder, columns)
        slot, _ = folder.slot_of(at.app_id)
        at.refuse_disagreement(_named(self.target.path), slot, at.restore_to(slot))
        if self.target.format == "json":
            frame = frame.selectExpr(f"{as_json(frame.columns)} as line")
        staged = stager.write(frame, at)
        if self.target.format == "csv" and len(columns) == 1 and (absent := staged.nulls.get(columns[0][0])):
            raise IncompatibleError(
                f"{absent} of the rows of {at} have a null in {columns[0][0]!r}, the one column of the output, and readers of CSV in "
                f"{self.target.path} skip the empty line that it would be: no row was written; put out one more column, or leave such rows out in "
                "a transform()"
            )
        payload = {
            "path": self.target.path,
            "connection": self.target.connection,
            "format": self.target.format,
            "columns": columns,
            "exactly_once": True,
        }
        return Prepared(
            kind=APPEND.name,
            target=canonical(self.target.path),
            payload=payload,
            files=staged.files,
            rows=staged.rows,
        )

    def check(self, prepared: Prepared, at: SinkSlot, stager: Stager) -> None:
        if prepared.files:
            self._refuse_other(_recorded(prepared).newest(), prepared.payload["columns"])

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        prepared, at = request.prepared, request.at
        if not prepared.files:
            return "none"
        log, format = _recorded(prepared), prepared.payload["format"]

        def change(folder: LoggedFolder) -> dict[str, Any]:
            if wrong := _other_files(folder, format) or _differences(folder, prepared.payload["columns"]):
                request.still_owner()
                raise request.stuck(
                    f"another sink has given the files in {prepared.payload['path']} another form since: {wrong}; put all that the folder has "
                    "elsewhere and run again"
                )
            columns = _listed(folder.columns or prepared.payload["columns"])
            # Spark and many others match the columns of CSV by their place: all files have them in the order of the first.
            order = [name for name, _ in columns] if format == "csv" else []
            # The names are those of the record: whoever commits it again writes the same files once more.
            added = []
            batches = request.stager.batches(prepared.files)
            for number, (rows, body) in enumerate(_bodies(batches, format, order)):
                # A file of a run that was replaced would come back behind a rewind that has deleted it.
                request.still_owner()
                path = f"part-{at.slot:012d}-{at.mark & 0x7FFFFFFF:08x}-{_short(at)}-{number:04d}.{format}"
                log.store.put(path, body)
                added.append({"path": path, "rows": rows, "bytes": len(body)})
            return {"columns": columns, "added": added, "removed": []}

        outcome, _ = _committed(log, request, change)
        _delete_abandoned(log, at)
        return outcome

    @classmethod
    def put_out(cls, prepared: Prepared) -> str:
        return from_json("line", prepared.payload["columns"]) if prepared.payload["format"] == "json" else ""

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        return _recorded(prepared).newest().slot_of(at.app_id)[0]

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        return {file["sink"]: "" for file in _log(self.target.path, self.target.connection).newest().files}

    @classmethod
    def rewind(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Prepared:
        log = _recorded(prepared)
        folder = log.newest()
        slot, _ = folder.slot_of(at.app_id)
        at.refuse_disagreement(_named(prepared.payload["path"]), slot, at.restore_to(slot))
        if last_slot is not None and (since := log.taken_back(folder, at.app_id, last_slot)) is not None:
            raise IncompatibleError(
                f"{_named(prepared.payload['path'])} cannot go to slot {last_slot} for {at}: files of then were taken back and deleted in slot "
                f"{since}; restore without --rewind-sinks, into a new folder and a new sink uid"
            )
        payload = {**prepared.payload, "back_to": last_slot}
        return Prepared(kind=APPEND.rewound_as, target=prepared.target, payload=payload)

    @staticmethod
    def commit_rewind(request: CommitRequest) -> Committed:
        prepared, at = request.prepared, request.at
        log, back_to = _recorded(prepared), prepared.payload["back_to"]

        def change(folder: LoggedFolder) -> dict[str, Any]:
            own = (file for file in folder.files if file["sink"] == at.app_id)
            gone = [file["path"] for file in own if back_to is None or file["slot"] > back_to]
            return {"columns": _listed(folder.columns), "added": [], "removed": gone}

        outcome, manifest = _committed(log, request, change)
        # A manifest says that they are gone. Those who list the folder see it now.
        manifest = manifest or _manifest_of(log, at)
        log.store.delete(manifest["removed"])
        _delete_abandoned(log, at)
        return outcome

    def _refuse_other(self, folder: LoggedFolder, columns: Iterable[tuple[str, str]]) -> None:
        """All files of a folder have one format, and the same columns."""
        if wrong := _other_files(folder, self.target.format):
            raise IncompatibleError(
                f"{wrong} in {self.target.path}, where this sink would put {self.target.format}: write into a new folder, or in that format"
            )
        if wrong := _differences(folder, columns):
            raise IncompatibleError(
                f"the files in {self.target.path} have other columns: {wrong}; write into a new folder, or put out the columns that are there"
            )


def _other_files(folder: LoggedFolder, format: str) -> str:
    """The first file of another format; empty where there is none."""
    others = (file["path"] for file in folder.files if not file["path"].endswith(f".{format}"))
    other = next(others, "")
    return f"there is a file {other}" if other else ""


def _differences(folder: LoggedFolder, columns: Iterable[tuple[str, str]]) -> str:
    """What tells these columns from those of the folder's files; empty where nothing does, or where it has none."""
    known, ours = dict(folder.columns), dict(columns)
    if not known:
        return ""
    return "; ".join(
        f"{name!r} is {ours.get(name, 'not put out')} and there {known.get(name, 'unknown')}"
        for name in dict.fromkeys((*ours, *known))
        if ours.get(name) != known.get(name)
    )


def _log(path: str, connection: str) -> Manifests:
    return Manifests(open_store(path, credentials(path, connection)))


def _recorded(prepared: Prepared) -> Manifests:
    return _log(prepared.payload["path"], prepared.payload["connection"])


def _named(path: str) -> str:
    return f"the folder {path}"


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


def _listed(columns: Iterable[Sequence[str]]) -> list[list[str]]:
    """Columns as a manifest has them."""
    return [list(column) for column in columns]


def _short(at: SinkSlot) -> str:
    """Tells the files of sinks apart that write to one folder."""
    return uuid.uuid5(uuid.NAMESPACE_URL, at.app_id).hex[:8]


def _committed(
    log: Manifests,
    request: CommitRequest,
    change: Callable[[LoggedFolder], dict[str, Any]],
) -> tuple[Committed, Mapping[str, Any] | None]:
    """Adds the next manifest, once: one who finds the number taken looks again. Returns it, too; None if it was there."""
    prepared, at = request.prepared, request.at
    made: dict[str, Any] = {}
    for _ in range(_TRIES):
        folder = log.newest()
        slot, mark = folder.slot_of(at.app_id)
        if request.is_in(_named(prepared.payload["path"]), slot, mark):
            log.publish(folder)
            return "already", None
        # Others may have given the folder its columns since.
        if not made or prepared.kind == APPEND.rewound_as or made["columns"] != _listed(folder.columns):
            made = change(folder)
        request.still_owner()
        manifest = {
            "version": 1,
            "number": folder.number + 1,
            "id": uuid.uuid4().hex,
            "job": at.job_name,
            "sink": at.app_id,
            "slot": at.slot,
            "mark": at.mark,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **made,
        }
        if log.add(manifest):
            log.publish(folder.then(manifest))
            return "committed", manifest
    raise UnavailableError(
        f"{_TRIES} others wrote to {_named(prepared.payload['path'])} while {at} committed slot {at.slot}: run again"
    )


def _delete_abandoned(log: Manifests, at: SinkSlot) -> None:
    """Those who list the folder see the files of a batch that was abandoned in the middle of its commit. Now that a later slot is in, no manifest
    can come any more that names them."""
    if not at.late:
        return
    counted = {file["path"] for file in log.newest().files}
    for slot in at.late:
        found = (entry.path for entry in log.store.list(f"part-{slot:012d}-"))
        log.store.delete([path for path in found if f"-{_short(at)}-" in path and path not in counted])


def _manifest_of(log: Manifests, at: SinkSlot) -> Mapping[str, Any]:
    """The manifest of a record that somebody has committed before."""
    for number in range(log.newest().number, 0, -1):
        manifest = log.manifest(number)
        if manifest is not None and (manifest["sink"], manifest["mark"]) == (at.app_id, at.mark):
            return manifest
    raise CorruptError(
        f"{LATEST} in {log.store.url} has slot {at.slot} of {at}, and no manifest has it: put the folder back from a copy"
    )


def _bodies(
    batches: Iterable[pa.RecordBatch], format: str, order: Sequence[str]
) -> Iterator[tuple[int, bytes]]:
    """Files of the staged rows, with the number of rows of each. `order`: of the columns; empty for that of the rows."""
    import pyarrow as pa

    part: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        part.append(batch.select(order) if order else batch)
        size += batch.nbytes
        if size >= LARGE:
            yield _body(pa.Table.from_batches(part), format)
            part, size = [], 0
    if part:
        yield _body(pa.Table.from_batches(part), format)


def _body(rows: pa.Table, format: str) -> tuple[int, bytes]:
    import pyarrow as pa

    written = io.BytesIO()
    if format == "parquet":
        import pyarrow.parquet as parquet

        parquet.write_table(rows, written)
    elif format == "csv":
        import pyarrow.csv as csv

        columns = [_numbers_for_all(column) for column in rows.columns]
        csv.write_csv(pa.table(columns, rows.schema.names), written)
    else:
        for line in rows.column(0).to_pylist():
            written.write(line.encode())
            written.write(b"\n")
    return len(rows), written.getvalue()


def _numbers_for_all(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Spark and Java do not take `nan` and `inf`, as Arrow writes them, for numbers; all readers know the words that stand here."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(column.type) or pc.all(pc.is_finite(column)).as_py() is not False:
        return column
    return pc.replace_substring(
        pc.replace_substring(column.cast(pa.string()), "nan", "NaN"), "inf", "Infinity"
    )
