"""The base of every operator: its connection, the owner it acts as, its link, and its end when the task is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from stateflow.airflow.connections.failures import spoken
from stateflow.airflow.connections.sessions import own_session
from stateflow.airflow.connections.spark import spark_master
from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.operators.arguments import DeclaredArguments, Name, Note, Text, is_deferred
from stateflow.airflow.operators.idempotency import IdempotencyKey
from stateflow.airflow.operators.links import XCOM_KEY, CheckpointLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from stateflow.checkpoint.statistics import HistoryLine
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job


class StateflowOperator(DeclaredArguments, BaseOperator):
    """An operator about one job."""

    operator_extra_links: tuple[BaseOperatorLink, ...] = (CheckpointLink(),)
    ui_color = "#e3f0f4"

    _at_work = False
    _killed = False
    _key: IdempotencyKey | None = None

    def __init__(
        self,
        *,
        job: Name,
        stateflow_conn_id: Name = StateflowHook.default_conn_name,
        checkpoint_dir: Text = "",
        note: Note = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def render_template(
        self, content: Any, context: Context, jinja_env: Any = None, seen_oids: set[int] | None = None
    ) -> Any:
        """As Airflow does it. It notes where a part of a text is None: the text looks as if somebody had written that word."""
        if not isinstance(content, str) or not is_deferred(content):
            return super().render_template(content, context, jinja_env, seen_oids)
        found: list[None] = []

        def noted(value: Any) -> Any:
            if value is None:
                found.append(value)
            return value

        noting = (jinja_env or self.get_template_env()).overlay(finalize=noted)
        rendered = super().render_template(content, context, noting, seen_oids)
        if found:
            self.lost_within |= {content}
        return rendered

    @cached_property
    def hook(self) -> StateflowHook:
        return StateflowHook(self.given("stateflow_conn_id"), self.given("checkpoint_dir"))

    def acts_as(self, context: Context) -> Owner:
        """The owner in the records that this task writes. BaseOperator's own `owner` is another one: the owner of the DAG.

        `run` is the idempotency key: all retries have the same one, so a retry finds what a killed try did. When the work has
        ended and somebody clears the task, it is another one.
        """
        from stateflow.checkpoint.process import this_process  # loads records, and a DAG file must not

        ti = context["ti"]
        named_run = f"{ti.dag_id}/{ti.run_id}"
        mapped = ti.map_index is not None and ti.map_index >= 0
        task = f"{ti.task_id}[{ti.map_index}]" if mapped else ti.task_id
        return this_process(
            run=f"{named_run}/{task}/{self._key_of(context).text}",
            dag_run=named_run,
            task=task,
            note=self.given("note"),
            user=triggered_by(context),
        )

    def _key_of(self, context: Context) -> IdempotencyKey:
        if self._key is None or self._key.ti_id != str(context["ti"].id):
            self._key = IdempotencyKey(context)
        return self._key

    def job_for(self, context: Context, name: str = "", conf: Mapping[str, str] | None = None) -> Job:
        """The job, which writes in this task's name. `conf`: settings of Spark, for output that has to be delivered."""
        self.hook.require_root()
        return self.hook.job(name or self.given("job"), acts_as=self.acts_as(context), conf=conf)

    def spoken(self) -> AbstractContextManager[None]:
        return spoken()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around all that `execute` does: a task that is killed ends here, and cleans up on its way out."""
        self._at_work, self._killed = True, False
        try:
            for name in self.arguments:
                self.given(name)  # a wrong value is refused before anything is done
            with own_session(), self.spoken():
                yield
        except AirflowSkipException:
            self._end_work()
            raise
        except Exception:
            if self._killed:  # Spark may have turned our error into one of its own
                raise self._ended_early() from None
            raise
        else:
            self._end_work()
        finally:
            self._at_work = False

    def _end_work(self) -> None:
        """A retry still finds what was done, and a task that is cleared does the work again."""
        if self._key is not None and not self._killed:
            self._key.end()

    def on_kill(self) -> None:
        """Ends `execute` by raising. Airflow calls this in a signal handler and would then let `execute` go on.

        After a timeout `execute` has already ended.
        """
        if self._at_work:
            self._at_work, self._killed = False, True
            raise self._ended_early()

    def _ended_early(self) -> AirflowException:
        return AirflowException(
            f"task {self.task_id!r} was killed: its unfinished work is undone or can be repeated"
        )

    def finished_before(
        self,
        job: Job,
        kind: Literal["restore", "rescale"],
        otherwise: Callable[[HistoryLine], str] = lambda line: "",
    ) -> HistoryLine | None:
        """The record that an earlier try of this task made. If that try was cut off, its record is carried out here. `otherwise` says
        what that record has done in place of what is asked for now; empty if it is the same."""
        line = job.done_before(kind)
        if line is not None:
            if words := otherwise(line):
                raise AirflowFailException(
                    f"an earlier try of this task has {words}: record {line.id} of job {job.name!r}; nothing was done now, so "
                    "trigger the DAG again: a task that failed keeps to its first work when it is cleared"
                )
            self.log.info("an earlier try of this task has made record %d: it is not made again", line.id)
            if line.status == "IN_PROGRESS":
                job.settle()
            job.release_left()
        return line

    def linked(self, context: Context, checkpoint: int | None = None, **more: Any) -> dict[str, Any]:
        """Stores what the task is about, for its links."""
        subject = {
            "conn_id": self.hook.page_conn_id,
            "job": self.given("job"),
            "checkpoint": checkpoint,
            **more,
        }
        context["ti"].xcom_push(XCOM_KEY, subject)
        return subject

    def result(self, checkpoint: int | None, **facts: Any) -> dict[str, Any]:
        """The result for XCom: small, and plain."""
        return {
            "job": self.given("job"),
            "conn_id": self.hook.page_conn_id,
            "root": self.hook.root,
            "checkpoint": checkpoint,
            **facts,
        }

    def progress(self) -> Callable[[str, int, int], None]:
        """A callback that writes progress to the task's log: the beginning, every tenth, the end."""
        last: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            tenth = 10 * done // total if total else 10
            if last.get(what) != tenth:
                last[what] = tenth
                self.log.info("%s: %d of %d", what, done, total)

        return report

    def spark_conf(self) -> dict[str, str]:
        """Spark's settings from `spark_conn_id`, for work in this task's own process."""
        conn_id = self.given("spark_conn_id")
        if conn_id is None:
            return {}
        master, conf = spark_master(conn_id)
        return {**conf, **({"spark.master": master} if master else {})}


def triggered_by(context: Context) -> str:
    """Who triggered the DAG run; empty when nobody did, as of a scheduled one."""
    return getattr(context["dag_run"], "triggering_user_name", None) or ""
