"""The idempotency key of a task: all its tries share it until its work has ended and somebody clears it.

Airflow gives every try another id, and keeps the task's state store from try to try. So the first try's id is the key, and the store
has it. Clearing a task leaves the store as it is. It raises the DAG run's `clear_number`, also when somebody has cleared another task, but
not through the API when that is to leave the DAG run as it is; and it raises the task's own `max_tries`, which no retry does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

NOTE = "stateflow.idempotency_key"
"""The key of the note in the task's state store. A retry may run with a later version of this package."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """What a try leaves to the next one."""

    key: str
    clears: int
    """How often tasks of the DAG run had been cleared."""
    ended: bool = False
    again: bool = False
    """Whether work of the task had ended before this one, under another key."""
    tries: int | None = None
    """The task's `max_tries`; None in a note of an earlier version."""

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Note:
        # What notes of earlier versions do not have is the default.
        again, tries = bool(stored.get("again", False)), stored.get("tries")
        return cls(str(stored["key"]), int(stored["clears"]), bool(stored["ended"]), again, tries)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def holds(self, clears: int, tries: int) -> bool:
        """Whether the next try is about the same work.

        The next try goes on with work that has not ended, also if somebody has cleared the task. A worker may die between the end
        of the work and its report: then Airflow tries again, and nobody has cleared anything.
        """
        return not self.ended or (self.clears == clears and self.tries in (None, tries))


class IdempotencyKey:
    """That of the task which runs now."""

    def __init__(self, context: Context) -> None:
        self._store = context["task_state_store"]
        self._clears = context["dag_run"].clear_number or 0
        self._tries = context["ti"].max_tries
        self.ti_id = str(context["ti"].id)
        stored: Any = self._store.get(NOTE)
        before = Note.of(stored) if stored else None
        self.again = before is not None and (before.again or not before.holds(self._clears, self._tries))
        if before is not None and before.holds(self._clears, self._tries):
            self.text = before.key
            return
        self.text = self.ti_id
        self._store.set(NOTE, self._note())

    def _note(self, *, ended: bool = False) -> dict[str, Any]:
        return Note(self.text, self._clears, ended, self.again, self._tries).plain()

    def end(self) -> None:
        """The work is done, so nothing here may fail the task. Without the note a task that is cleared reports this work again."""
        try:
            self._store.set(NOTE, self._note(ended=True))
        except Exception as error:
            _log.warning("that the work has ended could not be noted: %s", error)
