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
from pathlib import Path

import pytest

from stateflow.pipelines import offers, sink_kinds
from stateflow.testing import SinkConformance

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
    sys.modules.pop(module_of(name), None)
    invalidate_caches()


for name, text in FILES.items():
    write(name, text)
sys.path.insert(0, str(FOLDER))
TestSqlite = import_module("test_stateflow_sqlite").TestSqlite


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


SLOT = '            db.execute("REPLACE INTO slots VALUES (?, ?, ?)", mine)\n'
STAGED = "        staged = stager.write(frame, at)\n"
COMMIT = '            db.execute("COMMIT")\n'
AT_PREPARE = """\
        payload = {"table": asdict(self.table), "width": len(frame.columns)}
        early = Prepared("", "", prev, (), payload, staged.files)
        SqliteAppend.commit(None, early, at, None, {}, stager)
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
        " and mark == at.mark",
        "",
        "what_a_copy_of_the_log_committed_is_not_taken_for_this_record",
        "it took a record whose slot the target has of a copy",
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
    "writes the slot first": (
        "            for batch in",
        f'{SLOT}{COMMIT}            db.execute("BEGIN")\n            for batch in',
        "a_death_at_any_line_of_commit_loses_and_doubles_nothing",
        "the target lacks [",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_sink_that_is_wrong_is_found_by_the_check_that_says_why(wrong: str, tmp_path: Path) -> None:
    right, instead, check, said = WRONG[wrong]
    check = f"test_{check}"
    text = FILES["stateflow_sqlite.py"]
    assert text.count(right) == 1
    kept = {name: sys.modules[name] for name in map(module_of, FILES)}
    write("stateflow_sqlite.py", text.replace(right, instead))
    write("test_stateflow_sqlite.py", FILES["test_stateflow_sqlite.py"])
    try:
        kit: SinkConformance = import_module("test_stateflow_sqlite").TestSqlite()
        with pytest.raises(AssertionError) as caught:
            getattr(kit, check)(tmp_path)
        assert str(caught.value).startswith(f"{check}: ")
        assert said in str(caught.value)
        assert "\nPromised is: " in str(caught.value)
    finally:
        for name, text in FILES.items():
            write(name, text)
        sys.modules.update(kept)  # the tests of the right sink have its classes
