"""The feeds of an operator's states, as its tasks make them: of each shard the entries that the batch has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateflow.format.records import StateSchema
from stateflow.operators.context import Moment
from stateflow.state.backends.base import Backend
from stateflow.state.backends.watched import WatchedBackend
from stateflow.state.change_rows import ChangeRows, changed, todays_values
from stateflow.state.values.serializers import Serializer

ROWS = 100_000
"""Most rows that become columns at once."""


@dataclass(frozen=True)
class TaskFeed:
    """What a task needs to know of one feed."""

    output: str
    key: tuple[tuple[str, str], ...]
    state: str
    schema: StateSchema
    """As the record has it, with its id."""
    columns: pa.Schema
    """Of the rows, as Spark has them."""


class StateFeeds:
    """All feeds of a task."""

    def __init__(
        self,
        feeds: Sequence[TaskFeed],
        moment: Moment,
        serializer: Callable[[str], Serializer | None],
    ) -> None:
        self._moment = moment
        self._feeds = [
            (
                feed,
                ChangeRows(feed.key, feed.state, feed.schema),
                *todays_values(feed.schema, serializer(feed.state)),
            )
            for feed in feeds
        ]

    def watch(self, backend: Backend) -> WatchedBackend:
        """The shard as the operator is to see it."""
        return WatchedBackend(backend, [feed.schema.id for feed, *_ in self._feeds])

    def put_out(self, shard: WatchedBackend, files: Mapping[str, Any]) -> None:
        """Writes the rows of a shard that the operator has left."""
        moment = self._moment
        for feed, rows, todays, same in self._feeds:
            changes = changed(shard.written(feed.schema.id), todays, same)
            for part in changes.parts(ROWS):
                batch = rows.rows(part, moment.slot + moment.shift, moment.now)
                columns = [
                    column.cast(field.type) for column, field in zip(batch.columns, feed.columns, strict=True)
                ]
                files[feed.output].write(pa.RecordBatch.from_arrays(columns, schema=feed.columns))
