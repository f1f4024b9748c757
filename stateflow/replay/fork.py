"""Where a replay writes: files of its own in the job's root, which go when it ends. It copies nothing.

State that the batches leave alone stays where it is. So the records of a replay name the job's files and the fork's, and only
the process that replays has them.

A fork has the name of a pin, which is there before the fork and goes after it. So whoever finds a fork without its pin, on any
host, knows that nobody will take it away any more. An erasure waits until the pins of older checkpoints are gone, and then
removes such forks, since they may have bytes of the key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.pins import pin, release
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.processes import has_ended, process_start
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.layout import REPLAY_PREFIX, JobLayout, replay_owner
from stateflow.format.records import Owner, Record, decode, encode
from stateflow.liveness.stale_pins import release_stale
from stateflow.storage.store import Store, create_once

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fork:
    """A folder of the root that holds what the batches of one replay write."""

    store: Store
    layout: JobLayout

    @property
    def name(self) -> str:
        return self.layout.job

    def size(self) -> int:
        """The bytes that it has now."""
        return sum(entry.size for entry in self.store.list(self.layout.folder))


@contextmanager
def forked(job: JobHandle, records: Sequence[Record], owner: Owner) -> Iterator[Fork]:
    """A fork of the job. The records that it reads are kept from collection until the block ends."""
    release_stale(job.store, job.layout)
    sweep(job.store)
    with ExitStack() as until_the_end:
        pins = []
        for record in records:
            kept = pin(
                job.store, job.layout, record.slot, kind="reader", owner=owner, ids=job.new_id, clock=job.clock,
                reason="replay",
            )  # fmt: skip
            until_the_end.callback(release, job.store, job.layout, kept.id)
            pins.append(kept)
        fork = Fork(job.store, JobLayout(f"{REPLAY_PREFIX}{pins[0].id}"))
        create_once(job.store, replay_owner(fork.name), encode(owner))
        until_the_end.callback(_remove, job.store, fork.layout)
        yield fork


def _remove(store: Store, layout: JobLayout) -> None:
    """The owner's file goes last, so that a removal that is cut off can be continued."""
    last = replay_owner(layout.job)
    store.delete([entry.path for entry in store.list(layout.folder) if entry.path != last])
    store.delete([last])


def sweep(store: Store) -> list[str]:
    """Removes the forks of replays that died on this host, or whose pin was released; gives their names."""
    here, removed = this_process(), []
    for name in store.folders(""):
        if not name.startswith(REPLAY_PREFIX):
            continue
        path = replay_owner(name)
        try:
            owner = decode(store.read(path), Owner, path)
            if has_ended(owner, here, process_start) or not _is_pinned(store, name):
                _remove(store, JobLayout(name))
                removed.append(name)
        except NotFoundError:
            continue  # somebody else is removing it, or it is no fork
        except StateflowError as error:
            _log.warning("the folder %s, which a replay may have left, stays: %s", name, error)
    return removed


def _is_pinned(store: Store, name: str) -> bool:
    """Whether some job of the root has the pin that the fork is named after."""
    pin_id = name.removeprefix(REPLAY_PREFIX)
    return any(store.list(layout.pin(pin_id)) for layout in _possible_jobs(store))


def _possible_jobs(store: Store) -> Iterator[JobLayout]:
    """Of the folders of the root those that have the name of a job: savepoints are in one that has not."""
    for folder in store.folders(""):
        with suppress(UsageError):
            yield JobLayout(folder)
