"""Sensors: tasks that wait until a job is fresh, or until its event time has got somewhere."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow.operators.arguments import Reader, flag, one_of, span
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.airflow.triggers.freshness import micros
from stateflow.errors import UnavailableError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.airflow.triggers.freshness import Answer
    from stateflow.airflow.triggers.job import JobTrigger, Missing

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


def _some(value: Any) -> timedelta:
    found = span(value)
    if not found:
        raise ValueError("has to be more than 0")
    return found


class _JobSensor(StateflowOperator, BaseSensorOperator):
    """Looks at a job until an answer is there: from the worker, or deferred from the triggerer."""

    template_fields: Sequence[str] = ("job", "stateflow_conn_id", "checkpoint_dir", "missing")
    ui_color = "#e6f1f2"
    readers: Mapping[str, Reader[Any]] = {
        **StateflowOperator.readers,
        "missing": one_of("wait", "fail"),
        "deferrable": flag,
        "store_patience": span,
    }

    def __init__(
        self,
        *,
        job: str,
        missing: Missing = "wait",
        deferrable: bool | None = None,
        store_patience: timedelta | str = _STORE_PATIENCE,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.missing = missing
        if deferrable is None:
            deferrable = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = deferrable
        self.store_patience = store_patience
        self.check("missing", "deferrable", "store_patience")
        self._asking: JobTrigger | None = None
        self._away_since: float | None = None

    @abstractmethod
    def condition(self) -> JobTrigger:
        """What is waited for, as the triggerer asks it; the worker asks the same."""

    def execute(self, context: Context) -> Any:
        with self.at_work():
            if not self.given("deferrable"):
                return super().execute(context)
            if found := self.poke(context):
                return found.xcom_value  # nobody need be asked to wait
            self.defer(
                trigger=self.condition(),
                method_name=self.execute_complete.__name__,
                timeout=timedelta(seconds=self.timeout),
            )

    def poke(self, context: Context) -> PokeReturnValue:
        answer = self._look(context)
        if answer is None or not answer.done:
            return PokeReturnValue(False)
        return PokeReturnValue(True, self._found(context, answer.document()))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """After the trigger has fired."""
        if sentence := event.get("failed"):
            raise AirflowException(sentence) if event.get("retry") else AirflowFailException(sentence)
        self.log.info("%s", event["done"])
        return self._found(context, event)

    def asked(self, **condition: Any) -> dict[str, Any]:
        """The arguments that every trigger takes, and those of its own."""
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
        """None while the store is out of reach, for as long as that is to be borne.

        A sensor that is rescheduled is a new process each time and cannot tell how long that has been: its task fails, and
        is retried.
        """
        if self._asking is None:
            self._asking = self.condition()
            self.linked(context)
        try:
            answer = self._asking.look()
        except UnavailableError as error:
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            borne = now - self._away_since < self.given("store_patience").total_seconds()
            if not self.given("deferrable") and (self.reschedule or not borne):
                raise
            self.log.warning("the store is out of reach: %s", error)
            return None
        self._away_since = None
        self.log.info("%s", answer.text)
        return answer

    def _found(self, context: Context, facts: Mapping[str, Any]) -> dict[str, Any]:
        self.linked(context, facts["checkpoint"])
        return self.result(facts["checkpoint"], watermark=facts["watermark"], age=facts["age"])


class CheckpointFreshnessSensor(_JobSensor):
    """Waits until the job is fresh: its newest checkpoint, or the end of a run that found nothing new, is younger than
    `max_age`."""

    template_fields: Sequence[str] = (*_JobSensor.template_fields, "max_age")
    readers: Mapping[str, Reader[Any]] = {**_JobSensor.readers, "max_age": _some}

    def __init__(self, *, max_age: timedelta | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_age = max_age
        self.check("max_age")

    def condition(self) -> JobTrigger:
        from stateflow.airflow.triggers.job import CheckpointFreshnessTrigger

        return CheckpointFreshnessTrigger(**self.asked(max_age=self.given("max_age").total_seconds()))


class WatermarkSensor(_JobSensor):
    """Waits until the job's watermark has reached a time: all rows up to then have been seen, as far as its sources'
    watermarks promise."""

    template_fields: Sequence[str] = (*_JobSensor.template_fields, "watermark")
    readers: Mapping[str, Reader[Any]] = {**_JobSensor.readers, "watermark": moment}

    def __init__(self, *, watermark: datetime | str = "{{ data_interval_end }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.watermark = watermark
        self.check("watermark")

    def condition(self) -> JobTrigger:
        from stateflow.airflow.triggers.job import WatermarkTrigger

        return WatermarkTrigger(**self.asked(watermark=micros(self.given("watermark"))))
