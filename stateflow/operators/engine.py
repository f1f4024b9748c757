"""One process in one task: its states, and the calls of its life cycle. Keyed and partitioned operators share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import GeneratorType
from typing import Any

from stateflow.errors import StateflowError, UsageError, UserCodeError, placed
from stateflow.format.instants import nearest_instant
from stateflow.operators.binding import Binding, bind
from stateflow.operators.context import Moment, OperatorContext
from stateflow.operators.lateness import of_rows_and_timers
from stateflow.operators.snapshots import Copies, Taker
from stateflow.pipelines.processes.operator_spec import DEAD_LETTER, DEAD_LETTERS, MAIN, OperatorSpec
from stateflow.state.broadcast_map import BroadcastWriteError, writing
from stateflow.state.cursor import NO_KEY, Cursor

REPEATED = "nothing of the batch was stored, and a run with changed code repeats it"
"""How to go on after user code has raised."""
OUTPUT_ROWS = 20_000
"""So many rows in `out` are enough for a batch of Arrow's: then they should be taken."""


class ProcessEngine:
    """The process with its states bound; `out` fills with rows."""

    def __init__(
        self,
        spec: OperatorSpec,
        moment: Moment,
        subtask: int,
        parallelism: int = 1,
        takers: Mapping[str, Taker] | None = None,
    ) -> None:
        """`takers` take the rows of the outputs. For an output without a taker, copies of the rows are kept."""
        self.spec = spec
        self.moment = moment
        self.cursor = Cursor(moment.slot + moment.shift, moment.now, moment.watermark)
        self.process = spec.process()
        sides = [*spec.sides, *([DEAD_LETTERS] if spec.on_error == DEAD_LETTER else [])]
        given = takers or {}
        self.taker: Taker = given.get(MAIN) or Copies()
        by_side = {name: given.get(name) or Copies() for name in sides}
        self.context = OperatorContext(self.cursor, moment, subtask, by_side, parallelism)
        self._at_rows, self._at_timers = (
            None if each is None else nearest_instant(each)
            for each in of_rows_and_timers(moment, waited=spec.waited, held_back=spec.held_back)
        )
        self.context.watermark = self._at_rows
        self.binding: Binding = bind(
            self.process, spec.uid, self.cursor, spec.state_ids, spec.evolved, spec.indexes
        )
        self.out: list[Any] = []
        """Rows of the main output, as its taker has taken them."""
        self.keys = 0

    def open(self) -> None:
        self._user("open", self.process.open)

    def restore(self) -> None:
        if self.binding.operator:
            self._user("restore", self.process.restore)

    def snapshot(self) -> None:
        if self.binding.operator:
            self._user("snapshot", self.process.snapshot)

    def close(self) -> None:
        self._user("close", self.process.close, without_context=True)

    def broadcast(self, name: str, rows: Sequence[Any]) -> None:
        with writing(self.binding.operator.values()):
            self._user(
                "process_broadcast",
                lambda context: self.process.process_broadcast(name, iter(rows), context),
            )

    def _user(self, what: str, method: Callable[..., Any], *, without_context: bool = False) -> None:
        """Calls a method of the operator's life cycle, where there is no key."""
        self._leave_key()
        try:
            made = method() if without_context else method(self.context)
            if isinstance(made, GeneratorType):
                raise UsageError(
                    "it has a yield, so that Python would run nothing of it, and no row comes out of it: take the yield out"
                )
            if self.cursor.dirty:
                self.cursor.discard()
                raise UsageError(NO_KEY)
        except BroadcastWriteError:
            raise
        except StateflowError as error:
            raise type(error)(f"operator {self.spec.uid!r}, {what}: {error}") from error
        except Exception as error:
            raise UserCodeError(
                f"operator {self.spec.uid!r} failed in {what}: {placed(error)}: {REPEATED}"
            ) from error

    def _leave_key(self) -> None:
        self.cursor.serial += 1
        self.cursor.base = _NoKey()
        for state in self.binding.chunked:
            state.leave(_NoKey())


class _NoKey(list[Any]):
    """Stands in for keys and values where there are none."""

    def __getitem__(self, index: Any) -> Any:
        raise UsageError(NO_KEY)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise UsageError(NO_KEY)
