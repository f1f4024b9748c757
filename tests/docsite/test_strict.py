"""`make docs` fails where a link leads nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docsite.links import ROOT


@pytest.mark.parametrize(("link", "code"), [("other.md", 0), ("nowhere.md", 1), ("other.md#nowhere", 1)])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, link: str, code: int) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n[there]({link})\n")
    (tmp_path / "docs" / "other.md").write_text("# There\n")
    settings = "site_name: small\nvalidation: {links: {anchors: warn}}\ntheme: mkdocs\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    command = [sys.executable, "-m", "scripts.docsite", "--config-file", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
