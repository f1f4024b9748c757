"""A restore's request, its plan and its result: plain data."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stateflow.checkpoint.handle import JobHandle
from stateflow.compatibility.flows import Check, Counts
from stateflow.config.options import Options
from stateflow.format.records import Owner
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.pipeline import Pipeline
from stateflow.restore.parameters import ParameterRestore
from stateflow.restore.readers import Reader
from stateflow.savepoints.origin import Origin

ClaimMode = Literal["no_claim", "claim"]
Progress = Callable[[str, int, int], object]
"""progress(what, done, total), in bytes."""


@dataclass(frozen=True)
class SourceRestore:
    uid: str
    verdict: Literal["resumes", "new", "dropped"]
    position: str
    now: str
    """The job's position at the moment."""
    kind: str = ""
    """delta, file, kafka or other; empty for a new source that is no table."""
    reads: str = ""
    """The table's path, if it is a table."""


@dataclass(frozen=True)
class SinkRestore:
    uid: str
    target: str
    action: Literal["rewinds", "keeps", "starts", "copies"]
    note: str
    kind: str
    """The sink's mode: append, upsert, function or collect."""
    cloned: bool = False
    """Whether a fork can begin with a copy of its target."""
    before: str = ""
    """The table that the job has written to so far, if it is not `target`: a rewind takes back output there."""
    back_to: int | None = None
    """For a sink that rewinds: the last slot whose output stays; None when no output of this job stays."""
    again: bool = False
    """Whether the sink will receive again what followed the snapshot."""
    copy_of: str = ""
    """For a sink that copies, the origin's table."""
    copy_version: int | None = None
    """The version of that table that belongs to the snapshot."""


@dataclass(frozen=True)
class RestoreRequest:
    """What to restore, how, and who asks."""

    job: JobHandle
    pipeline: Pipeline
    origin: Origin
    options: Options
    parameters: Mapping[str, Any] = field(default_factory=dict)
    claim_mode: ClaimMode = "no_claim"
    rewind_sinks: bool = False
    clone_sinks: bool = False
    """Whether a fork begins with copies of the origin's tables."""
    with_readers: bool = False
    """Whether the jobs that have read what is undone go back, too: each by a restore of its own."""
    together: str = ""
    """The digest of the restore of several jobs to which this restore belongs. The record notes it, so that a repetition finds
    what is done."""
    reset_watermark: bool = False
    parallelism: int = 0
    max_parallelism: int = 0
    takeover: bool = False
    approved: str | None = None
    """The digest of the approved plan. The restore refuses any other plan."""
    owner: Owner = field(default_factory=lambda: Owner(run=uuid.uuid4().hex))
    conf: Mapping[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)
    """The entries of each state, if somebody has counted them. The tables of a canonical savepoint say it themselves."""


@dataclass(frozen=True)
class Restored:
    """What a restore has done."""

    job: str
    checkpoint: int
    timeline: int
    copied_bytes: int
    sinks: Mapping[str, str]
    """Per rewound sink what became of it."""


@dataclass(frozen=True)
class Plan:
    """What a restore would do; `RestorePlan` does it."""

    request: RestoreRequest
    new_job: bool
    job_uuid: str
    """Tells jobs of one name apart; empty until the job has a checkpoint."""
    timeline: int
    values: Mapping[str, Any] = field(repr=False)
    """The parameters that build the pipeline, and that the record keeps."""
    parameters: tuple[ParameterRestore, ...]
    check: Check
    sources: tuple[SourceRestore, ...]
    sinks: tuple[SinkRestore, ...]
    files: int
    bytes: int
    warnings: tuple[str, ...]
    readers: tuple[Reader, ...] = ()
    """The jobs of the root that have read what would be undone in the outputs."""

    @property
    def copies(self) -> bool:
        """Whether the restore copies files into the job's own folder."""
        origin, request = self.request.origin, self.request
        if origin.canonical:
            return True
        if origin.savepoint is not None:
            return request.claim_mode == "no_claim"
        return origin.owner is not None and not same_job(origin.owner, request.job)


def table_path(target: object) -> str:
    """The name that a catalog has for a table, else its path, as people read it and Spark opens it. Two of them are compared by `stateflow.pipelines.inputs.places`."""
    if isinstance(target, DeltaTable) and target.name:
        return target.name
    path = str(getattr(target, "path", target))
    return path if "://" in path else os.path.normpath(Path(path.removeprefix("file:")).absolute())


def same_job(one: JobHandle, other: JobHandle) -> bool:
    return one.store.url == other.store.url and one.name == other.name
