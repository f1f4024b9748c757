"""What commits of sinks do and refuse, decided from what the table says: without Spark, on a table that is a fake."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from stateflow.errors import DisagreementError, FencedError, IncompatibleError
from stateflow.format.records import FileRef, Prepared
from stateflow.spark.internals.delta_log import LoggedFile, TableShape, file_identity
from stateflow.spark.sinks import delta_append, delta_table, delta_upsert, duplicates, function, memory
from stateflow.spark.sinks.base import BatchFunction, CommitRequest
from stateflow.spark.sinks.delta_rewrite import files_to_rewrite, is_plain
from stateflow.spark.sinks.fit import check_fit, column_marks
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import Staged
from stateflow.spark.sinks.table_rules import may_break
from stateflow.spark.sinks.upsert_options import UpsertOptions
from tests.refusals.refusal import refused

AT = SinkSlot("3f2b6c1e", "orders", "totals", 7, 2, record="w7", prev=6)
COLUMNS = StructType([StructField("id", LongType()), StructField("v", StringType())])
SHAPE = TableShape("t", COLUMNS, (), {}, (), "f")
ADD = json.dumps({"add": {"path": "a.parquet", "size": 9, "stats": '{"numRecords": 2}'}})


class ConcurrentAppendException(Exception):
    """As Delta's, by the name that `conflicted` looks for."""


ConcurrentAppendException.__module__ = "delta.exceptions"


@dataclass
class Table:
    """A Delta table as far as a commit sees it."""

    slot: int | None = 6
    mark: int | None = None
    shape: TableShape = SHAPE
    gone: list[str] = field(default_factory=list)
    conflicts: int = 0
    committed: list[list[str]] = field(default_factory=list)

    def log(self, spark: Any, prepared: Prepared) -> Table:
        return self

    def begin(self) -> Transaction:
        return Transaction(self)

    def missing(self, adds: Any) -> list[str]:
        return self.gone

    def now(self) -> int:
        return 1


@dataclass
class Transaction:
    table: Table

    def slot_of(self, app_id: str) -> int | None:
        return {AT.app_id: self.table.slot, AT.mark_id: self.table.mark}[app_id]

    def shape(self) -> TableShape:
        return self.table.shape

    def commit(self, actions: list[str], query: str, epoch: int, metrics: Mapping[str, int]) -> None:
        if self.table.conflicts:
            self.table.conflicts -= 1
            raise ConcurrentAppendException
        self.table.committed.append(list(actions))


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    made = Table()
    monkeypatch.setattr(delta_table, "log_of", made.log)
    return made


def requested(
    prepared: Prepared,
    at: SinkSlot = AT,
    still_owner: Callable[[], None] = lambda: None,
    function: BatchFunction | None = None,
) -> CommitRequest:
    return CommitRequest(prepared, at, None, Files(), still_owner, function)  # type: ignore[arg-type]


def appended(table: Table, still_owner: Callable[[], None] = lambda: None) -> str:
    payload = {
        "actions": [ADD], "table": "t", "fingerprint": "f", "partition_by": [], "columns": ["id", "v"],
        "marks": column_marks(SHAPE, ["id", "v"]), "exactly_once": True,
    }  # fmt: skip
    prepared = Prepared(kind="delta_append", target="/out", prev=6, payload=payload, rows=2)
    return delta_append.DeltaAppend.commit(requested(prepared, still_owner=still_owner))


def merged(table: Table) -> str:
    payload = {
        "table": "t", "schema": COLUMNS.json(), "marks": column_marks(SHAPE, ["id", "v"]), "keys": ["id"], "order_by": [],
        "exactly_once": True,
    }  # fmt: skip
    files = (FileRef("part.parquet", 9, "x", "part.parquet"),)
    prepared = Prepared(kind="delta_upsert", target="/out", prev=6, payload=payload, files=files, rows=2)
    return delta_upsert.DeltaUpsert.commit(requested(prepared))


def test_a_slot_is_committed_once_and_with_its_number(table: Table) -> None:
    assert appended(table) == "committed"
    [actions] = table.committed
    mark = {"appId": AT.mark_id, "version": AT.mark, "lastUpdated": 1}
    assert json.loads(actions[0]) == json.loads(ADD)
    assert json.loads(actions[1]) == {"txn": {"appId": AT.app_id, "version": 7, "lastUpdated": 1}}
    assert json.loads(actions[2]) == {"txn": mark}
    # A MERGE leaves no mark, or that of an earlier slot.
    for table.slot, table.mark in ((7, AT.mark), (7, None), (7, replace(AT, slot=6).mark)):
        assert appended(table) == "already"
        assert merged(table) == "already"
    assert len(table.committed) == 1


