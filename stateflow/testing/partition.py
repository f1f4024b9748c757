"""A process without keys, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from stateflow.checkpoint.rescale import redistributed
from stateflow.compatibility.non_restored import check_replaced
from stateflow.compatibility.states import changed_elements, todays_elements
from stateflow.errors import UsageError
from stateflow.format.instants import micros_since_epoch
from stateflow.format.records import OperatorListState, OperatorState
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.context import Moment
from stateflow.operators.elements import check_alike, gathered, hand_out
from stateflow.operators.output import writers
from stateflow.operators.partition import PartitionEngine
from stateflow.operators.snapshots import Copies
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec, side_outputs
from stateflow.pipelines.processes.process import Output, PartitionProcess, type_arguments
from stateflow.pipelines.rows.row_type import RowType, row_type
from stateflow.state.values.serializers import serializer_for
from stateflow.testing.harness import Harness

_ANY = RowType("Any", (), lambda *values: values, False)


class PartitionHarness(Harness):
    """Runs one process in `parallelism` subtasks. Every call of `rows` or `broadcast` is a batch of its own, all of one run until
    `restart` or `rescale`."""

    def __init__(
        self,
        process: type[PartitionProcess[Any, Any]] | Callable[[], PartitionProcess[Any, Any]],
        *,
        parallelism: int = 1,
        now: datetime = datetime(2026, 1, 1, tzinfo=UTC),
        parameters: Mapping[str, Any] | None = None,
        output: Any = None,
        outputs: Iterable[Output[Any]] = (),
        after: PartitionHarness | None = None,
    ) -> None:
        """`output` and `outputs` are those of the pipeline's `.process_partition(...)`: rows that a run would refuse are refused.
        `after` is a harness of an earlier release of the code: this one goes on with its state, or is refused as a run would be."""
        cls = process if isinstance(process, type) else type(process())
        if not issubclass(cls, PartitionProcess):
            raise UsageError(f"{cls.__name__} is not a PartitionProcess: test it with KeyedHarness")
        super().__init__(now)
        self._declared = cls.declarations().operator
        arguments = type_arguments(cls)
        declared = output if output is not None else (arguments[-1] if arguments else None)
        typed = output is not None or isinstance(declared, type)
        rows = row_type(declared) if typed and declared is not Any else None
        sides = side_outputs(cls.__name__, tuple(outputs), "fail")
        self._spec = OperatorSpec(cls.__name__, process, cls, (), (), (_ANY,), rows or _ANY, sides)
        known = {**({} if rows is None else {MAIN: rows}), **sides}
        schemas = {name: arrow_schema_of(of) for name, of in known.items()}
        self._takers = {name: Copies(writer) for name, writer in writers(self._spec, schemas).items()}
        self._parameters = parameters or {}
        self._parallelism = parallelism
        self._slot = 0
        self._begins = True
        self._elements: dict[str, tuple[tuple[bytes, ...], ...]] = {}
        if after is not None:
            self._go_on(after, KeyedNode(cls.__name__, process_type=cls))

    def _go_on(self, after: PartitionHarness, node: KeyedNode) -> None:
        before = OperatorState(
            key=(), max_parallelism=1, assignment=(), shards=(), operator_states=after._recorded()
        )
        check_replaced(node, before)
        changed_elements(node, before)
        self.now, self._slot = after.now, after._slot
        self._elements, wanted = dict(todays_elements(node, before)), self._parallelism
        self._parallelism = after._parallelism
        self.rescale(wanted)

    def _recorded(self) -> dict[str, OperatorListState]:
        return {
            name: OperatorListState(
                kind=self._declared[name].kind,  # type: ignore[arg-type]
                schema=serializer_for(self._declared[name].type).schema,
                parts=parts[:1] if self._declared[name].kind == "broadcast" else parts,
            )
            for name, parts in self._elements.items()
        }

    def rows(self, *rows: Any) -> list[Any]:
        """One batch of input rows, dealt out to the subtasks in turn; gives the rows that it puts out."""
        produced: list[Any] = []
        count = self._parallelism

        def work(engine: PartitionEngine) -> None:
            for _ in engine.run(iter(rows[engine.context.subtask :: count])):
                pass

        for engine in self._batch(work):
            produced += engine.out
            for name, emitted in ((MAIN, engine.out), *engine.context.sides.items()):
                if name in self._takers:
                    self._takers[name].check(emitted)
            self._put_out(engine.out, engine.context.sides)
            self._count(engine.context.metrics.counters)
        return produced

    def broadcast(self, name: str, *rows: Any) -> None:
        """A batch with rows of a broadcast stream."""
        self._batch(lambda engine: engine.broadcast(name, rows))

    def restart(self, *, after: timedelta = timedelta()) -> None:
        """Ends the run: the next batch is the first of another one, `after` a while."""
        self._begins, self.now = True, self.now + after

    def rescale(self, parallelism: int) -> None:
        """The number of subtasks from the next run on."""
        if parallelism < 1:
            raise UsageError(f"an operator has at least one subtask, not {parallelism}")
        self._elements = {
            name: redistributed(state, parallelism).parts for name, state in self._recorded().items()
        }
        self._parallelism = parallelism
        self.restart()

    def state(self, subtask: int = 0) -> Any:
        """The process with a subtask's state, for reading: `harness.state(1).seen.get()`."""
        engine = self._engine(subtask)
        hand_out(engine.process, self._elements, subtask, whole=False)
        return engine.process

    def _batch(self, work: Callable[[PartitionEngine], None]) -> list[PartitionEngine]:
        """Runs all subtasks. As in a run, a batch in which one fails has changed nothing."""
        self._slot += 1
        parts, engines = [], []
        for engine in self._subtasks():
            try:
                subtask = engine.context.subtask
                hand_out(engine.process, self._elements, subtask, whole=self._begins, watched=True)
                engine.open()
                engine.restore()
                work(engine)
                engine.snapshot()
                parts.append(gathered(self._spec.uid, engine.process))
                engines.append(engine)
            finally:
                engine.close()
        elements = {name: tuple(part[name] for part in parts) for name in self._declared}
        for name, declaration in self._declared.items():
            if declaration.kind == "broadcast":
                check_alike(self._spec.uid, name, elements[name])
        self._elements, self._begins = elements, False
        return engines

    def _subtasks(self) -> Iterator[PartitionEngine]:
        return map(self._engine, range(self._parallelism))

    def _engine(self, subtask: int) -> PartitionEngine:
        moment = Moment(self._slot, micros_since_epoch(self.now), self._slot, None, self._parameters)
        return PartitionEngine(self._spec, moment, subtask, self._parallelism, self._takers)
