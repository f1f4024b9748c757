"""Messages of Kafka that a job would go on at, and that are gone from their topics, seen without Spark: for a check, and for the plan of a restore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stateflow.errors import DisagreementError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.graph import SourceNode
from stateflow.spark.sources.kafka import check_kafka, parse, with_added


def lost_messages(sources: Iterable[SourceNode], recorded: Mapping[str, SourceState]) -> Iterator[str]:
    """A sentence for each source that a run would refuse for it. Nothing of one that nobody can ask from here."""
    for node in sources:
        state, topics = recorded.get(node.uid), node.factory.topics
        if state is None or state.kind != "kafka" or not topics or len(state.lines) != 1:
            continue
        if state.lines[0] == NOTHING or not (kept := node.factory.kept()):
            continue
        earliest = {at: first for at, (first, _) in kept.items()}
        latest = {at: end for at, (_, end) in kept.items()}
        here = {at: offset for at, offset in parse(state.lines[0]).items() if at[0] in topics}
        try:
            check_kafka(node.uid, with_added(here, earliest), earliest, latest)
        except DisagreementError as error:
            yield f"a run would not begin: {error}"
