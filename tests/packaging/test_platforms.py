"""An environment is refused for hosts that it could not run on."""

from __future__ import annotations

import platform
import sys

import pytest

from stateflow.errors import UsageError
from stateflow.packaging.native import Demands
from stateflow.packaging.platforms import Hosts, hosts_of, refuse_others
from tests.refusals.refusal import refused

HERE = Demands(("x86_64",), (2, 34), ())


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("manylinux_2_28_x86_64", ("linux", "x86_64", (2, 28))),
        ("linux_aarch64", ("linux", "aarch64", (0, 0))),
        ("linux-amd64", ("linux", "x86_64", (0, 0))),
        ("musllinux_1_2_x86_64", ("musllinux", "x86_64", (0, 0))),
        ("macosx_14_0_arm64", ("macosx", "aarch64", (0, 0))),
    ],
)
def test_platforms_are_read_as_wheels_name_them(text: str, hosts: tuple[object, ...]) -> None:
    found = hosts_of(text)
    assert (found.system, found.machine, found.glibc) == hosts


def test_hosts_are_like_this_one_unless_told_otherwise() -> None:
    found = hosts_of("")
    assert (found.system, found.machine) == (sys.platform, platform.machine())
    refuse_others(Demands((platform.machine(),), (2, 36), ()), found)


def test_a_platform_that_is_none_is_refused() -> None:
    with refused(UsageError, "'debian'", "as wheels do"):
        hosts_of("debian")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("linux_aarch64", "runs on linux x86_64, not on linux_aarch64"),
        ("macosx_14_0_x86_64", "runs on linux x86_64, not on macosx_14_0_x86_64"),
        ("musllinux_1_2_x86_64", "not on musllinux_1_2_x86_64"),
        ("manylinux_2_28_x86_64", r"needs glibc 2\.34 or newer, and manylinux_2_28_x86_64 has 2\.28"),
    ],
)
def test_other_hosts_are_refused_with_the_next_step(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}.*: run stateflow package on a host"):
        refuse_others(HERE, hosts_of(text), running="linux")


@pytest.mark.parametrize("text", ["manylinux_2_34_x86_64", "manylinux_2_39_x86_64", "linux_x86_64"])
def test_hosts_that_are_as_new_are_fine(text: str) -> None:
    refuse_others(HERE, hosts_of(text), running="linux")


def test_native_code_of_two_machines_runs_nowhere() -> None:
    with refused(UsageError, "aarch64 and x86_64"):
        refuse_others(
            Demands(("aarch64", "x86_64"), (2, 17), ()), Hosts("x", "linux", "x86_64"), running="linux"
        )
