"""Offset lines: told apart, shown to people, and matched to sources by uid."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.format.records import FileRef, SourceState
from stateflow.format.source_offsets import (
    SourceLeaves,
    check_given,
    check_same_source,
    decode,
    joined_lines,
    kind_of,
    kinds_of,
    split_lines,
)
from stateflow.spark.internals.scratch_folder import ReadFile, entries_at, files_between, read_batch_offsets
from stateflow.spark.sources.file_log import restore_entries, save_entries
from tests.refusals.refusal import refused

DELTA = '{"sourceVersion":1,"reservoirId":"d6c7","reservoirVersion":%d,"index":%d,"isStartingVersion":%s}'
FILE = '{"logOffset":3}'
KAFKA = '{"orders":{"0":12,"10":7,"2":5}}'


@pytest.mark.parametrize(
    ("line", "kind", "position"),
    [
        (DELTA % (8, -1, "false"), "delta", "version 7 read completely"),
        (DELTA % (8, 4, "false"), "delta", "inside version 8, after file 4"),
        (DELTA % (8, 4, "true"), "delta", "inside the first snapshot, version 8, after file 4"),
        (DELTA % (8, -1, "true"), "delta", "before the first snapshot, version 8"),
        (DELTA % (0, -1, "false"), "delta", "before version 0"),
        (FILE, "file", "log entry 3"),
        (KAFKA, "kafka", "orders[0]@12, orders[2]@5, orders[10]@7"),
        ('{"offset":4,"timestamp":9}', "other", '{"offset":4,"timestamp":9}'),
        ("42", "other", "42"),
        ("not json", "other", "not json"),
        ("-", "", "nothing read yet"),
    ],
)
def test_an_offset_is_told_and_shown_in_the_words_of_its_source(line: str, kind: str, position: str) -> None:
    assert kind_of(line) == kind
    assert decode(line)["kind"] == kind
    assert decode(line)["position"] == position


def test_an_offset_is_shown_with_its_numbers() -> None:
    assert decode(KAFKA)["topics"] == {"orders": {0: 12, 2: 5, 10: 7}}
    assert decode(FILE)["log_offset"] == 3
    shown = decode(DELTA % (8, 4, "true"))
    assert (shown["version"], shown["index"], shown["snapshot"], shown["table"]) == (8, 4, True, "d6c7")


def test_a_source_of_several_streams_has_their_common_kind() -> None:
    assert kinds_of([FILE, "-", FILE]) == "file"
    assert kinds_of([FILE, KAFKA]) == "other"
    assert kinds_of(["-"]) == ""


def test_lines_belong_to_sources_in_plan_order() -> None:
    layout = [SourceLeaves("a", 1), SourceLeaves("b", 2)]
    assert split_lines(layout, [FILE, "-", KAFKA]) == {"a": (FILE,), "b": ("-", KAFKA)}
    with pytest.raises(UsageError, match="have 3 streams, but Spark's plan has 2"):
        split_lines(layout, [FILE, KAFKA])


def test_lines_follow_their_uid_when_sources_are_added_dropped_or_reordered() -> None:
    recorded = {"a": SourceState(lines=(FILE,)), "b": SourceState(lines=("-", KAFKA))}
    assert joined_lines([SourceLeaves("b", 2), SourceLeaves("new", 2), SourceLeaves("a", 1)], recorded) == (
        "-",
        KAFKA,
        "-",
        "-",
        FILE,
    )
    assert joined_lines([SourceLeaves("a", 1)], recorded) == (FILE,)


def test_a_source_that_became_another_is_refused() -> None:
    with refused(IncompatibleError, "'b' now consists of 1 streams", "offsets for 2"):
        joined_lines([SourceLeaves("b", 1)], {"b": SourceState(lines=("-", KAFKA))})
    with refused(IncompatibleError, "'b' (stream 1)", "a delta source", "a kafka offset"):
        check_same_source(SourceLeaves("b", 2, ("file", "delta")), SourceState(lines=("-", KAFKA)))
    with pytest.raises(IncompatibleError, match="holds an offset of another kind for it"):
        check_same_source(SourceLeaves("b", 1, ("delta",)), SourceState(lines=("garbage",)))
    check_same_source(SourceLeaves("b", 2, ("file", "other")), SourceState(lines=("-", KAFKA)))


def test_a_pattern_of_kafka_that_has_matched_no_topic_has_read_nothing() -> None:
    no_topic = SourceState(lines=(KAFKA, "{}"), kind="other", topic_ids={"0/orders": "x"})
    check_same_source(SourceLeaves("b", 2, ("kafka", "kafka")), no_topic)
    assert joined_lines([SourceLeaves("b", 2, ("kafka", "kafka"))], {"b": no_topic}) == (KAFKA, "{}")
    with refused(IncompatibleError, "'b' (stream 1)", "a delta source"):
        check_same_source(SourceLeaves("b", 2, ("kafka", "delta")), no_topic)
    with refused(IncompatibleError, "'b'", "a kafka source", "an iceberg position"):
        check_same_source(SourceLeaves("b", 1, ("kafka",)), SourceState(lines=("{}",), kind="iceberg"))


def test_an_offset_that_somebody_has_typed_is_one_of_its_source() -> None:
    check_given("b", ("delta",), DELTA % (8, -1, "false"))
    check_given("b", ("kafka",), KAFKA)
    check_given("b", ("other",), "42")
    decoded = '{"kind":"delta","version":24,"index":-1,"snapshot":false,"table":"d6c7"}'
    for line in (
        "garbage",
        decoded,
        KAFKA,
        FILE,
        "-",
        '{"reservoirId":"d6c7"}',
        '{"reservoirId":1,"index":[]}',
    ):
        with refused(UsageError, "source 'b'", """--offset b='{"sourceVersion":1,"""):
            check_given("b", ("delta",), line)
    check_given("b", ("file",), "2026-01-31T12:00:00+00:00")
    with refused(UsageError, "reads files", "--offset b=2026-01-31T12:00:00+00:00"):
        check_given("b", ("file",), FILE)
    with refused(UsageError, "2 streams"):
        check_given("b", ("delta", "delta"), DELTA % (8, -1, "false"))


