"""Every kind of sink that a record can name, and what carries it out."""

from __future__ import annotations

from stateflow.spark.sinks import delta_append
from stateflow.spark.sinks.base import Commit

COMMITS: dict[str, Commit] = {
    delta_append.KIND: delta_append.carry_out,
}
