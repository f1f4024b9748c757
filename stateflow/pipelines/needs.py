"""What the targets and sources of a flow need in the process of a run: a package, a variable, a file with a connection."""

from __future__ import annotations

from collections.abc import Iterator

from stateflow.errors import UsageError
from stateflow.pipelines.flow import Flow


def unmet_needs(flow: Flow) -> Iterator[UsageError]:
    """An error for each need that this process does not meet, as a run raises it and a check warns of it."""
    for source in flow.sources:
        try:
            source.factory.require()
        except UsageError as error:
            yield UsageError(f"source {source.uid!r}: {error}")
    for sink in flow.sinks:
        try:
            sink.sink_kind.require(sink.target)
        except UsageError as error:
            yield UsageError(f"sink {sink.uid!r}: {error}")