def test_a_slot_that_another_record_has_taken_is_refused(table: Table) -> None:
    """As of a log that was put back from a copy, or goes on in two copies."""
    for table.slot, table.mark in (
        (7, replace(AT, record="w8").mark),
        (8, replace(AT, slot=8).mark),
        (9, None),
    ):
        for commit in (appended, merged):
            with refused(DisagreementError, "put back from a copy"):
                commit(table)
    assert table.committed == []


def test_a_run_that_was_fenced_hears_of_that_alone(table: Table) -> None:
    def fenced() -> None:
        raise FencedError("epoch 3 has taken over")

    table.slot = 8
    with pytest.raises(FencedError):
        appended(table, fenced)


def test_a_table_of_another_slot_is_refused_before_and_after_the_decision(table: Table) -> None:
    table.slot = 5
    for commit in (appended, merged):
        with refused(DisagreementError, "has slot 5"):
            commit(table)
    with refused(DisagreementError, "has slot 5"):
        AT.refuse_disagreement("Delta table /out", 5)
    replace(AT, prev=5).refuse_disagreement("Delta table /out", 5)
    for slot in (7, 8):
        with refused(DisagreementError, "put back from a copy"):
            AT.refuse_disagreement("Delta table /out", slot)


def test_after_a_conflict_only_the_owner_goes_on(table: Table) -> None:
    table.conflicts = 1
    asked = []
    assert appended(table, lambda: asked.append(1)) == "committed"
    assert asked == [1]
    table.conflicts, table.committed = 1, []

    def replaced() -> None:
        raise FencedError("epoch 3 has taken over")

    with pytest.raises(FencedError):
        appended(table, replaced)
    assert table.committed == []


def test_a_table_that_is_another_one_now_gets_no_rows(table: Table) -> None:
    table.shape = replace(SHAPE, id="other")
    for commit in (appended, merged):
        with refused(DisagreementError, "was recreated"):
            commit(table)
    table.shape, table.gone = SHAPE, ["a.parquet"]
    with refused(DisagreementError, "are gone"):
        appended(table)
    assert table.committed == []


def test_a_column_that_means_something_else_now_gets_no_rows(table: Table) -> None:
    moved = StructField("v", StringType(), metadata={"delta.columnMapping.physicalName": "col-9"})
    table.shape = replace(SHAPE, schema=StructType([COLUMNS[0], moved]), fingerprint="g")
    with refused(DisagreementError, "columns v of"):
        appended(table)
    with refused(DisagreementError, "columns of", "changed"):
        merged(table)
    assert table.committed == []


def test_a_job_of_the_same_name_is_another_writer() -> None:
    assert AT.app_id != replace(AT, job="9d1c44aa").app_id
    assert AT.app_id == replace(AT, slot=8, epoch=5, job_name="renamed").app_id


def test_memory_takes_a_slot_of_a_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import base64

    import pyarrow as pa

    buffer = pa.BufferOutputStream()
    rows = pa.table({"n": [1]})
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    payload = {"arrow": base64.b64encode(buffer.getvalue()).decode()}
    table = memory.memory("taken once")
    table.clear()
    prepared = Prepared(kind="memory", target=table.name, prev=None, payload=payload, rows=1)

    def commit(at: SinkSlot) -> str:
        return memory.MemorySink.commit(requested(prepared, at))

    other = replace(AT, job="9d1c44aa")
    assert [commit(AT), commit(AT), commit(other)] == ["committed", "already", "committed"]
    assert table.rows == [{"n": 1}, {"n": 1}]


class Files:
    """A stager whose rows nobody looks at."""

    def read(self, spark: Any, refs: Any, schema: Any) -> None:
        return None


