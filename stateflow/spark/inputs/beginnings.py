"""Where sources were told to begin: what does not count, or means something else than it says. A run reports it, since no row shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyspark.sql import SparkSession

from stateflow.format.records import SourceState
from stateflow.pipelines.graph import SourceNode


def tell_of_beginnings(
    spark: SparkSession,
    nodes: Iterable[SourceNode],
    recorded: Mapping[str, SourceState],
    found: Mapping[str, SourceState],
    warn: Callable[[str, str], None],
) -> None:
    """Reports a source that has read and says now that it begins elsewhere, and one that begins at its end since nothing is as late as it
    says. `recorded` has the sources that have read, and `found` where the others begin."""
    for node in nodes:
        now, before = node.factory.since, recorded.get(node.uid)
        if before is not None and before.since != now:
            was = f" ({before.since} before)" if before.since else ""
            warn(
                f"beginning of {node.uid}",
                f"source {node.uid!r}: {now or 'the default'} does not count any more as where it begins{was}: the "
                "job has read, and goes on at its position; give the source a new uid to let it begin there, or restore a checkpoint",
            )
        elif node.uid in found and now and node.factory.begins_at_end(spark, found[node.uid].lines[0]):
            warn(
                f"beginning of {node.uid}",
                f"source {node.uid!r}: no message of {node.factory} is as late as {now}; it begins at the end, and reads what comes from now on, "
                "whatever its time",
            )
