"""Output in listed, immutable files: a sink reads them later, or an operator of the same batch does.

The tasks of the result stage hand back the list of files. Listing the folder would not do: it also holds the files
of failed attempts.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stateflow.errors import NotFoundError
from stateflow.format.layout import JobLayout
from stateflow.format.records import FileRef, Prepared
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.sinks.key_ranges import Bound, Bounds, bounds_of, together
from stateflow.spark.sinks.same_task import then_in_arrow
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.task_writer import WRITTEN, MakeWriter, WriterTask, as_schema, attempt_name
from stateflow.storage.file_urls import file_folder, file_url, hadoop_path
from stateflow.storage.files import checksum, missing, upload_file, verify
from stateflow.storage.local import LocalStore
from stateflow.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

StoreOpener = Callable[[], Store]
"""Opens the checkpoint store in a worker, so it must pickle: `partial(open_store, url, options)`."""
FILE_COLUMNS = "name string, size long, xxh3 string, path string, sha256 binary, rows long, nulls array<long>, bounds string"
ROW_GROUP = 128 * 1024


@dataclass(frozen=True, slots=True)
class ScratchTarget:
    """A file on local disk that lives no longer than the batch."""

    folder: str
    unique: str


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """A file in the checkpoint store that a record names. Its path contains epoch, slot and attempt."""

    opener: StoreOpener
    path: str


Target = ScratchTarget | StoreTarget


@dataclass(frozen=True, slots=True)
class Staged:
    """The files that hold one frame's rows."""

    files: tuple[FileRef, ...]
    rows: int
    nulls: Mapping[str, int] = field(default_factory=dict)
    """How many rows have none, per column. The tasks that write the files count them."""
    bounds: Mapping[str, Sequence[Bound]] = field(default_factory=dict)
    """The least and the greatest value of the wanted columns, where they are known."""


class StagedWriter:
    """Writes one file of record batches, in a worker. Nothing is written when no batch has rows."""

    def __init__(self, schema: pa.Schema, target: Target) -> None:
        self.rows = 0
        self._schema = schema
        self._target = target
        self._sink: Any = None
        self._file: Path | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._sink is None:
            self._file, self._sink = self._begin()
        self._sink.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> FileRef | None:
        """The finished file; None when there were no rows."""
        if self._sink is None or self._file is None:
            return None
        self._sink.close()
        self._sink = None
        if isinstance(self._target, ScratchTarget):
            # Only this batch reads it: no record names it, and no cache keeps it.
            size, xxh3 = checksum(self._file)
            base = file_url(self._file.parent.absolute())
            return FileRef(name=self._file.name, size=size, xxh3=xxh3, path=self._file.name, base=base)
        path = self._target.path
        try:
            return upload_file(self._target.opener(), path, self._file, path.rpartition("/")[2])
        finally:
            self._file.unlink(missing_ok=True)

    def discard(self) -> None:
        """After a failure: removes the file."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _begin(self) -> tuple[Path, Any]:
        import pyarrow.parquet as pq

        if isinstance(self._target, ScratchTarget):
            file = Path(self._target.folder) / f"{self._target.unique}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
        else:
            handle, name = tempfile.mkstemp(prefix="stateflow-", suffix=".parquet")
            os.close(handle)
            file = Path(name)
        return file, pq.ParquetWriter(
            file, self._schema, compression="lz4", use_dictionary=False, write_statistics=False
        )


def staged_schema(prepared: Prepared) -> StructType:
    """The columns of the rows that a sink has staged."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(prepared.payload["schema"]))


