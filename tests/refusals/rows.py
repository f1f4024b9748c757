"""Row types: classes, their fields, and schemas as text."""

from __future__ import annotations

from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.rows.row_type import row_type, spark_type
from tests.refusals.refusal import Refusal

TYPES: tuple[Any, ...] = (object, set[int], complex, int | str, list, tuple[int, str], Any)

REFUSALS = [
    *(
        Refusal(UsageError, (f"schema {text!r}", *named), lambda text=text: row_type(text))
        for text, *named in (
            ("", "at ''", "'name type, name type'"),
            ("user", "at 'user'", "'name type, name type'"),
            ("user long,", "at ''"),
            ("1st long", "at '1st long'"),
            ("user long total double, x", "'long total double' of column 'user'"),
            ("a b long", "'b long' of column 'a'"),
            ("`a b` string, n long", "column 'a b'", "another name", ".transform(...)"),
            ("n long, `a,b` string", "column 'a,b'", "another name"),
            ("a long, b long, a string", "two columns called 'a'"),
            ("k long, n long, N long", "'n' and 'N'", "differ in case", "call one of them otherwise"),
            ("k long, s struct<n:long,N:long>", "column 's'", "'n' and 'N'", "differ in case"),
            ("k long, s map<string, array<struct<`a,b`: long, p struct<n long, N long>>>>", "column 's'", "'n' and 'N'"),
        )
    ),
    *(
        Refusal(UsageError, ("field Order.amount", f"type {hint!r}", "no Spark type", "use bool"),
                lambda hint=hint: spark_type(hint, "field Order.amount"))
        for hint in TYPES
    ),
    Refusal(UsageError, ("<class 'int'> is not a row type", "use a dataclass"), lambda: row_type(int)),
]  # fmt: skip
