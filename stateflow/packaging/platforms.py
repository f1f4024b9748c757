"""Where an environment runs: what its native code asks for against what the cluster's hosts are said to be."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass

from stateflow.errors import UsageError
from stateflow.packaging.native import Demands, Version

_TAG = re.compile(r"(?:(manylinux)_(\d+)_(\d+)|(musllinux)_\d+_\d+|(linux|macosx\w*|win\w*))[_-](\w+)$")
_ALIASES = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass(frozen=True, slots=True)
class Hosts:
    """As `--platform` says; an unknown glibc is (0, 0)."""

    text: str
    system: str
    machine: str
    glibc: Version = (0, 0)


def hosts_of(text: str) -> Hosts:
    """`manylinux_2_28_x86_64` as wheels name it, or `linux_x86_64`; empty: hosts like this one."""
    if not text:
        return Hosts(f"{sys.platform}_{platform.machine()}", sys.platform, _machine(platform.machine()))
    found = _TAG.match(text)
    if found is None:
        raise UsageError(
            f"--platform {text!r} is not a platform: write it as wheels do, such as manylinux_2_28_x86_64 or linux_aarch64"
        )
    glibc = (int(found[2]), int(found[3])) if found[1] else (0, 0)
    system = "linux" if found[1] else found[4] or re.split(r"[_\d]", found[5])[0]
    return Hosts(text, system, _machine(found[6]), glibc)


def refuse_others(demands: Demands, hosts: Hosts, running: str = sys.platform) -> None:
    """UsageError when what was packed cannot run there."""
    made_for = f"{running} {' and '.join(demands.machines) or platform.machine()}"
    if hosts.system != running or (demands.machines and demands.machines != (hosts.machine,)):
        raise UsageError(
            f"what is installed here runs on {made_for}, not on {hosts.text}: run stateflow package on a host of that "
            "platform, or in a container of the cluster's image"
        )
    if hosts.glibc != (0, 0) and demands.glibc > hosts.glibc:
        raise UsageError(
            f"what is installed here needs glibc {version_text(demands.glibc)} or newer, and {hosts.text} has "
            f"{version_text(hosts.glibc)}: run stateflow package on a host as old as the cluster's, or leave this machine's "
            "Python out (--no-python) if that is what asks for it"
        )


def version_text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())
