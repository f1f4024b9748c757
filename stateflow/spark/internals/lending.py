"""One JVM for several driver processes: its owner lends each of them a gateway and a session, and takes both back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from stateflow.internals import internal
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.local_files import work_in

RUN = "spark.stateflow.run"
"""The setting of a lent session, and of each that Spark copies from it, that says whose it is."""
_SESSION, _BASE = "stateflow.session", "stateflow.base"
"""Under these names a gateway has the objects for who borrows it."""
_ACCUMULATOR = "spark.stateflow.accumulator"
"""The setting of a lent session that says under which name its gateway has the borrower's accumulator."""


@dataclass(frozen=True)
class Loan:
    """What a process needs to borrow the JVM."""

    run: str
    port: int
    secret: str


class Lent:
    """A gateway and a session that are lent. They end with `take_back`, whatever their borrower has left behind."""

    def __init__(self, spark: SparkSession, run: str, pool: str, folder: str) -> None:
        """`folder`: where the borrower stands, which relative paths mean; empty where the JVM stands."""
        self.run = run
        self._spark = spark
        self._session: Any = None
        self._server: Any = None
        # A thread of its own has a thread of the JVM for itself.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._open, pool, folder).result()

    @internal(
        "org.apache.spark.api.python.Py4JServer.start()",
        "org.apache.spark.api.python.Py4JServer.getListeningPort()",
        "org.apache.spark.api.python.Py4JServer.server()",
        "org.apache.spark.sql.classic.SparkSession.newSession()",
        "pyspark.SparkContext._jsc",
        "pyspark.sql.SparkSession._jsparkSession",
    )
    def _open(self, pool: str, folder: str) -> None:
        """Opens the gateway in a thread of its own: what is set here passes on to each thread that serves the borrower."""
        context: Any = self._spark.sparkContext
        base: Any = self._spark
        context.addJobTag(self.run)
        context.setLocalProperty("spark.scheduler.pool", pool)
        if folder:
            work_in(self._spark, folder)
        self._session = base._jsparkSession.newSession()
        self._session.conf().set(RUN, self.run)
        names = java_names(self._spark)
        names.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._session)
        self._server = names.org.apache.spark.api.python.Py4JServer(context._jsc.sc().conf())
        self._server.start()
        gateway = self._server.server().getJavaServer().getGateway()
        gateway.putObject(_SESSION, self._session)
        gateway.putObject(_BASE, base._jsparkSession)

    @property
    def loan(self) -> Loan:
        return Loan(self.run, self._server.getListeningPort(), self._server.secret())

    @internal(
        "org.apache.spark.api.python.Py4JServer.shutdown()",
        "org.apache.spark.sql.classic.SparkSession.streams()",
        where_missing="what the run has left stays until the host is replaced",
    )
    def take_back(self) -> None:
        """Ends the queries and jobs of the borrower, closes its gateway and lets go of what its session holds."""
        for query in self._session.streams().active():
            with suppress(Exception):
                query.stop()
        with suppress(Exception):
            self._forget_queries()
        self._spark.sparkContext.cancelJobsWithTag(self.run)
        with suppress(Exception):
            self._close_accumulator()
        with suppress(Exception):
            self._server.shutdown()
        _release_cached(self._spark, self.run)
        self._session = self._server = None

    @internal(
        "org.apache.spark.sql.classic.StreamingQueryManager.listenerBus",
        "org.apache.spark.scheduler.LiveListenerBus.removeListener(SparkListenerInterface)",
        "org.apache.spark.SparkContext.listenerBus()",
        where_missing="each run leaves the JVM a listener of all events until the host is replaced",
    )
    def _forget_queries(self) -> None:
        """Takes the listener of the session's queries off the bus of Spark's events, which would hear of each event for ever."""
        bus = _private(self._session.streams(), "listenerBus")
        self._session.sparkContext().listenerBus().removeListener(bus)

    @internal(
        "org.apache.spark.api.python.Py4JServer.server()",
        "org.apache.spark.api.python.PythonAccumulatorV2.socket",
        where_missing="each run leaves the JVM an open socket until the host is replaced",
    )
    def _close_accumulator(self) -> None:
        """Closes the connection through which Spark told the borrower what its tasks have counted. Java's collector would not."""
        name = self._session.conf().get(_ACCUMULATOR, "")
        accumulator = self._server.server().getJavaServer().getGateway().getObject(name)
        if accumulator is not None and (connection := _private(accumulator, "socket")):
            connection.close()


