"""Savepoints of a job: made from a complete checkpoint by a process of its own, beside the run or without one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stateflow.checkpoint.idempotency import pins_of, release_others
from stateflow.checkpoint.log import is_job
from stateflow.checkpoint.names import parse, slot_of
from stateflow.checkpoint.pins import list_pins, pinned, release
from stateflow.checkpoint.process import this_process
from stateflow.config.options import cache_folder
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, UsageError
from stateflow.format.layout import checked_name, default_savepoint
from stateflow.format.records import Owner, Savepoint
from stateflow.observe.status import decoded_offsets
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import (
    expired,
    is_whole,
    list_savepoints,
    read_savepoint,
    read_savepoint_claim,
    unfinished,
)
from stateflow.savepoints.location import require_fit
from stateflow.savepoints.native import create_native
from stateflow.savepoints.origin import newest_sinks
from stateflow.savepoints.publish import probe_elsewhere, require_vacant
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store

if TYPE_CHECKING:
    from stateflow.checkpoint.handle import JobHandle
    from stateflow.config.options import Options

_log = logging.getLogger(__name__)

SavepointKind = Literal["native", "canonical"]
Progress = Callable[[str, int, int], object]
"""progress(what, done, total): bytes, or key groups."""


@dataclass(frozen=True)
class SavepointRequest:
    """Which savepoint to make of which checkpoint, and where."""

    job: JobHandle
    options: Options
    owner: Owner
    kind: SavepointKind = "native"
    checkpoint: str = "latest"
    """latest, N, checkpoint:N or tag:NAME."""
    to: str = ""
    """URL or folder of its own; empty: `_savepoints/<job>/<name>` in the job's root."""
    name: str = ""
    note: str = ""
    expires: timedelta | None = None
    """Time after which a clean-up may dispose of it."""
    max_files: int = 0
    """Native: pack small files until so many objects are left; 0 leaves every file on its own."""
    split_size: int = 512 << 20
    """Canonical: state that one task writes."""
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MadeSavepoint:
    url: str
    savepoint: Savepoint

    def __repr__(self) -> str:
        made = self.savepoint
        return f"MadeSavepoint({self.url!r}: {made.kind}, checkpoint {made.record.slot} of job {made.job!r})"


def create_savepoint(
    request: SavepointRequest, progress: Progress = lambda what, done, total: None
) -> MadeSavepoint:
    """Nothing is visible before it is whole. The checkpoint is pinned meanwhile, so no collection harms it."""
    job = request.job
    log = job.log()
    slot = slot_of(parse(request.checkpoint), job, log)
    record = log.record(slot)
    name = checked_name("savepoint", request.name or f"{request.kind}-{slot}-{job.new_id()[:8]}")
    url = request.to or f"{job.root.rstrip('/')}/{default_savepoint(job.name, name)}"
    target = open_store(url, job.storage_options)
    require_fit(target.url, job.store.url, job.name, lambda folder: is_job(job.store, folder))
    if (stands := _made_before(request, target)) is not None:
        return MadeSavepoint(target.url, stands)
    require_vacant(target)
    probe_elsewhere(target, job.store.url, job.new_id)
    facts: dict[str, Any] = {
        "name": name,
        "owner": request.owner,
        "note": request.note,
        "ids": job.new_id,
        "clock": job.clock,
        "expires": job.clock() + request.expires // timedelta(microseconds=1) if request.expires else None,
        "offsets": {uid: decoded_offsets(state) for uid, state in record.sources.items()},
        "targets": {uid: prepared.target for uid, prepared in newest_sinks(log).items()},
        "progress": progress,
    }
    with pinned(
        job.store,
        job.layout,
        slot,
        kind="savepoint",
        owner=request.owner,
        ids=job.new_id,
        clock=job.clock,
        reason=f"{request.kind} savepoint {name}",
    ) as mine:
        release_others(job.store, job.layout, mine)
        if request.kind == "native":
            made = create_native(
                job.store,
                job.layout,
                record,
                target,
                max_files=request.max_files,
                open_base=lambda base: open_store(base, job.storage_options),
                scratch=Path(request.options.scratch_dir or cache_folder() / "scratch"),
                **facts,
            )
        else:
            from stateflow.spark.session.build import build_session
            from stateflow.spark.state_tables.canonical import create_canonical

            spark = build_session(f"stateflow savepoint {job.name}", conf=dict(request.conf))
            made = create_canonical(
                spark,
                root_url=job.root,
                job=job.name,
                record=record,
                target_url=url,
                storage_options=job.storage_options,
                split_bytes=request.split_size,
                max_tasks=max(o.max_parallelism for o in record.operators.values())
                if record.operators
                else 1,
                options=request.options,
                **facts,
            )
    return MadeSavepoint(target.url, made)


