"""A run on a warm host is the same run: its output, its errors, its exit code, its working folder; and others notice nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hosts.hosting import Host, alive, eventually, give, host
from tests.spark import by_hand

LEAKY = """
import multiprocessing
import subprocess
import threading

class Leaky(Total):
    def process(self, account, rows, ctx):
        os.environ["LEAKED"] = "yes"
        yield from super().process(account, rows, ctx)

os.chdir("/")
os.environ["LEAKED"] = "yes"
sys.path.insert(0, "/leaked")
threading.Thread(target=time.sleep, args=[600]).start()
MEMO = b"x" * (2 << 30)
CHILD = subprocess.Popen(["sleep", "600"])
FORK = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600], daemon=False)
FORK.start()
open(os.path.join(os.path.dirname(__file__), "children"), "w").write(f"{os.getpid()} {CHILD.pid} {FORK.pid}")
"""
SLOW = """
class Slow(Total):
    def process(self, account, rows, ctx):
        open({begun!r}, "a").write("x")
        while not os.path.exists({go!r}):
            time.sleep(0.05)
        yield from super().process(account, rows, ctx)
"""


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with host(tmp_path_factory.mktemp("warm"), "--runs", "2", "--cold") as made:
        yield made


def slow(warm: Host, name: str) -> tuple[Path, Path, Path]:
    """A project whose batch waits: its folder, the file that says that the batch runs, and the one that lets it go on."""
    begun, go = warm.folder / f"{name}.begun", warm.folder / f"{name}.go"
    body = SLOW.format(begun=str(begun), go=str(go))
    return warm.project(name, body=body, operator="Slow"), begun, go


def running(warm: Host, job: str) -> int:
    """The process of a job's run on the host; 0 if there is none."""
    return next((run["pid"] for run in warm.shown()["runs"] if run["job"] == job), 0)


@pytest.mark.slow
def test_runs_carry_on_from_each_other_in_their_own_folder(warm: Host) -> None:
    one, two = warm.project("one"), warm.project("two")
    for project in (one, two, one):
        ran = warm.run(project)
        assert ran.returncode == 0, ran.stderr
        give(project)
    assert "1 batch and 20 rows" in ran.stdout
    # Both read `in` and write `out`: each means those of its own folder.
    assert (one / "out" / "_delta_log").is_dir()
    assert (two / "out" / "_delta_log").is_dir()
    assert [warm.total(job) for job in ("one", "two")] == [2.0, 1.0]
    assert ", on its warm host tests" in " ".join(warm.stateflow("show", "one").stdout.split())


@pytest.mark.slow
def test_errors_and_exit_codes_are_those_of_a_driver_of_its_own(warm: Host) -> None:
    project = warm.project("wrong")
    wrong = (["--option", "parallelism=x"], ["-p", "nothing=1"], ["--until", "never"])
    with ThreadPoolExecutor(len(wrong)) as pool:
        heres = pool.map(lambda words: warm.stateflow("run", "pipeline.py", *words, cwd=project), wrong)
        theres = [warm.run(project, *words) for words in wrong]
    for words, there, here in zip(wrong, theres, heres, strict=True):
        where = "runs on the warm host tests (local[2])\n" if "-p" in words else ""
        assert (there.returncode, there.stderr) == (here.returncode, where + here.stderr)
    failing = "class Failing(Total):\n    def process(self, account, rows, ctx):\n        raise ValueError('no such rate')\n"
    failed = warm.run(warm.project("failing", body=failing, operator="Failing"))
    assert failed.returncode == 1
    assert "no such rate" in failed.stderr
    assert "pipeline.py" in failed.stderr


LEAKY_SESSION = """def leaves(frame, ctx):
        spark = frame.sparkSession
        spark.range(1).createOrReplaceTempView('known')
        spark.conf.set('spark.sql.session.timeZone', 'Asia/Tokyo')
        spark.range(5).cache().count()
    rows.for_each_batch('leaves', leaves)"""
CLEAN = """
def check():
    assert "LEAKED" not in os.environ and "/leaked" not in sys.path and os.getcwd() != "/"

check()


class Clean(Total):
    def process(self, account, rows, ctx):
        check()
        print("seen", account, os.getcwd(), os.environ["OF_RUN"])
        yield account, 1.0
"""
CLEAN_SESSION = """def finds(frame, ctx):
        spark = frame.sparkSession
        assert not spark.catalog.tableExists('known')
        assert spark.conf.get('spark.sql.session.timeZone') == 'UTC'
        assert spark.conf.get('spark.sql.shuffle.partitions') == str(4 + int(os.environ['OF_RUN'][-1]))
        assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    rows.for_each_batch('finds', finds)"""


