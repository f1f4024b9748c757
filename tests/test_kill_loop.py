"""The kill loop goes on where it was, plays what it says, and would see what is wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bench.kill import play as playing
from bench.kill.commits import Seen, keep, seen
from bench.kill.journal import Journal, Round
from bench.kill.jvms import Jvms
from bench.kill.page import SAYS, VICTIMS, page
from bench.kill.play import MOST_TIMES, play
from bench.kill.scenes import SCENES, playable
from tests.long_form import BEFORE_A_RELEASE
from tests.spark.murder_evidence import Order
from tests.spark.murder_points import POINTS


def test_a_journal_goes_on_where_it_was_even_when_its_last_line_is_half_written(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.add(Round(0, "calm", {"python": 2, "point": 1}, {"acked": 1}))
    with (tmp_path / "rounds.jsonl").open("a") as out:
        out.write('{"number":1,"sce')
    again = Journal.open(tmp_path)
    assert (again.kills, again.next_number) == (3, 1)
    again.add(Round(1, "liar", {"python": 1}, lies={"lost": 4}))
    assert Journal.open(tmp_path).total("kills") == {"python": 3, "point": 1}
    assert Journal.of([tmp_path, tmp_path / "none"]).kills == 4


def test_every_victim_and_every_scene_is_explained_on_the_page(tmp_path: Path) -> None:
    assert set(SAYS) == set(SCENES) >= set(playable())
    victims: set[str] = set()
    for name in set(SCENES) - {
        "disk",
        "server",
        "liar",
        "kafka",
    }:  # these begin a server, or take root's rights
        folder = tmp_path / name
        folder.mkdir()
        with SCENES[name](folder, random.Random(1)) as scene:
            victims |= set(scene.victims)
    assert victims < set(VICTIMS)
    assert set(MOST_TIMES) | {"carrying", "carried"} == set(POINTS)


def test_the_page_says_how_far_it_came_and_what_is_wrong(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    journal.add(Round(0, "calm", {"python": 7, "stop": 1}, fenced=1))
    assert "8 of 1,000 kills have been played with the library of commit abc" in page(journal, "abc", [1, 7])
    assert "| seeds | 1, 7 |" in page(journal, "abc", [1, 7])
    assert "Nothing was lost" in page(journal, "abc", [1, 7])
    journal.add(Round(1, "liar", {"python": 1}, wrong=["steps: 1 rows lost\nand more"]))
    assert "Nothing was lost" not in page(journal, "abc", [1, 7])
    assert page(journal, "abc", [1, 7]).endswith("- round 1, liar: steps: 1 rows lost\n")


def test_kills_of_earlier_commits_are_told_and_never_shrink(tmp_path: Path) -> None:
    file = tmp_path / "commits.json"
    keep("abc", Seen(100, 1), file)
    keep("def", Seen(20, 0), file)
    every = keep("abc", Seen(7, 0), file)
    assert every == seen(file) == {"def": Seen(20, 0), "abc": Seen(100, 1)}
    journal = Journal.open(tmp_path)
    assert "of commit abc. Other commits saw 20 (def: 20), with no findings.\n" in page(
        journal, "abc", [1], every
    )
    assert "Other commits saw 120 (def: 20, abc: 100), with 1 finding.\n" in page(journal, "ghi", [1], every)
    assert "of commit abc.\n" in page(journal, "abc", [1])


@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_round_is_killed_drained_and_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jvms, found = Jvms(tmp_path), list[list[str]]()
    examine = playing.examine

    def examined(folder: Path, rows: list[Any], **given: Any) -> list[str]:
        found.append(examine(folder, rows, **given))
        # A row that nobody has ever put in is one that the job has lost.
        return examine(folder, [*rows, Order(10**6, 1, 1, 1)], **given)

    monkeypatch.setattr(playing, "examine", examined)
    try:
        played = play(0, 5, "liar", 3, jvms, tmp_path / "round")
    finally:
        jvms.end()
    assert found == [[]]
    assert "1 rows lost" in played.wrong[0]
    assert played.killed >= 3
    assert sum(played.lies.values()) > 0


@BEFORE_A_RELEASE
@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_round_on_a_warm_host_leaves_nothing_of_dead_runs(tmp_path: Path) -> None:
    jvms = Jvms(tmp_path)
    try:
        sound = play(0, 5, "host", 2, jvms, tmp_path / "round")
    finally:
        jvms.end()
    assert sound.wrong == []
    assert sound.killed >= 2
