"""Keys, their columns and their declared types; types of state."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.key_types import key_types_for
from stateflow.state.values.serializers import CustomSerializer, serializer_for
from tests.refusals.refusal import Refusal

KEYS: tuple[tuple[str, Any, *tuple[str, ...]], ...] = (
    ("int", None, "a key is null", "an int was", "drop such rows"),
    ("int", True, "a key is True", "an int was"),
    ("int", 1.0, "1.0 (float)", "an int was"),
    ("int", 2**63, "9223372036854775808", "64 bits", "a str or Decimal key"),
    ("str", b"x", "b'x' (bytes)", "a str was"),
    ("str", "\ud800", r"'\ud800'", "half a surrogate pair"),
    ("bytes", "x", "'x' (str)", "bytes was"),
    ("bool", 1, "1 (int)", "a bool was"),
    ("date", datetime(2020, 1, 1), "(datetime)", "a date was"),
    ("datetime", datetime(2020, 1, 1), "2020-01-01 00:00:00", "no time zone"),
    ("decimal", Decimal("1e-19"), "1E-19", "decimal(38,18)"),
    ("decimal", Decimal("1e20"), "1E+20", "decimal(38,18)"),
    ("decimal", Decimal("NaN"), "NaN", "decimal(38,18)"),
    ("int int", 5, "5 (int)", "a tuple of 2"),
    ("int int", (1, True), "a key is True", "an int was"),
    ("int int", (1, 2, 3), "(1, 2, 3)", "a tuple of 2"),
    ("int str", (1, None), "a key is null", "a str was"),
)
COLUMNS = (
    ("int", pa.array([1, None]), "a key column", "1 nulls"),
    ("str", pa.array(["a", None]), "a key column", "1 nulls"),
    ("int", pa.array([1.5, 2.0]), "read as int", "1.5"),
    ("str", pa.array([1, 2]), "read as str", "int64"),
    ("datetime", pa.array([1, 2], pa.timestamp("us")), "a key column", "no time zone"),
)
NO_KEYS: tuple[tuple[str, Any], ...] = (
    ("list[int]", list[int]),
    ("tuple", tuple),
    ("tuple[int, ...]", tuple[int, ...]),
    ("dict", dict),
    ("Any", Any),
)
UNSAID: tuple[tuple[str, Any], ...] = (
    ("Any", Any),
    ("object", object),
    ("list", list),
    ("dict", dict),
    ("complex", complex),
    ("dict[str, Any]", dict[str, Any]),
    ("list[complex]", list[complex]),
)

REFUSALS = [
    *(Refusal(UsageError, tuple(named), lambda types=types, key=key: KeyCodec(types.split()).encode(key)) for types, key, *named in KEYS),
    *(
        Refusal(UsageError, tuple(named), lambda name=name, column=column: KeyCodec([name]).encode_many([column], np.array([1, 2]), 3))
        for name, column, *named in COLUMNS
    ),
    Refusal(UsageError, ("float cannot be a key type", "use bool"), lambda: KeyCodec(["int", "float"])),
    *(
        Refusal(UsageError, ("float cannot be a key:", "use int, str or Decimal"), lambda hint=hint: key_types_for(hint))
        for hint in (float, tuple[int, float])
    ),
    *(Refusal(UsageError, (f"{name} cannot be a key",), lambda hint=hint: key_types_for(hint)) for name, hint in NO_KEYS),
    *(
        Refusal(UsageError, (f"{name} cannot be kept in state", "say what to restore", "a CustomSerializer"),
                lambda hint=hint: serializer_for(hint))
        for name, hint in UNSAID
    ),
    Refusal(UsageError, ("'a:b'", "without ':'"), lambda: CustomSerializer("a:b", 1, bytes, lambda b, _: b)),
]  # fmt: skip
