"""Which room of stateflow/ may import which: the one table. `python scripts/rooms.py` draws it into docs/architecture.md.

A room is a folder, or a module in the root. Imports inside functions and for types count too: a reader follows them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = PROJECT / "stateflow"
PAGE = PROJECT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: python scripts/rooms.py -->", "<!-- end of rooms -->"

GROUND = frozenset(
    {
        "distribution", "errors", "internals", "logs", "masking", "metrics", "names", "private_folders",
        "working_folder",
    }
)  # fmt: skip
"""Every room may import these; they import nothing of the project but each other."""


@dataclass(frozen=True)
class Room:
    """One concept, and the rooms below that it may import."""

    holds: str
    imports: str = ""
    """Names of rooms, apart from `GROUND`."""
    first: str = ""
    """The file to read first."""

    @property
    def below(self) -> frozenset[str]:
        return frozenset(self.imports.split())


ROOMS: Mapping[str, Room] = {
    "distribution": Room("the name that pip knows the library by, and the version installed"),
    "errors": Room("the errors that users see, and their exit codes"),
    "internals": Room("entries of what is used of other projects without a public name"),
    "logs": Room("log lines with job, epoch and slot"),
    "masking": Room("what people may not read: values of parameters that are called like a secret"),
    "metrics": Room("gauges for OpenTelemetry"),
    "names": Room("names that are not known, and what was meant by them"),
    "private_folders": Room("folders for this user alone, whatever the umask says"),
    "working_folder": Room("`python -m stateflow` without modules of the working folder"),
    "format": Room(
        "bytes and names that are frozen: records, paths, scalar types, keys' encoding; no I/O",
        "",
        "records.py",
    ),
    "quantities": Room("durations, sizes, times and counts as people write them", "format"),
    "config": Room("every option, and where its value comes from", "quantities", "options.py"),
    "storage": Room("create-only stores, copies between them, the host's cache", "format", "store.py"),
    "checkpoint": Room(
        "a job's log: claims, recovery, edits, collection; pure decisions beside their I/O",
        "config format storage",
        "claim.py",
    ),
    "liveness": Room(
        "a run's heartbeat; pins of processes that died", "checkpoint format storage", "heart.py"
    ),
    "savepoints": Room("snapshots in folders of their own", "checkpoint format storage", "format.py"),
    "state/keys": Room("keys as bytes, text and columns", "format", "codec.py"),
    "state/values": Room("values as bytes, by their declared type", "format state/keys", "serializers.py"),
    "state/values/evolution": Room(
        "values of an older type as today's: what may change, and who converts",
        "format state/keys state/values",
        "decision.py",
    ),
    "state/values/arrow": Room(
        "many stored values at once, as Arrow columns and back",
        "format state/keys state/values state/values/evolution",
        "typed.py",
    ),
    "state/backends": Room(
        "where entries live while a task runs: memory, RocksDB", "config format", "base.py"
    ),
    "state/expiry": Room(
        "how long state lives, and the index that finds what has expired",
        "format quantities state/backends state/values",
        "index.py",
    ),
    "state/columns": Room(
        "state of columnar operators: many entries at once, as Arrow tables",
        "format state/backends state/expiry state/keys state/values state/values/arrow",
        "state.py",
    ),
    "state": Room(
        "declared states, and what user code gets to hold",
        "format state/backends state/expiry state/keys state/values state/values/arrow state/values/evolution",
        "declare.py",
    ),
    "pipelines/rows": Room(
        "row types: named fields with Spark types, and values that do not fit them",
        "format state/values",
        "row_type.py",
    ),
    "pipelines/conditions": Room(
        "the part of SQL that a `where=` needs", "format pipelines/rows state/values/arrow", "expression.py"
    ),
    "pipelines/code": Room(
        "the pipeline's own files and source text, read without running them", "", "own_modules.py"
    ),
    "pipelines/processes": Room(
        "processes that users write, per key, per Arrow table and per partition",
        "format pipelines/rows state state/columns",
        "process.py",
    ),
    "pipelines/inputs": Room(
        "files and Delta tables that a pipeline reads", "pipelines/rows state/values/arrow", "files.py"
    ),
    "pipelines/ready": Room(
        "aggregates, windows, joins, as a pipeline declares them",
        "format pipelines/code pipelines/conditions pipelines/processes pipelines/rows quantities state "
        "state/columns state/expiry state/values",
        "operators.py",
    ),
    "pipelines": Room(
        "what users write with: flows, processes, rows",
        "format pipelines/code pipelines/conditions pipelines/inputs pipelines/processes pipelines/ready "
        "pipelines/rows quantities state state/columns state/expiry",
        "flow.py",
    ),
    "operators": Room(
        "the engine: keys in, rows and changes out, without Spark",
        "format pipelines/conditions pipelines/processes pipelines/ready pipelines/rows state state/backends "
        "state/columns state/expiry state/keys state/values state/values/arrow state/values/evolution",
        "keyed.py",
    ),
    "operators/ready/grouping": Room(
        "which rows belong together, and in which order",
        "operators pipelines/processes pipelines/rows state/keys",
        "groups.py",
    ),
    "operators/ready/aggregates": Room(
        "aggregates over groups of rows: partial values that add up",
        "format operators operators/ready/grouping pipelines/conditions pipelines/processes pipelines/ready "
        "state/keys state/values state/values/arrow",
        "accumulator.py",
    ),
    "operators/ready/windows": Room(
        "rows in windows: which, when they close, what is late",
        "operators operators/ready/aggregates operators/ready/grouping pipelines/processes pipelines/ready "
        "pipelines/rows state/values/evolution",
        "windowed.py",
    ),
    "operators/ready": Room(
        "ready-made operators: aggregates, windows, deduplication; over columns",
        "operators operators/ready/aggregates operators/ready/grouping operators/ready/windows pipelines "
        "pipelines/processes pipelines/ready",
        "windowed.py",
    ),
    "operators/joins": Room(
        "joins and enrichment: rows that wait as blocks, partners found by sorting, answers that are kept",
        "operators operators/ready operators/ready/grouping "
        "operators/ready/windows pipelines pipelines/conditions pipelines/processes pipelines/ready quantities state/keys state/values "
        "state/values/arrow state/values/evolution",
        "interval.py",
    ),
    "compatibility": Room(
        "whether a pipeline fits the state of a record",
        "checkpoint format operators pipelines pipelines/inputs pipelines/processes pipelines/ready "
        "pipelines/rows quantities state state/values state/values/evolution",
        "flows.py",
    ),
    "observe": Room("what a job looks like from outside", "checkpoint format quantities", "status.py"),
    "reading/files": Room(
        "state files read without a database: their entries, deletions included, and how two shards differ",
        "format state/backends storage",
        "sst.py",
    ),
    "reading": Room(
        "one key, one state, one snapshot; what happened to a key, what changed, and when it went wrong",
        "checkpoint config format pipelines/conditions pipelines/rows quantities reading/files savepoints "
        "state/backends state/expiry state/keys state/values state/values/evolution storage",
        "query.py",
    ),
    "spark/internals": Room(
        "what is used of PySpark, Spark and Delta that has no public name; a test for each",
        "format",
        "plans.py",
    ),
    "spark/session": Room(
        "Java, jars and the Spark session, and user code on its way to workers",
        "config pipelines/code spark/internals storage",
        "build.py",
    ),
    "spark/task": Room(
        "what runs in a Spark task: blocks of rows, shards, acks",
        "checkpoint config format operators pipelines/processes pipelines/rows reading spark/internals spark/session "
        "state state/backends state/expiry state/keys state/values storage",
        "subtask.py",
    ),
    "spark/sources": Room(
        "offsets and positions of Spark's sources",
        "format pipelines/inputs spark/internals storage",
        "positions.py",
    ),
    "spark/sinks": Room(
        "prepare and commit, per kind of sink",
        "checkpoint format pipelines pipelines/conditions pipelines/inputs pipelines/ready pipelines/rows "
        "spark/internals spark/sources storage",
        "base.py",
    ),
    "spark/shuffle": Room(
        "the rows of a key brought together, on the executor that has its state",
        "format operators pipelines/rows spark/internals spark/session spark/task",
        "exchange.py",
    ),
    "spark/inputs": Room(
        "the sources of a run: opened, outlined, and what is wrong with them",
        "checkpoint compatibility config format operators pipelines pipelines/inputs pipelines/processes "
        "pipelines/rows spark/internals spark/session spark/shuffle spark/sinks spark/sources spark/task storage",
        "open_inputs.py",
    ),
    "spark/batches": Room(
        "one micro-batch: operators run, outputs prepared",
        "checkpoint compatibility format operators operators/joins pipelines pipelines/processes "
        "pipelines/ready pipelines/rows reading spark/inputs spark/internals spark/session spark/shuffle spark/sinks "
        "spark/task state state/backends state/values state/values/arrow state/values/evolution",
        "batch.py",
    ),
    "spark": Room(
        "what runs on the driver: a run, its loop, a batch",
        "checkpoint compatibility config format liveness operators pipelines pipelines/inputs quantities savepoints "
        "spark/batches spark/inputs spark/internals spark/session spark/shuffle spark/sinks spark/sources spark/task "
        "state/backends storage",
        "runner.py",
    ),
    "connectors": Room(
        "what a connector is written with: one list of names",
        "format operators pipelines pipelines/inputs pipelines/rows spark/sinks spark/task storage",
        "__init__.py",
    ),
    "connectors/files": Room(
        "folders of Parquet, JSON or CSV with a log of manifests", "connectors", "manifests.py"
    ),
    "connectors/iceberg": Room("rows into tables of Iceberg, and out of them", "connectors", "sink.py"),
    "connectors/kafka": Room(
        "topics of Kafka: their messages as rows, and rows as messages", "connectors", "topic.py"
    ),
    "connectors/postgres": Room("rows into Postgres", "connectors", "sink.py"),
    "testing": Room(
        "operators in unit tests, without Spark, whole pipelines, with it, and the promises of a sink as tests",
        # `checkpoint` is the rescale of a record, which is pure: the harness of operators without keys rescales as a run does.
        "checkpoint compatibility config connectors format operators operators/joins pipelines pipelines/inputs "
        "pipelines/processes pipelines/ready pipelines/rows reading spark spark/inputs spark/session spark/sinks state "
        "state/backends state/columns state/keys state/values state/values/arrow state/values/evolution storage",
    ),
    "spark/state_tables": Room(
        "state as Spark tables: the data source, canonical savepoints",
        "checkpoint compatibility config format observe pipelines pipelines/inputs pipelines/rows reading "
        "savepoints spark/inputs spark/internals spark/shuffle spark/sinks spark/sources spark/task state state/backends "
        "state/expiry state/keys storage",
        "tables.py",
    ),
    "restore": Room(
        "what a restore would mean, and doing it",
        "checkpoint compatibility config format liveness observe pipelines pipelines/code pipelines/inputs "
        "quantities savepoints spark spark/inputs spark/session spark/sinks spark/sources "
        "spark/state_tables storage",
        "plan.py",
    ),
    "replay": Room(
        "batches that were, run again by other code on a fork, and compared",
        "checkpoint compatibility config format liveness operators pipelines pipelines/ready quantities reading "
        "spark/batches spark/inputs spark/internals spark/session spark/shuffle spark/sinks spark/task "
        "state state/backends state/values state/values/arrow storage",
        "running.py",
    ),
    "debugging": Room(
        "one key in one batch that was: run again by today's code, under a debugger or as a test",
        "format operators pipelines pipelines/processes pipelines/rows reading replay spark/batches spark/inputs "
        "state/keys state/values testing",
        "past_key.py",
    ),
    "jobs": Room(
        "`Job`: the verbs that the command line, Airflow and scripts call",
        "checkpoint compatibility config debugging format liveness observe pipelines pipelines/inputs pipelines/rows quantities "
        "reading replay restore savepoints spark spark/inputs spark/session spark/sinks spark/sources spark/state_tables spark/task "
        "state/backends state/keys storage",
        "job.py",
    ),
    "packaging": Room(
        "what executors need, as archives that are tried out",
        "pipelines/code spark/session storage",
        "build.py",
    ),
    "serve": Room("keyed state over HTTP", "checkpoint format liveness reading state/backends", "app.py"),
    "driver": Room(
        "a driver that outlives its starter, and is found again",
        "checkpoint config format jobs quantities",
        "supervision.py",
    ),
    "hosts": Room(
        "warm hosts: Spark applications that stay, in which runs are forked processes",
        "config driver quantities spark/internals spark/session",
        "application.py",
    ),
    "cli": Room(
        "the `stateflow` command",
        "checkpoint config debugging format hosts jobs liveness observe packaging pipelines pipelines/ready quantities "
        "reading replay restore savepoints serve spark spark/session spark/sinks spark/state_tables storage",
        "main.py",
    ),
    "__main__": Room("`python -m stateflow`: the command without its script", "cli"),
    "application": Room("the command as an application of spark-submit", "cli jobs"),
    "airflow/internals": Room(
        "what is used of Airflow and its providers that has no public name; a test for each",
        "",
        "task_instances.py",
    ),
    "airflow/connections": Room(
        "connections, and what a failure means to a task",
        "airflow/internals config jobs spark/task storage",
        "stateflow.py",
    ),
    "airflow/launchers": Room(
        "how a task starts a driver",
        "airflow/connections airflow/internals checkpoint config driver hosts jobs pipelines quantities spark "
        "spark/session",
        "spark_submit.py",
    ),
    "airflow/triggers": Room(
        "waiting in the triggerer",
        "airflow/connections airflow/internals airflow/launchers checkpoint connectors/kafka driver format hosts jobs "
        "observe quantities",
        "run.py",
    ),
    "airflow/operators": Room(
        "one operator per verb",
        "airflow/connections airflow/internals airflow/launchers airflow/triggers checkpoint config driver format "
        "hosts jobs liveness observe pipelines quantities replay restore savepoints",
        "run.py",
    ),
    "airflow": Room(
        "sensors, alerts, and the names that DAGs import",
        "airflow/connections airflow/launchers airflow/operators airflow/triggers observe",
        "sensors.py",
    ),
}
"""From the ground up."""


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    return {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }


def imported(source: str, known: Set[str]) -> Iterator[tuple[int, str]]:
    """Line and name of every module among `known` that the source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                # `from stateflow import errors` names a module, too.
                inner = f"{node.module}.{alias.name}"
                if inner in known or node.module in known:
                    yield node.lineno, inner if inner in known else node.module


