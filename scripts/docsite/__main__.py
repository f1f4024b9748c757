"""`make docs`: the pages as a site in site/, built strictly: a link that leads nowhere fails it."""

from __future__ import annotations

import os
import subprocess
import sys

from scripts.docsite.links import ROOT


def main() -> None:
    # Without the variable each build prints a page about a fork of MkDocs.
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    # Not --quiet: warnings that are not written are not counted, and then nothing is strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *sys.argv[1:]]
    if code := subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode:
        sys.exit(code)
    if not sys.argv[1:]:
        print(f"the site is there: {(ROOT / 'site' / 'index.html').as_uri()}")


if __name__ == "__main__":
    main()
