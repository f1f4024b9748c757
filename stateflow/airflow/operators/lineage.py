"""The run operator's part of OpenLineage. Without its provider, or without a transport, nothing is read.

The provider asks a task for its facets in a process that it has forked off, where a store's client may hang. So the task
reads them itself, before it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateflow.airflow.operators.task_lineage import TaskLineage

_log = logging.getLogger(__name__)


class ReportsLineage:
    """For an operator whose task starts runs of a job: the methods that OpenLineage's provider looks for."""

    _lineage: TaskLineage | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        return self._facets()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        return self._facets()

    def _facets(self) -> Any:
        if self._lineage is None:
            return None
        from stateflow.airflow.operators.openlineage import operator_lineage  # needs the provider

        return operator_lineage(self._lineage)

    @contextmanager
    def noting_lineage(self, read: Callable[[], TaskLineage | None]) -> Iterator[None]:
        """Around a task's work: reads what its runs did when it has ended, well or not. A task that is deferred has not."""
        try:
            yield
        except Exception:
            self._note_lineage(read)
            raise
        else:
            self._note_lineage(read)

    def _note_lineage(self, read: Callable[[], TaskLineage | None]) -> None:
        if not is_wanted():
            return
        try:
            self._lineage = read()
        except Exception as error:
            _log.warning("OpenLineage gets no inputs and outputs of this run: %s", error)


def is_wanted() -> bool:
    """Whether Airflow sends lineage anywhere."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()
