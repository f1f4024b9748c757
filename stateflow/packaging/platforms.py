"""Whether an environment runs on the cluster's hosts: what its native code needs, compared with `--platform`."""

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
    """The cluster's hosts, as `--platform` describes them. An unknown glibc is (0, 0)."""

    text: str
    system: str
    machine: str
    glibc: Version = (0, 0)


def hosts_of(text: str) -> Hosts:
    """`manylinux_2_28_x86_64` as wheels name it, or `linux_x86_64`; empty: hosts like this one."""
    if not text:
        return Hosts(f"{sys.platform}_{platform.machine()}", sys.platform, _machine(platform.machine()))
    match = _TAG.match(text)
    if match is None:
        raise UsageError(
            f"--platform {text!r} is not a platform: write it as wheels do, such as manylinux_2_28_x86_64 or linux_aarch64"
        )
    glibc = (int(match[2]), int(match[3])) if match[1] else (0, 0)
    system = "linux" if match[1] else match[4] or re.split(r"[_\d]", match[5])[0]
    return Hosts(text, system, _machine(match[6]), glibc)


def refuse_others(demands: Demands, hosts: Hosts, running: str = sys.platform) -> None:
    """UsageError when the packed code cannot run on these hosts."""
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
            "Python out (--no-python) if only that needs it"
        )


def version_text(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _machine(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())
