"""The recipe for a database: what its page says of crashes, forks, new jobs and restores, in SQLite and in Postgres."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from scripts.recipes.story import loaded
from stateflow.config.options import load
from stateflow.errors import StateflowError
from stateflow.jobs.job import Job
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench

PAGE = Path("docs/recipes/postgres.md").read_text(encoding="utf-8")
Connect = Callable[..., Any]


class Translated:
    """A cursor of SQLite that takes the placeholders of Postgres."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.cursor = cursor

    def execute(self, statement: str, values: Any = ()) -> None:
        self.cursor.execute(statement.replace("%s", "?"), values)

    def executemany(self, statement: str, rows: Any) -> None:
        self.cursor.executemany(statement.replace("%s", "?"), rows)

    def __enter__(self) -> Translated:
        return self

    def __exit__(self, *error: object) -> None:
        self.cursor.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)


class Lite(sqlite3.Connection):
    def cursor(self, *given: Any, **options: Any) -> Any:
        return Translated(super().cursor(*given, **options))


@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.system, pytest.mark.timeout(300)])]
)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    if request.param == "sqlite":
        yield lambda dsn: sqlite3.connect(tmp_path / "database", factory=Lite)
        return
    import psycopg2

    from tests.airflow.postgres import postgres

    with postgres() as url:
        yield lambda dsn: psycopg2.connect(url.replace("postgresql+psycopg2", "postgresql"))


class Killed:
    """A connection of a run that is killed once its transaction is over."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def __enter__(self) -> Any:
        return self.connection.__enter__()

    def __exit__(self, *error: Any) -> Any:
        return self.connection.__exit__(*error)

    def cursor(self) -> Any:
        return self.connection.cursor()

    def close(self) -> None:
        self.connection.close()
        raise OSError("killed after its commit")


def away(dsn: str) -> Any:
    raise OSError("the database is away")


def statements(page: str) -> list[str]:
    """Those that the page shows."""
    return [part.partition("```")[0].strip() for part in page.split("```sql\n")[1:]]


@pytest.mark.slow
def test_each_row_is_in_the_database_once_whatever_happens_to_the_job(
    spark: SparkSession, tmp_path: Path, connect: Connect
) -> None:
    assert f"```python\n{Path('examples/recipes/postgres.py').read_text(encoding='utf-8')}```\n" in PAGE
    recipe = loaded("postgres")
    recipe.connect = connect  # type: ignore[attr-defined]
    bench = Workbench(spark, tmp_path)
    made, taken_back, copied_back = statements(PAGE)

    def ask(statement: str, values: Any = ()) -> list[Any]:
        with closing(connect("")) as connection, connection, closing(connection.cursor()) as cursor:
            for one in statement.split(";"):
                if one.strip():
                    cursor.execute(one, values)
            return sorted(cursor.fetchall()) if cursor.description else []

    def ids(key: str = "") -> list[str]:
        rows = ask("SELECT id, key FROM orders")
        return [id for id, of in rows if key in ("", of)]

    ask(made)
    given = {"input": str(tmp_path / "orders"), "database": ""}

    def feed(*ids: str) -> None:
        bench.rows("orders", [{"id": id, "amount": 1.0} for id in ids])

    def run(pipeline: sf.Pipeline = recipe.postgres, **options: Any) -> None:
        bench.run(pipeline, given, **options)

    feed("a", "b")
    run()
    job = Job(str(tmp_path / "root"), "postgres")
    middle = job.checkpoints()[-1].slot
    key = f"{job.status().uuid}/orders"
    assert ask("SELECT key, slot FROM deliveries") == [(key, middle)]

    # The call comes through, and the run does not live to hear of it.
    feed("c")
    recipe.connect = lambda dsn: Killed(connect(dsn))  # type: ignore[attr-defined]
    with refused(StateflowError, "killed after its commit"):
        run()
    assert ids() == ["a", "b", "c"]
    recipe.connect = connect  # type: ignore[attr-defined]
    run(takeover=True)
    feed("d")
    run()
    assert ids() == ["a", "b", "c", "d"]

    # Another job over the same code and tables, whose slots begin again.
    run(replace(recipe.postgres, name="again"))
    assert sorted(ids()) == sorted("aabbccdd")

    # A fork goes on from the snapshot, under a key of its own, and its plan says so.
    options = load(
        code={"checkpoint_dir": str(tmp_path / "root"), "cache_dir": str(tmp_path / "cache"), "local_fsync": False},
        env={}, folder=tmp_path,
    )  # fmt: skip
    fork = Job(str(tmp_path / "root"), "fork").restore(
        f"checkpoint:{middle}", recipe.postgres, given, options=options, from_job="postgres"
    )
    assert [w for w in fork.warnings if "sink orders calls its function under a new key" in w]
    fork.apply()
    run(replace(recipe.postgres, name="fork"))
    assert sorted(ids()) == sorted("aabbcccddd")

    # The job itself goes back: what followed is taken back first, and comes again with higher slots.
    plan = job.restore(f"checkpoint:{middle}", recipe.postgres, given, options=options)
    assert not [w for w in plan.warnings if "new key" in w]
    plan.apply()
    ask(taken_back.replace("40", str(middle)).replace("3f2c.../orders", key))
    assert ids(key) == ["a", "b"]
    run()
    assert ids(key) == ["a", "b", "c", "d"]

    # Last night's copy of the checkpoints is put back: nothing is left out or doubled without a word, and the page says what to do.
    newest = job.checkpoints()[-1].slot
    root, backup = tmp_path / "root", tmp_path / "backup"
    shutil.copytree(root, backup)
    feed("w")
    run()
    shutil.rmtree(root)
    backup.rename(root)
    feed("x")
    with refused(StateflowError, "others took the slot of", "a copy?"):
        run()
    assert ids(key) == ["a", "b", "c", "d", "w"]
    ask(copied_back.replace("40", str(newest)).replace("3f2c.../orders", key))
    run()
    assert ids(key) == ["a", "b", "c", "d", "w", "x"]

    # Rows of a slot that is given up do not come any more; later ones do.
    feed("e")
    recipe.connect = away  # type: ignore[attr-defined]
    with refused(StateflowError, "the database is away"):
        run()
    job.abandon(job.log().pending[-1].slot)
    recipe.connect = connect  # type: ignore[attr-defined]
    feed("f")
    run()
    assert ids(key) == ["a", "b", "c", "d", "f", "w", "x"]
