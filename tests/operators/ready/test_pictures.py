"""The pictures of the page are what the operators put out."""

from __future__ import annotations

from scripts.operator_pictures import PAGE, drawn


def test_the_pictures_of_the_page_are_drawn_from_runs_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == drawn(page), "run python -m scripts.operator_pictures"
