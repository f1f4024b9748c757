"""Ten thousand checkpoints as a few hundred points, none of which hides a peak."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.checkpoint.statistics import HistoryLine
from stateflow_ui.charts import DRAWN, percentiles, rate, thinned, timeline
from stateflow_ui.history_lines import Lines, LineSlimmer


def line(
    slot: int, *, duration: int = 1000, kind: str = "checkpoint", status: str = "COMPLETED"
) -> HistoryLine:
    return HistoryLine(
        id=slot, kind=kind, status=status, trigger_timestamp=slot * 60_000, latest_ack_timestamp=slot * 60_000 + 500,
        end_to_end_duration=duration, state_size=slot * 10, checkpointed_size=slot, processed_rows=600,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2000), st.integers(10, 700))
def test_the_highest_of_everything_and_both_ends_stay(seed: int, count: int, points: int) -> None:
    chance = np.random.default_rng(seed)
    columns = {name: chance.integers(0, 10**12, count) for name in ("id", *DRAWN)}
    chosen = thinned(columns, points)
    assert len(chosen) <= points
    assert sorted(set(chosen.tolist())) == chosen.tolist()
    assert {0, count - 1} <= set(chosen.tolist())
    for name in DRAWN:
        assert columns[name][chosen].max() == columns[name].max(), name
    assert columns["duration"][chosen].min() == columns["duration"].min()


def test_one_slow_checkpoint_among_ten_thousand_is_drawn() -> None:
    lines = Lines([line(slot, duration=90_000 if slot == 7777 else 1000) for slot in range(1, 10_001)])
    drawn = timeline(lines, 600)
    assert len(drawn["id"]) <= 600
    assert drawn["duration"][drawn["id"].index(7777)] == 90_000


def test_what_people_did_is_drawn_and_fences_are_not() -> None:
    lines = Lines(
        [
            line(1, kind="fence"),
            line(2),
            line(3, kind="restore"),
            line(4, kind="rescale"),
            line(5, status="IN_PROGRESS"),
        ]
    )
    assert timeline(lines, 600)["kind"] == ["checkpoint", "restore", "rescale"]


def test_each_batch_is_drawn_against_the_target_that_it_had() -> None:
    def noted(slot: int, size: object) -> HistoryLine:
        return msgspec.structs.replace(line(slot), metrics={"batch_size": size})

    whole = [line(1), noted(2, {"target_ms": 5000}), noted(3, {"target_ms": 9000}), noted(4, "soon")]
    slim = LineSlimmer()
    for lines in (Lines(whole), Lines([slim.slim(each) for each in whole])):
        assert timeline(lines, 600)["target"] == [None, 5000, 9000, None]


def test_percentiles_are_values_that_there_were() -> None:
    lines = Lines([line(slot, duration=slot) for slot in range(1, 201)])
    found = percentiles(lines.columns)["duration"]
    assert found == {"min": 1, "avg": 100.5, "p50": 100, "p90": 180, "p95": 190, "p99": 198, "max": 200}
    assert percentiles(Lines(()).columns)["rows"]["p50"] is None


def test_rows_a_second_count_the_pauses_between_batches() -> None:
    assert rate([line(1), line(2)]) == 1200 / 60.5
    assert rate([]) is None
