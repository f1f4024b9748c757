"""Who goes back together, in which order, and what an approval of it binds."""

from __future__ import annotations

import pytest

from stateflow.errors import NotFoundError
from stateflow.restore.readers import Reader
from stateflow.restore.together import back_to


def reader(job: str, back: int | None) -> Reader:
    return Reader(job, "in", "/data/orders", "orders", 4, back)


def test_each_job_goes_back_once_and_after_whom_it_reads() -> None:
    readers = [reader("daily", 7), reader("weekly", 3), reader("weekly", 3)]
    assert back_to(readers) == {"daily": 7, "weekly": 3}


def test_a_reader_without_a_checkpoint_from_before_stops_it_before_anything_is_restored() -> None:
    with pytest.raises(
        NotFoundError,
        match=r"job 'daily' has read version 4 of /data/orders, .* has no checkpoint from before that",
    ):
        back_to([reader("daily", None)])