class Stager:
    """Stages frames of one job's records and reads them back."""

    def __init__(self, opener: StoreOpener, new_id: Callable[[], str]) -> None:
        self.opener = opener
        self.new_id = new_id
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        if self._store is None:
            self._store = self.opener()
        return self._store

    def write(self, frame: DataFrame, at: SinkSlot, bounds_of: Sequence[str] = ()) -> Staged:
        """Writes the rows of `frame` to files, in one job whose result stage is the frame's last; `bounds_of` are names of columns."""
        if files_of(frame) == ():
            return Staged((), 0)
        layout, token = JobLayout(at.job_name), self.new_id()
        places = {name.lower(): place for place, name in enumerate(frame.columns)}
        bounded = {name: places[name.lower()] for name in bounds_of}
        write_partition = _StageTask(
            self.opener, layout, at.epoch, at.slot, token, arrow_schema(frame.schema), bounded
        )
        rows = then_in_arrow(frame, write_partition, FILE_COLUMNS).collect()
        # Collected rows come from exactly one attempt of each partition.
        files = (
            FileRef(row["name"], row["size"], row["xxh3"], row["path"], sha256=bytes(row["sha256"]))
            for row in rows
        )
        nulls = {name: sum(row["nulls"][k] for row in rows) for k, name in enumerate(frame.columns)}
        bounds = together(json.loads(row["bounds"]) for row in rows)
        known = {name: pair for name, pair in bounds.items() if pair is not None}
        return Staged(tuple(files), sum(row["rows"] for row in rows), nulls, known)

    def write_with(self, frame: DataFrame, make: MakeWriter) -> list[str]:
        """Writes the rows of `frame` where they are computed, by a writer of the sink's own for each task, in one job whose result stage is
        the frame's last. Returns what the writers described."""
        if files_of(frame) == ():
            return []
        task = WriterTask(make, self.new_id(), arrow_schema(frame.schema))
        # Collected rows come from exactly one attempt of each partition.
        return [row["written"] for row in then_in_arrow(frame, task, WRITTEN).collect()]

    def read(self, spark: SparkSession, refs: Sequence[FileRef], schema: StructType) -> DataFrame:
        """The rows of exactly these files, each checked against its reference."""
        frame = self._frame(spark, refs, schema)
        _read[frame] = tuple(refs)
        return frame

    def _frame(self, spark: SparkSession, refs: Sequence[FileRef], schema: StructType) -> DataFrame:
        if not refs:
            return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
        paths = self.local_files(refs)
        # Spark would read these characters as a pattern of names.
        if paths is not None and not any(set("{}[]*?\\") & set(str(path)) for path in paths):
            for ref, path in zip(refs, paths, strict=True):
                verify(ref, path, self.store.url if not ref.base else ref.base)
            return spark.read.schema(schema).parquet(*(hadoop_path(path) for path in paths))
        rows = [(ref.name, ref.size, ref.xxh3, ref.path, ref.base, ref.sha256) for ref in refs]
        files = spark.createDataFrame(
            rows, "name string, size long, xxh3 string, path string, base string, sha256 binary"
        )
        return files.repartition(len(rows)).mapInArrow(_FetchTask(self.opener, arrow_schema(schema)), schema)

    def batches(self, refs: Sequence[FileRef]) -> Iterator[pa.RecordBatch]:
        """The rows of exactly these files, in this process: each file is checked against its reference, and one at a time is here."""
        for ref in refs:
            yield from _read_here(ref, lambda: self.store)

    def local_files(self, refs: Sequence[FileRef]) -> list[Path] | None:
        """Where this process can open all of these files; None where it cannot."""
        located = [self._local(ref) for ref in refs]
        return None if None in located else [path for path in located if path is not None]

    def _local(self, ref: FileRef) -> Path | None:
        if ref.base:
            return _located(_local_store(ref.base), ref) if ref.base.startswith("file://") else None
        return _located(self.store, ref) if isinstance(self.store, LocalStore) else None


_read: WeakKeyDictionary[DataFrame, tuple[FileRef, ...]] = WeakKeyDictionary()


def files_of(frame: DataFrame) -> tuple[FileRef, ...] | None:
    """The files whose rows a frame is, if it came from `Stager.read` and nothing was done with it since."""
    return _read.get(frame)


@dataclass(frozen=True, slots=True)
class _StageTask:
    """The task that stages one partition."""

    opener: StoreOpener
    layout: JobLayout
    epoch: int
    slot: int
    token: str
    schema: pa.Schema
    bounded: Mapping[str, int]
    """The places of columns that need bounds."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        path = self.layout.staged_file(self.epoch, self.slot, attempt_name(self.token), ".parquet")
        writer = StagedWriter(self.schema, StoreTarget(self.opener, path))
        nulls = [0] * len(self.schema)
        bounds: Bounds = {}
        try:
            for batch in batches:
                rows = as_schema(batch, self.schema)
                writer.write(rows)
                nulls = [n + column.null_count for n, column in zip(nulls, rows.columns, strict=True)]
                bounds = together((bounds, bounds_of(rows, self.bounded)))
            ref = writer.close()
        except BaseException:
            writer.discard()
            raise
        if ref is not None:
            columns = {
                "name": (pa.string(), ref.name),
                "size": (pa.int64(), ref.size),
                "xxh3": (pa.string(), ref.xxh3),
                "path": (pa.string(), ref.path),
                "sha256": (pa.binary(), ref.sha256),
                "rows": (pa.int64(), writer.rows),
                "nulls": (pa.list_(pa.int64()), nulls),
                "bounds": (pa.string(), json.dumps(bounds)),
            }
            arrays = [pa.array([value], kind) for kind, value in columns.values()]
            yield pa.record_batch(arrays, names=list(columns))


@dataclass(frozen=True, slots=True)
class _FetchTask:
    """The task that reads staged files which Spark itself cannot open."""

    opener: StoreOpener
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = cache(self.opener)
        for batch in batches:
            for row in batch.to_pylist():
                for piece in _read_here(FileRef(**row), opened):
                    yield as_schema(piece, self.schema)


def _read_here(ref: FileRef, store_of_job: Callable[[], Store]) -> Iterator[pa.RecordBatch]:
    """The record batches of a staged file, in this process. `store_of_job` is opened for one that lies there."""
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
        if ref.base.startswith("file://"):
            local, root = _located(_local_store(ref.base), ref), ref.base
        else:
            store = store_of_job()
            local, root = Path(folder) / "staged", store.url
            try:
                store.download(ref.path, local)
            except NotFoundError:
                raise missing(ref, root) from None
        verify(ref, local, root)
        with pq.ParquetFile(local) as parquet:
            yield from parquet.iter_batches(batch_size=ROW_GROUP)


def _located(store: LocalStore, ref: FileRef) -> Path:
    try:
        return store.locate(ref.path)
    except NotFoundError:
        raise missing(ref, store.url) from None


def _local_store(base: str) -> LocalStore:
    return LocalStore(file_folder(base), fsync=False)
