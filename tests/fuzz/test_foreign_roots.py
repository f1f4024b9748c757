"""Bytes that somebody else has written into a root or a savepoint: an error of ours or an answer, whatever is done with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.errors import UnavailableError
from tests.fuzz.amount import played
from tests.fuzz.case import Case, corpus
from tests.fuzz.targets import ON_A_DISK, play_in_memory, play_on_a_disk, ready
from tests.fuzz.verbs import ROOT, SAVEPOINT, VERBS
from tests.fuzz.watch import Held

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    made = Held(tmp_path_factory.mktemp("fuzz"))
    ready(made)
    return made


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is pending is carried out with Spark, which takes seconds to start."""

    def none(*arguments: object, **options: object) -> None:
        raise UnavailableError("there is no Spark here")

    monkeypatch.setattr("stateflow.spark.session.build._started", none)


@pytest.mark.parametrize("path", corpus(VERBS), ids=lambda path: path.stem)
@pytest.mark.parametrize("play", [play_in_memory, play_on_a_disk], ids=["memory", "disk"])
def test_an_input_of_the_corpus_does_no_harm(
    held: Held, path: Path, play: Callable[[Held, Case], str]
) -> None:
    play(held, Case.load(path.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ROOT)
def test_a_root_that_a_stranger_has_written_does_no_harm(held: Held, verb: str) -> None:
    played(verb, held)


@pytest.mark.parametrize("verb", SAVEPOINT)
def test_a_savepoint_that_a_stranger_has_written_does_no_harm(held: Held, verb: str) -> None:
    played(verb, held)


@pytest.mark.parametrize("verb", ON_A_DISK["savepoint/"])
def test_links_and_bytes_of_a_savepoint_on_a_disk_do_no_harm(held: Held, verb: str) -> None:
    played(f"{verb} on a disk", held)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ON_A_DISK["root/"])
def test_links_and_bytes_of_a_root_on_a_disk_do_no_harm(held: Held, verb: str) -> None:
    played(f"{verb} on a disk", held)
