"""What is taken from npm has the hash that the repository names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scripts import npm

RIGHT = hashlib.sha256(b"a package").hexdigest()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that gives whatever the file has; each call leaves a line."""
    programs = tmp_path / "bin"
    programs.mkdir()
    served = tmp_path / "served"
    served.write_bytes(b"a package")
    (programs / "node").write_text("#!/bin/sh\n")
    (programs / "npm").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp {served} "$4/small-1.0.tgz"\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return served


def test_an_archive_is_fetched_once(registry: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert npm.archive("docs", "small", "1.0", RIGHT, tmp_path / "cache").read_bytes() == b"a package"
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_another_hash_is_refused_and_nothing_is_kept(registry: Path, tmp_path: Path) -> None:
    registry.write_bytes(b"another package")
    with pytest.raises(SystemExit, match=r"and not .*find out who changed it"):
        npm.archive("docs", "small", "1.0", RIGHT, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_changed_copy_in_the_cache_is_fetched_again(registry: Path, tmp_path: Path) -> None:
    path = npm.archive("docs", "small", "1.0", RIGHT, tmp_path / "cache")
    path.write_bytes(b"changed")
    assert npm.archive("docs", "small", "1.0", RIGHT, tmp_path / "cache").read_bytes() == b"a package"