@internal(
    "org.apache.spark.sql.execution.CacheManager.isEmpty()",
    "org.apache.spark.sql.execution.CacheManager.cachedData",
    "org.apache.spark.sql.execution.CachedData.cachedRepresentation()",
    "org.apache.spark.sql.execution.CacheManager.uncacheQuery(SparkSession, LogicalPlan, boolean)",
    where_missing="what a run has cached and not let go of stays until the host is replaced",
)
def _release_cached(spark: SparkSession, run: str) -> None:
    """Lets go of the frames that the sessions of a run have cached. All sessions of a JVM share that cache."""
    base: Any = spark
    manager = base._jsparkSession.sharedState().cacheManager()
    if manager.isEmpty():
        return
    cached = _private(manager, "cachedData").iterator()
    while cached.hasNext():
        relation = cached.next().cachedRepresentation().cacheBuilder()
        session = relation.cachedPlan().session()
        if session is not None and session.conf().get(RUN, "") == run:
            manager.uncacheQuery(session, relation.logicalPlan(), False)


@internal(
    "org.apache.spark.sql.execution.CacheManager.isEmpty()",
    "org.apache.spark.sql.execution.QueryExecution.withCachedData()",
    "org.apache.spark.sql.execution.columnar.InMemoryRelation.cacheBuilder()",
    "pyspark.sql.DataFrame._jdf",
    otherwise=lambda: False,
    where_missing="a run is not told that it gets what another one has cached",
)
def has_foreign_cache(frame: DataFrame) -> bool:
    """Whether Spark takes a part of the frame from what another run of the host has cached, as it was when that run read it."""
    session: Any = frame.sparkSession
    if session._jsparkSession.sharedState().cacheManager().isEmpty():
        return False
    own = session.conf.get(RUN, "")
    leaves = frame._jdf.queryExecution().withCachedData().collectLeaves().iterator()
    while leaves.hasNext():
        leaf = leaves.next()
        if leaf.getClass().getSimpleName() == "InMemoryRelation":
            cached_in = leaf.cacheBuilder().cachedPlan().session()
            if cached_in is not None and cached_in.conf().get(RUN, "") != own:
                return True
    return False


@internal(
    "org.apache.spark.SparkEnv.get()",
    "org.apache.spark.SparkEnv.pythonWorkers",
    "org.apache.spark.api.python.PythonWorkerFactory.stop()",
    where_missing="a place's next run may meet the workers of the one before, and its batch fails once",
)
def stop_workers(spark: SparkSession, program: Path) -> None:
    """Ends the workers that Spark has started by a program. Spark keeps what starts them, and uses it again for the next ones."""
    env = java_names(spark).org.apache.spark.SparkEnv.get()
    entries = _private(env, "pythonWorkers").toList().iterator()
    while entries.hasNext():
        entry = entries.next()
        if entry._1().productElement(0) == str(program):
            entry._2().stop()


def _private(owner: Any, name: str) -> Any:
    """A private field of an object of Java."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


@internal(
    "pyspark.java_gateway.launch_gateway(conf)",
    "pyspark.SparkContext._ensure_initialized(instance, gateway, conf)",
    "pyspark.SparkContext._temp_dir",
    "pyspark.SparkContext._javaAccumulator",
    "pyspark.SparkContext._accumulatorServer",
    "py4j.java_gateway.JavaObject._target_id",
    "pyspark.sql.SparkSession.__init__(sparkContext, jsparkSession)",
    "org.apache.spark.sql.classic.SparkSession.setDefaultSession(SparkSession)",
)
def borrow(loan: Loan) -> SparkSession:
    """The lent session, as if this process had started the JVM."""
    with _environment(PYSPARK_GATEWAY_PORT=str(loan.port), PYSPARK_GATEWAY_SECRET=loan.secret):
        gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)
    session, base = (JavaObject(name, gateway._gateway_client) for name in (_SESSION, _BASE))
    jsc = gateway.jvm.JavaSparkContext.fromSparkContext(session.sparkContext())
    context = SparkContext(gateway=gateway, jsc=jsc, conf=SparkConf(_jconf=jsc.getConf()))
    session.conf().set(_ACCUMULATOR, context._javaAccumulator._target_id)
    # Spark's death ends the run, which says so in a sentence. Python's server would add a stack trace.
    server: Any = context._accumulatorServer
    server.handle_error = lambda request, address: None
    spark = SparkSession(context, session)
    # PySpark has made the lent session the default of the whole JVM. There it would outlive its run.
    java_names(spark).org.apache.spark.sql.classic.SparkSession.setDefaultSession(base)
    return spark


def temporary_folder(spark: SparkSession) -> Path:
    """The folder that PySpark has made for this process in the JVM's, and that nobody removes while the JVM lives."""
    context: Any = spark.sparkContext
    return Path(context._temp_dir)


def end_instead_of_spark(run: str, end: Callable[[], None]) -> None:
    """Makes what would end or cancel for everybody on the JVM end or cancel for this process alone."""

    def stop(self: object) -> None:
        end()

    def cancel(self: SparkContext) -> None:
        self.cancelJobsWithTag(run)

    changed: Any = SparkSession
    changed.stop = stop
    changed.clearCache = lambda self: None
    context: Any = SparkContext
    context.stop, context.cancelAllJobs = stop, cancel


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before: Mapping[str, str | None] = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
