"""The long form plays other inputs in each part, keeps what it has played, and goes on from there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st

from tests.fuzz import part as parts
from tests.fuzz.amount import LONG, SHARES, inputs
from tests.fuzz.case import Case
from tests.fuzz.journal import Journal
from tests.fuzz.part import Part, play
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.watch import Held

PART = Part("paths", 1, 7, "abc", 40)


@pytest.fixture(autouse=True)
def _process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_held", Held(tmp_path / "held"))
    monkeypatch.setattr(parts, "_playing", tmp_path / "playing.json")


def another(number: int, seed: int = 7) -> Part:
    return msgspec.structs.replace(PART, number=number, seed=seed)


def test_a_part_plays_what_its_number_and_seed_say() -> None:
    _, first = play(PART)
    assert first == play(PART)[1]
    for other in (another(2), another(1, seed=8)):
        assert len(set(play(other)[1]) - set(first)) > len(first) / 2


def test_what_was_played_counts_once_and_the_loop_goes_on_with_the_next_part(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal")
    first = journal.add(*play(PART))
    assert 0 < first.new <= first.inputs == 40
    reopened = Journal.open(tmp_path / "journal")
    assert reopened.next_number("paths") == 2
    assert reopened.next_number("keys") == 1
    assert reopened.add(*play(PART)).new == 0
    assert reopened.add(*play(another(2))).new > 0
    assert Journal.open(tmp_path / "journal").new() == reopened.new()


def test_a_line_that_was_half_written_when_the_loop_died_is_none(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal")
    journal.add(*play(PART))
    with (tmp_path / "journal" / "parts.jsonl").open("a") as out:
        out.write('{"target":"pa')
    reopened = Journal.open(tmp_path / "journal")
    reopened.add(*play(another(2)))
    assert [each.number for each in Journal.open(tmp_path / "journal").parts] == [1, 2]


def test_an_input_that_is_answered_wrongly_is_told_as_a_file_of_the_corpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(held: Held, case: Case) -> str:
        if len(case.text) > 2:
            raise KeyError(case.text)
        return "answer"

    texts = st.builds(lambda text: Case("paths", text=text), st.text("a", max_size=9))
    monkeypatch.setitem(TARGETS, "paths", Target(texts, wrong))
    figures, _ = play(PART)
    assert figures.wrong.startswith("KeyError")
    assert Case.load(figures.wrong.partition("tests/fuzz/corpus: ")[2].splitlines()[0]) == Case(
        "paths", text="aaa"
    )


def test_the_long_form_has_a_hundred_thousand_inputs() -> None:
    assert sum(inputs(name, LONG) for name in SHARES) >= LONG == 100_000
