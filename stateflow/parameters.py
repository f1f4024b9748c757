"""Parameters that a pipeline was last run with, so that they need not be given again."""

from __future__ import annotations

import inspect as signatures
from typing import TYPE_CHECKING

from stateflow.checkpoint.records import Record

if TYPE_CHECKING:
    from stateflow.flow import Pipeline


def required_parameters(pipeline: Pipeline, record: Record | None) -> dict[str, str]:
    """Those of a record that the pipeline cannot do without: a run that is not given them takes the last ones."""
    accepted = signatures.signature(pipeline.function).parameters
    known = known_parameters(pipeline, record)
    return {
        n: v for n, v in known.items() if n in accepted and accepted[n].default is signatures.Parameter.empty
    }


def known_parameters(pipeline: Pipeline, record: Record | None) -> dict[str, str]:
    """The parameters of a record that the pipeline still takes."""
    if record is None:
        return {}
    accepted = list(signatures.signature(pipeline.function).parameters.values())[1:]
    names = {p.name for p in accepted if p.kind is not p.VAR_KEYWORD}
    return {name: value for name, value in record.parameters.items() if name in names}
