"""The minors of Airflow that the provider takes are those that tests know, and the page says which."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from scripts import airflow_celery, airflow_upgrade, other_airflow

ROOT = Path(__file__).resolve().parents[2]


def taken() -> SpecifierSet:
    """Versions of Airflow that the provider takes."""
    project = tomllib.loads((ROOT / "provider" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [found] = [
        each.specifier for each in map(Requirement, project["dependencies"]) if each.name == "apache-airflow"
    ]
    return found


def supported() -> str:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    return page.partition("## Supported versions")[2].partition("\n## ")[0]


def test_the_provider_takes_the_minor_that_is_tested_and_no_other() -> None:
    [locked] = re.findall(
        r"^apache-airflow==([0-9.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE
    )
    major, minor = map(int, locked.split(".")[:2])
    assert locked in taken()
    assert f"{major}.{minor - 1}.9" not in taken()
    assert f"{major}.{minor + 1}.0" not in taken()
    assert re.findall(r"^\| (\d+\.\d+) \|", supported(), re.MULTILINE) == [f"{major}.{minor}"]
    assert f"the locked {locked}: all tests" in supported()


def test_the_oldest_version_that_the_provider_takes_is_tried_and_the_page_says_so() -> None:
    [oldest] = [each.version for each in taken() if each.operator == ">="]
    [other] = other_airflow.OTHERS
    assert Version(other) == Version(oldest)
    assert f" {other}, the oldest: the operators' tests (`make test-other-airflow`)" in supported()
    files = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert set(other_airflow.TESTS) <= files


def test_what_is_played_by_hand_ends_with_the_locked_version() -> None:
    [locked] = re.findall(r"^apache-airflow==(.*)$", (ROOT / "requirements.in").read_text(), re.MULTILINE)
    assert {airflow_upgrade.AFTER, airflow_celery.VERSION} == {locked}
    assert Version(airflow_upgrade.BEFORE) < Version(locked)
    assert airflow_upgrade.BEFORE in taken()


def test_another_version_is_asked_for_in_place_of_the_locked_one() -> None:
    asked = other_airflow.requirements("# why\napache-airflow==3.3.2\npyspark==4.2.0\n", "3.3.0").splitlines()
    assert asked[:3] == ["# why", "apache-airflow==3.3.0", "pyspark==4.2.0"]
    assert "pytest" in asked
    with pytest.raises(ValueError, match="pins no version"):
        other_airflow.requirements("pyspark==4.2.0\n", "3.3.0")
