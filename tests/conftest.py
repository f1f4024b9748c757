"""What takes seconds to start, once for the whole test run: a Spark session, object stores. And what tests of any room need."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.testing
from hypothesis import settings

from stateflow import logs
from stateflow.storage.roots import FOR_TESTS
from tests import long_tests
from tests.hdfs_servers import HdfsServer, hdfs_server
from tests.memory_store import named_store
from tests.quick_java import QUICK_JAVA
from tests.servers import ObjectServer, azure_server, gcs_server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Machines that run tests are busy: how long an example takes says nothing.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

FOR_TESTS["memory"] = named_store

# The same command is typed thousands of times, and building it out of its functions takes longer than most of what it does.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

LONGEST = (
    "test_story.py",
    "test_scheduled_runs.py",
    "test_conformance.py",
    "test_kill.py",
    "test_conditions_against_spark.py",
    "test_watched.py",
    "test_restore.py",
    "test_kafka_conformance.py",
    "test_silence.py",
    "test_cluster.py",
    "test_denied.py",
    "test_faults.py",
    "test_sinks_delta_append.py",
    "test_s3_walk.py",
    "test_mistakes.py",
    "test_wheel.py",
    "test_operators_with_spark.py",
    "test_s3_tables.py",
    "test_runs.py",
    "test_stored_format.py",
    "test_sinks_delta_untouched.py",
    "test_iceberg_jobs.py",
    "test_files_sink.py",
    "test_kafka.py",
    "test_state_tables.py",
    "test_standalone.py",
    "test_in_flight.py",
    "test_kill_loop.py",
    "test_sinks_delta_upsert.py",
    "test_iceberg_conformance.py",
    "test_state_feeds.py",
    "test_start_page.py",
    "test_undone_output.py",
    "test_hdfs_root.py",
    "test_api_failures.py",
    "test_postgres_conformance.py",
    "test_fresh.py",
    "test_iceberg_kills.py",
    "test_warm_host.py",
    "test_kafka_partitions.py",
    "test_flow_harness.py",
    "test_kubernetes.py",
    "test_rewound_tables.py",
    "test_kafka_sink.py",
    "test_failed_batches.py",
    "test_managed_tables.py",
    "test_store.py",
    "test_merges.py",
    "test_joins.py",
    "test_session.py",
    "test_kafka_topics.py",
    "test_crash_hdfs.py",
    "test_dags.py",
    "test_driver_process.py",
    "test_yarn.py",
    "test_sinks_delta_rewrite.py",
    "test_mysql_page.py",
    "test_kafka_to_postgres.py",
    "test_replaying.py",
    "test_rewind.py",
    "test_computed_anew.py",
    "test_interleavings.py",
    "test_pages.py",
    "test_changing_state.py",
    "test_debug_as_typed.py",
    "test_tables_by_name.py",
    "test_ready_operators.py",
    "test_source_drift.py",
    "test_continuous.py",
    "test_seeding.py",
    "test_combiner.py",
    "test_load.py",
    "test_in_airflow.py",
    "test_demo.py",
    "test_misfits.py",
    "test_store_power_cut.py",
    "test_internals.py",
    "test_past.py",
    "test_looks.py",
    "test_chains.py",
    "test_connected_source.py",
    "test_one_moment.py",
    "test_crash_savepoints.py",
)
"""Files that took three quarters of a minute or more on a busy machine. They begin first, so that no worker is left alone with one of
them at the end. Those of `make test-system`, which wait for servers and other processes, take turns with those of `make test`, which
compute: `make test-all` has use for both at a time."""


PYSPARKS_LOGGERS = {"DataFrameQueryContextLogger", "SQLQueryContextLogger"}


def pytest_configure() -> None:
    """For Spark's drivers, and for the collection of the tests."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    # Collecting makes a million objects, all of which stay: to look for garbage among them takes a third of the time.
    gc.disable()


SYSTEM_MARKS = ("mark.system", "tests.servers")
"""A file with tests for `make test-system`, or the conftest beside it, says one of these: `tests/servers.py` has the marks of single
cases. `tests/test_system_marks.py` holds that they stand nowhere else."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of five files four have no such test, and each worker would import them all only to leave them out."""
    if config.option.markexpr != "system" or not collection_path.match("test_*.py"):
        return None
    beside = collection_path.parent / "conftest.py"
    places = [collection_path, *([beside] if beside.is_file() and beside != Path(__file__) else [])]
    said = "".join(place.read_text(encoding="utf-8") for place in places)
    return None if any(mark in said for mark in SYSTEM_MARKS) else True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each worker collects all tests, and none runs one where they have not found the same ones in the same order."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if len(mark.args) > 1 and isinstance(mark.args[1], set | frozenset):
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: a set has another order in each process: sort its cases"
            )


