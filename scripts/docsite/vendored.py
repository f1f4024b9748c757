"""The scripts that the site's pages load beside Material's own: from npm, by version and hash, never from another site."""

from __future__ import annotations

import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from scripts import npm


@dataclass(frozen=True)
class Vendored:
    package: str
    version: str
    sha256: str
    """Of the archive that npm gives."""
    script: str
    """Its path in the archive."""
    url: str
    """Its path in the site; the licence lies beside it."""

    def files(self, cache: Path) -> dict[str, bytes]:
        """Path in the site -> content: the script and its licence."""
        archive = npm.archive("docs", self.package, self.version, self.sha256, cache)
        with tarfile.open(archive) as tar:
            return {
                self.url: _read(tar, self.script),
                f"{self.url}.LICENSE.txt": _read(tar, "package/LICENSE"),
            }


MERMAID = Vendored(
    "mermaid",
    "11.4.1",
    "ec7b61b391aaa24bf666fd20e48d0a626eeb4a95b95bc6b3016a122d7f0bc2af",
    "package/dist/mermaid.min.js",
    "assets/vendored/mermaid.min.js",
)
"""Draws the diagrams. Material would fetch it from unpkg.com."""

IFRAME_WORKER = Vendored(
    "iframe-worker",
    "1.0.4",
    "e8c5d12d87829c503afba01d67772ea9f4aba5b7ae57a0c98e1917711030efbb",
    "package/shim/index.js",
    "assets/vendored/iframe-worker.js",
)
"""Lets the search run where a browser starts no worker: in pages opened as files. Material would fetch it, too."""

ALL = (MERMAID, IFRAME_WORKER)


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    if member is None:
        sys.exit(f"docs: {tar.name!s} has no file {name}: correct the path in {__file__}")
    return member.read()
