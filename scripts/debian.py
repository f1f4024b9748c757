"""Debian's packages, where they can be installed without asking anybody."""

from __future__ import annotations

import os
import shutil
import subprocess


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(*packages: str, update: bool = True) -> str:
    """Installs the packages; why that failed, or nothing."""
    commands = [["update", "-qq"]] if update else []
    for command in [*commands, ["install", "-y", "-qq", "--no-install-recommends", *packages]]:
        process = subprocess.run(
            ["apt-get", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        if process.returncode:
            last = process.stderr.decode(errors="replace").strip().splitlines()[-1:]
            return f"apt-get {command[0]} failed ({last[0] if last else f'code {process.returncode}'})"
    return ""