def room_of(module: str, path: Path) -> str:
    """`stateflow.spark.task.subtask` is in `spark/task`; a module in the root is a room, and so is the facade: ''."""
    parts = module.split(".")[1:]
    if path.name != "__init__.py":
        parts = parts[:-1] or parts
    return "/".join(parts)


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """Groups of two or more that reach each other, each sorted."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        reached: set[str] = set()
        todo = list(graph[start])
        while todo:
            node = todo.pop()
            if node not in reached:
                reached.add(node)
                todo.extend(graph.get(node, ()))
        reach[start] = reached
    groups = {
        tuple(sorted(other for other in reach[node] if node in reach.get(other, ())))
        for node in graph
        if node in reach[node]
    }
    return [list(group) for group in sorted(groups)]


def diagram() -> Iterator[str]:
    """The diagram and the table. Drawn are arrows that no path over other rooms implies; `GROUND` is left out."""
    yield "```mermaid"
    yield "flowchart TD"
    rooms = [room for room in ROOMS if room not in GROUND]
    below = {room: ROOMS[room].below - GROUND for room in rooms}

    @cache
    def reached(room: str) -> frozenset[str]:
        return below[room].union(*(reached(lower) for lower in below[room])) if below[room] else frozenset()

    for room in reversed(rooms):
        implied = (
            frozenset().union(*(reached(lower) for lower in below[room])) if below[room] else frozenset()
        )
        for lower in sorted(below[room] - implied):
            yield f"  {_node(room)} --> {_node(lower)}"
    yield "```"
    yield ""
    yield "| room | what is in it | read first | may import |"
    yield "|---|---|---|---|"
    for room, entry in ROOMS.items():
        place = f"`stateflow/{room}/`" if (PACKAGE / room).is_dir() else f"`stateflow/{room}.py`"
        first = f"`{entry.first}`" if entry.first else ""
        yield f"| {place} | {entry.holds} | {first} | {', '.join(sorted(entry.below)) or '—'} |"


def _node(room: str) -> str:
    return f"{room.replace('/', '_')}[{room}]"


def page() -> str:
    """docs/architecture.md with the rooms as they are in the table."""
    block = "\n".join([BEGIN, *diagram(), END])
    return re.sub(
        f"{re.escape(BEGIN)}.*{re.escape(END)}",
        lambda block_match: block,
        PAGE.read_text("utf-8"),
        flags=re.S,
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
