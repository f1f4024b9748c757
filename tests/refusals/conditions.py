"""Conditions in SQL: of aggregates, deletes and searches in state. What cannot be read at all is in `tests/pipelines/test_conditions.py`."""

from __future__ import annotations

from stateflow.errors import UsageError
from stateflow.format.records import StateSchema
from stateflow.pipelines.conditions.expression import condition_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.reading.predicates import condition
from tests.refusals.refusal import Refusal

ROWS = row_type("a int, b int, p boolean, s string, date date")


def read(text: str) -> object:
    return condition_of("a test", text, ROWS)


REFUSALS = [
    *(
        Refusal(UsageError, ("a test", f"calls '{function}'", "no functions"), lambda text=text: read(text))
        for text, function in (("upper(s) = 'A'", "upper"), ("a < all (b)", "all"), ("`if`(p)", "if"), ("p AND exists (s)", "exists"),
                               ("date('2024-02-29') = date", "date"))
    ),
    Refusal(UsageError, ("nested too deeply", "compute a boolean column"), lambda: read("(" * 500 + "p" + ")" * 500)),
    *(
        Refusal(UsageError, (f"backslash {where}:", r"so write \\\\ for a backslash"), lambda like=like: read(f"s LIKE '{like}'"))
        for like, where in ((r"a\\b", "before 'b'"), (r"a\\", "at the end"), (r"a\%\\ ", "before ' '"))
    ),
    *(
        Refusal(UsageError, (f"= {number[:20]}", "a bigint, a decimal or a double", "a smaller or shorter one"),
                lambda number=number: read(f"a = {number}"))
        for number in ("9223372036854775808", "-9223372036854775808", "9" * 5000, "1e400", "9" * 39 + ".0", "0." + "1" * 39)
    ),
    Refusal(UsageError, ("values of two types", "a Python function"),
            lambda: condition("value > previous", StateSchema(id=1, kind="value", value="int")).holds(3, "a")),
]  # fmt: skip
