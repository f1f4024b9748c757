"""An option that is empty, because a shell variable is, never means what it means to leave it out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument, TyperOption
from typer.main import get_command

from stateflow.cli.main import app
from tests.cli.conftest import Command
from tests.jobs.made import ORDERS, MadeJob, made_job

MAY_BE_EMPTY = {"--note", "--revision", "--dag-run", "--task", "--map-key", "--namespace"}
OTHERS = {
    ("run", "--host"): "none, whatever the configuration says",
    ("serve", "--host"): "an address, which it is not",
    **dict.fromkeys(
        [
            ("package", "--to"),
            ("diff", "--all"),
            ("replay", "--changes"),
            ("debug", "--test"),
            ("serve", "--tokens"),
        ],
        "a path: the folder in which the command is typed",
    ),
}
"""What is taken for something else than a text."""


def texts(command: Any, *path: str) -> Iterator[tuple[list[str], str]]:
    """Each option of each command that takes a value, behind the arguments that the command has to have."""
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from texts(below, *path, name)
        return
    arguments = ["1" for each in command.params if isinstance(each, TyperArgument) and each.required]
    options = [each for each in command.params if isinstance(each, TyperOption)]
    for option in options:
        if not option.is_flag and not option.count:
            needed = [
                word
                for each in options
                if each.required and each is not option
                for word in (each.opts[0], "1")
            ]
            yield [*path, *arguments, *needed], option.opts[0]


EVERY = [
    (words, option)
    for words, option in texts(get_command(app))
    if option not in MAY_BE_EMPTY and (words[0], option) not in OTHERS
]


def test_the_options_that_name_a_job_or_bound_what_is_done_are_among_those_tried() -> None:
    assert {
        ("run", "--job"),
        ("restore", "--from-job"),
        ("state", "--operator"),
        ("savepoint", "--expires"),
        ("replay", "--from"),
    } <= {(words[0], option) for words, option in EVERY}


@pytest.mark.parametrize(
    ("words", "option"), EVERY, ids=[f"{' '.join(words)} {option}" for words, option in EVERY]
)
def test_an_empty_option_is_refused_by_its_name(command: Command, words: list[str], option: str) -> None:
    said = command(*words, option, "")
    assert said.code == 2
    assert f"{option} is empty" in said.err or f"'{option}'" in said.err


def test_what_was_meant_for_one_operator_is_not_done_to_all(command: Command, root: Path) -> None:
    MadeJob(root).batch()
    before = {str(path) for path in root.rglob("*")}
    said = command("state", "erase", "orders", "1", "--operator", "", "--yes", "--checkpoint-dir", root)
    assert said.code == 2
    assert said.err == (
        "stateflow: --operator is empty, as a variable is that nobody has set: give it a value, or leave it out\n"
    )
    assert {str(path) for path in root.rglob("*")} == before


def test_an_empty_note_is_none(command: Command, root: Path) -> None:
    MadeJob(root).batch()
    words = ("tag", "orders", "v1", "--note", "", "--checkpoint-dir", root)
    assert command(*words).code == 0


@pytest.mark.parametrize(
    ("words", "option", "partner"),
    [
        (("stop", "orders", "--to", "x"), "--to", "--savepoint"),
        (("stop", "orders", "--type", "canonical"), "--type", "--savepoint"),
        (("stop", "orders", "--type", "native", "--wait"), "--type", "--savepoint"),
        (("stop", "orders", "--timeout", "5"), "--timeout", "--wait or --savepoint"),
        (("tag", "orders", "v1", "--remove", "--checkpoint", "3"), "--checkpoint", "--remove"),
        (("tag", "orders", "v1", "--remove", "--note", "why"), "--note", "--remove"),
        (("savepoint", "create", "orders", "--split-size", "1 MB"), "--split-size", "--type canonical"),
        (
            ("savepoint", "create", "orders", "--type", "canonical", "--max-files", "3"),
            "--max-files",
            "--type native",
        ),
        (
            ("state", "export", "./x", "balance", "total", "--to", "y", "--checkpoint", "3"),
            "--checkpoint",
            "name a job",
        ),
        (
            ("state", "import", ORDERS, "--to", "x", "--table", "a.b=c", "--checkpoint", "3"),
            "--checkpoint",
            "--like JOB",
        ),
        (("replay", ORDERS, "--last", "1", "--note", "why"), "--note", "--keep NAME"),
    ],
)
def test_an_option_that_says_nothing_without_another_is_refused(
    command: Command, root: Path, words: tuple[object, ...], option: str, partner: str
) -> None:
    made_job(root)
    said = command(*words, "--checkpoint-dir", root)
    assert (said.code, said.out) == (2, ""), said.err
    assert f"{option} would say nothing" in said.err
    assert partner in said.err


def test_an_option_with_its_partner_is_taken(command: Command, root: Path) -> None:
    made_job(root)
    for words in (("--wait", "--timeout", "5"), ("--savepoint", "--timeout", "5", "--type", "native")):
        said = command("stop", "orders", *words, "--checkpoint-dir", root)
        assert said.code == 0, said.err
