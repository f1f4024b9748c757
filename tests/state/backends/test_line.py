"""When parts of files cost more than whole files, and what measurements say of a line."""

from __future__ import annotations

import random

import pytest

from stateflow.state.backends.line import AT_ONCE, Line, parts_may_pay, whole_pays

MB = 1_000_000


@pytest.mark.parametrize(
    ("requests", "size", "rest", "pays"),
    [
        # 2,000 documents of 8 KB in 20 GB: a few seconds against a hundred.
        (2_000, 2_000 * 16_000, 20_000 * MB, False),
        # As many in 400 MB.
        (2_000, 2_000 * 16_000, 400 * MB, True),
        (1, 8_000, 16 * MB, False),
        # Half of everything.
        (1, 200 * MB, 400 * MB, True),
        # Nothing is missing.
        (0, 0, 0, False),
    ],
)
def test_whole_files_pay_when_parts_take_half_of_their_time(
    requests: int, size: int, rest: int, pays: bool
) -> None:
    assert whole_pays(Line(0.02, 200e6), 0.0, requests, size, rest) == pays


@pytest.mark.parametrize(
    ("delay", "rate", "size", "pays"),
    [
        (0.02, 200e6, 70 * MB, False),
        (0.02, 200e6, 90 * MB, True),
        # Far away, or a slow line: what counts is the time that the bytes take beside that of a request.
        (0.2, 200e6, 90 * MB, False),
        (0.02, 20e6, 20 * MB, True),
    ],
)
def test_parts_are_tried_where_all_bytes_take_longer_than_a_few_requests(
    delay: float, rate: float, size: int, pays: bool
) -> None:
    assert parts_may_pay(Line(delay, rate), size) == pays


@pytest.mark.parametrize("rate", [50e6, 200e6, 1e9, 4e9])
@pytest.mark.parametrize("delay", [0.005, 0.02, 0.1])
def test_on_any_line_a_batch_waits_little_longer_than_for_whole_files(delay: float, rate: float) -> None:
    """Look-ups of a few keys, one after the other, for ever: parts take no more than what a probe and fifty requests take, and half
    of the time that whole files take."""

    def takes(requests: int, size: int) -> float:
        return -(-requests // AT_ONCE) * delay + size / rate

    line, rest = Line(), 2_500 * MB
    whole = takes(1, rest)
    waited = probed = spent = 0.0
    requests, size = 10, 160_000
    while not whole_pays(line, spent, requests, size, rest):
        chosen = [(requests, size)]
        if probe := line.probe(spent):
            probed += 1
            chosen.append((AT_ONCE, probe))
        for each in chosen:
            line.measured(*each, takes(*each))
            waited += takes(*each)
            spent += line.seconds(*each)
    assert probed <= 1
    assert waited <= 0.6 * whole + 60 * max(delay, 0.02) + takes(AT_ONCE, 16 << 20)


def test_a_rate_that_was_measured_is_not_asked_for() -> None:
    line = Line()
    assert line.probe(0.5) == 0
    line.measured(AT_ONCE, 100 * MB, 0.3)
    assert line.probe(100.0) == 0
    assert line.seconds(1, 1000 * MB) == pytest.approx(2.8, rel=0.1)


def test_parts_one_after_the_other_end_in_whole_files() -> None:
    line, spent, rounds = Line(0.02, 200e6), 0.0, 0
    while not whole_pays(line, spent, 1, 8_000, 400 * MB):
        spent += line.seconds(1, 8_000)
        rounds += 1
    assert spent <= line.seconds(1, 400 * MB) / 2
    assert rounds > 40


@pytest.mark.parametrize(("delay", "rate"), [(0.001, 1e9), (0.1, 50e6), (0.02, 20e6), (0.3, 500e6)])
def test_a_line_is_known_after_some_measurements(delay: float, rate: float) -> None:
    line, chance = Line(), random.Random(1)
    for _ in range(60):
        requests = chance.randrange(1, 100)
        size = requests * (20_000 if chance.random() < 0.5 else 4_000_000)
        line.measured(requests, size, -(-requests // AT_ONCE) * delay + size / rate)
    for requests, size in ((1, 20_000), (90, 1_800_000), (90, 360_000_000)):
        took = -(-requests // AT_ONCE) * delay + size / rate
        assert line.seconds(requests, size) == pytest.approx(took, rel=0.4)


def test_a_clock_that_stands_still_measures_no_miracles() -> None:
    line = Line()
    for _ in range(20):
        line.measured(1, 8_000, 0.0)
        line.measured(1, 80_000_000, 0.0)
    assert line.delay > 0
    assert line.seconds(1, 1) > 0
