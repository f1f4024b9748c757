"""Runs Spark inside the task's own process: for small jobs."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.airflow.connections.spark import spark_master
from stateflow.checkpoint.process import this_process
from stateflow.config.options import checkpoint_root, load
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import DriverSpec, ReplaySpec, RunSpec
from stateflow.driver.supervision import Launcher
from stateflow.errors import StateflowError, frames_beside
from stateflow.quantities import several

if TYPE_CHECKING:
    from stateflow.config.options import Options
    from stateflow.jobs.job import Job
    from stateflow.pipelines.loading import LoadedPipeline
    from stateflow.spark.loop import BatchReport


class InProcess:
    """`InProcess()`: Spark's session is the task's own and ends with it, so a retry finds no driver."""

    detached = False

    def bound(self, spark_conn_id: str) -> Launcher:
        return _Inside(*spark_master(spark_conn_id))

    def __repr__(self) -> str:
        return "InProcess()"


class _Inside:
    def __init__(self, master: str | None, conf: dict[str, str]) -> None:
        self._master, self._conf = master, conf

    def find(self, spec: DriverSpec) -> _Thread | None:
        return None

    def launch(self, spec: DriverSpec) -> _Thread:
        driver = _Thread(spec, self._master, {**self._conf, **spec.conf})
        driver.start()
        return driver


class _Thread(threading.Thread):
    """A driver that is a thread: the task's main thread has to stay free for Airflow's signals."""

    def __init__(self, spec: DriverSpec, master: str | None, conf: dict[str, str]) -> None:
        super().__init__(name=f"stateflow {spec.job}", daemon=True)
        self._spec, self._master, self._conf = spec, master, conf
        self.above = spec.above
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stop_run = threading.Event()
        self._code: int | None = None
        self._words: list[str] = []

    def run(self) -> None:
        try:
            self._work()
            self._code = 0
        except StateflowError as error:
            if frames := frames_beside(error):
                self._lines.put(f"in the pipeline's own code:\n{frames}")
            self._words = [f"stateflow: {error}"]
            self._code = error.exit_code
        except BaseException as error:
            self._lines.put(traceback.format_exc())
            self._words = [f"stateflow: {type(error).__name__}: {error}"]
            self._code = 1

    @property
    def submitting(self) -> bool:
        return False

    def look(self) -> ProcessStatus:
        return ProcessStatus(True) if self._code is None else ProcessStatus(False, self._code)

    def output(self) -> list[str]:
        lines: list[str] = []
        with suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return lines

    def last_words(self) -> list[str]:
        return self._words

    def stop(self, grace: float) -> None:
        # A thread cannot be killed. Airflow kills the process that it lives in.
        self._stop_run.set()

    def _work(self) -> Any:
        # These load Spark and pyarrow, and a DAG file must not.
        from stateflow.jobs.job import Job
        from stateflow.pipelines.loading import load_pipeline

        spec = self._spec
        settings: dict[str, str | None] = dict(spec.options)
        if isinstance(spec, RunSpec):
            settings |= {"trigger": spec.trigger or None}
            settings |= {"parallelism": None if spec.parallelism is None else str(spec.parallelism)}
        options = load(cli=settings, env={**os.environ, **spec.environment})
        revision = spec.revision if isinstance(spec, RunSpec) else ""
        loaded = load_pipeline(
            spec.pipeline, Path.cwd(), revision, allow_non_restored_state=spec.allow_non_restored_state
        )
        job = Job(
            checkpoint_root(options),
            spec.job,
            storage_options=options.storage_options,
            heartbeat_timeout=options.heartbeat_timeout.total_seconds(),
        )
        self._lines.put(f"{spec.job}: starting Spark in this process")
        if isinstance(spec, ReplaySpec):
            return self._replay(spec, loaded, job, options)
        assert isinstance(spec, RunSpec)
        return self._run(spec, loaded, job, options)

    def _run(self, spec: RunSpec, loaded: LoadedPipeline, job: Job, options: Options) -> Any:
        from stateflow.jobs.running import checked_parameters, run_loaded  # as above
        from stateflow.pipelines.bounds import parse_bounds

        return run_loaded(
            loaded,
            job,
            checked_parameters(loaded.pipeline, job, spec.parameters),
            options=options,
            master=self._master,
            conf=self._conf,
            until=parse_bounds([spec.until] if spec.until else None),
            owner=this_process(dag_run=spec.dag_run, task=spec.task, note=spec.note, user=spec.user),
            takeover=spec.takeover,
            drain=spec.final,
            listener=self._finished,
            stop=self._stop_run,
        )

    def _replay(self, spec: ReplaySpec, loaded: LoadedPipeline, job: Job, options: Options) -> Any:
        from stateflow.jobs.running import replay_loaded  # as above

        return replay_loaded(
            loaded,
            job,
            "",
            "latest",
            spec.parameters,
            options=options,
            master=self._master,
            conf=self._conf,
            newest=spec.batches,
            keep=spec.keep,
            owner=this_process(dag_run=spec.dag_run, task=spec.task, note=spec.note),
            max_changed=spec.max_changed,
            listener=lambda done, of: self._lines.put(f"batch {done} of {of} ran again"),
        )

    def _finished(self, report: BatchReport) -> None:
        self._lines.put(
            f"checkpoint {report.slot}: {several(report.rows, 'row')} in {report.duration:.1f} s"
            + (" (timers)" if report.input_free else "")
        )