def test_a_run_that_leaks_harms_no_other(warm: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what it leaves in its process, 2 GB of memory among it, nor in its workers, nor in its session."""
    leaky = warm.project("leaky", body=LEAKY, operator="Leaky", more=LEAKY_SESSION)
    before = warm.shown()
    # The pipeline changes the working folder while it loads: its paths mean another folder from there on.
    words = ["-p", f"input={leaky / 'in'}", "-p", f"output={leaky / 'out'}"]
    ran = warm.run(leaky, *words, "--conf", "spark.sql.shuffle.partitions=3")
    assert ran.returncode == 0, ran.stderr
    left = [int(pid) for pid in (leaky / "children").read_text(encoding="utf-8").split()]
    eventually(lambda: not any(map(alive, left)), "the run is ended, and the processes that it has left")
    clean = warm.project("clean", body=CLEAN, operator="Clean", more=CLEAN_SESSION)
    # Once in each place: also in that of the run before, whose workers Spark might keep.
    for number in (1, 2):
        monkeypatch.setitem(warm.environ, "OF_RUN", f"run {number}")
        ran = warm.run(clean, "--conf", f"spark.sql.shuffle.partitions={4 + number}")
        assert ran.returncode == 0, ran.stderr
        assert f"seen a3 {clean} run {number}" in ran.stderr, "what workers print is in the log of their run"
        give(clean)
    assert "seen a3" not in warm.log()
    now = warm.shown()
    assert (now["number"], now["pid"]) == (before["number"], before["pid"]), (
        "the host's own memory is what it watches"
    )
    assert now["memory"]["zygote"] < before["memory"]["zygote"] + (64 << 20)


STOPPING = """from pyspark.sql import SparkSession
    def stops(frame, number):
        SparkSession.builder.getOrCreate().stop()
    rows.for_each_batch('stops', lambda frame, ctx: frame.sparkSession.stop())"""


def test_a_run_that_ends_itself_or_stops_spark_leaves_its_place_and_the_host(warm: Host) -> None:
    application = warm.shown()["pid"]
    endings = {
        # Neither a success nor a run that was fenced: the codes are not the run's own.
        "os._exit(0)": 1,
        "os._exit(5)": 1,
        "os._exit(7)": 1,
        "os.kill(os.getpid(), 9)": 137,
        "sys.exit(3)": None,
        "raise MemoryError": None,
        STOPPING: 1,
    }
    for number, (ending, code) in enumerate(endings.items()):
        ran = warm.run(warm.project(f"ending-{number}", more=ending))
        assert ran.returncode == code if code is not None else ran.returncode != 0, ran.stderr
        said = ending.startswith("os._exit") and f"ended its Python with exit code {ending[9]} before"
        assert not said or said in ran.stderr
    assert "spark.stop()" in ran.stderr
    eventually(lambda: warm.shown()["runs"] == [], "all places are free")
    for name in ("after-one", "after-two"):
        assert warm.run(warm.project(name)).returncode == 0
    assert warm.shown()["pid"] == application


def test_the_kernel_takes_a_run_before_what_all_share_and_sigterm_ends_it_after_its_batch(warm: Host) -> None:
    def readiness(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))

    project, begun, go = slow(warm, "hungry")
    worker = f"open({str(begun)!r}, 'w').write(str(os.getpid()))"
    file = project / "pipeline.py"
    file.write_text(file.read_text(encoding="utf-8").replace(f'open({str(begun)!r}, "a").write("x")', worker))
    client = warm.started("run", "pipeline.py", "--host", "tests", "--host-only", cwd=project)
    forked = eventually(lambda: begun.exists() and begun.read_text(encoding="ascii"), "the batch runs")
    shared = [readiness(pid) for pid in warm.shown()["processes"].values()]
    assert min(readiness(running(warm, "pipeline.py")), readiness(int(forked))) > max(shared)
    client.send_signal(signal.SIGTERM)
    go.touch()
    said, _ = client.communicate(timeout=60)
    assert client.returncode == 0, said
    assert "stopping after this batch" in said
    assert "1 batch and 20 rows" in said


def test_a_run_that_is_killed_is_gone_with_its_jobs_and_the_next_one_carries_on(warm: Host) -> None:
    project, begun, go = slow(warm, "killed")
    for victim, code in (("client", -signal.SIGKILL), ("run", 137)):
        client = warm.started("run", "pipeline.py", "--host", "tests", "--host-only", cwd=project)
        eventually(begun.exists, "the batch runs")
        run = running(warm, "pipeline.py")
        os.kill(client.pid if victim == "client" else run, signal.SIGKILL)
        client.communicate(timeout=60)
        assert client.returncode == code
        eventually(lambda run=run: not alive(run), "the run is gone")  # type: ignore[misc]
        eventually(lambda: warm.shown()["runs"] == [], "its place is free")
        begun.unlink()
    go.touch()
    ran = warm.run(project)
    assert ran.returncode == 0, ran.stderr
    assert warm.total("killed") == 1.0


def test_who_finds_no_place_waits_and_a_run_that_may_not_wait_is_refused_as_busy(warm: Host) -> None:
    waiting = [slow(warm, f"taking-{n}") for n in range(2)]
    taking = [
        warm.started("run", "pipeline.py", "--host", "tests", "--host-only", cwd=each[0]) for each in waiting
    ]
    # The first batch has both cores of Spark. The other run has a place, and waits for a core.
    eventually(lambda: len(warm.shown()["runs"]) == 2, "both places are taken")
    third = warm.project("third")
    refused = warm.run(third, "--host-wait", "0")
    assert refused.returncode == 8
    assert "all its 2 places are taken" in refused.stderr
    queued = warm.started("run", "pipeline.py", "--host", "tests", "--host-wait", "1 minute", cwd=third)
    eventually(lambda: warm.shown()["waiting"] == 1, "it waits")
    for _, _, go in waiting:
        go.touch()
    said, _ = queued.communicate(timeout=90)
    assert queued.returncode == 0, said
    assert "waiting for the host tests: it has 2 places" in said
    assert [each.wait(timeout=60) for each in taking] == [0, 0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--master", "local[3]"], "asks for the master local[3], and the host has local[2]"),
        (["--conf", "spark.driver.memory=3g"], "spark.driver.memory can be set only when Spark starts"),
        (["--conf", "spark.jars=/nowhere.jar"], "spark.jars can be set only when Spark starts"),
    ],
)
def test_what_only_the_start_of_spark_can_set_is_refused(warm: Host, words: list[str], why: str) -> None:
    project = warm.project(f"unfit-{abs(hash(why))}")
    ran = warm.run(project, *words)
    assert ran.returncode == 2
    assert why in ran.stderr
    assert not (warm.folder / "checkpoints" / project.name).exists()


def test_credentials_of_another_environment_are_refused(warm: Host) -> None:
    project = warm.project("foreign")
    warm.environ["AWS_ACCESS_KEY_ID"] = "another"
    try:
        ran = warm.run(project)
    finally:
        del warm.environ["AWS_ACCESS_KEY_ID"]
    assert ran.returncode == 2
    assert "AWS_ACCESS_KEY_ID" in ran.stderr
    assert "another one than when the host was started" in ran.stderr


@pytest.mark.slow
def test_without_its_host_a_run_has_a_driver_of_its_own_and_says_why(warm: Host) -> None:
    project = warm.project("hostless")
    alone = warm.run(project, name="nobody")
    assert (alone.returncode, "it is not running" in alone.stderr) == (9, True)
    ran = warm.stateflow("run", "pipeline.py", "--host", "nobody", cwd=project)
    assert ran.returncode == 0, ran.stderr
    assert f"the host nobody does not take the run: it is not running in {warm.cache}/hosts: " in ran.stderr
    assert "Starting a driver of its own" in ran.stderr
    assert "warm host" not in ran.stderr


def test_the_host_is_this_users_alone_who_is_shown_it(warm: Host) -> None:
    shown = json.loads(warm.stateflow("host", "show", "tests", "-o", "json").stdout)
    assert (shown["name"], shown["state"], shown["pid"]) == ("tests", "running", warm.shown()["pid"])
    folder = warm.cache / "hosts" / "tests"
    current = json.loads((folder / "current.json").read_text(encoding="utf-8"))
    for path in (folder, Path(current["socket"]).parent):
        assert path.stat().st_mode & 0o077 == 0
    assert (folder / "settings.json").stat().st_mode & 0o077 == 0


def test_a_file_names_the_host_and_a_client_loads_neither_spark_nor_arrow(warm: Host) -> None:
    code = "import sys; from stateflow.cli.entry import on_host; on_host(sys.argv[1:]); print(sorted({'pyspark', 'pyarrow', 'pandas', 'typer', 'rich'} & set(sys.modules)))"
    project, before = warm.project("light"), warm.shown()["served"]
    (project / "stateflow.toml").write_text('host = "tests"\nhost_only = true\n', encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", code, "run", "pipeline.py"],
        cwd=project, env=warm.environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.stdout.splitlines()[-1] == "[]", ran.stderr
    eventually(lambda: warm.shown()["served"] == before + 1, "the run was one of the host's")


PRINTING = """
from stateflow.spark.internals.java_names import java_names

def printing(rows):
    out = java_names(rows.sparkSession).java.lang.System.out
    for line in ("42", '{"recycle": "a jar says so"}'):
        out.println(line)
    return rows
"""


def test_what_a_jar_prints_ends_no_host(warm: Host) -> None:
    more = "rows.transform(printing).append('seen', sf.delta(output + '-seen'))"
    project, before = warm.project("printing", body=PRINTING, more=more), warm.shown()
    ran = warm.run(project)
    assert ran.returncode == 0, ran.stderr
    eventually(lambda: '\n42\n{"recycle": "a jar says so"}\n' in warm.log(), "it is in the host's log")
    assert warm.shown()["pid"] == before["pid"]
    assert "is replaced: a jar says so" not in warm.log()


NUMBERS = """
from dataclasses import dataclass
from stateflow.connectors import Source

@dataclass(frozen=True)
class Numbers(Source):
    most: int

    @property
    def place(self):
        return "numbers:" + str(self.most)

    def position(self, start):
        return {"n": self.most if start else 0}

    def plan(self, start, end):
        return [[start["n"], end["n"]]]

    def read(self, part):
        yield from ({"n": n} for n in range(*part))
"""


def test_a_source_of_a_connector_is_read(warm: Host) -> None:
    """Spark's planner asks it in workers that run another module than those of tasks."""
    project = warm.project(
        "numbers",
        body=NUMBERS,
        more='flow.source("numbers", Numbers(5), "n int").append("numbers", sf.delta("numbers"))',
    )
    ran = warm.run(project)
    assert ran.returncode == 0, ran.stderr
    assert sorted(by_hand.rows(project / "numbers", ("n",)) or ()) == [(n,) for n in range(5)]


JOINED = """
def joined(cache):
    def step(frame):
        known = frame.sparkSession.read.schema("account string, label string").json({known!r})
        return frame.join(known.cache() if cache else known, "account", "left")
    return step

def wait(frame, delivery):
    open({begun!r}, "a").write("x")
    while not os.path.exists({go!r}):
        time.sleep(0.05)
"""


def test_a_step_that_gets_what_another_run_has_cached_is_warned_of(warm: Host) -> None:
    known, begun, go = (warm.folder / f"cache.{name}" for name in ("known", "begun", "go"))
    known.mkdir()
    (known / "1.json").write_text('{"account": "a1", "label": "old"}')
    body = JOINED.format(known=str(known), begun=str(begun), go=str(go))
    holder = warm.project(
        "holder", body=body, more='totals.transform(joined(True)).for_each_batch("wait", wait)'
    )
    reader = warm.project(
        "reader", body=body, more='totals.transform(joined(False)).append("joined", sf.delta("joined"))'
    )
    client = warm.started("run", "pipeline.py", "--host", "tests", "--host-only", cwd=holder)
    try:
        eventually(begun.exists, "the run delivers")
        beside = warm.run(reader)
    finally:
        go.touch()
    said, _ = client.communicate(timeout=120)
    assert (beside.returncode, client.returncode) == (0, 0), (beside.stderr, said)
    sentence = "reads what another run of the host 'tests' has cached"
    assert sentence in beside.stdout + beside.stderr
    assert sentence not in said
    give(reader)
    alone = warm.run(reader)
    assert (alone.returncode, sentence in alone.stdout + alone.stderr) == (0, False), alone.stderr
