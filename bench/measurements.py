"""All measurements, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping

from bench import (
    airflow_parsing,
    beside,
    big_state,
    cold_start,
    collection,
    combiner,
    endurance,
    event_time,
    evolving,
    expiry,
    export,
    flights,
    kafka_sink,
    locality,
    many_runs,
    memory,
    nexmark_beside,
    one_row,
    past,
    plugin,
    python_peers,
    query,
    ready,
    rescale,
    run_operator,
    small_batches,
    snapshots,
    start,
    throughput,
    tricks,
    uploads,
    warm,
)
from bench.measurement import Measurement

MEASUREMENTS: Mapping[str, Measurement] = {
    measurement.name: measurement
    for measurement in (
        throughput.MEASUREMENT,
        event_time.MEASUREMENT,
        ready.MEASUREMENT,
        combiner.MEASUREMENT,
        nexmark_beside.MEASUREMENT,
        python_peers.MEASUREMENT,
        kafka_sink.MEASUREMENT,
        small_batches.MEASUREMENT,
        one_row.MEASUREMENT,
        big_state.MEASUREMENT,
        flights.MEASUREMENT,
        uploads.MEASUREMENT,
        memory.MEASUREMENT,
        locality.MEASUREMENT,
        endurance.MEASUREMENT,
        query.MEASUREMENT,
        past.MEASUREMENT,
        rescale.MEASUREMENT,
        cold_start.MEASUREMENT,
        evolving.MEASUREMENT,
        expiry.MEASUREMENT,
        snapshots.MEASUREMENT,
        export.MEASUREMENT,
        collection.MEASUREMENT,
        beside.MEASUREMENT,
        plugin.MEASUREMENT,
        airflow_parsing.MEASUREMENT,
        start.MEASUREMENT,
        warm.MEASUREMENT,
        many_runs.MEASUREMENT,
        run_operator.MEASUREMENT,
        tricks.MEASUREMENT,
    )
}
