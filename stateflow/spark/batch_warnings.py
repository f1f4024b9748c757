"""What a user should hear of a batch: columns without values, hot keys, odd event times, a clock that went back, rows that are late in
part, undone versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from stateflow.format.instants import CLOCKS_DIFFER
from stateflow.format.records import SourceState
from stateflow.pipelines.partly_late_rows import partly_late_rows, partly_late_warning
from stateflow.quantities import time_text
from stateflow.spark.batches.batch import Batch
from stateflow.spark.inputs.absent_columns import AbsentColumns
from stateflow.spark.inputs.foreign_changes import passed_sentences
from stateflow.spark.inputs.observations import Observation, early_times, times_to_come
from stateflow.spark.inputs.open_inputs import OpenInputs
from stateflow.spark.run_warnings import RunWarnings


@dataclass
class BatchWarnings:
    spark: SparkSession
    inputs: OpenInputs
    warnings: RunWarnings
    job: str
    _absent: AbsentColumns = field(init=False)
    _partly_late: Counter[str] = field(default_factory=Counter)
    """Rows by operator, of all batches of this run."""
    _told: int = 0
    """The slot of the batch that was looked at last."""

    def __post_init__(self) -> None:
        self._absent = AbsentColumns(self.spark, self.inputs, self.warnings.add)

    def warn_or_refuse(
        self,
        batch: Batch,
        observed: Mapping[str, Observation],
        positions: Mapping[str, SourceState],
        location: Path,
    ) -> None:
        """Warns of what the batch showed. IncompatibleError for a misspelt field, before the batch is decided."""
        attempt = batch.attempt
        slot = attempt.moment.slot
        if slot == self._told:
            return  # It is tried again, with the same rows, which would count twice.
        before = attempt.parent.sources if attempt.parent is not None else {}
        self._absent.check(observed, before, positions, location)
        for about, sentence in batch.warnings.items():
            self.warnings.add(about, sentence)
        for uid, hot in batch.hot_keys.items():
            self.warnings.add(f"hot key: {uid}", hot.sentence(uid), f"the key is {hot.key}")
        to_come = times_to_come(observed, attempt.moment.now, self.job)
        for about, sentence in (*early_times(observed), *to_come):
            self.warnings.add(about, sentence)
        if attempt.parent is not None and not attempt.input_free:
            folder = location.with_name(f"{location.name}-passed")
            for about, sentence in passed_sentences(
                self.spark, self.inputs, before, positions, folder, self.job
            ):
                self.warnings.add(about, sentence)
        self._partly_late.update(partly_late_rows(batch.statistics["operators"]))
        for operator, rows in self._partly_late.items():
            self.warnings.add(f"partly late: {operator}", partly_late_warning(operator, rows))
        self._told = slot


def clock_behind(now: int, before: int, job: str) -> str:
    """A warning if the clock is far behind the newest batch's, which was ahead if this one is right; else empty. A batch's time never goes
    back, so the job's clock would stand still without a word, for years where a host had begun with a wrong one."""
    if before - now <= CLOCKS_DIFFER:
        return ""
    return (
        f"the clock says {time_text(now)}, and the newest batch was of {time_text(before)}: a batch's time never goes back, so until the "
        "clock has come there no processing-time timer fires, no ttl of processing time ends, and no quiet source becomes idle; set the "
        f"clock if it is wrong, and if the batch's was, take the job back to before it: `stateflow checkpoints {job}` lists the "
        f"times, and `stateflow restore {job} FILE --from N` goes there"
    )