def pytest_itemcollected(item: pytest.Item) -> None:
    if " at 0x" in item.name:
        raise pytest.UsageError(
            f"{item.nodeid}: an address is another one in each process: give the case a name with ids="
        )


def pytest_collection_finish() -> None:
    """What is there by now is never looked at again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After whoever shuffles: within a file, and among the others, the order is theirs."""
    if long_tests.UNTIL is None:
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.name, len(LONGEST)))
    else:
        long_tests.put_first(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if long_tests.UNTIL is not None and not long_tests.begins(item, long_tests.UNTIL):
        pytest.skip(long_tests.TOO_LATE)


@pytest.fixture(autouse=True)
def own_log_lines(request: pytest.FixtureRequest) -> Iterator[None]:
    """A command tells its process what it works on and where lines go. Here the process goes on, with other tests."""
    root = logging.getLogger()
    # PySpark's own loggers turn every handler that they are given to JSON, and pytest gives its one handler to each
    # logger that does not pass its lines on.
    for name in PYSPARKS_LOGGERS & root.manager.loggerDict.keys():
        logging.getLogger(name).propagate = True
    capturing = request.config.pluginmanager.get_plugin("logging-plugin")
    capturing.caplog_handler.setFormatter(capturing.formatter)
    # Airflow's settings let INFO through, and py4j tells there, with a traceback, what its finalizers meet. Python 3.11 parses code for
    # a traceback; where the collector ran in the midst of `ast.parse`, that one then ends with a SystemError.
    root.setLevel(logging.WARNING)
    handlers = list(root.handlers)
    # A fixture of a whole module may have run a command before this one looked.
    for name in ("stateflow", *logs.QUIET):
        logging.getLogger(name).setLevel(logging.NOTSET)
    yield
    logs.about(job=None, epoch=None, slot=None)
    logs.on_wait(None)
    for handler in [each for each in root.handlers if each not in handlers]:
        root.removeHandler(handler)


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[int], AbstractContextManager[Path]]:
    """A real disk of so many kilobytes, for the length of a block."""

    @contextmanager
    def mounted(kilobytes: int) -> Iterator[Path]:
        folder = tmp_path / "small"
        folder.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
        done = subprocess.run(mount, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting takes rights that this user lacks: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            # Lazily: Spark may still have a file open there.
            subprocess.run(["umount", "-l", str(folder)], check=True)

    return mounted


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder on another file system than `tmp_path`, where hard links do not reach."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectServer]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[ObjectServer]:
    with gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure() -> Iterator[ObjectServer]:
    with azure_server() as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from stateflow.spark.session.build import build_session

    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        # Java that is written and compiled for a dozen rows, and plans in words for pages that nobody opens, are a tenth or more of
        # what these tests compute. Drivers of their own, as those of stories and hosts, have both as users have them.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.ui.explainMode": "simple",
        # Delta's VACUUM lists files in ten thousand tasks otherwise, which takes a minute.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = build_session("stateflow-tests", master="local[2]", conf=conf)
    _settings.append((_listed(session), session.conf.getAll))
    yield session
    session.stop()


_settings: list[tuple[str, dict[str, str]]] = []
"""Those that the session began with: as one text, which is quick to compare, and by name."""


def _runs() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def _listed(session: SparkSession) -> str:
    return str(session._jsparkSession.sessionState().conf().getAllConfs().toString())


@pytest.fixture(autouse=True)
def own_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run sets this and that in the session, which here serves other tests as well."""
    if "spark" not in request.fixturenames:
        yield
        assert _settings or not _runs(), (
            "this test began a Spark of its own, which those behind it would get: take `spark`"
        )
        return
    session: SparkSession = request.getfixturevalue("spark")
    yield
    listed, began = _settings[-1]
    if _listed(session) == listed:
        return
    for name, value in session.conf.getAll.items():
        if name not in began:
            session.conf.unset(name)
        elif value != began[name]:
            session.conf.set(name, began[name])