def _made_before(request: SavepointRequest, target: Store) -> Savepoint | None:
    """The savepoint that an earlier try with the same idempotency key has made there. Deletes what a killed try left."""
    job, owner = request.job, request.owner
    left = pins_of(job.store, job.layout, owner.run)
    try:
        stands = read_savepoint(target)
    except NotFoundError:
        if left:
            with suppress(
                NotFoundError, UsageError
            ):  # nothing was stored yet, or that try has just made it after all
                dispose_savepoint(target, owner=owner, clock=job.clock, expect="")
        return None
    except (CorruptError, IncompatibleError):
        return None  # not ours, then
    if stands.owner.run != owner.run or (
        (claim := read_savepoint_claim(target)) is not None and not claim.job
    ):
        return None
    if not is_whole(target, stands):
        # That try was killed between making it visible and finding out that its files were disposed of meanwhile.
        with suppress(NotFoundError):
            dispose_savepoint(target, owner=owner, clock=job.clock, expect=stands.id)
        return None
    for pin in left:
        release(job.store, job.layout, pin.id)
    return stands


def expired_savepoints(job: JobHandle) -> list[str]:
    """URLs of the job's savepoints in its root whose time is over and that nobody has claimed."""
    return list(_expired(job))


def _expired(job: JobHandle) -> dict[str, str]:
    """The same, each with the savepoint's id."""
    now = job.clock()
    return {
        f"{job.store.url}/{path}": listed.savepoint.id
        for path, listed in list_savepoints(job.store, job.name)
        if listed.savepoint is not None and listed.claim is None and expired(listed.savepoint, now)
    }


def dispose_expired(job: JobHandle) -> dict[str, int]:
    """Deletes them; gives the bytes of each."""
    return _disposed_of(job, _expired(job))


def unfinished_savepoints(job: JobHandle) -> list[str]:
    """URLs in the job's root where the making or the disposal of a savepoint was cut off: nobody sees what lies there.

    None as long as one is being made: its maker holds a pin from before its first file to after its `_metadata`. So they
    are listed before the pins, and again after them.
    """
    before = unfinished(job.store, job.name)
    if not before or any(pin.kind == "savepoint" for pin in list_pins(job.store, job.layout)):
        return []
    return [f"{job.store.url}/{path}" for path in unfinished(job.store, job.name) if path in before]


def dispose_unfinished(job: JobHandle) -> dict[str, int]:
    """Deletes them; gives the bytes of each."""
    return _disposed_of(job, dict.fromkeys(unfinished_savepoints(job), ""))


def _disposed_of(job: JobHandle, found: Mapping[str, str]) -> dict[str, int]:
    """By URL the savepoint that was listed, or nothing. What has become another since, or somebody's, is passed over."""
    freed = {}
    for url, listed in found.items():
        store = open_store(url, job.storage_options)
        try:
            freed[url] = dispose_savepoint(
                store, owner=this_process(run=job.new_id()), clock=job.clock, expect=listed
            )
        except NotFoundError:
            pass  # others were faster
        except UsageError as error:
            _log.warning("%s was passed over: %s", url, error)
    return freed
