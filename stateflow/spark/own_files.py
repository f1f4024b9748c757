"""Checkpoints that share no file with earlier ones (`incremental=false`): whoever copies a root by hand needs one record's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stateflow.checkpoint.copying import copy_files
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.writer import Writer
from stateflow.format.layout import origin_of
from stateflow.format.records import FileRef, Owner
from stateflow.storage.store import Store


def with_own_files(
    draft: Draft, writer: Writer, store_of: Callable[[str], Store], *, ids: Callable[[], str], scratch: Path
) -> Draft:
    """The draft with copies in place of all files that earlier records or savepoints have, whose bytes count as its own, too.

    Inside one store a copy is a hard link, or the service makes it.
    """
    here = (writer.epoch, writer.next_slot)

    def is_of_others(ref: FileRef) -> bool:
        return bool(ref.base) or origin_of(ref.path) != here

    record = draft.record(
        job=writer.job, slot=writer.next_slot, epoch=writer.epoch, writer="", owner=Owner(run=""), at=0
    )
    own, copied = copy_files(record, writer, store_of, ids=ids, scratch=scratch, needs_copy=is_of_others)
    statistics = dict(draft.statistics)
    statistics["checkpointed_size"] = statistics.get("checkpointed_size", 0) + copied
    return msgspec.structs.replace(draft, operators=own.operators, sources=own.sources, statistics=statistics)
