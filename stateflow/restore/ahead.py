"""Whether a run could go on from where a restore takes outputs back to.

Asked before it does. Where outputs stay, a run says it, and the job is as it was.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError
from stateflow.format.records import Record, SourceState
from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.graph import SourceNode
from stateflow.pipelines.inputs.source import DeclaredSource

_log = logging.getLogger(__name__)

_READ_BY_SPARK = ("delta", "kafka")
_VERDICTS = (DisagreementError, IncompatibleError, NotFoundError)


def check_ahead(
    nodes: Collection[SourceNode],
    recorded: Mapping[str, SourceState],
    spark: Callable[[], Any],
    job: str,
    checkpoints: Callable[[], Sequence[Record]],
    *,
    allow_non_restored_state: bool = False,
) -> None:
    """Raises what a run would say of sources that lack what comes behind the recorded offsets, or whose offsets count rows that are
    undone. Warns of those that nobody can ask now. `checkpoints`: the job's, oldest first."""
    found: list[Any] = []
    for node in nodes:
        state = recorded.get(node.uid)
        if state is None:
            continue
        try:
            found += _ask(node, state, spark, allow_non_restored_state)
        except _VERDICTS:
            raise
        except Exception as error:
            _log.warning(
                "source %r cannot be asked from here whether it still has what comes behind the checkpoint (%s): if it does not, the next run "
                "refuses to begin, and a restore of a later checkpoint brings the outputs forward again",
                node.uid,
                error,
            )
    if found:
        from stateflow.spark.sources.detours import ways_round  # loads Spark, which is there by now

        ways_round(found, job, checkpoints)


def jars_to_ask(nodes: Collection[SourceNode], recorded: Mapping[str, SourceState]) -> set[str]:
    """The bundles that a Spark needs for it, beside Delta's."""
    read = {
        node.factory.jars for node in nodes if node.uid in recorded and recorded[node.uid].kind == "kafka"
    }
    return read - {""}


def _ask(node: SourceNode, state: SourceState, spark: Callable[[], Any], allowed: bool) -> list[Any]:
    """What a run of the source would go round, or refuse; nothing for a source that a run reads on."""
    if isinstance(node.factory, DeclaredSource):
        for line in state.lines:
            if line != NOTHING:
                node.factory.newest(json.loads(line))
    elif state.kind in _READ_BY_SPARK:
        from stateflow.spark.inputs.open_inputs import open_inputs  # loads Spark
        from stateflow.spark.sources.availability import check_available
        from stateflow.spark.sources.detours import detours

        session, known = spark(), {node.uid: state}
        inputs = open_inputs(session, [node], exactly_once=True)
        with tempfile.TemporaryDirectory(prefix="stateflow-") as scratch:
            # A run goes round what its table has undone, whose files may be gone.
            if found := detours(session, inputs.leaves, known, Path(scratch, "detours")):
                return [*found]
            check_available(session, inputs.leaves, known, Path(scratch), allow_non_restored_state=allowed)
    return []
