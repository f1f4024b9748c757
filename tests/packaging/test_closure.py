"""Which distributions an environment needs, and what is refused."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from stateflow.errors import NotFoundError, UsageError
from stateflow.packaging.closure import closure, files_of, lock
from tests.refusals.refusal import refused


class Shelf:
    """Distributions in a folder, as pip leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, name: str, version: str, *requires: str, files: tuple[str, ...] = (), record: bool = True
    ) -> Path:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        head = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (info / "METADATA").write_text("\n".join(head) + "\n")
        for file in files:
            path = self.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
        named = [
            *files,
            f"{info.name}/METADATA",
            f"{info.name}/RECORD",
            f"{info.name}/INSTALLER",
            "../../bin/tool",
        ]
        (info / "INSTALLER").touch()
        if record:
            (info / "RECORD").write_text("".join(f"{name},,\n" for name in named))
        return info

    def find(self, name: str) -> metadata.Distribution:
        wanted = name.replace("-", "_")
        for info in self.folder.glob("*.dist-info"):
            if info.name.startswith(f"{wanted}-"):
                return metadata.PathDistribution(info)
        raise metadata.PackageNotFoundError(name)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_requirements_are_followed_by_their_markers_and_extras(shelf: Shelf) -> None:
    shelf.add("top", "1.0", "mid[fast]>=2", "windows-only; sys_platform == 'win32'", "later; extra == 'dev'")
    shelf.add("mid", "2.5", "quick; extra == 'fast'", "slow; extra == 'slow'")
    shelf.add("quick", "3")
    found = closure({"top": "me"}, shelf.find)
    assert lock(found) == "mid==2.5\nquick==3\ntop==1.0\n"


def test_a_circle_ends(shelf: Shelf) -> None:
    shelf.add("one", "1", "two")
    shelf.add("two", "1", "one")
    assert [each.name for each in closure({"one": "me"}, shelf.find)] == ["one", "two"]


def test_what_every_spark_brings_is_left_to_it(shelf: Shelf) -> None:
    shelf.add("top", "1", "pyspark>=4", "Py4J")
    assert [each.name for each in closure({"top": "me"}, shelf.find)] == ["top"]


def test_a_missing_requirement_is_named_with_who_needs_it(shelf: Shelf) -> None:
    shelf.add("top", "1", "rocksdict>=0.3")
    with refused(NotFoundError, "top needs rocksdict>=0.3", "pip install"):
        closure({"top": "me"}, shelf.find)


def test_a_version_that_does_not_fit_is_refused(shelf: Shelf) -> None:
    shelf.add("top", "1", "numpy>=2")
    shelf.add("numpy", "1.26.4")
    with refused(UsageError, "top needs numpy>=2", "1.26.4 is installed"):
        closure({"top": "me"}, shelf.find)


def test_files_come_without_programs_caches_and_the_installers_notes(shelf: Shelf) -> None:
    files = (
        "numpy/__init__.py",
        "numpy/__pycache__/x.pyc",
        "numpy/_core/tests/test_x.py",
        "numpy/tests.py",
        "x.pth",
    )
    shelf.add("numpy", "2", files=files)
    (needed,) = closure({"numpy": "me"}, shelf.find)
    assert sorted(entry.name for entry in files_of(needed)) == [
        "site-packages/numpy-2.dist-info/METADATA",
        "site-packages/numpy/__init__.py",
        "site-packages/numpy/tests.py",
    ]


def test_tests_of_libraries_that_are_not_known_to_do_without_stay(shelf: Shelf) -> None:
    shelf.add("other", "2", files=("other/tests/data.py",))
    (needed,) = closure({"other": "me"}, shelf.find)
    assert "site-packages/other/tests/data.py" in [entry.name for entry in files_of(needed)]


def test_a_file_that_is_gone_and_a_distribution_without_a_list_are_refused(shelf: Shelf) -> None:
    shelf.add("broken", "1", files=("broken.py",))
    (shelf.folder / "broken.py").unlink()
    (needed,) = closure({"broken": "me"}, shelf.find)
    with refused(UsageError, "broken.py", "broken 1", "pip install --force-reinstall"):
        list(files_of(needed))
    shelf.add("of-the-system", "1", record=False)
    (needed,) = closure({"of-the-system": "me"}, shelf.find)
    with refused(UsageError, "has no list of its files"):
        list(files_of(needed))


def test_one_that_is_installed_editable_is_taken_from_its_source(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "ownlib_of_a_test").mkdir(parents=True)
    (source / "ownlib_of_a_test" / "__init__.py").touch()
    (source / "ownlib_of_a_test" / "data.txt").touch()
    (source / "single_of_a_test.py").touch()
    monkeypatch.syspath_prepend(str(source))
    info = shelf.add("ownlib", "1", files=("__editable___ownlib_finder.py",))
    (info / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {"editable": True}}))
    (needed,) = closure({"ownlib": "me"}, shelf.find)
    with refused(UsageError, "has no list of its modules"):
        list(files_of(needed))
    (info / "top_level.txt").write_text("ownlib_of_a_test\nsingle_of_a_test\n")
    assert sorted(entry.name for entry in files_of(needed)) == [
        "site-packages/ownlib-1.dist-info/METADATA",
        "site-packages/ownlib_of_a_test/__init__.py",
        "site-packages/ownlib_of_a_test/data.txt",
        "site-packages/single_of_a_test.py",
    ]


def test_a_project_s_own_folder_that_stands_in_for_its_installation_is_taken_like_one(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    info = source / "checkout.egg-info"
    info.mkdir(parents=True)
    (source / "checkout_of_a_test.py").touch()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: checkout\nVersion: 3\n")
    (info / "SOURCES.txt").write_text("README.md\ncheckout_of_a_test.py\ngone.py\n")
    (info / "top_level.txt").write_text("checkout_of_a_test\n")
    monkeypatch.syspath_prepend(str(source))
    (needed,) = closure({"checkout": "me"}, lambda name: metadata.PathDistribution(info))
    found = {entry.name: entry.read() for entry in files_of(needed)}
    assert sorted(found) == [
        "site-packages/checkout-3.dist-info/METADATA",
        "site-packages/checkout_of_a_test.py",
    ]
    assert b"Version: 3" in found["site-packages/checkout-3.dist-info/METADATA"]
