"""One part of the long form: some hundred inputs of one target, drawn from a seed of its own."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import msgspec

from stateflow.errors import UnavailableError
from tests.fuzz.amount import played
from tests.fuzz.case import Case
from tests.fuzz.targets import ready
from tests.fuzz.watch import HangError, Held


class Part(msgspec.Struct, frozen=True):
    """A line of the journal."""

    target: str
    number: int
    seed: int
    """Of the loop. With target and number it makes the inputs."""
    commit: str
    inputs: int
    new: int = 0
    """Inputs that no part before has played."""
    outcomes: dict[str, int] = {}
    """How many inputs were answered, and how many refused with which error."""
    cpu: float = 0
    seconds: float = 0
    wrong: str = ""


_held: Held | None = None
_playing: Path | None = None


def begin(playing: str) -> None:
    """Makes this process ready. What it plays is in a file in this folder: a crash of the process leaves it there."""
    global _held, _playing
    _playing = Path(playing) / f"{os.getpid()}.json"
    _held = Held(Path(tempfile.mkdtemp(prefix="stateflow-fuzz-")))

    def no_spark(*arguments: object, **options: object) -> None:
        raise UnavailableError("there is no Spark here")

    # A record that is pending is carried out with Spark, which takes seconds to start.
    patch("stateflow.spark.session.build._started", no_spark).start()
    ready(_held)


def play(part: Part) -> tuple[Part, list[bytes]]:
    """Plays it; its figures, and a digest of each input."""
    assert _held is not None
    assert _playing is not None
    outcomes: Counter[str] = Counter()
    digests: list[bytes] = []
    wrong = ""
    began, cpu = time.monotonic(), time.process_time()

    def before(case: Case) -> None:
        _playing.write_text(case.dump())

    def after(case: Case, outcome: str) -> None:
        outcomes[outcome] += 1
        digests.append(hashlib.blake2b(case.dump().encode(), digest_size=8).digest())

    try:
        played(
            part.target,
            _held,
            part.inputs,
            seed=f"{part.seed}-{part.target}-{part.number}",
            before=before,
            after=after,
        )
    except (Exception, HangError) as error:
        wrong = f"{type(error).__name__}: {error}"[:1000] + "".join(
            f"\n{note}" for note in getattr(error, "__notes__", ())
        )
    _playing.unlink(missing_ok=True)
    figures = msgspec.structs.replace(
        part,
        inputs=len(digests),
        outcomes=dict(outcomes),
        cpu=round(time.process_time() - cpu, 2),
        seconds=round(time.monotonic() - began, 2),
        wrong=wrong,
    )
    return figures, digests
