"""What every operator has: the connection, who it acts as, the link, and how it ends when it is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow.connections.failures import spoken
from stateflow.airflow.connections.sessions import own_session
from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.airflow.operators.arguments import Reader, is_late, named, read, text
from stateflow.airflow.operators.links import XCOM_KEY, CheckpointLink

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.statistics import HistoryLine
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job

T = TypeVar("T")


class StateflowOperator(BaseOperator):
    """An operator about one job."""

    template_fields: Sequence[str] = ("job", "stateflow_conn_id", "checkpoint_dir", "note")
    operator_extra_links = (CheckpointLink(),)
    ui_color = "#e3f0f4"
    readers: Mapping[str, Reader[Any]] = {
        "job": named,
        "stateflow_conn_id": named,
        "checkpoint_dir": text,
        "note": text,
    }
    """How each argument is read; a subclass adds its own."""

    _at_work = False
    _told_to_end = False

    def __init__(
        self,
        *,
        job: str,
        stateflow_conn_id: str = StateflowHook.default_conn_name,
        checkpoint_dir: str = "",
        note: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.stateflow_conn_id = stateflow_conn_id
        self.checkpoint_dir = checkpoint_dir
        self.note = note
        self.check("job", "stateflow_conn_id", "checkpoint_dir", "note")

    def check(self, *names: str) -> None:
        """Refuses arguments that are wrong already while the DAG is parsed; templates pass, and are read later."""
        for name in names:
            if not is_late(value := getattr(self, name)):
                read(self.task_id, name, value, self.readers[name])

    def given(self, name: str) -> Any:
        """An argument in its own type, once it is rendered."""
        try:
            return read(self.task_id, name, getattr(self, name), self.readers[name])
        except (TypeError, ValueError) as error:
            raise AirflowFailException(str(error)) from None

    @cached_property
    def hook(self) -> StateflowHook:
        return StateflowHook(self.given("stateflow_conn_id"), self.given("checkpoint_dir"))

    def acts_as(self, context: Context) -> Owner:
        """Who stands in what this task writes. BaseOperator has an `owner` of its own: whom a DAG belongs to.

        `run` is the same for every retry, and another once somebody has cleared the task: by it a retry finds what a try
        that was killed had done already.
        """
        from stateflow.checkpoint.process import this_process

        ti, dag_run = context["ti"], context["dag_run"]
        named_run = f"{ti.dag_id}/{ti.run_id}"
        mapped = ti.map_index is not None and ti.map_index >= 0
        task = f"{ti.task_id}[{ti.map_index}]" if mapped else ti.task_id
        # A clear raises max_tries by the tries there were: whatever follows it is another deed.
        first_try = max(1, (ti.max_tries or 0) - (self.retries or 0) + 1)
        owner = this_process(
            run=f"{named_run}/{task}/{first_try}", dag_run=named_run, task=task, note=self.given("note")
        )
        if user := getattr(dag_run, "triggering_user_name", None):
            import msgspec

            return msgspec.structs.replace(owner, user=user)
        return owner

    def job_for(self, context: Context, name: str = "", conf: Mapping[str, str] | None = None) -> Job:
        """The job, which writes in this task's name. `conf`: Spark's, should something have to be carried out."""
        self.hook.require_root()
        return self.hook.job(name or self.given("job"), acts_as=self.acts_as(context), conf=conf)

    def spoken(self) -> AbstractContextManager[None]:
        return spoken()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around all that `execute` does: a task that is told to end is ended here, and cleans up on its way out."""
        self._at_work, self._told_to_end = True, False
        try:
            for name in self.readers:
                self.given(name)  # nonsense is found before anything is done
            with own_session(), self.spoken():
                yield
        except Exception:
            if self._told_to_end:  # whatever it has become on its way through Spark
                raise self._ended_early() from None
            raise
        finally:
            self._at_work = False

    def on_kill(self) -> None:
        """Airflow calls this from a signal's handler and then lets `execute` go on: raising is what ends it.

        After a timeout `execute` has ended by itself.
        """
        if self._at_work:
            self._at_work, self._told_to_end = False, True
            raise self._ended_early()

    def _ended_early(self) -> AirflowException:
        return AirflowException(
            f"task {self.task_id!r} was told to end: what it had begun is undone or can be repeated"
        )

    def finished_before(self, job: Job, kind: Literal["restore", "rescale"]) -> HistoryLine | None:
        """The record that an earlier try of this task has made; carried out here, should that have been cut off."""
        done = job.done_before(kind)
        if done is not None:
            self.log.info("an earlier try of this task has made record %d: it is not made again", done.id)
            if done.status == "IN_PROGRESS":
                job.settle()
            job.release_left()
        return done

    def linked(self, context: Context, checkpoint: int | None = None) -> None:
        """Says what the task is about, for its link."""
        said = {"conn_id": self.hook.page_conn_id, "job": self.given("job"), "checkpoint": checkpoint}
        context["ti"].xcom_push(XCOM_KEY, said)

    def result(self, checkpoint: int | None, **facts: Any) -> dict[str, Any]:
        """What goes into XCom: small, and plain."""
        return {
            "job": self.given("job"),
            "conn_id": self.hook.page_conn_id,
            "root": self.hook.root,
            "checkpoint": checkpoint,
            **facts,
        }

    def told(self) -> Callable[[str, int, int], None]:
        """A progress callback that writes to the task's log: the beginning, every tenth, the end."""
        last: dict[str, int] = {}

        def tell(what: str, done: int, total: int) -> None:
            tenth = 10 * done // total if total else 10
            if last.get(what) != tenth:
                last[what] = tenth
                self.log.info("%s: %d of %d", what, done, total)

        return tell

    def spark_conf(self) -> dict[str, str]:
        """Spark's settings of `spark_conn_id`, for what this task may have to do with Spark in its own process."""
        conn_id = self.given("spark_conn_id")
        if conn_id is None:
            return {}
        from stateflow.airflow.connections.spark import spark_master

        master, conf = spark_master(conn_id)
        return {**conf, **({"spark.master": master} if master else {})}
