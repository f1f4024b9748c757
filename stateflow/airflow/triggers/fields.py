"""Triggers that are their arguments: Airflow stores these, and makes the trigger of them again wherever it is to run."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any


class KeepsFields:
    """`__init__` hands its arguments over with `self.keep(locals())`."""

    fields: Mapping[str, Any]

    def keep(self, values: Mapping[str, Any]) -> None:
        self.fields = {name: values[name] for name in signature(type(self)).parameters}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self.fields)
