"""Whether a run could go on from where a restore takes outputs back to.

Asked before it does. Where outputs stay, a run says it, and the job is as it was.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.inputs.source import DeclaredSource

_log = logging.getLogger(__name__)

_READ_BY_SPARK = ("delta", "kafka")
_VERDICTS = (DisagreementError, IncompatibleError, NotFoundError)


def check_ahead(
    nodes: Collection[SourceNode], recorded: Mapping[str, SourceState], spark: Callable[[], Any]
) -> None:
    """Raises what a run would say of sources that lack what comes behind the recorded offsets. Warns of those that nobody can ask now."""
    for node in nodes:
        state = recorded.get(node.uid)
        if state is None:
            continue
        try:
            _ask(node, state, spark)
        except _VERDICTS:
            raise
        except Exception as error:
            _log.warning(
                "source %r cannot be asked from here whether it still has what comes behind the checkpoint (%s): if it does not, the next run "
                "refuses to begin, and a restore of a later checkpoint brings the outputs forward again",
                node.uid,
                error,
            )


def jars_to_ask(nodes: Collection[SourceNode], recorded: Mapping[str, SourceState]) -> set[str]:
    """The bundles that a Spark needs for it, beside Delta's."""
    read = {
        node.factory.jars for node in nodes if node.uid in recorded and recorded[node.uid].kind == "kafka"
    }
    return read - {""}


def _ask(node: SourceNode, state: SourceState, spark: Callable[[], Any]) -> None:
    if isinstance(node.factory, DeclaredSource):
        for line in state.lines:
            if line != NOTHING:
                node.factory.newest(json.loads(line))
    elif state.kind in _READ_BY_SPARK:
        from stateflow.spark.inputs.open_inputs import open_inputs  # loads Spark
        from stateflow.spark.sources.availability import check_available
        from stateflow.spark.sources.detours import detours
        from stateflow.spark.sources.read_commits import ReadCommits

        session, known = spark(), {node.uid: state}
        inputs = open_inputs(session, [node], exactly_once=True)
        for other in ReadCommits(session, inputs.leaves).other_copies(known):
            raise other.error()
        with tempfile.TemporaryDirectory(prefix="stateflow-") as scratch:
            # A run goes round what its table has undone, whose files may be gone.
            if not detours(session, inputs.leaves, known, Path(scratch, "detours")):
                check_available(session, inputs.leaves, known, Path(scratch))
