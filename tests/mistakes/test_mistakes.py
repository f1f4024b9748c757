"""No mistake ends green, without a word, and wrong. All of them: `make mistakes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes import in_code
from tests.mistakes.case import CASES, Case
from tests.mistakes.kinds import by_kind, sample
from tests.mistakes.page import PAGE, kinds_of
from tests.mistakes.play import Mistake, judged
from tests.mistakes.scene import Scene

KINDS, MISTAKES = 30, 500


def test_there_are_enough_of_them_and_the_page_names_every_kind() -> None:
    kinds = by_kind()
    assert len(kinds) >= KINDS
    assert sum(map(len, kinds.values())) >= MISTAKES
    assert sorted(kinds_of(PAGE.read_text(encoding="utf-8"))) == sorted(kinds)
    names = [mistake.name for mistakes in kinds.values() for mistake in mistakes]
    assert len(set(names)) == len(names)


def test_most_mistakes_in_code_are_refused_without_spark(tmp_path: Path) -> None:
    played = list(in_code.mistakes())[::7]
    passed = []
    for number, mistake in enumerate(played):
        (tmp_path / str(number)).mkdir()
        scene = Scene(tmp_path / str(number), mistake.case, mistake.text)
        scene.check()
        if not scene.over:
            passed.append(mistake.name)
    assert len(passed) < len(played) / 6, passed


# Their runs take the Spark of this process.
@pytest.mark.usefixtures("spark")
@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.recipe)
def test_without_a_mistake_the_result_is_right_and_nobody_is_told_anything(
    case: Case, tmp_path: Path
) -> None:
    verdict = judged(Mistake("none", "", case, case.text), tmp_path)
    assert (verdict.outcome, verdict.said) == ("right", "")


@pytest.mark.usefixtures("spark")
@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", sample(1, seed=24), ids=lambda mistake: mistake.name)
def test_no_mistake_is_silent(mistake: Mistake, tmp_path: Path) -> None:
    verdict = judged(mistake, tmp_path)
    assert verdict.outcome != "SILENT", dict(verdict.tables)
