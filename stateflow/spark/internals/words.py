"""What is understood by the words of Spark and Delta: names of error conditions, of classes of errors, and states of a query."""

from __future__ import annotations

from dataclasses import dataclass

_ALL: list[Words] = []


@dataclass(frozen=True, slots=True)
class Words:
    texts: tuple[str, ...]
    purpose: str
    """What is done where one of the texts is there."""
    where_other: str
    """What happens in a version that says it in other words."""
    held_by: str
    """The test that fails there."""

    def __post_init__(self) -> None:
        _ALL.append(self)

    def is_in(self, text: str) -> bool:
        return any(each in text for each in self.texts)


WAITING = Words(
    ("Waiting for data to arrive", "Waiting for next trigger"),
    "The state of an endless query that has found no input: its sources count as silent, and timers fire.",
    "no source counts as silent, so that it holds the watermark, and timers wait for rows",
    "tests/spark/test_waiting.py",
)
CONFLICT = Words(
    ("Concurrent", "ChangedException"),
    "Classes of Delta's errors: another writer was faster, and the commit is tried again.",
    "the run fails, and the next one commits its record",
    "tests/spark/test_sinks_delta_append.py",
)
VIOLATION = Words(
    ("InvariantViolation",),
    "Classes of Delta's errors: a row breaks a constraint that the table has got since it was staged.",
    "the run fails with Delta's own words",
    "tests/spark/test_sinks_delta_upsert.py",
)
RENAMED = Words(
    ("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",),
    "A column of a source was renamed or dropped: the error says how to read on.",
    "the run fails with Delta's own words",
    "tests/spark/test_changed_columns.py",
)
GONE = Words(
    ("FAILED_READ_FILE.FILE_NOT_EXIST",),
    "A file of a batch is gone: the error names it.",
    "the run fails with Spark's own words",
    "tests/spark/test_files.py",
)
UNREADABLE = Words(
    ("FAILED_READ_FILE",),
    "A file cannot be read: the error names it, and the row that does not fit.",
    "the run fails with Spark's own words",
    "tests/spark/test_files.py",
)
MISFIT = Words(
    ("[MALFORMED_RECORD_IN_PARSING",),
    "A row of a file does not fit the row class: the error shows it, and how to let such rows come.",
    "the run fails with Spark's own words",
    "tests/spark/test_files.py",
)
HALF_RECORD = Words(
    ("[MALFORMED_CSV_RECORD]",),
    "A record of CSV has too few values: the error speaks of line breaks in quotes.",
    "the error does not speak of them",
    "tests/spark/test_misfits.py",
)
OTHER_TYPE = Words(
    ("physicalType: ", "logicalType: "),
    "A Parquet file has a column of a type that is not read as the declared one: the error names both.",
    "the run says that the file cannot be read",
    "tests/spark/test_misfits.py",
)
UNSIGNED = Words(
    ("PlainValuesDictionary$PlainLongDictionary",),
    "A Parquet file has a column of unsigned 64-bit numbers, which is read as signed ones: the error says how to declare it.",
    "the run fails with Spark's own words",
    "tests/spark/test_misfits.py",
)
CHANGED = Words(
    ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE"),
    "Rows of a source were changed or deleted: the error says how to read on.",
    "the run fails with Delta's own words",
    "tests/spark/test_recipe_changes.py",
)
UNRECORDED = Words(
    ("DELTA_MISSING_CHANGE_DATA",),
    "Changes of a source are to be read from a version without a feed of them: the error names these versions, and how to read on.",
    "the run fails with Delta's own words",
    "tests/spark/test_feed_gaps.py",
)
LOST = Words(
    ("aged out by Kafka or the topic may have been deleted",),
    "Messages of Kafka that a batch was to read are gone: the run asks whether the topic was made anew, and says so.",
    "the run fails with Spark's own words, and the next one says that the topic was made anew",
    "tests/spark/test_kafka_remade.py",
)
SHUT = Words(
    ("BlockManagerMaster.driverEndpoint()", "SparkContext was shut down", "stopped SparkContext"),
    "Spark ends while it still answers, as when its memory is full: the run waits for the end of its JVM, and says how that ended.",
    "the run fails with Spark's own words",
    "tests/spark/test_out_of_memory.py",
)
THERE_ALREADY = Words(
    ("PATH_ALREADY_EXISTS",),
    "The folder of an export is there: the error says how to replace it.",
    "the export fails with Spark's own words",
    "tests/spark/test_state_tables.py",
)


def all_words() -> list[Words]:
    return [*_ALL]
