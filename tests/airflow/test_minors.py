"""The minors of Airflow that the provider takes are those that tests know, and the page says which."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def test_the_provider_takes_the_minor_that_is_tested_and_no_other() -> None:
    project = tomllib.loads((ROOT / "provider" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [taken] = [
        each.specifier for each in map(Requirement, project["dependencies"]) if each.name == "apache-airflow"
    ]
    [locked] = re.findall(
        r"^apache-airflow==([0-9.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE
    )
    major, minor = map(int, locked.split(".")[:2])
    assert locked in taken
    assert f"{major}.{minor - 1}.9" not in taken
    assert f"{major}.{minor + 1}.0" not in taken
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    supported = page.partition("## Supported versions")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+\.\d+) \|", supported, re.MULTILINE) == [f"{major}.{minor}"]
