"""What the documents say is tried."""

from __future__ import annotations

import ast
import re
import shlex
import sqlite3
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import stateflow as sf
from stateflow.cli.main import app
from stateflow.format.records import Shard, StateSchema
from stateflow.pipelines.delivery import Delivery
from stateflow.state.backends.memory import memory_backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState
from stateflow.state.tabular import values_of
from stateflow.state.values.serializers import serializer_for
from tests.parsed import tree

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))


def blocks(page: str) -> Iterator[tuple[int, str]]:
    """Python blocks, each with the line that it begins at."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


def ran(page: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All Python of a page, in one module."""
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, "documented", module)  # dataclasses look their module up
    for line, source in blocks(page):
        # As many empty lines above, so that a failure names the page's own line.
        exec(compile("\n" * (line - 1) + source, str(REPOSITORY / page), "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    ("page", "defines"),
    [
        ("README.md", "orders"),
        ("docs/start.md", "payments"),
        ("docs/coming-from/spark.md", "counts"),
        ("docs/coming-from/flink.md", "Silent"),
        ("docs/coming-from/flink-sql.md", "minutes"),
        ("docs/coming-from/quix.md", "totals"),
        ("docs/user-guide.md", "short"),
        ("docs/sources.md", "Order"),
        ("docs/sinks.md", "shop"),
        ("docs/state.md", "Priced"),
        ("docs/time.md", "Reminders"),
        ("docs/changing-state.md", "fourth"),
        ("docs/operators.md", "minutes"),
        ("docs/joins.md", "paid"),
        ("docs/columnar.md", "largest"),
    ],
)
def test_the_python_of_a_page_runs(page: str, defines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(ran(page, monkeypatch), defines)


def test_the_columnar_example_keeps_a_running_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    summed = ran("docs/user-guide.md", monkeypatch).summed
    state = ColumnState([("user", "int")], ColumnLayout({"total": float}).schema(), 128, "operator 'sum'")
    shard = Shard(first=0, last=127, backend="memory")
    state.attach(memory_backend()(shard, tmp_path, lambda ref: Path(ref.path)), range(128))
    rows = pa.table({"user": [1, 2, 1], "amount": [1.0, 2.0, 3.0]})
    assert sorted(summed(rows, state, None).to_pylist(), key=str) == [
        {"user": 1, "total": 4.0},
        {"user": 2, "total": 2.0},
    ]
    assert {"user": 1, "total": 8.0} in summed(rows, state, None).to_pylist()


def test_the_function_of_the_page_of_sinks_writes_each_delivery_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ran("docs/sinks.md", monkeypatch)
    database = str(tmp_path / "shop.db")
    (sink,) = page.shop.build({"input": "in", "database": database}).sinks
    frame = SimpleNamespace(toLocalIterator=lambda: iter([page.Order(1, 2.5), page.Order(2, 4.0)]))

    def total() -> float:
        with closing(sqlite3.connect(database)) as connection:
            return float(connection.execute("SELECT sum(amount) FROM orders").fetchone()[0])

    def delivered(key: str, slot: int) -> float:
        sink.target(frame, Delivery(key, slot, "shop", "orders"))
        return total()

    assert delivered("one/orders", 3) == 6.5
    assert delivered("one/orders", 3) == 6.5, "the same delivery once more"
    # Checkpoints that are a copy deliver a slot of before, or another record under the newest.
    for slot, record in ((2, ""), (3, "another")):
        with pytest.raises(RuntimeError, match="a copy of the job"):
            sink.target(frame, Delivery("one/orders", slot, "shop", "orders", record))
    assert total() == 6.5
    assert delivered("one/orders", 4) == 13.0
    assert delivered("two/orders", 1) == 19.5, "another job begins with low slots"
    # A function that fails behind the first statement has written nothing.
    broken = SimpleNamespace(toLocalIterator=lambda: iter([page.Order([], 1.0)]))
    with pytest.raises(sqlite3.Error):
        sink.target(broken, Delivery("one/orders", 5, "shop", "orders"))
    assert total() == 19.5
    assert delivered("one/orders", 5) == 26.0


COLUMN = 80
"""Characters of a code block's line that the site, and the index's page, show without cutting it off."""
WIDER = {
    "docs/cli.md": ("chk 42 ", "  2.0 s "),  # what a run prints, in 100 columns and more
    "docs/deploying.md": ("spark.archives=",),  # what `stateflow package` prints: one setting is one line
    "docs/joins.md": ('[{"side":',),  # what a command answers
    "docs/operating.md": ("--offset events=",),  # one line of Spark's offset log
}


def code_lines(page: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page's blocks of code, fenced or indented, with their numbers."""
    fence, above = "", ""
    indented = False
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip()
        elif fence:
            if "mermaid" not in fence:
                yield number, line
        else:
            indented = line.startswith("    ") and (indented or not above.strip())
            if indented:
                yield number, line[4:]
        above = line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_code_fits_its_column(page: Path) -> None:
    wider = WIDER.get(str(page.relative_to(REPOSITORY)), ())
    cut_off = [
        f"line {number} has {len(line)} characters: {line}"
        for number, line in code_lines(page)
        if len(line) > COLUMN and not line.startswith(wider)
    ]
    assert cut_off == [], f"a line of code on a page has at most {COLUMN} characters"


def test_what_is_wider_is_still_there() -> None:
    for page, beginnings in WIDER.items():
        lines = [line for _, line in code_lines(REPOSITORY / page) if len(line) > COLUMN]
        for beginning in beginnings:
            assert any(line.startswith(beginning) for line in lines), (page, beginning)


def links(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    return [link for link in found if not re.match("[a-z]+:", link)]


def headings(page: Path) -> set[str]:
    """As their anchors."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    astray = []
    for link in links(page):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in headings(target)):
            astray.append(link)
    assert astray == []


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = set(
        re.findall(r"(?:: |- )([\w/-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    )
    pages = {str(page.relative_to(REPOSITORY / "docs")) for page in PAGES[1:]}
    # What `make bench-quick` has written here is nobody's page.
    assert pages - menu - {"benchmarks-quick.md"} == set(), "add them to `nav` in mkdocs.yml"


def test_every_page_is_linked_from_another_one() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in links(page)
        if link.endswith(".md") or ".md#" in link
        if (page.parent / link.partition("#")[0]).resolve() != page
    }
    # What `make bench-quick` has written here is nobody's page.
    assert [
        page.name for page in PAGES[1:] if page not in linked and page.name != "benchmarks-quick.md"
    ] == []


def test_every_picture_is_shown_somewhere() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in links(page)}
    pictures = [path for path in (REPOSITORY / "docs" / "img").rglob("*") if path.suffix in (".png", ".svg")]
    # Those that `make bench-quick` has drawn are on a page of its own.
    pictures = [path for path in pictures if path.parent.name != "quick"]
    assert pictures
    assert [path.name for path in pictures if path not in shown] == []


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = command_line().commands
    missing = [name for name in commands if f"### `stateflow {name}" not in page]
    missing += [
        f"{name} {option}"
        for name, command in commands.items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help" and f"`{option}" not in page
    ]
    assert missing == []


def typed_commands(page: Path) -> Iterator[str]:
    """What follows `stateflow` in the blocks of code and in the sentences of a page."""
    continued = ""
    for _, line in code_lines(page):
        whole, continued = continued + line, ""
        if whole.endswith("\\"):
            continued = whole[:-1]
        elif found := re.match(r"\s*(?:[A-Z_]+=\S+ )*stateflow (.*)", whole):
            yield found[1]
    yield from re.findall(r"`stateflow ([a-z][^`\n]*)`", page.read_text(encoding="utf-8"))


@cache
def command_line() -> Any:
    import typer.main

    return typer.main.get_command(app)


def wrong_words(typed: str) -> list[str]:
    """The words of a command line that are no command and no option."""
    command = command_line()
    words = shlex.split(typed, comments=True)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return [words[0]]
        command = command.commands[words.pop(0)]
    known = {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
    return [word for word in words if re.match("--?[a-z]", word) and word.split("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_command_on_a_page_has_its_options(page: Path) -> None:
    assert {typed: wrong for typed in typed_commands(page) if (wrong := wrong_words(typed))} == {}


def test_a_wrong_command_and_a_wrong_option_are_noticed() -> None:
    assert sum(len(list(typed_commands(page))) for page in PAGES) > 200
    assert wrong_words("restore orders orders.py:orders --from checkpoint:42 --rewind-outputs") == [
        "--rewind-outputs"
    ]
    assert wrong_words("savepoint make orders") == ["make"]


WALK = (REPOSITORY / "docs" / "walk.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("stop", sorted(set(re.findall(r"`([\w/]+\.py(?::[\w.]+)?)`", WALK))))
def test_every_stop_of_the_walks_is_there(stop: str) -> None:
    path, _, name = stop.partition(":")
    body = tree(REPOSITORY / "stateflow" / path).body
    for part in filter(None, name.split(".")):
        definitions = (ast.ClassDef, ast.FunctionDef)
        inner = [node for node in body if isinstance(node, definitions) and node.name == part]
        assert inner, f"{path} has no {name}"
        body = inner[0].body


SECURITY = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("test", sorted(set(re.findall(r"`([\w/]+\.py::[\w:]+)`", SECURITY))))
def test_every_test_that_the_security_page_names_is_there(test: str) -> None:
    file, *names = test.split("::")
    body = tree(REPOSITORY / "tests" / file).body
    for name in names:
        inner = [
            node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
        ]
        assert inner, f"{file} has no {name}"
        body = inner[0].body
    assert isinstance(inner[0], ast.FunctionDef)


def test_every_row_of_the_security_page_with_a_test_names_it_in_full() -> None:
    tables = re.findall(r"^\|.*\| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", SECURITY, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert rows
    assert [row for row in rows if not re.search(r"\| `[\w/]+\.py::[\w:]+`[^|]*\|$", row)] == []


@pytest.mark.parametrize(("page", "mark"), [("README.md", "{}"), ("docs/dependencies.md", "| {} |")])
def test_every_extra_is_named(page: str, mark: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    extras = [name for name in project["optional-dependencies"] if name != "dev"]
    assert [name for name in extras if mark.format(f"`{name}`") not in text] == []


def test_the_table_of_types_is_what_a_savepoint_of_tables_has() -> None:
    @dataclass
    class Order:
        sku: str
        amount: float

    custom = sf.CustomSerializer("hours", 2, bytes, lambda data, version: data)
    known = {"Order": Order, "Decimal": Decimal, "CustomSerializer": lambda *given: custom}
    known |= {each.__name__: each for each in (date, datetime, time, timedelta)}
    page = (REPOSITORY / "docs/operating.md").read_text(encoding="utf-8")
    header = "| declared | Arrow's and Parquet's type | column `stored` |\n|---|---|---|\n"
    rows = page.partition(header)[2].partition("\n\n")[0].splitlines()
    assert len(rows) > 15
    for row in rows:
        declared, arrow, stored = re.fullmatch(
            r"\| `(.+?)`(?: \(.*\))? \| `(.+?)` \| (yes|no) \|", row
        ).groups()  # type: ignore[union-attr]
        schema = serializer_for(eval(declared.replace("\\|", "|"), known)).schema
        values = values_of(StateSchema(id=1, kind="value", value=schema), "here")
        assert (str(values.arrow), values.doubtful) == (arrow, stored == "yes"), row
