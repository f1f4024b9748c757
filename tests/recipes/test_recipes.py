"""The pages of the recipes show the code that is there, and what it does."""

from __future__ import annotations

import re

import pytest

from scripts.recipes import pages
from scripts.recipes.stories import STORIES
from scripts.recipes.story import FOLDER, Story


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.recipe)
def test_a_page_shows_the_code_and_what_it_does(story: Story) -> None:
    text = pages.page_of(story).read_text(encoding="utf-8")
    assert pages.written(story, text) == text, "run: python -m scripts.recipes"


def test_every_recipe_has_a_story_and_is_in_the_list() -> None:
    told = {story.recipe for story in STORIES}
    # A chain is told by its tables, and so is a database: tests/spark/test_recipes.py, test_recipe_*.py.
    told |= {"chains", "changes", "postgres", "kafka_to_postgres", "iceberg", "versions", "features", "audit"}
    assert {path.stem for path in FOLDER.glob("*.py")} == told
    listed = re.findall(
        r"\]\(([\w-]+)\.md\) \|$", (pages.PAGES / "index.md").read_text("utf-8"), re.MULTILINE
    )
    assert {name.replace("-", "_") for name in listed} == told


def test_a_recipe_is_short() -> None:
    """Its flow and its code, without imports and row types: at most twenty lines that are not empty."""
    long = {}
    for path in FOLDER.glob("*.py"):
        lines = pages.own_lines(path.read_text(encoding="utf-8"))
        long |= {path.stem: lines} if lines > 20 else {}
    assert long == {}


def test_a_page_without_its_place_for_the_code_is_refused() -> None:
    with pytest.raises(SystemExit, match="has no place for its code"):
        pages.written(STORIES[0], "# A page\n")
