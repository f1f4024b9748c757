"""What users read of Spark's and Delta's errors."""

from __future__ import annotations

import stateflow as sf
from stateflow.spark.internals.gateway import first_line
from stateflow.spark.task.failures import translated

MISFIT = """An error occurred while calling o126.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.json.  SQLSTATE: KD001
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:940)
Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: [1,null].
Parse Mode: FAILFAST. To process malformed records as null result, try setting the option 'mode' as 'PERMISSIVE'.  SQLSTATE: 22023
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.malformed(QueryExecutionErrors.scala:1615)
\t... 24 more
Caused by: {cause}
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotParseJSONFieldError(QueryExecutionErrors.scala:1359)
\t... 30 more

org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.json.  SQLSTATE: KD001
"""
UPSERTED = (
    "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update (for example MERGE (Map(predicate -> []))) in the source table at version 7. "
    "This is currently not supported. If this is going to happen regularly and you are okay to skip changes, set the option "
    "'skipChangeCommits' to 'true'. If you would like the data update to be reflected, please restart this query with a fresh checkpoint "
    "directory. The source table can be found at path file:/data/shops."
)


def test_a_row_that_does_not_fit_is_told_without_sparks_advice() -> None:
    for cause, said in (
        (
            (
                "org.apache.spark.SparkRuntimeException: [CANNOT_PARSE_JSON_FIELD] Cannot parse the field name 'amount' and the value 12.25 of the "
                'JSON token type VALUE_NUMBER_FLOAT to target Spark data type "BIGINT". SQLSTATE: 2203G'
            ),
            (
                "Cannot parse the field name 'amount' and the value 12.25 of the JSON token type VALUE_NUMBER_FLOAT to target Spark data type "
                '"BIGINT"'
            ),
        ),
        (
            (
                "org.apache.spark.SparkDateTimeException: [CAST_INVALID_INPUT] The value 'yesterday' of the type \"STRING\" cannot be cast to "
                '"TIMESTAMP" because it is malformed. Correct the value as per the syntax, or change its target type. SQLSTATE: 22018'
            ),
            'The value \'yesterday\' of the type "STRING" cannot be cast to "TIMESTAMP" because it is malformed',
        ),
        ('java.lang.NumberFormatException: For input string: "abc"', 'For input string: "abc"'),
    ):
        problem = translated(RuntimeError(MISFIT.format(cause=cause)))
        assert isinstance(problem, sf.IncompatibleError)
        assert str(problem) == (
            f"the file file:///in/a.json has a row that does not fit the row class: {said}; mend or move the file and run again, or let such "
            "rows come in a column of their own with options={'columnNameOfCorruptRecord': 'broken'} (docs/sources.md, bad rows)"
        )


def test_what_code_in_a_worker_raised_is_told_and_not_its_traceback() -> None:
    text = """An error occurred while calling o597.writeFiles.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:811)
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/opt/pipelines/shop.py", line 9, in rounded
    return int(text)
           ^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'x'
. SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:691)
"""
    assert str(translated(RuntimeError(text))) == (
        "the batch failed: An error occurred while calling o597.writeFiles. : org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed "
        "while writing rows to file:/out. SQLSTATE: 58030 Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An "
        "exception was thrown from the Python worker: ValueError: invalid literal for int() with base 10: 'x'"
    )


def test_a_table_that_others_change_is_told_with_what_to_read() -> None:
    problem = translated(RuntimeError(UPSERTED))
    assert isinstance(problem, sf.IncompatibleError)
    assert str(problem) == (
        "the Delta table file:/data/shops that a source reads has rows replaced or deleted in version 7, as by an upsert of another job, "
        "and a stream of its rows cannot take that: read its changes, with changes=True in sf.delta or sf.table and signed rows, "
        "under the same uid if the table kept a feed of them then, else as a new job (--job NAME) with outputs of its own "
        "(docs/recipes/changes.md); Delta's option skipChangeCommits would leave the changes out"
    )


def test_the_first_line_of_an_error_from_java_is_what_java_says() -> None:
    assert first_line(Exception(MISFIT)).startswith(
        "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT]"
    )
    assert first_line(Exception("one line\nand more")) == "one line"
    assert first_line(KeyError()) == "KeyError"
