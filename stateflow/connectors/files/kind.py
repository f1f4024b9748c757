"""The kind of sink that writes files into a folder, for those who know nothing of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.connectors import (
    GETS_NEW_ROWS,
    Files,
    RowType,
    SinkKind,
    UsageError,
    canonical,
    for_reading,
    properties_of,
)

WRITTEN = ("parquet", "json", "csv")


def _check(where: str, target: Files, options: Mapping[str, Any], rows: RowType | None) -> None:
    if target.format not in WRITTEN:
        raise UsageError(
            f"{where} cannot write the format {target.format!r}: say one of {', '.join(WRITTEN)}"
        )
    if target.per_batch is not None:
        raise for_reading(where, "per_batch", target)
    if target.connection and "://" not in canonical(target.path):
        raise UsageError(
            f"{where}: connection={target.connection!r} would do nothing, as {target.path} is a local folder: leave it out"
        )
    for name in target.options:
        raise for_reading(where, f"option {name!r}", target)


def credentials(path: str, connection: str) -> dict[str, str]:
    """Settings and credentials of the folder's store, as this process has them."""
    return properties_of(f"the folder {path}", connection, "region=eu-west-1")


APPEND = SinkKind(
    name="files_append",
    mode="append",
    takes="files(path, format)",
    accepts=lambda target: isinstance(target, Files),
    implementation="stateflow.connectors.files.sink:FilesAppend",
    made_by="files",
    check=_check,
    require=lambda target: credentials(target.path, target.connection),
    place=lambda target: canonical(target.path),
    shown=lambda target: target.path,
    dataset="file",
    tells_slot=True,
    changes="refused",
    rewound_as="files_rewind",
    starts=GETS_NEW_ROWS,
)
