"""What a service answered then, from the state of then: a replay calls nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stateflow.errors import UsageError
from stateflow.format.records import OperatorState, Owner, Record
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.ready.enrichment import ANSWERED, ANSWERS, Enrich, stored_answer
from stateflow.spark.task.reader import task_reader
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.choice import ShardReaders


@dataclass
class RecordedAnswers:
    """A `look_up` that takes its answers from the checkpoint that the batch made."""

    operator: str
    fields: tuple[str, ...]
    storage: TaskStorage
    open_shard: ShardReaders
    slot: int = 0
    now: int = 0
    state: OperatorState | None = None

    def turn_to(self, record: Record) -> None:
        """From here on the answers are those of this checkpoint."""
        self.slot, self.now, self.state = record.slot, record.now, record.operators.get(self.operator)

    def __call__(self, keys: Sequence[Any]) -> list[Mapping[str, Any]]:
        if self.state is None or ANSWERS not in self.state.states:
            raise UsageError(
                f"checkpoint {self.slot} has no answers of operator {self.operator!r}, and a replay calls nobody: leave the operator "
                "out, or begin where the job had it"
            )
        record = Record(
            job="", slot=self.slot, epoch=0, writer="", owner=Owner(run=""), kind="checkpoint",
            operators={self.operator: self.state},
        )  # fmt: skip
        reader = task_reader(self.storage, self.open_shard, self.now).reader(record)
        try:
            found = reader.look_up_many(self.operator, ANSWERS, [_as_key(key) for key in keys])
        finally:
            reader.close()
        return [self._answer(key, each.value) for key, each in zip(keys, found, strict=True)]

    def _answer(self, key: Any, stored: Any) -> Mapping[str, Any]:
        if not isinstance(stored, Mapping) or not stored.get(ANSWERED):
            raise UsageError(
                f"checkpoint {self.slot} has no answer for {key!r}: nobody asked for it then, and a replay calls nobody"
            )
        return {name: stored[stored_answer(name)] for name in self.fields}


def _as_key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def with_recorded_answers(
    flow: Flow, storage: TaskStorage, open_shard: ShardReaders
) -> list[RecordedAnswers]:
    """Lets every operator that asks a service ask a checkpoint instead. Give it one with `turn_to` before each batch."""
    made = []
    for node in flow.operators:
        if isinstance(node, KeyedNode) and isinstance(node.columnar, Enrich):
            enrich = node.columnar
            answers = RecordedAnswers(
                node.uid, tuple(field.name for field in enrich.answered), storage, open_shard
            )
            asking = replace(enrich.asking, look_up=answers, rate=None, retries=0)
            flow.put_operator(node, replace(enrich, asking=asking))
            made.append(answers)
    return made
