"""The pictures of the pages are what the operators put out."""

from __future__ import annotations

from types import ModuleType

import pytest

from scripts import join_pictures, operator_pictures
from scripts.pictures import with_picture


@pytest.mark.parametrize("pictures", [operator_pictures, join_pictures], ids=lambda module: module.__name__)
def test_the_pictures_of_a_page_are_drawn_from_runs_of_today(pictures: ModuleType) -> None:
    page = pictures.PAGE.read_text(encoding="utf-8")
    assert page == pictures.drawn(page), f"run python -m {pictures.__name__}"


def test_a_page_without_the_place_of_a_picture_is_refused() -> None:
    with pytest.raises(SystemExit, match="no page has a place for picture top"):
        with_picture("# A page", "top", ["in"], [["a"]])
