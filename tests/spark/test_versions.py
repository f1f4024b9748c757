"""What is installed is compared with what the distribution asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark
import pytest
from packaging.requirements import Requirement

from stateflow.errors import StateflowError
from stateflow.spark.session import doctor, versions
from stateflow.spark.session.doctor import DoctorFinding
from stateflow.spark.session.lacking import LACKS
from stateflow.spark.session.versions import misfit, requirements, supported_pythons, with_client
from tests.refusals.refusal import refused

ASKED = requirements(
    ["delta-spark==4.4.0", "pandas<3,>=2.2", "pyspark==4.2.0", "fastapi>=0.115; extra == 'serve'"]
)


@pytest.mark.parametrize(
    ("name", "version", "instead"),
    [
        ("delta-spark", "4.4.0", ""),
        ("delta-spark", "4.4.1", "delta-spark==4.4.0"),
        ("pandas", "2.3.3", ""),
        ("pandas", "3.0.0rc1", "pandas<3,>=2.2"),
        ("nobody-asks-for-it", "1", ""),
        ("pyspark-client", "4.2.0", ""),
        ("pyspark-client", "4.1.3", "pyspark-client==4.2.0"),
    ],
)
def test_what_does_not_fit_has_the_version_to_install(name: str, version: str, instead: str) -> None:
    assert misfit(name, {"pyspark": "4.2.0", name: version}, ASKED) == instead


def test_pyspark_and_its_client_are_advised_in_a_version_that_both_have() -> None:
    assert (
        misfit("pyspark-client", {"pyspark": "4.1.4", "pyspark-client": "4.2.0"}, ASKED)
        == "pyspark-client==4.1.3"
    )
    assert [with_client(each) for each in ("4.0.5", "4.0.2", "4.2.0")] == ["4.0.4", "4.0.2", "4.2.0"]


def test_files_of_two_sparks_in_one_folder_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pyspark": "4.1.4", "pyspark-client": "4.2.0"}
    monkeypatch.setattr(versions, "installed", lambda names: there)
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    with refused(StateflowError, "4.2.0", "'pyspark-client==4.1.3'", "'pyspark==4.1.3'"):
        versions.refuse_mixed_spark()
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    versions.refuse_mixed_spark()


def test_packages_of_extras_are_not_asked_for() -> None:
    assert set(ASKED) == {"delta-spark", "pandas", "pyspark"}


def test_pythons_are_those_of_the_classifiers() -> None:
    assert supported_pythons(
        ["Programming Language :: Python :: 3", "Programming Language :: Python :: 3.12"]
    ) == ["3.12"]


def lines(monkeypatch: pytest.MonkeyPatch, **versions: str) -> dict[str, DoctorFinding]:
    there = dict.fromkeys(doctor.PACKAGES, "1") | {
        "delta-spark": "4.4.0",
        "pyspark": "4.2.0",
        "pandas": "2.3",
    }
    there |= {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(doctor, "requirements", lambda: ASKED)
    monkeypatch.setattr(doctor, "installed", lambda names: {n: there[n] for n in names if there.get(n)})
    return {finding.check: finding for finding in doctor._packages()}


def test_the_doctor_names_every_version_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = lines(monkeypatch)
    assert {finding.verdict for finding in fine.values()} == {"ok"}
    assert "pandas" not in fine, "one line less to read"
    found = lines(monkeypatch, delta_spark="4.4.1", pandas="3.0", pyspark_client="4.1.3", rocksdict="")
    told = {name: (f.verdict, f.next_step) for name, f in found.items() if f.verdict != "ok"}
    assert told == {
        "delta-spark": ("warn", "pip install 'delta-spark==4.4.0', or test before you rely on it"),
        "pandas": ("warn", "pip install 'pandas<3,>=2.2', or test before you rely on it"),
        "pyspark-client": (
            "fail",
            "pip install --force-reinstall --no-deps 'pyspark-client==4.2.0' 'pyspark==4.2.0'",
        ),
        "rocksdict": ("fail", told["rocksdict"][1]),
    }
    assert Requirement(told["rocksdict"][1].split("'")[1]).specifier.contains("0.3.29")


def test_the_doctor_says_what_an_older_spark_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ASKED, "pyspark", Requirement("pyspark>=4.0.1,<=4.2.0"))

    def said(spark: str) -> dict[str, str]:
        lines(monkeypatch, pyspark=spark)
        found = [each for each in doctor._packages() if each.check.startswith("spark before")]
        assert {each.verdict for each in found} <= {"ok"}
        return {each.found: each.next_step for each in found}

    assert said("4.0.5") == {f"without {lack.what}": lack.instead for lack in LACKS if lack.is_felt}
    assert list(said("4.1.1")) == [
        "without an aggregate of the highest value of each key",
        "without sources in Python that hear where a batch begins",
    ]
    assert said("4.2.0") == {}


def test_the_page_names_what_each_spark_lacks() -> None:
    text = Path("docs/sparks.md").read_text(encoding="utf-8")
    table = text.partition("| what | from Spark |")[2].partition("\n\n")[0].splitlines()[2:]
    without_links = [re.sub(r"\[(.+?)\]\([^)]+\)", r"\1", row) for row in table]
    assert without_links == [f"| {lack.what} | {lack.since} | {lack.instead} |" for lack in LACKS]


@pytest.mark.parametrize(
    ("version", "verdict"), [("3.11.7", "ok"), ("3.13.0", "ok"), ("3.14.1", "warn"), ("3.1.1", "warn")]
)
def test_the_doctor_says_which_pythons_are_tested(version: str, verdict: str) -> None:
    found = doctor._python(version, ["3.11", "3.12", "3.13"])
    assert found.verdict == verdict
    assert verdict == "ok" or "3.11, 3.12, 3.13" in found.next_step
