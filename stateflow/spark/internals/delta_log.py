"""Delta's transactions and the log of a table."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from stateflow.errors import DisagreementError
from stateflow.internals import internal
from stateflow.spark.internals.gateway import JAVA_ERRORS
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.managed_tables import managed_table, refuse_path
from stateflow.spark.internals.s3_logs import create_commits, creates_commits, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DELTA = "org.apache.spark.sql.delta"
CONSTRAINT = "delta.constraints."
CHANGE_FEED = "delta.enableChangeDataFeed"
_TIMES_BEGIN = (
    "delta.inCommitTimestampEnablementVersion",
    "delta.inCommitTimestampEnablementTimestamp",
)
"""Properties that say since when a table's commits have their times in them. A new table lacks them: all of its commits do."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The parts of a table's metadata on which its new data files depend, at one version."""

    id: str
    schema: StructType
    partition_by: tuple[str, ...]
    configuration: dict[str, str]
    features: tuple[str, ...]
    fingerprint: str
    """Equal as long as files prepared for the table can be added to it as they are."""
    version: int = -1
    """The table's version that this is the shape of."""

    def is_on(self, name: str) -> bool:
        """Whether a property of the table is true, in the case that Delta writes its name in and in any case of its value."""
        return property_is_on(self.configuration, name)

    @property
    def constraints(self) -> dict[str, str]:
        """The text of each CHECK constraint, by its name."""
        # Delta obeys a constraint whose prefix is in any case, too; other writers put the names in as they are given.
        return {
            name[len(CONSTRAINT) :]: text
            for name, text in self.configuration.items()
            if name.lower().startswith(CONSTRAINT)
        }


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """One version of a table, read from its log."""

    version: int
    slots: Mapping[str, int]
    """Transaction version per application."""
    changes_data: bool
    reshapes: bool
    """It changes the schema, the properties or the protocol."""
    operation: str = ""
    copied_from: tuple[str, int] | None = None
    """Of a CLONE: the path of the table and its version."""


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A data file of a table."""

    add: Mapping[str, Any]
    """The fields of the action that added the file."""
    _action: Any
    """The action as Delta holds it."""

    @classmethod
    def of(cls, action: Any) -> LoggedFile:
        return cls(json.loads(str(action.json()))["add"], action)

    @property
    def size(self) -> int:
        return int(self.add["size"])


def property_is_on(configuration: Mapping[str, str], name: str) -> bool:
    # Delta refuses what is neither true nor false. Whoever asks here does not go on as if nothing had been said.
    return configuration.get(name, "false").lower() != "false"


def logged_commit(version: int, lines: Iterable[str | bytes]) -> LoggedCommit:
    slots: dict[str, int] = {}
    changes = reshapes = False
    operation = ""
    copied_from: tuple[str, int] | None = None
    for line in lines:
        action = json.loads(line)
        if (txn := action.get("txn")) is not None:
            slots[txn["appId"]] = int(txn["version"])
        elif (file_action := action.get("add") or action.get("remove")) is not None:
            changes = changes or bool(file_action.get("dataChange", True))
        elif "metaData" in action or "protocol" in action:
            reshapes = True
        elif (info := action.get("commitInfo")) is not None:
            operation = str(info.get("operation", ""))
            parameters = info.get("operationParameters") or {}
            if operation == "CLONE" and "sourceVersion" in parameters:
                copied_from = (str(parameters.get("source")), int(parameters["sourceVersion"]))
    return LoggedCommit(version, slots, changes, reshapes, operation, copied_from)


class DeltaLog:
    """The log of one table."""

    @internal(
        f"{_DELTA}.DeltaLog$.forTable(SparkSession, String)",
        "pyspark.sql.SparkSession._jsparkSession",
    )
    def __init__(
        self,
        spark: SparkSession,
        path: str,
        managed_as: Sequence[str] = (),
        opened: tuple[Any, Any] | None = None,
    ) -> None:
        """Of the table at a path, whether there is one or not. `managed_as`: the parts of the name of one whose commits go through its
        catalog. `opened`: the log, and what the catalog knows of the table, as Delta's source of it holds them."""
        self.spark = spark
        self.path = path
        # Each batch opens a log. Whether the store is asked about conditions, the first one has settled.
        if scheme_of(path) and not creates_commits(spark, path):
            create_commits(spark, path)
        jvm = java_names(spark)
        self._jvm: Any = jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._none = jvm.scala.Option.empty()
        self._jspark: Any = spark._jsparkSession
        self._catalog_table = self._none
        """What the catalog knows of a table whose commits go through it."""
        if opened is not None:
            self._log, self._catalog_table = opened
        elif managed_as:
            table = managed_table(spark, managed_as)
            self._log, self._catalog_table = table.deltaLog(), table.catalogTable()
        else:
            self._log = self._delta.DeltaLog.forTable(self._jspark, path)

    @property
    def is_managed(self) -> bool:
        """Whether the table's commits go through its catalog."""
        return bool(self._catalog_table.isDefined())

    @internal(
        f"{_DELTA}.DeltaLog.update(boolean, Option, Option)",
        f"{_DELTA}.DeltaLog.tableExists()",
    )
    def exists(self) -> bool:
        """Whether there is a table."""
        self._newest()
        return bool(self._log.tableExists())

    @internal(
        f"{_DELTA}.DeltaLog.update(boolean, Option, Option)",
        f"{_DELTA}.Snapshot.version()",
    )
    def version(self) -> int:
        """The newest version; -1 when there is no table."""
        return int(self._newest().version())

    @internal(
        f"{_DELTA}.DeltaLog.update(boolean, Option, Option)",
    )
    def _newest(self) -> Any:
        """The snapshot of the newest version."""
        try:
            return self._log.update(False, self._none, self._catalog_table)
        except JAVA_ERRORS as error:
            refuse_path(error, "", self.path)
            raise

    @internal(
        f"{_DELTA}.DeltaLog.startTransaction(Option, Option)",
    )
    def begin(self) -> Transaction:
        """A transaction on the newest version."""
        return Transaction(self, self._log.startTransaction(self._catalog_table, self._none))

    @internal(
        f"{_DELTA}.DeltaLog.dataPath()",
        f"{_DELTA}.DeltaLog.newDeltaHadoopConf()",
    )
    def missing(self, adds: Sequence[dict[str, Any]]) -> list[str]:
        """Which data files are gone or have another size than their actions say, and which files of their deletion vectors are gone."""
        root = self._log.dataPath()
        files = root.getFileSystem(self._log.newDeltaHadoopConf())
        missing = []
        for add in adds:
            path = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(add["path"]))
            absolute = path if path.isAbsolute() else self._jvm.org.apache.hadoop.fs.Path(root, path)
            if not files.exists(absolute) or files.getFileStatus(absolute).getLen() != add["size"]:
                missing.append(str(add["path"]))
        return [*missing, *(str(path) for path in self._vector_files(adds) if not files.exists(path))]

    @internal(
        f"{_DELTA}.DeltaLog.dataPath()",
        f"{_DELTA}.actions.AddFile.deletionVector()",
        f"{_DELTA}.actions.DeletionVectorDescriptor.absolutePath(Path)",
    )
    def _vector_files(self, adds: Iterable[dict[str, Any]]) -> list[Any]:
        """The paths of the files with the deletion vectors of these data files. A small vector lies in its action instead."""
        vectors = ((add.get("deletionVector") or {}, add) for add in adds)
        by_file = {
            vector["pathOrInlineDv"]: add
            for vector, add in vectors
            if vector.get("storageType") in ("u", "p")
        }
        return [
            self._parsed(json.dumps({"add": add})).deletionVector().absolutePath(self._log.dataPath())
            for add in by_file.values()
        ]

    @internal(f"{_DELTA}.DeltaLog.newDeltaHadoopConf()")
    def writes_plain_parquet(self) -> bool:
        """Whether data files are what a writer makes of itself: nobody has asked for another compression, or for encryption."""
        codec = self.spark.conf.get("spark.sql.parquet.compression.codec", "snappy")
        return (
            codec == "snappy" and self._log.newDeltaHadoopConf().get("parquet.crypto.factory.class") is None
        )

    @internal(
        f"{_DELTA}.DeltaLog.dataPath()",
        f"{_DELTA}.DeltaLog.newDeltaHadoopConf()",
    )
    def put(self, file: Path) -> None:
        """Puts a file of this host among the table's, under its own name. It is no part of the table yet."""
        root, path = self._log.dataPath(), self._jvm.org.apache.hadoop.fs.Path
        files = root.getFileSystem(self._log.newDeltaHadoopConf())
        files.copyFromLocalFile(False, False, path(file.absolute().as_uri()), path(root, file.name))

    def commits(self) -> Iterator[LoggedCommit]:
        """From the newest version down, as far as the log reaches."""
        for version in range(self.version(), -1, -1):
            body = self.read(version)
            if body is None:
                return
            yield logged_commit(version, body.splitlines())

    @internal(
        f"{_DELTA}.DeltaLog.logPath()",
        f"{_DELTA}.DeltaLog.newDeltaHadoopConf()",
        f"{_DELTA}.DeltaLog.store()",
        f"{_DELTA}.storage.LogStore.read(Path, Configuration)",
    )
    def read(self, version: int) -> bytes | None:
        """A commit's file; None when there is none."""
        conf = self._log.newDeltaHadoopConf()
        path = self._jvm.org.apache.hadoop.fs.Path(self._log.logPath(), f"{version:020d}.json")
        if self.is_managed:
            path = self._place_of(version) or path
        if not path.getFileSystem(conf).exists(path):
            return None
        return str(self._log.store().read(path, conf).mkString("\n")).encode()

    @internal(
        f"{_DELTA}.DeltaLog.unsafeVolatileSnapshot()",
        f"{_DELTA}.util.DeltaCommitFileProvider$.apply(Snapshot)",
        f"{_DELTA}.util.DeltaCommitFileProvider.deltaFile(long)",
    )
    def _place_of(self, version: int) -> Any:
        """Where a commit is that a catalog has taken, which may not be in the log's own folder yet. None for one newer than this log knows."""
        snapshot = self._log.unsafeVolatileSnapshot()
        if version > int(snapshot.version()):
            return None
        return self._delta.util.DeltaCommitFileProvider.apply(snapshot).deltaFile(version)

    def files_at(self, version: int) -> list[dict[str, Any]]:
        """The data files of one version, as the actions that added them."""
        return [dict(file.add) for file in self._files_of(self._at(version))]

    @internal(f"{_DELTA}.Snapshot.metadata()")
    def metadata_at(self, version: int) -> dict[str, Any]:
        """Schema, partitioning and properties of one version."""
        return dict(json.loads(str(self._at(version).metadata().json()))["metaData"])

    @internal(f"{_DELTA}.DeltaLog.getSnapshotAt(long, Option, Option, boolean)")
    def _at(self, version: int) -> Any:
        """The snapshot of one version."""
        return self._log.getSnapshotAt(version, self._none, self._catalog_table, False)

    @internal(
        f"{_DELTA}.Snapshot.allFiles()",
        f"{_DELTA}.actions.Action.json()",
    )
    def _files_of(self, snapshot: Any) -> list[LoggedFile]:
        """The data files of a snapshot, which Spark jobs read from the log."""
        files = snapshot.allFiles().collectAsList()
        return [LoggedFile.of(files.get(k)) for k in range(files.size())]

    @internal("org.apache.spark.api.python.PythonUtils.toSeq(List)")
    def _scala_seq(self, items: Iterable[Any]) -> Any:
        """Scala's sequence of these values."""
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq([*items])

    @internal("org.apache.spark.api.python.PythonUtils.toScalaMap(Map)")
    def _scala_map(self, items: dict[str, Any]) -> Any:
        """Scala's map of these values."""
        return self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(items)

    @internal(
        f"{_DELTA}.DeltaLog.clock()",
    )
    def now(self) -> int:
        """Milliseconds, by the clock that Delta stamps its commits with."""
        return int(self._log.clock().getTimeMillis())

    @internal(
        f"{_DELTA}.actions.Action$.fromJson(String)",
    )
    def _parsed(self, text: str) -> Any:
        """An action of Delta's from its JSON."""
        return self._delta.actions.Action.fromJson(text)


