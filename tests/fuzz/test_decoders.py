"""Whatever reads what a store holds answers any bytes with a value or an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.amount import SHARES, SHORT, inputs, played
from tests.fuzz.case import Case, corpus
from tests.fuzz.decoders import DECODERS
from tests.fuzz.targets import TARGETS
from tests.fuzz.watch import Held

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    return Held(tmp_path_factory.mktemp("decoders"))


@pytest.mark.parametrize("path", corpus(DECODERS), ids=lambda path: path.stem)
def test_an_input_of_the_corpus_is_answered(held: Held, path: Path) -> None:
    case = Case.load(path.read_text())
    held.run(lambda: DECODERS[case.verb](case))


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
def test_any_bytes_are_answered(held: Held, decoder: str) -> None:
    played(decoder, held)


def test_there_are_as_many_inputs_as_promised() -> None:
    assert set(SHARES) == set(TARGETS)
    assert sum(inputs(name, SHORT) for name in SHARES) >= SHORT
