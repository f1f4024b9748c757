"""All measurements, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping

from bench import big_state, endurance, locality, memory, one_row, small_batches, throughput, uploads
from bench.measurement import Measurement

MEASUREMENTS: Mapping[str, Measurement] = {
    measurement.name: measurement
    for measurement in (
        throughput.MEASUREMENT,
        small_batches.MEASUREMENT,
        one_row.MEASUREMENT,
        big_state.MEASUREMENT,
        uploads.MEASUREMENT,
        memory.MEASUREMENT,
        locality.MEASUREMENT,
        endurance.MEASUREMENT,
    )
}