def offset_entry(location: Path, text: str) -> Path:
    (location / "offsets").mkdir()
    (location / "offsets" / "4").write_text(text)
    return location


def test_an_entry_of_the_offset_log_is_read_line_by_line(tmp_path: Path) -> None:
    lines = read_batch_offsets(offset_entry(tmp_path, f'v1\n{{"batchWatermarkMs":0}}\n{FILE}\n-'), 4)
    assert lines == (FILE, "-")


def test_an_offset_log_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with refused(CorruptError, "batch 4 has no whole entry"):
        read_batch_offsets(tmp_path, 4)
    with refused(UsageError, "'v2'", "unset spark.sql.streaming.", "offsetLog.formatVersion"):
        read_batch_offsets(offset_entry(tmp_path, 'v2\n{}\n0:{"logOffset":1}'), 4)


def file_log(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        number = int(name.split(".")[0])
        covered = range(number + 1) if name.endswith("compact") else [number]
        lines = [f'{{"path":"file:///in/{n}","timestamp":{n},"batchId":{n}}}' for n in covered]
        (folder / name).write_text("\n".join(["v1", *lines]))
    return folder


@pytest.mark.parametrize(
    ("offset", "needed"),
    [
        (8, [str(n) for n in range(9)]),
        (9, ["9.compact"]),
        (11, ["9.compact", "10", "11"]),
        (19, ["19.compact"]),
        (21, ["19.compact", "20", "21"]),
    ],
)
def test_a_file_source_needs_the_latest_compaction_and_what_follows(
    tmp_path: Path, offset: int, needed: list[str]
) -> None:
    names = [f"{n}.compact" if n % 10 == 9 else str(n) for n in range(22)]
    folder = file_log(tmp_path / "log", *names)
    (folder / ".9.compact.crc").touch()
    assert entries_at(folder, offset) == needed
    read = files_between(folder, offset - 3, offset)
    assert [file.modified_ms for file in read] == [offset - 2, offset - 1, offset]


def test_a_file_log_with_a_gap_is_named(tmp_path: Path) -> None:
    with refused(CorruptError, "lacks entry 1 of 0..2"):
        entries_at(file_log(tmp_path / "log", "0", "2"), 2)


def test_only_entries_that_the_parent_lacks_are_saved_and_they_come_back_the_same(tmp_path: Path) -> None:
    folder = file_log(tmp_path / "log", "0", "1")
    saved: list[str] = []

    def save(name: str, path: Path) -> FileRef:
        saved.append(name)
        return FileRef(name=name, size=path.stat().st_size, xxh3="", data=path.read_bytes())

    first = save_entries(folder, 2, 0, {}, save)
    second = save_entries(folder, 2, 1, {ref.name: ref for ref in first}, save)
    assert saved == ["2/0", "2/1"]

    back = tmp_path / "back"
    restore_entries(
        back, {ref.name.removeprefix("2/"): ref for ref in second}, lambda ref: tmp_path / "never"
    )
    assert files_between(back, -1, 1) == [ReadFile("file:///in/0", 0), ReadFile("file:///in/1", 1)]
    with refused(CorruptError, "not a file-source log entry"):
        restore_entries(back, {"../escape": first[0]}, lambda ref: tmp_path / "never")


def test_an_entry_that_differs_from_the_parents_is_saved_anew(tmp_path: Path) -> None:
    folder = file_log(tmp_path / "log", "0")
    stale = FileRef(name="0/0", size=1, xxh3="", path="stale")
    fresh = FileRef(name="0/0", size=2, xxh3="", path="fresh")
    assert save_entries(folder, 0, 0, {"0/0": stale}, lambda name, path: fresh) == [fresh]
