"""Kinds of sink are found by mode and target, in the library and behind entry points of other packages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import CorruptError, UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines import offers, sink_kinds
from stateflow.pipelines.offers import SINKS, Offer
from stateflow.pipelines.sink_kinds import DELTA_APPEND, KINDS, SinkKind, kind_in_record, kind_of
from tests.jobs.log import record
from tests.refusals.refusal import refused

SHELF = SinkKind(
    name="shelf",
    mode="append",
    takes="shelf(number)",
    accepts=lambda target: isinstance(target, int),
    implementation=f"{__name__}:ShelfSink",
    place=lambda target: f"shelf:{target}",
)
DELTA = replace(SHELF, name="delta_append")


def offered(monkeypatch: pytest.MonkeyPatch, *found: Offer) -> None:
    monkeypatch.setattr(offers, "installed", lambda group: found)


def offer(name: str = "shelf", value: str = f"{__name__}:SHELF", package: str = "shelves") -> Offer:
    return Offer(SINKS, name, value, package)


def test_each_kind_names_a_class_that_declares_it() -> None:
    from stateflow.spark.sinks.kinds import class_of

    for kind in KINDS.values():
        assert class_of(kind).declared is kind
    for name, value in sink_kinds.OURS.items():
        kind = offers.loaded(value)
        assert kind.name == name
        assert class_of(kind).declared is kind


def test_what_a_package_offers_is_found_by_target_and_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, offer())
    assert kind_of("append", 5) is SHELF
    assert kind_in_record("shelf") is SHELF
    assert kind_of("append", sf.delta("/t")) is DELTA_APPEND


def test_nobody_looks_for_packages_while_a_kind_of_the_library_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(group: str) -> Any:
        raise AssertionError("looked for entry points")

    monkeypatch.setattr(offers, "installed", looked)
    assert kind_of("append", sf.delta("/t")) is DELTA_APPEND
    assert kind_in_record("delta_rewind") is not None
    with pytest.raises(AssertionError):
        kind_of("append", 5)


def test_a_target_that_nobody_takes_is_told_what_each_kind_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, offer())
    with pytest.raises(UsageError) as caught:
        kind_of("append", "out", "sink 'x' (append)")
    said = str(caught.value)
    assert said.startswith(
        "sink 'x' (append) cannot write to 'out': give it delta(path), here sf.delta('out')"
    )
    assert said.endswith(", or shelf(number)")


def test_a_name_that_two_packages_claim_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, offer(), offer(package="other-shelves"))
    with refused(UsageError, "other-shelves and shelves", "'shelf'", "uninstall one of them"):
        kind_of("append", 5)
    assert kind_in_record("shelf") is None
    assert "both offer 'shelf'" in sink_kinds.why_unknown("shelf")


def test_a_name_of_the_library_is_not_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    offered(monkeypatch, offer("delta_append", f"{__name__}:DELTA"))
    with refused(UsageError, "'delta_append'", "give it another name"):
        kind_of("append", 5)
    assert kind_in_record("delta_append") is DELTA_APPEND


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module_here:KIND", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        (f"{__name__}:NOTHING", "AttributeError"),
        (f"{__name__}:offer", "is no SinkKind of that name"),
        (f"{__name__}:DELTA", "is no SinkKind of that name"),
    ],
)
def test_a_package_that_cannot_be_loaded_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, value: str, why: str
) -> None:
    offered(monkeypatch, offer(value=value))
    with refused(UsageError, "cannot write to 5", "shelves offers 'shelf'", f"{why}"):
        kind_of("append", 5)


def test_a_record_of_a_kind_that_cannot_be_loaded_says_which_package_and_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from stateflow.checkpoint.writer import CommitPermit
    from stateflow.spark.sinks.base import CommitRequest
    from stateflow.spark.sinks.kinds import commit
    from stateflow.spark.sinks.slot import SinkSlot

    prepared = Prepared(kind="shelf", target="shelf:5")
    nothing: Any = None

    def carry_out() -> None:
        at = SinkSlot("j", "orders", "out", 3, 1)
        commit(
            CommitRequest(prepared, at, nothing, nothing, lambda: None), CommitPermit.to_carry_out(record(3))
        )

    with refused(CorruptError, "unknown kind 'shelf'", "run the job with the version"):
        carry_out()
    offered(monkeypatch, offer(value="no_such_module_here:KIND"))
    with refused(CorruptError, "unknown kind 'shelf'", "shelves offers", "no_such_module"):
        carry_out()
    offered(monkeypatch, offer())
    with refused(UsageError, ":ShelfSink", "cannot be loaded"):
        carry_out()


def test_an_installed_package_is_found(tmp_path: Path) -> None:
    """By a real entry point, of a package as pip leaves it."""
    info = tmp_path / "shelves-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[stateflow.sinks]\nshelf = shelves:SHELF\n", encoding="utf-8")
    (tmp_path / "shelves.py").write_text(
        "from stateflow.connectors import SinkKind\n"
        "SHELF = SinkKind(name='shelf', mode='append', takes='a number', accepts=lambda t: isinstance(t, int),\n"
        "    implementation='shelves:Sink')\n",
        encoding="utf-8",
    )
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from stateflow.pipelines.sink_kinds import kind_in_record, kind_of\n"
        "assert kind_of('append', 5).name == kind_in_record('shelf').name == 'shelf'\n"
        "print(sorted({'pyspark', 'pyarrow', 'stateflow.spark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
