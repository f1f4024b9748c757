"""`python -m scripts.recipes`: writes each recipe's code and the story of its rows into its page."""

from __future__ import annotations

from scripts.recipes.pages import page_of, written
from scripts.recipes.stories import STORIES

for story in STORIES:
    page = page_of(story)
    page.write_text(written(story, page.read_text(encoding="utf-8")), encoding="utf-8")
