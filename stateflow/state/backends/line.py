"""What the line to a store gives, as measured, and whether parts of files or whole files are there sooner. Pure."""

from __future__ import annotations

from typing import Final

AT_ONCE: Final = 16
"""Requests on their way together. More gave nothing, on the tests' servers."""
_NEWS = 0.3
"""Share of the newest measurement."""
_LEAST_SHARE = 1 / 64
"""A smaller share tells nothing of what comes next."""
_LEAST_DELAY = 1e-4
_FEW_DELAYS = 20
_PROBED_AFTER = 50
_LEAST_PROBE = 16 << 20
_LARGEST_PROBE = 256 << 20


class Line:
    """The delay of a request and the bytes a second of all requests together. One that nothing was sent over is taken for a usual one."""

    def __init__(self, delay: float = 0.02, rate: float = 200e6) -> None:
        self.delay = delay
        self.rate = rate
        self._known_rate = False
        """Whether a rate was measured."""
        self._probed = False

    def measured(self, requests: int, size: int, seconds: float) -> None:
        """Requests, sent together, have brought so many bytes. They tell of what has taken most of their time."""
        waves = -(-requests // AT_ONCE)
        if waves * self.delay > size / self.rate:
            delay = max(_LEAST_DELAY, (seconds - size / self.rate) / waves)
            self.delay += _NEWS * (delay - self.delay)
        elif size:
            rate = size / max(seconds - waves * self.delay, seconds / 10, 1e-6)
            self.rate += (_NEWS if self._known_rate else 1.0) * (rate - self.rate)
            self._known_rate = True

    def probe(self, spent: float) -> int:
        """Bytes to fetch now, so as to know the rate; mostly 0. Small requests tell nothing of it, and when parts have taken as long as
        fifty requests, it decides if the rest should come whole. It is asked for once."""
        if self._known_rate or self._probed or spent < _PROBED_AFTER * self.delay:
            return 0
        self._probed = True
        return int(min(max(4 * self.delay * self.rate, _LEAST_PROBE), _LARGEST_PROBE))

    def seconds(self, requests: int, size: int) -> float:
        """How long so many requests take that are sent together."""
        return -(-requests // AT_ONCE) * self.delay + size / self.rate

    @property
    def gap(self) -> int:
        """Bytes that are carried in the time of one more request, when many are on their way."""
        return int(self.delay / AT_ONCE * self.rate)


def parts_may_pay(line: Line, size: int) -> bool:
    """Whether parts of so many bytes are worth a try. It takes three or four requests, one after the other, until a batch has its first
    entries; where all of the bytes come in the time of a few more, that cannot pay."""
    return size / line.rate >= _FEW_DELAYS * line.delay


def whole_pays(line: Line, spent: float, requests: int, size: int, rest: int, share: float = 1.0) -> bool:
    """Whether to fetch all `rest` bytes that are missing, in place of what is asked for now.

    `spent`: seconds that parts have taken so far. `share`: how much of the rest lies between the first and the last byte that are asked
    for, if the next look-ups go on from there and are alike; 1 if nobody knows what comes next.

    Parts may take half of the time that the rest takes: so a batch never waits more than half as long again as for whole files.
    """
    seconds = line.seconds(requests, size)
    if share >= _LEAST_SHARE:
        seconds /= min(share, 1.0)
    return 2 * (spent + seconds) >= line.seconds(1, rest)
