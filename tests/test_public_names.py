"""Public names are loaded when they are used: type checkers see them all the same, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import stateflow

SOURCE = Path(stateflow.__file__).read_text(encoding="utf-8")


def test_every_name_of_the_list_is_there() -> None:
    for name in stateflow.__all__:
        assert getattr(stateflow, name) is not None


def test_type_checkers_see_the_very_same_names() -> None:
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stateflow")
        for alias in node.names
    }
    assert imported == set(stateflow.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    assert not hasattr(stateflow, "KeyedNode")


def test_a_name_that_other_systems_have_leads_to_the_one_here() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'avg': it is called sf\.mean here"):
        stateflow.avg  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'quantil': did you mean quantile\?"):
        stateflow.quantil  # noqa: B018


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = "{'pyspark', 'pyarrow', 'numpy', 'pandas', 'rocksdict', 'obstore', 'airflow'}"
    script = f"import sys, stateflow, stateflow.cli.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