def test_a_function_is_called_by_the_owner_alone() -> None:
    calls: list[Any] = []
    files = (FileRef("part.parquet", 9, "x", "part.parquet"),)
    prepared = Prepared(
        kind="function", target="f", prev=None, payload={"schema": COLUMNS.json()}, files=files
    )

    def deliver(frame: Any, checkpoint: Any) -> None:
        calls.append(checkpoint)

    def replaced() -> None:
        raise FencedError("epoch 3 has taken over")

    with pytest.raises(FencedError):
        function.FunctionSink.commit(requested(prepared, AT, replaced, deliver))
    assert calls == []
    assert function.FunctionSink.commit(requested(prepared, function=deliver)) == "committed"
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (StructType([*COLUMNS, StructField("more", LongType())]), "'more' is not in the table"),
        (StructType([COLUMNS[0], StructField("ID", LongType())]), "'ID' comes twice"),
        (StructType([COLUMNS[0]]), "'v' is missing and NOT NULL there"),
        (
            StructType([StructField("id", StringType()), COLUMNS[1]]),
            "'id' is string, there bigint",
        ),
        (StructType([StructField("id", DateType()), COLUMNS[1]]), "'id' is date, there bigint"),
    ],
)
def test_rows_that_do_not_fit_a_table_are_refused(columns: StructType, message: str) -> None:
    strict = StructType([StructField("id", LongType()), StructField("v", StringType(), nullable=False)])
    shape = replace(SHAPE, schema=strict)
    with pytest.raises(IncompatibleError, match=message):
        check_fit(columns, shape, "Delta table /out", "delta.`/out`")
    check_fit(
        StructType([StructField("id", IntegerType()), COLUMNS[1]]), shape, "Delta table /out", "delta.`/out`"
    )


def test_a_null_in_a_key_is_refused_before_the_decision() -> None:
    files = (FileRef("part.parquet", 9, "x", "part.parquet"),)
    given: Any = (SimpleNamespace(sparkSession=None, schema=COLUMNS), AT, Files())
    with refused(IncompatibleError, "1 of the rows", "a null in the key column 'ID'"):
        UpsertOptions("/out", ("ID",), ("v",)).refuse(Staged(files, 1, {"id": 1}), *given)
    UpsertOptions("/out", ("ID",), ("v",)).refuse(Staged(files, 1, {"id": 0, "v": 1}), *given)


def test_rows_that_may_break_the_table_are_looked_at_before_the_decision() -> None:
    assert not may_break({"id": 0, "v": 1}, SHAPE)
    strict = StructType([COLUMNS[0], StructField("v", StringType(), nullable=False)])
    assert may_break({"id": 0, "v": 1}, replace(SHAPE, schema=strict))
    checked = replace(SHAPE, configuration={"delta.constraints.positive": "id > 0"})
    assert may_break({"id": 0}, checked)


def test_a_key_twice_without_an_order_is_refused_before_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "first_duplicate", lambda *_: ((1,), 2))
    staged = Staged((FileRef("part.parquet", 9, "x", "part.parquet"),), 2)
    given: Any = (staged, SimpleNamespace(sparkSession=None, schema=COLUMNS), AT, Files())
    with refused(IncompatibleError, "2 rows of one batch", "have the key id=1"):
        UpsertOptions("/out", ("id",)).refuse(*given)
    UpsertOptions("/out", ("id",), ("v",)).refuse(*given)


def test_what_only_delta_keeps_is_left_to_its_merge() -> None:
    assert is_plain(SHAPE, ["id", "v"])
    assert is_plain(replace(SHAPE, configuration={"delta.enableChangeDataFeed": "true"}), ["id", "v"])
    for other in (
        replace(SHAPE, features=("appendOnly", "rowTracking")),
        replace(SHAPE, schema=StructType([*COLUMNS, StructField("more", LongType())])),
        replace(
            SHAPE,
            schema=StructType(
                [COLUMNS[0], StructField("v", StringType(), metadata={"delta.generationExpression": "1"})]
            ),
        ),
    ):
        assert not is_plain(other, ["id", "v"])


def test_a_file_with_a_deletion_vector_is_left_to_deltas_merge() -> None:
    plain = LoggedFile({"path": "a", "size": 9}, None)
    assert files_to_rewrite([plain], 1) == [plain]
    assert (
        files_to_rewrite([plain, LoggedFile({"path": "b", "size": 9, "deletionVector": {}}, None)], 1) is None
    )


def test_a_file_whose_rows_are_deleted_otherwise_is_another_one() -> None:
    """Else a table that goes back would keep what was deleted since."""
    vectors = [
        {},
        {"deletionVector": {"pathOrInlineDv": "x", "offset": 1}},
        {"deletionVector": {"pathOrInlineDv": "y"}},
    ]
    assert len({file_identity({"path": "a", **vector}) for vector in vectors}) == 3
