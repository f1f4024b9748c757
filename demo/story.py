"""The story that `make demo` tells: every step is something that a person could do in Airflow's UI."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding

from demo.airflow_client import RUN_OVER, AirflowClient, RunOf
from demo.airflow_server import PROJECT, AirflowServer
from demo.crash import kill_in_a_batch
from demo.narrator import Narrator
from demo.spark_runs import Command
from demo.table import compared
from stateflow.errors import StateflowError
from stateflow.hosts.client import LOG, Refused, ask
from stateflow.hosts.settings import folder_of
from stateflow.jobs.job import Job

JOB = "orders"
PIPELINE = PROJECT / "examples" / "orders.py"
GOOD, BAD = "self.total.value += row.amount", "self.total.value += row.amount * 2"
"""A line of the pipeline, and the same line in the faulty version."""
FIRST, MORE, LAST = (2, 4_000), (5, 4_000), (1, 4_000)
"""Files of new orders before each run, and orders in a file. A batch takes one file."""
PIPELINE_DAG, SAVEPOINT_DAG, RECOVERY_DAG = "stateflow_orders", "stateflow_savepoint", "stateflow_recovery"
HOST_DAG, HOST = "stateflow_host", "demo"
OF_A_HOST = "the host "
ANSWER = 24
"""Lines of a command's answer that are shown."""
HOST_STARTS = 400.0
"""Seconds that the warm host may take to start on a busy machine."""
# A demo is about what happens, not about how soon a dead run is believed to be dead.
OPTIONS = {"heartbeat_interval": "500 ms", "heartbeat_timeout": "5 seconds"}


