"""Each mechanism for speed can be switched off, and the page of the architecture says what it gains."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from bench.measurement import Results
from bench.switches import SWITCHES, InWorker, PlainIndex, switch_off
from bench.tricks import MEASUREMENT, NAMES, SIDES, paired, section, spread, turns, verdict
from stateflow.state.backends.key_index import KeyIndex

REPOSITORY = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- mechanisms for speed -->", "<!-- end of mechanisms for speed -->"
PAGE = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    """The cells of the page's table, without its header."""
    table = PAGE.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table[2:]]


def files_of(cell: str) -> list[Path]:
    return [REPOSITORY / "stateflow" / name for name in re.findall(r"`([A-Za-z_/]+\.(?:py|java))`", cell)]


def test_every_mechanism_of_the_page_stands_where_it_says() -> None:
    assert rows()
    for name, where, lines, *_ in rows():
        files = files_of(where)
        assert files, name
        assert [path for path in files if not path.is_file()] == []
        text = "".join(path.read_text(encoding="utf-8") for path in files)
        parts = re.findall(r"`(\w+)`", where.partition(":")[2])
        assert [part for part in parts if f"def {part}(" not in text] == []
        if not parts:
            # Not to the line, so that a comment there changes nothing here.
            assert text.count("\n") == pytest.approx(int(lines), rel=0.25), name


def test_every_mechanism_of_the_page_has_been_measured_or_says_that_it_was_not() -> None:
    for name, _, _, gain, measured, rests_on, way_out in rows():
        pairs = [int(count) for count in re.findall(r"(\d+) pairs\)", gain)]
        assert bool(pairs) == (measured != "not measured"), name
        assert not pairs or re.fullmatch(r"\d{4}-\d\d-\d\d, [0-9a-f]{8}", measured), name
        assert rests_on, name
        assert way_out, name


def test_the_page_has_each_mechanism_that_can_be_switched_off() -> None:
    listed = [row[0].strip("`") for row in rows()]
    assert len(set(listed)) == len(listed)
    assert set(SWITCHES) <= set(listed)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_finds_what_it_takes_away_and_gives_it_back(name: str) -> None:
    switch = SWITCHES[name]
    patches = (*switch.driver, *switch.worker)
    before = [getattr(import_module(patch.module), patch.name) for patch in patches]
    try:
        for worker in (False, True):
            switch_off(name, worker=worker)
            taken = switch.worker if worker else switch.driver
            for patch, value in zip(patches, before, strict=True):
                assert (getattr(import_module(patch.module), patch.name) is not value) == (patch in taken)
    finally:
        switch_off(None)
    assert [getattr(import_module(patch.module), patch.name) for patch in patches] == before


def test_every_switch_is_used_by_a_side() -> None:
    assert {name for names in SIDES.values() for name in names} == set(SWITCHES)
    assert set(SIDES) == set(NAMES) == set(MEASUREMENT.sides)
    assert all(set(size.pairs) == set(SIDES) for size in MEASUREMENT.sizes.values())


def test_in_the_full_form_there_are_five_pairs_or_more() -> None:
    assert min(MEASUREMENT.sizes["full"].pairs.values()) >= 5


def test_a_worker_takes_the_mechanism_away_before_its_first_row() -> None:
    rocksdb = import_module("stateflow.state.backends.rocksdb")

    def seen(batches: object) -> object:
        yield rocksdb.KeyIndex

    try:
        assert list(InWorker(seen, "key_index")(iter(()))) == [PlainIndex]  # type: ignore[arg-type]
        assert list(InWorker(seen, None)(iter(()))) == [KeyIndex]  # type: ignore[arg-type]
    finally:
        switch_off(None)


def test_each_mechanism_is_off_once_in_a_pair_and_first_in_every_second() -> None:
    plan = turns(["a", "b"], 2)
    assert plan == [None, "a", None, "b", "a", None, "b", None]
    assert paired(plan, [1, 2, 3, 4, 20, 10, 40, 30]) == {"a": [(1, 2), (10, 20)], "b": [(3, 4), (30, 40)]}


def test_the_spread_leaves_out_as_many_pairs_as_chance_allows() -> None:
    assert spread([1, 2, 3]) == (1, 3)
    assert spread([5, 1, 2, 3, 4]) == (1, 5)
    assert spread(range(1, 13)) == (3, 10)


def test_a_mechanism_is_judged_by_its_whole_spread() -> None:
    assert verdict(1.05, 1.2) == "pays"
    assert verdict(0.98, 1.04) == "does not pay"
    assert verdict(0.98, 1.06) == "cannot be told"


def test_the_section_says_how_much_more_is_taken_without() -> None:
    pairs = [[2.0, 2.5], [2.0, 3.0], [2.0, 2.4]]
    results = Results({"two_sources": [{"pairs": {"parts_of_union": pairs}}]})
    made = section(results, MEASUREMENT.sizes["full"])
    assert made.rows == [
        ["parts_of_union", NAMES["two_sources"], "2.00 s", "1.25x", "1.20 to 1.50", "3", "pays"]
    ]
