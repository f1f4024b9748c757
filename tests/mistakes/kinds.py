"""All mistakes, by kind."""

from __future__ import annotations

import random
from collections import defaultdict

from tests.mistakes import in_code, in_data, in_operation
from tests.mistakes.play import Mistake


def by_kind() -> dict[str, list[Mistake]]:
    """In the order of a pipeline's life: what is wrong in its code, in what it reads, and in how it is operated."""
    kinds: dict[str, list[Mistake]] = defaultdict(list)
    for mistake in (*in_code.mistakes(), *in_data.mistakes(), *in_operation.mistakes()):
        kinds[mistake.kind].append(mistake)
    return dict(kinds)


def sample(each: int, seed: int) -> list[Mistake]:
    """Some mistakes of every kind, as many as there are where there are fewer."""
    chance = random.Random(seed)
    return [
        mistake
        for mistakes in by_kind().values()
        for mistake in chance.sample(mistakes, min(each, len(mistakes)))
    ]
