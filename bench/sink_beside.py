"""What a sink that is prepared and committed took beside what a peer did with the same rows, in turn with it."""

from __future__ import annotations

from bench.measurement import Results, median, seconds

STEPS = ("prepare", "commit", "spark")
"""The keys of a trial: the seconds of each batch."""


def rows_and_ratios(results: Results, commit: str, theirs: str) -> tuple[list[list[str]], list[float]]:
    """The rows of a table, and the ratio of each pair. `commit` and `theirs` say who commits, and what the peer does."""
    pooled = {name: [value for trial in results.of("in_turn") for value in trial[name]] for name in STEPS}
    both = [prepare + commit for prepare, commit in zip(pooled["prepare"], pooled["commit"], strict=True)]
    rows = [
        [name, seconds(median(values)), f"{seconds(min(values))} to {seconds(max(values))}"]
        for name, values in (
            ("this library, exactly once", both),
            ("of it preparing, in Spark's tasks", pooled["prepare"]),
            (commit, pooled["commit"]),
            (theirs, pooled["spark"]),
        )
    ]
    return rows, [own / other for own, other in zip(both, pooled["spark"], strict=True)]
