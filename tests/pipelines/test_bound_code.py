"""The code of a pipeline is its file and what it imports from beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stateflow.pipelines.code import bound_code as module
from stateflow.pipelines.code.bound_code import BoundCode, bound_code
from stateflow.pipelines.loading import load_pipeline

ORDERS = """
import stateflow as sf
from bound_helpers import amount

@sf.pipeline("orders")
def orders(flow, *, input: str, output: str) -> None:
    flow.source("o", sf.files(input, "json"), "user string").append("out", sf.delta(output))
"""
HELPERS = "import numpy\n\ndef amount(x):\n    import bound_rates.daily\n    return x\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.py").write_text(ORDERS)
    (tmp_path / "bound_helpers.py").write_text(HELPERS)
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    (tmp_path / "bound_rates").mkdir()
    (tmp_path / "bound_rates" / "daily.py").write_text("RATE = 1\n")
    (tmp_path / "bound_rates" / "table.json").write_text("{}")
    return tmp_path


def code(folder: Path) -> BoundCode:
    return bound_code(folder / "orders.py")


def test_the_file_and_what_it_imports_beside_it_are_bound_and_the_rest_is_named(folder: Path) -> None:
    assert list(code(folder).files) == [
        "bound_helpers.py",
        "bound_rates/daily.py",
        "bound_rates/table.json",
        "orders.py",
    ]
    assert code(folder).elsewhere == ("numpy", "stateflow")


@pytest.mark.parametrize(
    "name", ["orders.py", "bound_helpers.py", "bound_rates/daily.py", "bound_rates/table.json"]
)
def test_a_change_of_any_of_them_is_another_code(name: str, folder: Path) -> None:
    before = code(folder)
    (folder / name).write_text((folder / name).read_text() + "\n")
    after = code(folder)
    assert after.digest != before.digest
    assert [each for each in after.files if after.files[each] != before.files[each]] == [name]


def test_a_change_of_what_nobody_imports_is_not(folder: Path) -> None:
    before = code(folder)
    (folder / "unrelated.py").write_text("x = 2\n")
    (folder / "bound_rates" / "__pycache__").mkdir()
    (folder / "bound_rates" / "__pycache__" / "daily.pyc").write_bytes(b"x")
    assert code(folder) == before


def test_modules_behind_links_are_bound(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("there")
    (there / "deep.py").write_text("x = 1\n")
    (folder / "bound_rates" / "linked").symlink_to(there)
    (folder / "bound_rates" / "linked_again").symlink_to(folder / "bound_rates")
    (folder / "bound_helpers.py").rename(there / "bound_helpers.py")
    (folder / "bound_helpers.py").symlink_to(there / "bound_helpers.py")
    before = code(folder)
    assert {"bound_helpers.py", "bound_rates/linked/deep.py"} <= set(before.files)
    (there / "bound_helpers.py").write_text("changed = 1\n")
    assert code(folder).digest != before.digest


def test_what_pip_has_put_beside_the_file_is_not_bound_unless_it_came_with_the_file(folder: Path) -> None:
    (folder / "helpers-1.dist-info").mkdir()
    record = folder / "helpers-1.dist-info" / "RECORD"
    record.write_text("bound_helpers.py,sha256=x,9\nhelpers-1.dist-info/RECORD,,\n")
    assert list(code(folder).files) == ["orders.py"]
    assert code(folder).elsewhere == ("bound_helpers", "stateflow")
    record.write_text(record.read_text() + "orders.py,sha256=x,9\n")
    assert "bound_helpers.py" in code(folder).files


def test_what_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "bound_rates" / "pipe")
    (folder / "bound_rates" / "large.bin").write_bytes(b"x" * 200)
    (folder / "bound_rates" / "gone.py").symlink_to(folder / "nowhere")
    (folder / "bound_helpers.py").write_text("import bound_rates\nthis is no Python\n\0")
    monkeypatch.setattr(module, "MOST_BYTES", 199)
    (folder / "orders.py").write_text("import bound_helpers, bound_rates\n")
    found = code(folder)
    assert list(found.files) == [
        "bound_helpers.py",
        "bound_rates/daily.py",
        "bound_rates/table.json",
        "orders.py",
    ]
    assert found.elsewhere == ("bound_rates/gone.py", "bound_rates/large.bin", "bound_rates/pipe")


def test_a_loaded_pipeline_has_its_code_and_records_note_it(folder: Path) -> None:
    first = load_pipeline("orders.py", folder).pipeline
    assert first.code == code(folder)
    assert first.versions["modules"] == f"sha256:{first.code.digest}"
    (folder / "alone.py").write_text(ORDERS.replace("from bound_helpers import amount", ""))
    assert "modules" not in load_pipeline("alone.py", folder).pipeline.versions
