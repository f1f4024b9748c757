"""What is fuzzed: each target's inputs, and what is done with one."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.fuzz.case import Case, applied
from tests.fuzz.decoder_cases import STRATEGIES
from tests.fuzz.decoders import DECODERS
from tests.fuzz.generated import cases
from tests.fuzz.scene import Scene, base
from tests.fuzz.verbs import ROOT, SAVEPOINT, VERBS
from tests.fuzz.watch import Held

ON_A_DISK = {"root/": ("verify", "change", "claim", "restore"), "savepoint/": tuple(SAVEPOINT)}
"""Verbs that are also played in folders, with links."""


@dataclass(frozen=True)
class Target:
    cases: st.SearchStrategy[Case]
    play: Callable[[Held, Case], str]
    """Plays an input; `answer` or the error's name."""


def play_decoder(held: Held, case: Case) -> str:
    return held.run(lambda: DECODERS[case.verb](case))


def play_in_memory(held: Held, case: Case) -> str:
    return _play(held, case, on_disk=False)


def play_on_a_disk(held: Held, case: Case) -> str:
    return _play(held, case, on_disk=True)


def _play(held: Held, case: Case, *, on_disk: bool) -> str:
    objects, links = applied(base().objects, case.changes)
    scene = Scene(held.folder, on_disk)
    scene.lay(objects, links)
    return held.run(lambda: VERBS[case.verb](scene, case.seed))


def ready(held: Held) -> None:
    """Plays every verb once with what is whole: each imports what it needs, once."""
    for verb in VERBS.values():
        scene = Scene(held.folder)
        scene.lay(base().objects, {})
        verb(scene, 0)
    # What other tests have left, such as a harness with its folder, goes here and not while an input is watched.
    gc.collect()


def _changed(verb: str, top: str, *, links: bool) -> st.SearchStrategy[Case]:
    return cases(base().objects, [verb], chosen=lambda path: path.startswith(top), links=links)


TARGETS: dict[str, Target] = {
    **{name: Target(STRATEGIES[name], play_decoder) for name in DECODERS},
    **{
        verb: Target(_changed(verb, top, links=False), play_in_memory)
        for top, verbs in (("root/", ROOT), ("savepoint/", SAVEPOINT))
        for verb in verbs
    },
    **{
        f"{verb} on a disk": Target(_changed(verb, top, links=True), play_on_a_disk)
        for top, verbs in ON_A_DISK.items()
        for verb in verbs
    },
}
