"""Spark drivers with tables on S3, each a process of its own that does what it is told: `python -m tests.spark.s3_drivers`."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import ObjectServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
RUNS = 20
"""How often a record is committed at most that has lost to others."""


def settings(server: ObjectServer, **more: str) -> dict[str, str]:
    """What Spark needs to reach the server, as users give it."""
    return {
        "spark.hadoop.fs.s3a.endpoint": server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": server.options["access_key_id"],
        "spark.hadoop.fs.s3a.secret.key": server.options["secret_access_key"],
        **more,
    }


class Driver:
    """A driver's process, as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, op: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)["answer"]
        raise AssertionError("the driver has ended")

    def do(self, op: str, **arguments: Any) -> Any:
        self.begin(op, **arguments)
        return self.end()


@contextmanager
def drivers(count: int, conf: Mapping[str, str], folder: Path) -> Iterator[list[Driver]]:
    """Started beside each other."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.s3_drivers", json.dumps(conf), str(folder / f"driver-{k}")],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for k in range(count)
    ]  # fmt: skip
    try:
        yield [Driver(process) for process in started]
    finally:
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
        for process in started:
            process.wait(timeout=60)


class Work:
    """What a driver can be told to do. Whatever it raises is its answer."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.logs: dict[str, Any] = {}

    def _sink(self, table: str, kind: str) -> Any:
        from stateflow.pipelines.inputs.tables import delta
        from stateflow.testing.sink_log import make_sink

        options = {"delta.checkpointInterval": "10"}
        keys = {"keys": ("writer", "key")} if kind == "upsert" else None
        sink = make_sink("totals", kind, delta(table, options=options), keys)
        sink.open(self.spark, self._frame("", 0).schema)
        return sink

    def _frame(self, writer: str, n: int) -> Any:
        return self.spark.sql(f"SELECT '{writer}' AS writer, bigint({n // 2}) AS key, bigint({n}) AS n")

    def _log(self, writer: str, table: str) -> Any:
        from stateflow.testing.sink_log import SinkLog

        return self.logs.setdefault(
            f"{writer} {table}",
            SinkLog(
                self.spark,
                self.folder / "root",
                job=f"3f2b6c1e-1111-4a6e-9d3f-{ord(writer):012d}",
                writer=writer,
            ),
        )

    def open(self, table: str, kind: str = "append") -> str:
        self._sink(table, kind)
        return "opened"

    def deliver(self, table: str, writer: str, count: int, kind: str = "append") -> list[str]:
        """Slots with a row each; what became of them."""
        sink, log = self._sink(table, kind), self._log(writer, table)
        return [self._delivered(log, log.prepare(sink, self._frame(writer, n))) for n in range(count)]

    @staticmethod
    def _delivered(log: Any, prepared: Any) -> str:
        """A commit may lose to the other driver so often that its run ends. The next run commits the record again."""
        from stateflow.spark.sinks.delta_table import conflicted

        for _ in range(RUNS):
            try:
                return str(log.commit(prepared))
            except Exception as error:
                if not conflicted(error):
                    raise
        return "lost every time"

    def prepare(self, table: str, writer: str, n: int, file: str) -> str:
        """Decides a slot, which whoever reads the file may commit."""
        from stateflow.format.records import encode

        log = self._log(writer, table)
        record = log.recorded(log.prepare(self._sink(table, "append"), self._frame(writer, n)))
        Path(file).write_bytes(encode(record))
        return "decided"

    def commit(self, table: str, writer: str, file: str) -> str:
        from stateflow.format.records import Record, decode

        record = decode(Path(file).read_bytes(), Record, "test")
        return str(self._log(writer, table).commit(record.sinks["totals"], record.slot))

    def rows(self, table: str) -> list[list[Any]]:
        return sorted([r.writer, r.n] for r in self.spark.read.format("delta").load(table).collect())

    def table(self, path: str) -> list[list[Any]]:
        return sorted(list(row) for row in self.spark.read.format("delta").load(path).collect())

    def vacuum(self, path: str) -> int:
        """Deletes what no newest version has; how many files that were."""
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        before = self._files(path)
        self.spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
        return before - self._files(path)

    def _files(self, path: str) -> int:
        where, context = self.spark._jvm.org.apache.hadoop.fs.Path(path), self.spark.sparkContext  # type: ignore[union-attr]
        listed = where.getFileSystem(context._jsc.hadoopConfiguration()).listStatus(where)  # type: ignore[attr-defined]
        return sum(str(each.getPath().getName()).endswith(".parquet") for each in listed)

    def stateflow(self, words: list[str]) -> str:
        """A command that computes in this driver; what it printed."""
        from typer.testing import CliRunner

        from stateflow.cli.main import app

        done = CliRunner().invoke(app, words)
        if done.exit_code:
            raise RuntimeError(f"exit code {done.exit_code}: {done.output}")
        return done.output

    def operations(self, table: str) -> list[str]:
        """Of the table's versions."""
        return [row.operation for row in self.spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()]

    def write_logs_as_delta_alone(self) -> str:
        """From here on Delta's own log store writes the logs of tables that were not opened yet."""
        from stateflow.spark.internals import delta_log
        from stateflow.spark.sinks import log_stores

        self._own = log_stores.create_commits
        nothing: Callable[..., str] = lambda spark, path: ""  # noqa: E731
        delta_log.create_commits = log_stores.create_commits = nothing
        self._use_stores_anew()
        return "done"

    def write_logs_as_jobs_do(self) -> str:
        from stateflow.spark.internals import delta_log
        from stateflow.spark.sinks import log_stores

        delta_log.create_commits = log_stores.create_commits = self._own
        self._use_stores_anew()
        return "done"

    def _use_stores_anew(self) -> None:
        env = self.spark._jvm.org.apache.spark.SparkEnv.get().conf()  # type: ignore[union-attr]
        for scheme in ("s3", "s3a", "s3n"):
            env.remove(f"spark.delta.logStore.{scheme}.impl")
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]

    def hadoop(self, name: str, value: str) -> str:
        """A setting that file systems of new buckets have, as `spark.hadoop.` has it for all."""
        context: Any = self.spark.sparkContext
        context._jsc.hadoopConfiguration().set(name, value)
        return "set"

    def create(self, path: str, megabytes: int, mark: str) -> bool:
        """A file of a log, as a commit of that size."""
        from stateflow.spark.internals import s3_logs

        s3_logs.create_commits(self.spark, path)
        logs, line = self.spark._jvm.stateflow.S3Logs, mark * (1 << 20)  # type: ignore[union-attr]
        context: Any = self.spark.sparkContext
        store = logs(context._jsc.hadoopConfiguration())
        lines = self.spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
        for _ in range(megabytes):
            lines.add(line)
        where = self.spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        try:
            store.write(where, lines.iterator(), False, context._jsc.hadoopConfiguration())
        except Exception as error:
            if "java.nio.file.FileAlreadyExistsException" not in str(error):
                raise
            return False
        return True


def main(conf: dict[str, str], folder: Path) -> None:
    from stateflow.spark.session.build import build_session

    conf = {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g", "spark.ui.enabled": "false",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2", **conf}  # fmt: skip
    work = Work(build_session("s3 driver", master="local[2]", conf=conf, bundles=("s3",)), folder)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(work, asked.pop("op"))(**asked)
        except Exception as error:
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps({"answer": answer}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
