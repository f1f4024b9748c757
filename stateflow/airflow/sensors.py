"""Sensors: tasks that wait until a job is fresh, or until its watermark has reached a time."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow.operators.arguments import Argument, Deferrable, Name, SomeTime, one_of, span
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.errors import UnavailableError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.airflow.triggers.freshness import Answer
    from stateflow.airflow.triggers.job import JobTrigger

_STORE_PATIENCE = timedelta(minutes=10)


def moment(value: Any) -> datetime:
    """A time, or the ISO text that a template gives; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(
                "is no time: write it like '2026-01-31T00:00:00+00:00'; a run that was triggered by hand may have no data "
                "interval"
            ) from None
    if not isinstance(value, datetime):
        raise TypeError("has to be a datetime, or a text like '2026-01-31T00:00:00+00:00'")
    return value if value.tzinfo else value.replace(tzinfo=UTC)


NoTemplateSpan = Annotated[timedelta | str, Argument(span, template=False)]
WhenMissing = Annotated[str, Argument(one_of("wait", "fail"))]
Moment = Annotated[datetime | str, Argument(moment)]


class _JobSensor(StateflowOperator, BaseSensorOperator):
    """Looks at a job until a condition holds: in the worker, or deferred in the triggerer."""

    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        job: Name,
        missing: WhenMissing = "wait",
        deferrable: Deferrable = None,
        store_patience: NoTemplateSpan = _STORE_PATIENCE,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.accept(locals())
        self._trigger: JobTrigger | None = None
        self._away_since: float | None = None

    @abstractmethod
    def condition(self) -> JobTrigger:
        """The condition, as a trigger. The worker looks with the same trigger."""

    def execute(self, context: Context) -> Any:
        with self.at_work():
            if not self.given("deferrable"):
                return super().execute(context)
            if answer := self.poke(context):
                return answer.xcom_value  # no need to defer
            from stateflow.airflow.triggers.overdue import deadline_of  # a DAG file must not load it

            trigger = self.condition()
            trigger.deadline = deadline_of(self, context)
            self.defer(
                trigger=trigger,
                method_name=self.execute_complete.__name__,
                timeout=timedelta(seconds=self.timeout),
            )

    def poke(self, context: Context) -> PokeReturnValue:
        answer = self._look(context)
        if answer is None or not answer.done:
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._facts(context, answer.document()))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Called by Airflow after the trigger has fired."""
        from stateflow.airflow.triggers.overdue import refuse_overdue  # as above

        refuse_overdue(self, event)
        if sentence := event.get("failed"):
            raise AirflowException(sentence) if event.get("retry") else AirflowFailException(sentence)
        self.log.info("%s", event["done"])
        return self._facts(context, event)

    def conditions(self, **condition: Any) -> dict[str, Any]:
        """The arguments that all triggers take, and those of one trigger."""
        return {
            "job": self.given("job"),
            "stateflow_conn_id": self.given("stateflow_conn_id"),
            "checkpoint_dir": self.given("checkpoint_dir"),
            "missing": self.given("missing"),
            "poke_interval": max(1.0, self.poke_interval),
            "store_patience": self.given("store_patience").total_seconds(),
            **condition,
        }

    def _look(self, context: Context) -> Answer | None:
        """None while the store is out of reach, for at most `store_patience`.

        A rescheduled sensor is a new process each time, so it cannot tell how long the store has been away: its task fails
        and is retried.
        """
        if self._trigger is None:
            self._trigger = self.condition()
            self.linked(context)
        try:
            answer = self._trigger.look()
        except UnavailableError as error:
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            patient = now - self._away_since < self.given("store_patience").total_seconds()
            if not self.given("deferrable") and (self.reschedule or not patient):
                raise
            self.log.warning("the store is out of reach: %s", error)
            return None
        self._away_since = None
        self.log.info("%s", answer.text)
        return answer

    def _facts(self, context: Context, facts: Mapping[str, Any]) -> dict[str, Any]:
        self.linked(context, facts["checkpoint"])
        return self.result(facts["checkpoint"], watermark=facts["watermark"], age=facts["age"])


class CheckpointFreshnessSensor(_JobSensor):
    """Waits until the job is fresh: its newest checkpoint, or the end of a run that found nothing new, is younger than
    `max_age`."""

    def __init__(self, *, max_age: SomeTime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def condition(self) -> JobTrigger:
        from stateflow.airflow.triggers.job import CheckpointFreshnessTrigger  # a DAG file must not load it

        return CheckpointFreshnessTrigger(**self.conditions(max_age=self.given("max_age").total_seconds()))


class WatermarkSensor(_JobSensor):
    """Waits until the job's watermark has reached a time: all rows up to then have been seen, as far as its sources'
    watermarks promise."""

    def __init__(self, *, watermark: Moment = "{{ data_interval_end }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def condition(self) -> JobTrigger:
        from stateflow.airflow.triggers.freshness import micros  # as above
        from stateflow.airflow.triggers.job import WatermarkTrigger

        return WatermarkTrigger(**self.conditions(watermark=micros(self.given("watermark"))))
