"""Bytes that somebody else has written into a root or a savepoint: an error of ours or an answer, whatever is done with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.errors import UnavailableError
from tests.fuzz.amount import IS_LONG, played
from tests.fuzz.case import Case, applied, corpus
from tests.fuzz.generated import cases
from tests.fuzz.scene import Scene, base
from tests.fuzz.verbs import ROOT, SAVEPOINT, VERBS
from tests.fuzz.watch import Held

pytestmark = pytest.mark.timeout(6 * 3600 if IS_LONG else 300)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    made = Held(tmp_path_factory.mktemp("fuzz"))
    for verb in VERBS.values():  # each imports what it needs, once
        scene = Scene(made.folder)
        scene.lay(base().objects, {})
        verb(scene, 0)
    return made


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is pending is carried out with Spark, which takes seconds to start."""

    def none(*arguments: object, **options: object) -> None:
        raise UnavailableError("there is no Spark here")

    monkeypatch.setattr("stateflow.spark.session.build._started", none)


def play(held: Held, case: Case, *, on_disk: bool = False) -> str:
    objects, links = applied(base().objects, case.changes)
    scene = Scene(held.folder, on_disk)
    scene.lay(objects, links)
    return held.run(lambda: VERBS[case.verb](scene, case.seed))


@pytest.mark.parametrize("path", corpus(VERBS), ids=lambda path: path.stem)
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_an_input_of_the_corpus_does_no_harm(held: Held, path: Path, on_disk: bool) -> None:
    play(held, Case.load(path.read_text()), on_disk=on_disk)


@pytest.mark.parametrize("verb", ROOT)
def test_a_root_that_a_stranger_has_written_does_no_harm(held: Held, verb: str) -> None:
    fuzz(held, verb, "root/")


@pytest.mark.parametrize("verb", SAVEPOINT)
def test_a_savepoint_that_a_stranger_has_written_does_no_harm(held: Held, verb: str) -> None:
    fuzz(held, verb, "savepoint/")


@pytest.mark.parametrize("verb", ["restore foreign", "dispose foreign", "query foreign", "read foreign"])
def test_links_and_bytes_of_a_savepoint_on_a_disk_do_no_harm(held: Held, verb: str) -> None:
    fuzz(held, verb, "savepoint/", on_disk=True)


@pytest.mark.parametrize("verb", ["verify", "change", "claim", "restore"])
def test_links_and_bytes_of_a_root_on_a_disk_do_no_harm(held: Held, verb: str) -> None:
    fuzz(held, verb, "root/", on_disk=True)


def fuzz(held: Held, verb: str, top: str, *, on_disk: bool = False) -> None:
    made = cases(base().objects, [verb], chosen=lambda path: path.startswith(top), links=on_disk)
    played(f"{verb} on a disk" if on_disk else verb, made, lambda case: play(held, case, on_disk=on_disk))
