"""The engine of an operator without keys: a subtask's rows in, output rows and operator state out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateflow.errors import StateflowError, UserCodeError, placed
from stateflow.operators.engine import REPEATED, ProcessEngine
from stateflow.operators.output import returned
from stateflow.pipelines.processes.process import PartitionProcess
from stateflow.state.broadcast_map import BroadcastWriteError


class PartitionEngine(ProcessEngine):
    """One partitioned operator in one task."""

    def run(self, rows: Iterator[Any]) -> Iterator[None]:
        """Calls user code with all rows of the subtask; yields with each row put out, so that output can be taken."""
        taker = self.taker
        for row in self._produced(rows):
            try:
                self.out.append(taker.values(row))
            except AttributeError as error:
                raise taker.explained(error) from error
            yield

    def _produced(self, rows: Iterator[Any]) -> Iterator[Any]:
        process = self.process
        assert isinstance(process, PartitionProcess)
        self._leave_key()
        self.context.late = False
        try:
            produced = process.process(rows, self.context)
            yield from () if produced is None else returned(self.spec.uid, produced)
        except BroadcastWriteError:
            raise
        except StateflowError as error:
            raise type(error)(f"operator {self.spec.uid!r}: {error}") from error
        except Exception as error:
            raise UserCodeError(
                f"operator {self.spec.uid!r} failed in subtask {self.context.subtask}: {placed(error)}: {REPEATED}"
            ) from error
