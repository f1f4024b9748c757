"""Resuming from a record: a freshly seeded folder makes Spark go on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.source_offsets import SourceLeaves
from stateflow.spark.inputs.seeding import plan_batch, seed
from tests.refusals.refusal import refused
from tests.spark.replay import (
    Batch,
    Replay,
    Sources,
    append_file,
    append_version,
    files,
    ids,
    numbers,
    rows,
    table,
)


@pytest.fixture
def replay(spark: SparkSession, tmp_path: Path) -> Replay:
    return Replay(spark, tmp_path)


@contextmanager
def hasty_log(spark: SparkSession) -> Iterator[None]:
    """Spark deletes compacted entries of a file source's log at once."""
    settings = {
        "spark.sql.streaming.minBatchesToRetain": "1",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "0",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, old or "")


@pytest.mark.system
def test_resuming_after_any_batch_gives_the_batches_of_the_uninterrupted_run(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for number in range(3):
        append_file(spark, tmp_path / "files", 10 * number)
        for position, name in enumerate(("events", "left", "right")):
            append_version(tmp_path / name, 1000 * (position + 1) + 10 * number)
    sources = {
        "files": [files(tmp_path / "files")],
        "events": [table(tmp_path / "events")],
        "pair": [table(tmp_path / "left"), table(tmp_path / "right")],
    }

    whole = replay.run(sources)

    assert len(whole) >= 3
    assert sorted(ids(whole, "pair")) == [*numbers(2000, 2010, 2020), *numbers(3000, 3010, 3020)]
    for done in range(len(whole)):
        resumed = replay.run(sources, whole[done].state)
        assert rows(resumed) == rows(whole[done + 1 :])
        assert [batch.state["pair"].lines for batch in resumed] == [
            batch.state["pair"].lines for batch in whole[done + 1 :]
        ]


@dataclass(frozen=True)
class History:
    replay: Replay
    sources: Sources
    batches: list[Batch]
    saved: tuple[str, ...]


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> History:
    """24 batches of one file each; the file source's log is compacted at 9 and 19."""
    work = tmp_path_factory.mktemp("history")
    for number in range(24):
        append_file(spark, work / "files", number, count=1)
    replay, sources = Replay(spark, work), {"files": [files(work / "files")]}
    with hasty_log(spark):
        return History(replay, sources, replay.run(sources), tuple(replay.saved))


@pytest.mark.system
def test_a_file_source_is_rewound_across_compactions_of_its_log(
    spark: SparkSession, history: History
) -> None:
    whole = history.batches
    left = {path.name for path in (whole[0].location / "sources" / "0").iterdir()}
    assert not left & {"8", "9.compact"}, "Spark should have deleted what it compacted"

    with hasty_log(spark):
        for offset in (8, 9, 10, 11, 19, 20, 21):
            assert whole[offset].state["files"].lines == (f'{{"logOffset":{offset}}}',)
            resumed = history.replay.run(history.sources, whole[offset].state)
            assert rows(resumed) == rows(whole[offset + 1 :]), f"resumed at log offset {offset}"
            # And once more from the new line of history, whose log is compacted on its own.
            if offset in (8, 19):
                again = history.replay.run(history.sources, resumed[2].state)
                assert rows(again) == rows(whole[offset + 4 :])


@pytest.mark.system
def test_each_log_entry_of_a_file_source_is_saved_once(history: History) -> None:
    entries = tuple(f"0/{number}.compact" if number % 10 == 9 else f"0/{number}" for number in range(24))
    assert history.saved == entries
    held = [reference.name for reference in history.batches[21].state["files"].files]
    assert held == ["0/19.compact", "0/20", "0/21"]


@pytest.mark.slow
def test_sources_are_added_dropped_and_reordered_between_runs(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    for name, start in (("a", 0), ("b", 100), ("c", 200)):
        append_file(spark, tmp_path / name, start)
    append_version(tmp_path / "d", 300)
    a, b, c, d = files(tmp_path / "a"), files(tmp_path / "b"), files(tmp_path / "c"), table(tmp_path / "d")

    first = replay.run({"a": [a], "b": [b], "d": [d]})
    assert ids(first, "d") == list(numbers(300))
    for name, start in (("a", 10), ("b", 110), ("c", 210)):
        append_file(spark, tmp_path / name, start)
    append_version(tmp_path / "d", 310)

    second = replay.run({"d": [d], "c": [c], "a": [a]}, first[-1].state)

    assert ids(second, "a") == list(numbers(10))
    assert ids(second, "c") == list(numbers(200, 210))
    assert ids(second, "d") == list(numbers(310))
    assert set(second[-1].state) == {"a", "c", "d"}
    append_file(spark, tmp_path / "c", 220)
    third = replay.run({"a": [a], "d": [d], "c": [c]}, second[-1].state)
    assert rows(third) == [{"c": list(numbers(220))}]


@pytest.mark.slow
def test_a_stream_without_data_yet_starts_when_its_first_data_comes(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    (tmp_path / "late").mkdir()
    append_version(tmp_path / "events", 0)
    sources = {"late": [files(tmp_path / "late")], "events": [table(tmp_path / "events")]}

    first = replay.run(sources)
    assert first[-1].state["late"].lines == ("-",)
    assert replay.run(sources, first[-1].state) == []
    append_file(spark, tmp_path / "late", 50)

    second = replay.run(sources, first[-1].state)

    assert rows(second) == [{"late": list(numbers(50))}]


@pytest.mark.slow
def test_data_that_arrives_during_a_run_is_read_by_the_next(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_file(spark, tmp_path / "files", 0)
    append_version(tmp_path / "events", 100)
    sources = {"files": [files(tmp_path / "files")], "events": [table(tmp_path / "events")]}

    def arrive(number: int) -> None:
        append_file(spark, tmp_path / "files", 10)
        append_version(tmp_path / "events", 110)

    first = replay.run(sources, during=arrive)
    second = replay.run(sources, first[-1].state)

    assert rows(first) == [{"files": list(numbers(0)), "events": list(numbers(100))}]
    assert len(rows(second)) == 1
    assert rows(second) == [{"files": list(numbers(10)), "events": list(numbers(110))}]


@pytest.mark.slow
def test_a_changed_source_does_not_get_the_offsets_of_another(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "left", 0)
    append_version(tmp_path / "right", 10)
    one, two = table(tmp_path / "left"), table(tmp_path / "right")
    state = replay.run({"events": [one]})[-1].state

    with refused(IncompatibleError, "'events'", "2 streams", "new uid"):
        replay.run({"events": [one, two]}, state)


def test_a_run_needs_a_fresh_folder_and_the_shuffle_setting(
    spark: SparkSession, replay: Replay, tmp_path: Path
) -> None:
    append_version(tmp_path / "events", 0)
    state = replay.run({"events": [table(tmp_path / "events")]})[-1].state
    layout = [SourceLeaves("events", 1)]
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "metadata").touch()

    with refused(UsageError, "is not empty"):
        seed(tmp_path / "used", layout, state, replay.fetch, replay.conf, 0, "id")
    with refused(UsageError, "spark.sql.shuffle.partitions"):
        seed(tmp_path / "fresh", layout, state, replay.fetch, {}, 0, "id")
    assert seed(tmp_path / "fresh", layout, {}, replay.fetch, replay.conf, 0, "id") == 0
    with refused(UsageError, "batch 5 is not the next one"):
        plan_batch(tmp_path / "fresh", 5, ["-"], replay.conf, 0)
