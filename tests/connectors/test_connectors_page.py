"""docs/connectors.md: its connectors keep what they promise, and wrong ones are found out at the check that says why."""

from __future__ import annotations

import atexit
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import stateflow as sf
from stateflow.pipelines import offers, sink_kinds
from stateflow.testing import SinkConformance, SourceConformance

pytestmark = pytest.mark.usefixtures("spark")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "connectors.md"
FOLDER = Path(tempfile.mkdtemp(prefix="stateflow-connectors-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
BLOCKS = re.findall(r"^```(python|toml)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
FILES = {text.split()[1]: text for kind, text in BLOCKS if kind == "python"}
[PROJECT] = [tomllib.loads(text) for kind, text in BLOCKS if kind == "toml"]


def module_of(file: str) -> str:
    return file.removesuffix(".py")


def write(name: str, text: str) -> None:
    (FOLDER / name).parent.mkdir(exist_ok=True)
    (FOLDER / name).write_text(text, encoding="utf-8")
    # Python takes the compiled one for the same if the file has its size and second.
    Path(cache_from_source(str(FOLDER / name))).unlink(missing_ok=True)
    sys.modules.pop(module_of(name), None)
    invalidate_caches()


for name, text in FILES.items():
    write(name, text)
sys.path.insert(0, str(FOLDER))
TestSqlite = import_module("test_stateflow_sqlite").TestSqlite
TestRows = import_module("test_stateflow_sqlite_rows").TestRows


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """As pip leaves the package; more than once, where tests of other files come in between."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    project = PROJECT["project"]
    folder = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    write(f"{folder}/METADATA", f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in entries.items()) + "\n"
        for group, entries in project["entry-points"].items()
    ]
    write(f"{folder}/entry_points.txt", "\n".join(lines))
    offers.installed.cache_clear()
    yield
    sys.path.remove(str(FOLDER))
    offers.installed.cache_clear()


def test_it_is_found_by_its_entry_point() -> None:
    kind = sink_kinds.kind_in_record("sqlite_append")
    assert kind is not None
    assert kind is import_module("stateflow_sqlite").APPEND


def test_a_source_is_a_name_of_the_module_where_its_package_is_installed() -> None:
    assert sf.sqlite is import_module("stateflow_sqlite_rows").Rows  # type: ignore[attr-defined]
    assert len(FILES["stateflow_sqlite_rows.py"].splitlines()) <= 60
    with pytest.raises(AttributeError, match="module 'stateflow' has no attribute 'sqlit'"):
        sf.sqlit  # type: ignore[attr-defined]  # noqa: B018


SLOT = '            db.execute("REPLACE INTO slots VALUES (?, ?, ?)", mine)\n'
STAGED = "        staged = stager.write(frame, at)\n"
COMMIT = '            db.execute("COMMIT")\n'
AT_PREPARE = """\
        payload = {"table": asdict(self.target), "columns": frame.columns}
        from stateflow.connectors import CommitRequest
        early = Prepared("", "", at.prev, (), payload, staged.files)
        SqliteAppend.commit(CommitRequest(early, at, None, stager, None))
"""
SWALLOWED = """\
            try:
                db.execute("COMMIT")
            except sqlite3.Error:
                pass
"""
WRONG = {
    "forgets the slot": (SLOT, "", "a_record_that_is_committed_again_is_in_once", "has twice"),
    "writes at prepare": (
        STAGED,
        STAGED + AT_PREPARE,
        "rows_are_seen_when_their_record_is_committed_and_not_before",
        "before its record is committed the target has [",
    ),
    "ignores the record": (
        "slot, mark):",
        "slot, at.mark):",
        "what_a_copy_of_the_log_committed_is_not_taken_for_this_record",
        "it took a record whose slot the target has of a copy",
    ),
    "refuses only what is decided": (
        "        at.refuse_disagreement(str(self.target), slot)\n",
        "",
        "a_target_that_lost_slots_is_refused",
        "it took a log that has committed slot 4",
    ),
    "makes anew what is gone": (
        "                    self.refuse_gone(str(self.target))\n",
        "                    pass\n",
        "a_target_that_is_gone_is_not_made_anew",
        "open() took a missing target",
    ),
    "never asks who owns the job": (
        "            if request.is_in(",
        "            at.refuse_disagreement(str(table), slot)\n            if request.is_in(",
        "a_run_that_was_replaced_writes_nothing",
        "DisagreementError: sink and log disagree",
    ),
    "swallows an error": (
        COMMIT,
        SWALLOWED,
        "an_error_at_any_line_of_commit_loses_and_doubles_nothing",
        ", though it returned, the target lacks [",
    ),
    "takes any columns": (
        "if wrong := [each for each, _ in columns.items() - there]:",
        "if wrong := []:",
        "columns_that_do_not_fit_are_refused_before_the_decision",
        ": it took the columns ",
    ),
    "goes by the place of a column": (
        """"{table.name}" ({listed}) VALUES""",
        """"{table.name}" VALUES""",
        "columns_in_another_order_are_found_by_their_names",
        "the target lacks [",
    ),
    "writes the slot first": (
        "            for batch in",
        f'{SLOT}{COMMIT}            db.execute("BEGIN")\n            for batch in',
        "a_death_at_any_line_of_commit_loses_and_doubles_nothing",
        "the target lacks [",
    ),
}


PLANNED = '[id, min(id + step, last)] for id in range(start["id"], last, step)\n'
READ = 'yield from self.ask("SELECT * FROM {} WHERE id > ? AND id <= ?", part)'
WRONG_SOURCES = {
    "leaves gaps": (PLANNED, PLANNED.replace("id, min", "id + 1, min"), "every_row_is_read_once", " lacks ["),
    "overlaps": ("id > ?", "id >= ?", "every_row_is_read_once", "too often, or nobody added them"),
    "never rests": (
        'return {"id": newest or 0}',
        'return {"id": max(newest or 0, start["id"] + 1)}',
        "every_row_is_read_once",
        "after 1000 batches there is still no end",
    ),
    "plans by what is there": (
        'last, step = end["id"], self.per_task',
        'last, step = end["id"], 30 - [*self.ask("SELECT count(*) FROM {}")][0][0]',
        "a_plan_is_always_the_same",
        "and then another one",
    ),
    "reads to the end": ("AND id <= ?", "AND ? > 0", "a_part_is_always_read_the_same", "too often"),
    "takes what it reads": (
        READ,
        READ.replace("yield from", "rows = list(") + ")\n"
        """        with closing(sqlite3.connect(self.file)) as db, db:
            db.execute("DELETE FROM orders WHERE id > ? AND id <= ?", part)
        yield from rows""",
        "a_run_that_dies_between_plan_and_record_loses_and_doubles_nothing",
        "went back",
    ),
    "lacks a column": (
        "SELECT * FROM {} WHERE",
        "SELECT id FROM {} WHERE",
        "columns_fit_the_row_class",
        "column 'item'",
    ),
    "changes a value": (
        READ,
        READ.replace("*", "id + 0.5 AS id, item"),
        "columns_fit_the_row_class",
        "column 'id'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [*WRONG, *WRONG_SOURCES])
def test_what_is_wrong_is_found_by_the_check_that_says_why(wrong: str, tmp_path: Path) -> None:
    right, instead, check, said = {**WRONG, **WRONG_SOURCES}[wrong]
    check = f"test_{check}"
    file, kind = (
        ("stateflow_sqlite.py", "TestSqlite") if wrong in WRONG else ("stateflow_sqlite_rows.py", "TestRows")
    )
    text = FILES[file]
    assert text.count(right) == 1
    kept = {name: sys.modules[name] for name in map(module_of, FILES)}
    write(file, text.replace(right, instead))
    write(f"test_{file}", FILES[f"test_{file}"])
    try:
        kit: SinkConformance | SourceConformance = getattr(import_module(f"test_{module_of(file)}"), kind)()
        with pytest.raises(AssertionError) as caught:
            getattr(kit, check)(tmp_path)
        assert str(caught.value).startswith(f"{check}: ")
        assert said in str(caught.value)
        assert "\nPromised is: " in str(caught.value)
    finally:
        for name, text in FILES.items():
            write(name, text)
        sys.modules.update(kept)  # the tests of the right sink have its classes
