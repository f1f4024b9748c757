"""Which bytes of a file are here is told right, and spans near to each other are fetched as one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.backends.spans import Held, coalesced, pieces

SPANS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 40)).map(lambda s: (s[0], s[0] + s[1])), max_size=30
)


@given(held=SPANS, begin=st.integers(0, 250), length=st.integers(0, 60))
def test_what_is_missing_is_what_was_not_added(held: list[tuple[int, int]], begin: int, length: int) -> None:
    spans = Held()
    for span in held:
        spans.add(*span)
    here = {at for first, last in held for at in range(first, last)}
    assert spans.size == len(here)
    missing = spans.missing(begin, begin + length)
    assert [at for first, last in missing for at in range(first, last)] == [
        at for at in range(begin, begin + length) if at not in here
    ]


@given(spans=SPANS, gap=st.integers(0, 20))
def test_spans_are_joined_over_small_gaps_alone(spans: list[tuple[int, int]], gap: int) -> None:
    joined = coalesced(spans, gap)
    assert all(any(a <= begin and end <= b for a, b in joined) for begin, end in spans)
    assert all(after[0] - before[1] > gap for before, after in pairwise(joined))
    assert {edge for span in joined for edge in span} <= {edge for span in spans for edge in span}


def test_a_long_span_is_cut() -> None:
    assert pieces((3, 20), 8) == [(3, 11), (11, 19), (19, 20)]
    assert pieces((3, 3), 8) == []
