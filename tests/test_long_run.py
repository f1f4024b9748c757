"""The long run on a cluster goes on where it was, and its page says what is wrong."""

from __future__ import annotations

from pathlib import Path

from bench.cluster.journal import Batch, Journal, Kill, Sample, Sitting, Start
from bench.cluster.orders import order
from bench.cluster.page import VICTIMS, page, plots


def sample(minute: float, memory: int) -> Sample:
    return Sample(minute, {"driver's JVM": memory << 20}, 40, 70, 7000, 100)


def test_sittings_add_up_and_what_one_found_is_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for minute in range(1, 31):
        journal.add(sample(minute, 100 if minute < 15 else 150))
        journal.add(Batch(minute, 40, 0.5))
    for victim in VICTIMS:
        journal.add(Kill(4.0, victim))
    journal.add(Start(4.1, "UnavailableError: the store does not answer"))
    journal.add(Sitting(30.0, "abc", 1200, 20.0, []))
    with (tmp_path / "journal.jsonl").open("a") as out:
        out.write('{"type":"bat')
    again = Journal(tmp_path)
    text = page(again)
    assert "Nothing was lost" in text
    assert "| time, in sittings | 30 of 90 minutes, 1 |" in text
    assert "| memory: driver's JVM | 100.0 MiB | 150.0 MiB |" in text
    assert "| longest wait for a batch | 60 s |" in text
    assert "| of these after an error that the run itself reported | 1 |" in text
    assert [each.name for each in plots(again)] == ["long-run-memory", "long-run-held", "long-run-batches"]
    again.add(Sitting(12.0, "def", 1500, 20.0, ["steps: 1 rows lost"]))
    assert "Nothing was lost" not in page(again)
    assert "**Found: steps: 1 rows lost.**" in page(again)
    assert "| time, in sittings | 42 of 90 minutes, 2 |" in page(again)
    assert "| library's commit | abc, def |" in page(again)


def test_a_row_is_known_by_its_number() -> None:
    assert order(7) == order(7) != order(8)
