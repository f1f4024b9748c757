"""What a connector is written with: sources and kinds of sinks for other systems, as packages of their own. docs/connectors.md shows both.

This list is all that a connector imports of the library; the library's own do, too. A name is loaded when it is first used, so that
a pipeline which names a target pays for no Spark.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from stateflow.connectors.extras import required
    from stateflow.connectors.tries import trying_again
    from stateflow.errors import (
        CorruptError,
        DisagreementError,
        FencedError,
        IncompatibleError,
        NotFoundError,
        StateflowError,
        UnavailableError,
        UsageError,
    )
    from stateflow.format.records import FileRef, Prepared
    from stateflow.masking import hidden, is_secret
    from stateflow.names import suggestion
    from stateflow.operators.arrow_types import arrow_type
    from stateflow.pipelines.changes import DELETE, UPSERT
    from stateflow.pipelines.inputs.connection import check_connection, properties_of
    from stateflow.pipelines.inputs.files import Files
    from stateflow.pipelines.inputs.input import PARTITION, Declarable
    from stateflow.pipelines.inputs.places import canonical
    from stateflow.pipelines.inputs.reader_options import READERS, check_reader_options
    from stateflow.pipelines.inputs.recent_texts import RecentTexts
    from stateflow.pipelines.inputs.source import Position, Source
    from stateflow.pipelines.rows.as_json import as_json, check_as_json, from_json, value_as_json
    from stateflow.pipelines.rows.former_names import as_of_today, columns_to_read, former_names
    from stateflow.pipelines.rows.misfits import Misfits, Reading
    from stateflow.pipelines.rows.row_type import Field, RowType, quoted, row_type, text_in_sql
    from stateflow.pipelines.rows.type_text import fields_of, inside_of, parts_of_schema
    from stateflow.pipelines.sink_kinds import (
        GETS_NEW_ROWS,
        SinkKind,
        check_upsert,
        for_reading,
        names_of,
        require_columns,
        upsert_kind,
    )
    from stateflow.spark.sinks.base import BatchFunction, CommitRequest, Committed, DeliveryMode, Sink
    from stateflow.spark.sinks.duplicates import first_duplicate
    from stateflow.spark.sinks.slot import SinkSlot
    from stateflow.spark.sinks.staging import Staged, Stager, staged_schema
    from stateflow.spark.sinks.task_writer import TaskWriter
    from stateflow.spark.sinks.upsert_options import UpsertOptions
    from stateflow.spark.task.failures import task_error
    from stateflow.storage.roots import open_store
    from stateflow.storage.store import Store, create_once

__all__ = [
    "DELETE",
    "GETS_NEW_ROWS",
    "PARTITION",
    "READERS",
    "UPSERT",
    "BatchFunction",
    "CommitRequest",
    "Committed",
    "CorruptError",
    "Declarable",
    "DeliveryMode",
    "DisagreementError",
    "FencedError",
    "Field",
    "FileRef",
    "Files",
    "IncompatibleError",
    "Misfits",
    "NotFoundError",
    "Position",
    "Prepared",
    "Reading",
    "RecentTexts",
    "RowType",
    "Sink",
    "SinkKind",
    "SinkSlot",
    "Source",
    "Staged",
    "Stager",
    "StateflowError",
    "Store",
    "TaskWriter",
    "UnavailableError",
    "UpsertOptions",
    "UsageError",
    "arrow_type",
    "as_json",
    "as_of_today",
    "canonical",
    "check_as_json",
    "check_connection",
    "check_reader_options",
    "check_upsert",
    "columns_to_read",
    "create_once",
    "fields_of",
    "first_duplicate",
    "for_reading",
    "former_names",
    "from_json",
    "hidden",
    "inside_of",
    "is_secret",
    "names_of",
    "open_store",
    "parts_of_schema",
    "properties_of",
    "quoted",
    "require_columns",
    "required",
    "row_type",
    "staged_schema",
    "suggestion",
    "task_error",
    "text_in_sql",
    "trying_again",
    "upsert_kind",
    "value_as_json",
]

_ROOMS = {
    "stateflow.connectors.extras": ("required",),
    "stateflow.connectors.tries": ("trying_again",),
    "stateflow.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "stateflow.format.records": ("FileRef", "Prepared"),
    "stateflow.masking": ("hidden", "is_secret"),
    "stateflow.names": ("suggestion",),
    "stateflow.pipelines.changes": ("DELETE", "UPSERT"),
    "stateflow.pipelines.inputs.connection": ("check_connection", "properties_of"),
    "stateflow.pipelines.inputs.files": ("Files",),
    "stateflow.pipelines.inputs.input": ("PARTITION", "Declarable"),
    "stateflow.pipelines.inputs.places": ("canonical",),
    "stateflow.pipelines.inputs.reader_options": ("READERS", "check_reader_options"),
    "stateflow.pipelines.inputs.recent_texts": ("RecentTexts",),
    "stateflow.pipelines.inputs.source": ("Position", "Source"),
    "stateflow.pipelines.rows.as_json": ("as_json", "check_as_json", "from_json", "value_as_json"),
    "stateflow.pipelines.rows.former_names": ("as_of_today", "columns_to_read", "former_names"),
    "stateflow.pipelines.rows.misfits": ("Misfits", "Reading"),
    "stateflow.pipelines.rows.row_type": (
        "Field",
        "RowType",
        "quoted",
        "row_type",
        "text_in_sql",
    ),
    "stateflow.pipelines.rows.type_text": ("fields_of", "inside_of", "parts_of_schema"),
    "stateflow.operators.arrow_types": ("arrow_type",),
    "stateflow.spark.task.failures": ("task_error",),
    "stateflow.pipelines.sink_kinds": (
        "GETS_NEW_ROWS",
        "SinkKind",
        "check_upsert",
        "for_reading",
        "names_of",
        "require_columns",
        "upsert_kind",
    ),
    "stateflow.spark.sinks.base": (
        "BatchFunction",
        "Committed",
        "CommitRequest",
        "DeliveryMode",
        "Sink",
    ),
    "stateflow.spark.sinks.duplicates": ("first_duplicate",),
    "stateflow.spark.sinks.slot": ("SinkSlot",),
    "stateflow.spark.sinks.staging": ("Staged", "Stager", "staged_schema"),
    "stateflow.spark.sinks.task_writer": ("TaskWriter",),
    "stateflow.spark.sinks.upsert_options": ("UpsertOptions",),
    "stateflow.storage.roots": ("open_store",),
    "stateflow.storage.store": ("Store", "create_once"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _ROOM_OF:
            raise AttributeError(f"module 'stateflow.connectors' has no attribute {name!r}")
        value = getattr(import_module(_ROOM_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
