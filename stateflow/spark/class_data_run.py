"""A small run of everything that a pipeline uses. Its JVM writes the classes that it has loaded to an archive.

`python -m stateflow.spark.class_data_run FOLDER ARCHIVE`; `class_data` calls it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import stateflow as sf
from stateflow.config.options import load
from stateflow.spark.internals.gateway import process_of_jvm
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.session.build import build_session


class Count(sf.KeyedProcess[int, Any, Any]):
    rows = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for _ in rows:
            self.rows.value += 1
        yield key, self.rows.value


def exercise(folder: Path, archive: Path) -> None:
    # Only the classes matter here: the simplest compiler makes this run start sooner.
    java_options = (
        f'"-XX:ArchiveClassesAtExit={archive}" -XX:TieredStopAtLevel=1 -Xlog:disable -Xlog:all=error:stderr'
    )
    spark = build_session(
        "stateflow class data", master="local[2]", conf={"spark.driver.extraJavaOptions": java_options}
    )
    rows = spark.range(200).selectExpr("id % 7 AS user", "id", "timestamp_seconds(id) AS ts")
    rows.write.format("delta").save(str(folder / "events"))

    @sf.pipeline("class-data")
    def pipeline(flow: sf.Flow) -> None:
        counted = (
            flow.source("events", sf.delta(str(folder / "events")))
            .key_by("user")
            .process("count", Count, output="user long, rows long")
        )
        counted.append("appended", sf.delta(str(folder / "appended")))
        counted.upsert("newest", sf.delta(str(folder / "newest")), keys=["user"])

    options = load(code={"checkpoint_dir": str(folder / "root")}, env={}, folder=folder)
    run(RunRequest(pipeline, options))
    rows.write.format("delta").mode("append").save(str(folder / "events"))
    run(RunRequest(pipeline, options))
    spark.read.format("delta").load(str(folder / "newest")).collect()
    process = process_of_jvm()
    assert process is not None
    assert process.stdin is not None
    spark.stop()
    # Java writes the archive when it ends, and it ends when its standard input closes.
    process.stdin.close()
    process.wait(600)


if __name__ == "__main__":
    exercise(Path(sys.argv[1]), Path(sys.argv[2]))
