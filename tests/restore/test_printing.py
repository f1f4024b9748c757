"""Text, Markdown and JSON of a description, whatever it describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.restore.printing import (
    Aside,
    Description,
    Name,
    Row,
    Section,
    Sentence,
    Strong,
    document,
    markdown,
    text,
)
from tests.restore.test_restore_plans import planned
from tests.restore.test_restoring import Scene, made_scene

TEA = Description(
    ("Brew ", Name("green tea"), Aside(" (new)")),
    (
        Section(
            "Leaves",
            ("leaf", "how"),
            [Row("leaf", (Name("a|b"), ": ", Sentence("it's *good*")), ((Name("a|b"),), (Strong("steep"),)))],
            {"leaves": ["a|b"]},
        ),
        Section("Empty", ("nothing",), data={"empty": []}),
        Section("Note", rows=[Row("note", (Sentence("hot_water"),))]),
        Section(rows=[Row("", ("for text alone",))], data={"degrees": 80}),
    ),
    ("Before: ", Name("boil")),
)


def test_text_has_a_line_for_each_fact() -> None:
    assert text(TEA).splitlines() == [
        "Brew 'green tea'",
        "  leaf        'a|b': it's *good*",
        "  note        hot_water",
        "              for text alone",
    ]


def test_markdown_has_tables_and_lists_of_what_there_is() -> None:
    assert markdown(TEA).split("\n\n") == [
        "**Brew `green tea` (new)**",
        "Before: `boil`",
        "**Leaves**",
        "| leaf | how |\n| --- | --- |\n| `a\\x7cb` | **steep** |",
        "**Note**",
        "- hot&#95;water",
    ]


def test_json_has_the_data_of_every_section() -> None:
    assert document(TEA) == {"leaves": ["a|b"], "empty": [], "degrees": 80}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return made_scene(tmp_path)


def test_a_plan_s_warnings_stand_in_each_form(scene: Scene) -> None:
    plan = planned(scene, "checkpoint:2")
    [warning] = plan.warnings
    assert warning.startswith("the job goes back by 2 records")
    assert f"  note        {warning}" in str(plan).splitlines()
    assert f"- {warning}" in plan.markdown().splitlines()
    assert plan.document()["warnings"] == [warning]
