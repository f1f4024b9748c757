"""What `make release` finds in the way of an upload."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from scripts import distributions, release
from scripts.distributions import LIBRARY, PROVIDER, build, own_files, wanted_files, wrong_contents
from stateflow.distribution import installed_version

ROOT = Path(__file__).resolve().parents[1]


def test_the_library_and_the_provider_are_one_release() -> None:
    assert list(release.differing_versions(ROOT)) == []


def test_versions_that_differ_are_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "provider").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "provider" / "pyproject.toml").write_text(
        '[project]\nversion = "0.1.0"\ndependencies = ["stateflow-spark==0.1.0"]\n'
    )
    assert list(release.differing_versions(tmp_path)) == [
        "airflow-provider-stateflow has version 0.1.0 and stateflow-spark 0.2.0: give them the same one",
        "airflow-provider-stateflow does not ask for stateflow-spark==0.2.0: change its dependencies",
    ]


@pytest.mark.parametrize(
    ("heading", "found"),
    [
        ("## 0.1.0 (2026-12-01)", ""),
        ("## 0.1.0 (unreleased)", "CHANGELOG.md calls 0.1.0 unreleased: write the day of the release"),
        ("## 0.1.0.1", "CHANGELOG.md has no section 0.1.0: write what it brings"),
        ("## 0.1.0rc1", "CHANGELOG.md has no section 0.1.0: write what it brings"),
        ("0.1.0", "CHANGELOG.md has no section 0.1.0: write what it brings"),
    ],
)
def test_changes_that_do_not_name_the_version_are_in_the_way(heading: str, found: str) -> None:
    assert "".join(release.unnamed_in_changes(f"# Changelog\n\n{heading}\n\nText.\n", "0.1.0")) == found


def test_the_changelog_names_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "no section" not in "".join(release.unnamed_in_changes(changes, installed_version()))


def test_the_first_release_is_said_in_twenty_lines() -> None:
    """Nobody had what was before it."""
    _, _, section = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## 0.1.0")
    said = section.partition("\n## ")[0]
    assert said.count("\n") <= 20
    assert not re.search(r"\bbefore\b[,:]", said, re.IGNORECASE)


def test_what_is_not_committed_or_not_tagged_is_in_the_way() -> None:
    assert list(release.unfinished("0.1.0", changed=[], tags=["v0.1.0"])) == []
    assert list(release.unfinished("0.1.0", changed=[" M README.md"], tags=["v0.0.9"])) == [
        "1 files have changes that are not committed, so they are not in what was built: commit them",
        "the commit has no tag v0.1.0: run `git tag v0.1.0`",
    ]


def test_a_python_that_the_machine_lacks_is_said(tmp_path: Path) -> None:
    [said] = release.try_out(tmp_path / "3.99", "3.99", [])
    assert said.startswith("this machine has no Python 3.99, so nothing was tried with it")


@pytest.mark.parametrize("kind", ["whl", "tar.gz"])
def test_contents_are_compared_name_by_name(kind: str, tmp_path: Path) -> None:
    """A secret that somebody has committed is in the list, and is refused all the same."""
    path = tmp_path / f"small-1.0-py3-none-any.{kind}"
    names = [
        "small/a.py",
        "small/tests/test_a.py",
        "small/deploy.pem",
        "small/__pycache__/a.pyc",
        "small/.env",
    ]
    if kind == "whl":
        with ZipFile(path, "w") as wheel:
            for name in [*names, "small-1.0.dist-info/METADATA"]:
                wheel.writestr(name, "")
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name in [*names, "PKG-INFO", "small.egg-info/SOURCES.txt"]:
                archive.addfile(tarfile.TarInfo(f"small-1.0/{name}"), io.BytesIO())
    wanted = {"small/a.py", "small/b.py", "small/deploy.pem"}
    assert list(wrong_contents(path, wanted)) == [
        f"{path.name} lacks small/b.py",
        *(f"{path.name} has {name}, which does not belong there" for name in sorted(names[1:])),
    ]


def test_what_the_commit_has_is_free_of_secrets_and_caches() -> None:
    wanted = wanted_files(ROOT, LIBRARY) | wanted_files(ROOT, PROVIDER)
    assert "stateflow/testing/__init__.py" in wanted
    assert [name for name in wanted if distributions.UNWANTED.search(name)] == []


@pytest.mark.system
def test_source_distributions_have_the_files_of_the_wheels_that_they_are_built_into(tmp_path: Path) -> None:
    checkout = release.exported(tmp_path / "checkout")
    wanted = {name: wanted_files(checkout, name) for name in (LIBRARY, PROVIDER)}
    # What a mistake in the settings would take along.
    (checkout / "stateflow" / "notes.txt").write_text("private")
    (checkout / "tests" / "test_private.py").write_text("")
    shutil.copytree(checkout / "demo", checkout / "plugins" / "demo")
    every: list[Path] = []
    folders = {LIBRARY: checkout, PROVIDER: distributions.complete_provider(checkout)}
    for name, folder in folders.items():
        built = build(folder, tmp_path / name)
        every += built
        assert sorted(path.name.endswith(".whl") for path in built) == [False, True]
        for path in built:
            assert list(wrong_contents(path, wanted[name])) == []
            assert own_files(path) == wanted[name]
    release.check_metadata(tmp_path, every)