class Story(Narrator):
    """Run, savepoint, crash, warm host and recovery, each through Airflow's REST API."""

    def __init__(self, folder: Path, console: Console, port: int = 0) -> None:
        super().__init__(folder, console)
        self.pipeline = folder / "orders.py"
        root = folder / "checkpoints"
        root.mkdir()
        self.job = Job(str(root), JOB)
        self.server = AirflowServer(
            folder / "airflow",
            str(root),
            port=port,
            connections={
                "stateflow_default": json.dumps(
                    {"conn_type": "stateflow", "extra": {"checkpoint_dir": str(root), "options": OPTIONS}}
                )
            },
            environment={"AIRFLOW_VAR_STATEFLOW": json.dumps(self._settings())},
        )
        self.client: AirflowClient
        self.told_of_hosts = False
        self._printed: dict[tuple[RunOf, str], dict[int, int]] = {}
        """By task and try: the lines of its log that are printed. Several who wait in turn follow one task."""

    def _settings(self) -> dict[str, object]:
        pipeline = {
            "pipeline": f"{self.pipeline}:orders",
            "dag_id": PIPELINE_DAG,
            "parameters": {"input": str(self.folder / "orders"), "output": str(self.totals)},
            # Until there is one, each run starts a Spark of its own, and says so.
            "host": HOST,
        }
        # Triggered, not scheduled: the story decides what happens when.
        return {"schedule": None, "retry_seconds": 5, "jobs": {JOB: pipeline}, "host": HOST, "host_runs": 2}

    def play(self) -> bool:
        """Plays the whole story; returns whether the totals are right. Airflow runs on until `close`."""
        began = time.perf_counter()
        shutil.copy(PIPELINE, self.pipeline)
        self._start()
        alone = self._first_run()
        self._savepoint()
        self._crash()
        checkpoint, warm = self._warm_host()
        user, total, faulty = self._faulty_version()
        self._incident(user, total, faulty)
        self._recovery(checkpoint)
        right = self.verdict("Is it right?")
        self.say(
            f"The first run, of {FIRST[0] * FIRST[1]:,} orders, took {alone:.1f} s with a Spark of its own; one of as many took "
            f"{warm:.1f} s on the warm host, from queued to success."
        )
        self.console.print(f"[dim]{time.perf_counter() - began:.0f} s in all[/]")
        return right

    def close(self) -> None:
        self.server.stop()

    def more_orders(self) -> int:
        """Adds orders, so that a DAG that is triggered later has something to do."""
        return self.orders.add(1, 1_000)

    def _start(self) -> None:
        self.title("1  Airflow starts")
        self.say(
            "Scheduler, DAG processor, API server and triggerer, with SQLite, on this machine alone. The DAGs are the project's "
            "own, from dags/; the pages come from plugins/."
        )
        with self._waiting("starting") as update:
            self.server.start(lambda what: update(f"starting {what}"))
            self.client = self.server.client()
            update("reading the DAGs")
            self.client.await_dags(PIPELINE_DAG, SAVEPOINT_DAG, RECOVERY_DAG, HOST_DAG)
            for dag_id in self.client.unscheduled():
                self.client.unpause(dag_id)
        self.sign_in()

    def sign_in(self) -> None:
        """Prints Airflow's address, users and passwords."""
        password = self.server.passwords
        self.console.print(f"[bold]{self.server.url}[/]", soft_wrap=True)
        self.console.print(f"user [bold]admin[/], password [bold]{password['admin']}[/]")
        self.console.print(
            f"[dim]user viewer, password {password['viewer']}: sees everything, may do nothing[/]"
        )

    def _first_run(self) -> float:
        self.title("2  A run")
        count = self.orders.add(*FIRST)
        self.say(
            f"{count:,} orders lie in a Delta table. DAG {PIPELINE_DAG} submits the pipeline to Spark: it keeps a total per user "
            "and appends the new totals to another table, with a checkpoint after every micro-batch."
        )
        run = self._triggered(PIPELINE_DAG)
        self._succeeded(run, "run")
        return self.client.seconds_of(run)

    def _savepoint(self) -> str:
        self.title("3  A savepoint")
        self.say(
            "A copy of the state in a folder of its own, which the job never deletes: a place to go back to."
        )
        run = self._triggered(SAVEPOINT_DAG, {"job": JOB, "note": "before the faulty version"})
        self._succeeded(run, "savepoint")
        url = str(self.client.xcom(run, "savepoint")["savepoint"])
        self.console.print(url, markup=False, soft_wrap=True)
        return url

    def _crash(self) -> None:
        self.title("4  kill -9 in the middle of a batch")
        count = self.orders.add(*MORE)
        self.say(
            f"{count:,} orders now. After two batches of this run, while the third is under way, the Spark driver gets SIGKILL. "
            "The task fails, Airflow waits for its retry delay, and the retry goes on from the last checkpoint."
        )
        above = self.job.log().newest_epoch
        run = self._triggered(PIPELINE_DAG)
        with self._waiting(f"{PIPELINE_DAG} is running") as update:
            killed = kill_in_a_batch(self.job, above=above, meanwhile=self._follower(run, "run", update))
        self.console.print(
            f"[bold red]killed[/] the driver (process {killed.pid}) after checkpoint {killed.checkpoint}"
        )
        self._succeeded(run, "run")
        tries = self.client.tries(run, "run")
        self.say(f"Tries of the task: {', '.join(tries)}.")
        self.verdict("Nothing lost, nothing twice?")

    def _warm_host(self) -> tuple[int, float]:
        """The checkpoint of a run on it, and how many seconds that took from queued to success."""
        self.title("5  A warm host")
        self.told_of_hosts = True
        self.say(
            f"Most of a run's time was Spark's start. DAG {HOST_DAG} keeps a Spark application on this worker from now on; its task "
            "waits in the triggerer. The next runs begin there: nothing else changes."
        )
        self.client.unpause(HOST_DAG)
        folder = folder_of(HOST)
        with self._waiting(f"the host {HOST} starts"):
            until = time.monotonic() + HOST_STARTS
            while not takes_runs(folder):
                if time.monotonic() > until:
                    raise StateflowError(
                        f"the host {HOST} has not started within {HOST_STARTS:.0f} s: {folder / LOG} says why"
                    )
                time.sleep(0.5)
        self.orders.add(*FIRST)
        run = self._triggered(PIPELINE_DAG)
        self._succeeded(run, "run")
        host = self.job.status().owner.get("warm_host")
        if host != HOST:
            raise StateflowError(
                f"the run was to be on the host {HOST}, and was not: its task's log says why"
            )
        self.say(f"Host of the run: {host}.")
        return int(self.client.xcom(run, "run")["checkpoint"]), self.client.seconds_of(run)

    def _faulty_version(self) -> tuple[int, float, int]:
        """A user who has a wrong total now, what it should be, and the checkpoint that made it wrong."""
        self.title("6  A faulty version is deployed")
        count = self.orders.add(*LAST)
        self._deploy(GOOD, BAD)
        self.say(
            f"Somebody changes a line of the pipeline: `{BAD}`. {count:,} orders, and the totals of everybody who orders now are "
            "wrong, in the state as in the table."
        )
        run = self._triggered(PIPELINE_DAG)
        self._succeeded(run, "run")
        verdict = compared(self.orders.folder, self.totals)
        if verdict.right:
            raise StateflowError("the faulty version was to spoil the totals, and did not")
        self.console.print(f"[bold red]{len(verdict.wrong)} users have a wrong total.[/]")
        user = min(verdict.wrong)
        return user, verdict.totals[user], int(self.client.xcom(run, "run")["checkpoint"])

    def _incident(self, user: int, total: float, faulty: int) -> None:
        self.title("7  What happened, since when, and would the fix do right?")
        self.say(
            f"The alert: user {user}'s orders add up to {total:,.2f}, and the table has more. Every kept checkpoint can be asked. Which "
            "was the first with too much?"
        )
        answer = self._asked("bisect", JOB, "balance", "total", str(user), "--first", f"value > {total}")
        if f"checkpoint {faulty} is the first one" not in answer:
            raise StateflowError(f"checkpoint {faulty} was the first wrong one, and bisect did not find it")
        pipeline = f"{self.pipeline}:orders"
        where = (
            "-p",
            f"input={self.folder / 'orders'}",
            "-p",
            f"output={self.totals}",
            "--master",
            "local[2]",
        )
        self.say(
            "Why? The code of that run once more, for this user alone, with the rows and the state of then."
        )
        self._asked("debug", pipeline, "balance", str(user), "--at", str(faulty), "--no-stop", *where)
        self._deploy(BAD, GOOD)
        self.say(
            "The line is mended. Its batch runs again on a fork of the job, from the same input; nothing is published. What would have "
            "been otherwise?"
        )
        span = ("--from", str(faulty), "--to", str(faulty))
        answer = self._asked("replay", pipeline, *span, "--compare", *where)
        if "nothing differs" in answer:
            raise StateflowError("the replay was to differ from what the faulty version did, and did not")

    def _asked(self, *arguments: str) -> str:
        """Prints a command and its answer, the first lines of it; returns all of it."""
        command = Command(self.folder)
        self.console.print(f"$ {command.text(*arguments)}", style="dim", markup=False, soft_wrap=True)
        with self._waiting(f"stateflow {arguments[0]}"):
            answer = command.answer(*arguments)
        lines = answer.splitlines()
        for line in lines[:ANSWER]:
            self.console.print(f"   {line}", markup=False, highlight=False, soft_wrap=True)
        if len(lines) > ANSWER:
            self.console.print(f"   ... {len(lines) - ANSWER} more lines", style="dim")
        return answer

    def _recovery(self, checkpoint: int) -> None:
        self.title("8  The recovery runbook")
        self.say(
            f"The code is right again; state and table are not. DAG {RECOVERY_DAG} takes both back to checkpoint {checkpoint}, the last "
            "one before the faulty version. First it makes a plan, and then it waits for a person."
        )
        run = self._triggered(
            RECOVERY_DAG,
            {
                "job": JOB,
                "origin": f"checkpoint:{checkpoint}",
                "rewind_sinks": True,
                "note": "amounts were counted twice",
            },
        )
        with self._waiting(f"{RECOVERY_DAG} makes its plan"):
            question = self.client.await_question(run, "approve", 300)
        self.console.print(f"[bold]{question['subject']}[/]")
        self.console.print(Padding(Markdown(str(question["body"])), (0, 0, 0, 3)))
        self.client.answer(run, "approve", "Approve")
        self.console.print("[bold green]approved[/] [dim](in the UI: Browse, Required Actions)[/]")
        self._succeeded(run, "restore")
        again = self.client.newest_run(PIPELINE_DAG)
        self.say(
            f"The runbook has verified the job and triggered {PIPELINE_DAG}: everything since is read again."
        )
        self._succeeded(again, "run")

    def _deploy(self, old: str, new: str) -> None:
        text = self.pipeline.read_text(encoding="utf-8")
        if old not in text:
            raise StateflowError(f"{self.pipeline} has no line {old!r} to change")
        self.pipeline.write_text(text.replace(old, new), encoding="utf-8")

    def _triggered(self, dag_id: str, conf: Mapping[str, object] | None = None) -> RunOf:
        body = f" {json.dumps(dict(conf))}" if conf else ""
        self.console.print(
            f"$ POST /api/v2/dags/{dag_id}/dagRuns{body}", style="dim", markup=False, soft_wrap=True
        )
        return self.client.trigger(dag_id, conf)

    def _succeeded(self, run: RunOf, task_id: str) -> None:
        """Waits for the end of a DAG run, and prints what one of its tasks logs."""
        with self._waiting(f"{run.dag_id} is running") as update:
            state = self.client.await_run(
                run, states=RUN_OVER, patience=600, meanwhile=self._follower(run, task_id, update)
            )
        if state != "success":
            raise StateflowError(
                f"run {run.run_id} of {run.dag_id} has failed:\n{self.client.described(run)}"
            )

    def _follower(self, run: RunOf, task_id: str, update: Callable[[str], None]) -> Callable[[], None]:
        """Prints new lines of a task's log that say how far it is, and shows each task's state while waiting."""
        printed = self._printed.setdefault((run, task_id), {})
        last = 0.0

        def follow() -> None:
            nonlocal last
            if time.monotonic() - last < 1.0:
                return
            last = time.monotonic()
            task = self.client.task(run, task_id)
            attempt = max(1, int(task["try_number"]))
            update(f"{run.dag_id}: {task_id} is {task['state'] or 'not yet scheduled'} (try {attempt})")
            for number in sorted({attempt, *printed}):
                log = self.client.log(run, task_id, number).splitlines()
                # That there is no host yet says nothing to who does not know what one is.
                lines = [
                    line
                    for line in log
                    if _telling(line) and (self.told_of_hosts or not line.startswith(OF_A_HOST))
                ]
                for line in lines[printed.get(number, 0) :]:
                    self.console.print(f"   {line}", style="dim", markup=False, soft_wrap=True)
                printed[number] = len(lines)

        return follow

    @contextmanager
    def _waiting(self, what: str) -> Iterator[Callable[[str], None]]:
        """Shows a line that says what the story waits for, and for how long."""
        began = time.monotonic()
        with self.console.status(what) as status:

            def update(text: str) -> None:
                status.update(f"{text} [dim]{time.monotonic() - began:.0f} s[/]")

            yield update


def takes_runs(folder: Path) -> bool:
    try:
        return not ask(folder)["draining"]
    except Refused:
        return False


def _telling(line: str) -> bool:
    """Whether a log line comes from the library, and not from Airflow or Spark."""
    return line.startswith(("chk ", f"{JOB}:", OF_A_HOST, "AirflowException: ", "AirflowFailException: "))