@dataclass(frozen=True)
class Transaction:
    """One optimistic transaction: it reads the version it began with, and fails when that is outdated."""

    log: DeltaLog
    _txn: Any

    @internal(
        f"{_DELTA}.OptimisticTransaction.readVersion()",
        f"{_DELTA}.OptimisticTransaction.metadata()",
        f"{_DELTA}.OptimisticTransaction.protocol()",
    )
    def shape(self) -> TableShape:
        """The table's metadata in the version with which the transaction began."""
        from pyspark.sql.types import StructType

        version = int(self._txn.readVersion())
        if version < 0:
            raise DisagreementError(
                f"{self.log.path} is not a Delta table any more: put it back as it was, or give a new table a new sink uid"
            )
        metadata = json.loads(self._txn.metadata().json())["metaData"]
        protocol = json.loads(self._txn.protocol().json())["protocol"]
        configuration = dict(metadata.get("configuration") or {})
        schema_text = metadata["schemaString"]
        partition_by = tuple(metadata.get("partitionColumns") or ())
        parts = [metadata["id"], schema_text, partition_by, configuration, protocol]
        text = msgspec.json.encode(parts, order="sorted")
        return TableShape(
            metadata["id"],
            StructType.fromJson(json.loads(schema_text)),
            partition_by,
            configuration,
            tuple(protocol.get("writerFeatures") or ()),
            xxhash.xxh3_64_hexdigest(text),
            version,
        )

    @internal(
        f"{_DELTA}.OptimisticTransaction.snapshot()",
        f"{_DELTA}.OptimisticTransaction.txnVersion(String)",
        f"{_DELTA}.OptimisticTransaction.readTxn()",
        f"{_DELTA}.Snapshot.checksumOpt()",
        f"{_DELTA}.VersionChecksum.setTransactions()",
        "org.apache.spark.sql.classic.SparkSession.getActiveSession()",
        "org.apache.spark.sql.classic.SparkSession.setActiveSession(SparkSession)",
    )
    def slot_of(self, app_id: str) -> int | None:
        """The slot last committed under `app_id`; a later one under it makes this transaction fail."""
        # Delta's own `txnVersion` rebuilds the whole snapshot: half a second a batch, even for a tiny table. Its
        # checksum file holds the same transactions, and stays in memory after this process has committed.
        checksum = self._txn.snapshot().checksumOpt()
        transactions = checksum.get().setTransactions() if checksum.isDefined() else self.log._none
        if transactions.isEmpty():
            sessions = self.log._jvm.org.apache.spark.sql.classic.SparkSession
            if sessions.getActiveSession().isEmpty():
                sessions.setActiveSession(self.log._jspark)  # a thread that delivers a record has none
            version = int(self._txn.txnVersion(app_id))
            return None if version < 0 else version
        self._txn.readTxn().addOne(app_id)
        sequence = transactions.get()
        for k in range(sequence.size()):
            if sequence.apply(k).appId() == app_id:
                return int(sequence.apply(k).version())
        return None

    @internal(
        f"{_DELTA}.Snapshot.checksumOpt()",
        f"{_DELTA}.Snapshot.numOfFiles()",
        f"{_DELTA}.Snapshot.setTransactions()",
        f"{_DELTA}.VersionChecksum.numFiles()",
        f"{_DELTA}.VersionChecksum.setTransactions()",
    )
    def app_ids(self) -> list[str]:
        """The names under which writers have committed to the table, as far as Delta knows; none for a table without rows."""
        # As in `slot_of`: of a table that a run has just created, the checksum says at once that it is empty.
        snapshot = self._txn.snapshot()
        checksum = snapshot.checksumOpt()
        if int(checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()) == 0:
            return []
        known = checksum.get().setTransactions() if checksum.isDefined() else self.log._none
        sequence = snapshot.setTransactions() if known.isEmpty() else known.get()
        return [str(sequence.apply(k).appId()) for k in range(sequence.size())]

    @internal(
        f"{_DELTA}.Snapshot.checksumOpt()",
        f"{_DELTA}.VersionChecksum.allFiles()",
        f"{_DELTA}.VersionChecksum.numFiles()",
        f"{_DELTA}.VersionChecksum.tableSizeBytes()",
    )
    def files(self) -> list[LoggedFile] | None:
        """The table's data files; None where only Spark jobs could tell, or where there are many."""
        checksum = self._txn.snapshot().checksumOpt()
        known = checksum.get().allFiles() if checksum.isDefined() else self.log._none
        if known.isEmpty():
            return None
        sequence = known.get()
        files = [LoggedFile.of(sequence.apply(k)) for k in range(sequence.size())]
        # Delta compares the same two numbers before it believes a list that it has computed by itself.
        counted = (int(checksum.get().numFiles()), int(checksum.get().tableSizeBytes()))
        return files if (len(files), sum(file.size for file in files)) == counted else None

    @internal(
        f"{_DELTA}.OptimisticTransaction.readWholeTable()",
    )
    def rests_on_all(self) -> None:
        """From now on this transaction fails, as a MERGE would, if another writer commits something that could change its
        result, such as rows in an empty table."""
        self._txn.readWholeTable()

    def rows_of(self, files: Sequence[LoggedFile]) -> DataFrame:
        """The rows of some of the table's files."""
        return self._frame(file._action for file in files)

    @internal(
        f"{_DELTA}.actions.AddFile.removeWithTimestamp(long, boolean)",
    )
    def removing(self, files: Sequence[LoggedFile]) -> list[str]:
        """The actions that take files out of the table."""
        now = self.log.now()
        return [str(file._action.removeWithTimestamp(now, True).json()) for file in files]

    def reread(self, actions: Iterable[str]) -> DataFrame:
        """The rows of data files that are not part of the table yet, as the table would show them."""
        return self._frame(self.log._parsed(a) for a in actions)

    @internal(
        f"{_DELTA}.DeltaLog.createDataFrame(SnapshotDescriptor, Seq, boolean, Option)",
    )
    def _frame(self, adds: Iterable[Any]) -> DataFrame:
        """The rows of data files as the table would show them."""
        from pyspark.sql import DataFrame

        log = self.log
        frame = log._log.createDataFrame(self._txn.snapshot(), log._scala_seq(adds), False, log._none)
        return DataFrame(frame, log.spark)

    @internal(
        f"{_DELTA}.DeltaOptions(Map, SQLConf)",
        f"{_DELTA}.OptimisticTransaction.writeFiles(Dataset, Option)",
    )
    def write(self, frame: DataFrame) -> list[str]:
        """Writes the data files of `frame` in one job; returns the actions that add them, as JSON."""
        log = self.log
        # An optimised write would put a shuffle above the frame's last stage. Acks would then come from other attempts
        # than the written rows.
        options = log._delta.DeltaOptions(
            log._scala_map({"optimizeWrite": "false"}), log._jspark.sessionState().conf()
        )
        actions = self._txn.writeFiles(frame._jdf, log._jvm.scala.Some(options))
        return [actions.apply(k).json() for k in range(actions.size())]

    def going_back(self, version: int) -> list[str]:
        """The actions that give the table the rows of an older version; -1 stands for no rows at all."""
        log = self.log
        current = {file_identity(file.add): file for file in log._files_of(self._txn.snapshot())}
        older = {file_identity(a): a for a in (log.files_at(version) if version >= 0 else [])}
        removed = self.removing([file for key, file in current.items() if key not in older])
        added = [
            json.dumps({"add": {**a, "dataChange": True}}) for key, a in older.items() if key not in current
        ]
        return [*removed, *added]

    @internal(
        f"{_DELTA}.OptimisticTransaction.updateMetadataForNewTable(Metadata)",
    )
    def create_as(self, metadata: Mapping[str, Any]) -> None:
        """Makes a new table with the schema, partitioning and properties of another one."""
        kept = {name: value for name, value in metadata["configuration"].items() if name not in _TIMES_BEGIN}
        own = {
            **metadata,
            "id": str(uuid.uuid4()),
            "createdTime": self.log.now(),
            "configuration": kept,
        }
        self._txn.updateMetadataForNewTable(self.log._parsed(json.dumps({"metaData": own})))

    @internal(
        f"{_DELTA}.DeltaOperations$Clone(String, long)",
        f"{_DELTA}.OptimisticTransaction.commit(Seq, DeltaOperations$Operation)",
    )
    def commit_copy(self, actions: Iterable[str], source: str, version: int) -> None:
        """Commits the actions as a CLONE, which names the table and version that they are copied from."""
        log = self.log
        operation = getattr(log._delta, "DeltaOperations$Clone")(source, version)
        self._txn.commit(log._scala_seq(log._parsed(a) for a in actions), operation)

    @internal(
        f"{_DELTA}.DeltaOperations$Restore(Option, Option)",
    )
    def commit_restore(self, actions: Iterable[str], version: int) -> None:
        """Commits the actions as a RESTORE, which is how the table's history shows them."""
        log = self.log
        some = log._jvm.scala.Some(version)
        operation = getattr(log._delta, "DeltaOperations$Restore")(some, log._none)
        self._txn.commit(log._scala_seq(log._parsed(a) for a in actions), operation)

    @internal(
        f"{_DELTA}.DeltaOperations$StreamingUpdate(OutputMode, String, long, Option)",
    )
    def commit(self, actions: Iterable[str], query: str, epoch: int, metrics: dict[str, int]) -> None:
        """Commits the actions as a STREAMING UPDATE."""
        log = self.log
        append = log._jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        operation = getattr(log._delta, "DeltaOperations$StreamingUpdate")(append, query, epoch, log._none)
        self._commit(actions, operation, metrics, adds=bool(metrics.get("numAddedFiles")))

    @internal(
        f"{_DELTA}.DeltaOperations$Merge(Option, Option, Option, Option, Seq, Seq, Seq)",
    )
    def commit_merge(self, actions: Iterable[str], metrics: dict[str, int]) -> None:
        """Commits the actions as a MERGE."""
        log = self.log
        nothing = log._scala_seq([])
        operation = getattr(log._delta, "DeltaOperations$Merge")(
            log._none, log._none, log._none, log._none, nothing, nothing, nothing
        )
        self._commit(actions, operation, metrics, adds=bool(metrics.get("numTargetFilesAdded")))

    @internal(
        f"{_DELTA}.OptimisticTransaction.registerSQLMetrics(SparkSession, Map)",
        f"{_DELTA}.OptimisticTransaction.registerPostCommitHook(PostCommitHook)",
        f"{_DELTA}.hooks.AutoCompact$.MODULE$",
        "org.apache.spark.sql.execution.metric.SQLMetrics$.createMetric(SparkContext, String)",
    )
    def _commit(self, actions: Iterable[str], operation: Any, metrics: dict[str, int], *, adds: bool) -> None:
        """Commits the actions with the figures that the table's history shows."""
        log = self.log
        scala = log._jspark.sparkContext()
        counters = {}
        for name, value in metrics.items():
            counters[name] = log._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(
                scala, name
            )
            counters[name].set(value)
        self._txn.registerSQLMetrics(log._jspark, log._scala_map(counters))
        if adds:
            # `writeFiles` registered it as well, but with the transaction of `prepare`.
            self._txn.registerPostCommitHook(getattr(getattr(log._delta.hooks, "AutoCompact$"), "MODULE$"))
        self._txn.commit(log._scala_seq(log._parsed(a) for a in actions), operation)


def file_identity(file: Mapping[str, Any]) -> tuple[str, str]:
    """Of a file that a commit adds or removes: the same path with another deletion vector holds other rows."""
    vector = file.get("deletionVector") or {}
    return str(file.get("path")), f"{vector.get('pathOrInlineDv', '')}:{vector.get('offset', '')}"
