"""What the project takes from npm: always one version, through npm itself, so that its proxy and registry settings count."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts import debian


def ensure(asker: str) -> None:
    """Node.js and npm, installed where that can be done without asking anybody; `asker` is the make target that needs them."""
    if shutil.which("node") and shutil.which("npm"):
        return
    if not debian.can_install():
        sys.exit(f"{asker}: it needs Node.js: install nodejs and npm, then run make {asker} again")
    print("-- nodejs and npm ...", flush=True)
    if reason := debian.install("nodejs", "npm"):
        sys.exit(f"{asker}: {reason}: install nodejs and npm, then run make {asker} again")


def archive(asker: str, package: str, version: str, sha256: str, folder: Path) -> Path:
    """The package's archive in `folder`, fetched if it is not there; one with another hash is refused and not kept."""
    path = folder / f"{package}-{version}.tgz"
    if path.is_file() and _sha256(path) == sha256:
        return path
    ensure(asker)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        print(f"-- {package} {version} ...", flush=True)
        command = ["npm", "pack", "--silent", "--pack-destination", scratch, f"{package}@{version}"]
        if subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ).returncode:
            sys.exit(
                f"{asker}: npm could not fetch {package} {version}: check npm's configuration, "
                f"then run make {asker} again"
            )
        fetched = Path(scratch) / path.name
        if (found := _sha256(fetched)) != sha256:
            sys.exit(
                f"{asker}: {package} {version} from npm has the SHA-256 {found} and not {sha256}: "
                "find out who changed it before you use it"
            )
        fetched.replace(path)
    return path


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
