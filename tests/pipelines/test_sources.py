"""A pipeline's own files are found by its imports, without running anything."""

from __future__ import annotations

from pathlib import Path

from stateflow.errors import UsageError
from stateflow.pipelines.code.own_modules import Sources, sources
from tests.refusals.refusal import refused


def written(folder: Path, **files: str) -> Sources:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sources(folder / "orders.py")


def test_modules_beside_the_file_come_along_and_those_that_they_import(tmp_path: Path) -> None:
    found = written(
        tmp_path, orders="import prices\n", prices="from rates import rate\n", rates="", unrelated=""
    )
    assert sorted(found.files) == ["orders.py", "prices.py", "rates.py"]


def test_imports_inside_of_functions_count(tmp_path: Path) -> None:
    found = written(tmp_path, orders="def f():\n    import late\n    import numpy\n", late="")
    assert "late.py" in found.files
    assert found.imports == {"numpy": "orders.py, line 3"}


def test_a_package_comes_whole_with_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "shop" / "__pycache__").mkdir(parents=True)
    (tmp_path / "shop" / "__pycache__" / "x.pyc").touch()
    (tmp_path / "shop" / "words.json").touch()
    (tmp_path / "shop" / "__init__.py").touch()
    found = written(tmp_path, orders="from shop.deep import x\n", shop__deep__x="import yaml\n")
    assert sorted(found.files) == ["orders.py", "shop/__init__.py", "shop/deep/x.py", "shop/words.json"]
    assert list(found.imports) == ["yaml"]


def test_what_a_package_imports_of_itself_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("from .deep import x\nfrom . import deep\n")
    assert written(tmp_path, orders="import shop\n", shop__deep="x = 1\n").imports == {}


def test_what_is_python_s_own_is_nobody_s(tmp_path: Path) -> None:
    assert (
        written(tmp_path, orders="import json, os.path\nfrom __future__ import annotations\n").imports == {}
    )


def test_what_the_code_can_do_without_is_told_apart(tmp_path: Path) -> None:
    text = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import only_types
try:
    import fast
except ImportError:
    fast = None
try:
    import needed
except ValueError:
    pass
try:
    import both
except ImportError:
    import both
"""
    found = written(tmp_path, orders=text)
    assert sorted(found.optional) == ["fast", "only_types"]
    assert sorted(found.imports) == ["both", "needed"]


def test_a_file_in_another_language_of_python_is_named(tmp_path: Path) -> None:
    with refused(UsageError, "prices.py, line 2", "`python -m py_compile "):
        written(tmp_path, orders="import prices\n", prices="x = 1\nprint 'x'\n")
