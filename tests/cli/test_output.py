"""Every command prints through one object: text for people, JSON for programs, and what goes to stderr."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import stateflow.cli
from stateflow.cli.options import Invocation, command, rootless_command
from stateflow.cli.output import CommandOutput, ConsoleOutput, Facts, Heading, JsonOutput, TextTable
from stateflow.errors import BusyError

FILES = sorted(Path(stateflow.cli.__file__).parent.glob("*.py"))
Captured = pytest.CaptureFixture[str]


def answered(output: CommandOutput) -> None:
    output.say("first")
    output.answer(
        {"rows": (1, 2), "at": Path("/a")},
        Heading("facts"),
        Facts([("name", "a[b]\x1b"), ("nothing", None)]),
        TextTable(("", "n"), [("fail", 1), ("ok", None)], right=("n",), colours={"fail": "red"}),
        "x" * 300,
        note="go on",
    )


def test_a_person_reads_the_pieces_on_stdout_and_the_note_on_stderr(capsys: Captured) -> None:
    answered(ConsoleOutput())
    said = capsys.readouterr()
    assert [line.rstrip() for line in said.out.splitlines()] == [
        "first",
        "",
        "facts",
        "name     a[b]\\x1b",
        "nothing  -",
        "      n",
        "fail  1",
        "ok",
        "x" * 300,
    ]
    assert said.err == "go on\n"


def test_nothing_that_comes_from_data_reaches_the_terminal_as_a_command(capsys: Captured) -> None:
    """Keys, values and names of columns are somebody else's, and stand in notes, headings and errors, too."""
    sly = "\x1b]0;owned\x07\x9b2J[red]"
    output = ConsoleOutput()
    output.answer({}, sly, Heading(sly), Facts([("name", sly)]), TextTable((sly,), [(sly,)]), note=sly)
    output.log(sly)
    output.error(BusyError(sly), 8)
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b"} & set(said.out + said.err)
    assert (said.out.count("owned"), said.err.count("owned")) == (5, 3)
    assert (said.out.count("[red]"), said.err.count("[red]")) == (5, 3)


def test_a_verdict_has_its_colour_on_a_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ConsoleOutput().say(TextTable(("", "check"), [("fail", "a"), ("ok", "fail")], colours={"fail": "red"}))
    said = capsys.readouterr().out
    assert said.count("\x1b[31mfail\x1b[0m") == 1, "in the first column only"


def test_a_program_reads_one_document_and_nothing_else(capsys: Captured) -> None:
    answered(JsonOutput())
    said = capsys.readouterr()
    assert json.loads(said.out) == {"rows": [1, 2], "at": "/a"}
    assert said.err == ""


def test_a_program_reads_an_event_a_line_and_a_person_its_pieces(capsys: Captured) -> None:
    for output in (JsonOutput(), ConsoleOutput()):
        output.event({"id": 1, "name": "é"}, "one")
        output.event({"id": 2})
    assert capsys.readouterr().out == '{"id":1,"name":"é"}\n{"id":2}\none\n'


@pytest.mark.parametrize("kind", [ConsoleOutput, JsonOutput])
def test_progress_and_warnings_go_to_stderr_in_both_forms(
    kind: type[CommandOutput], capsys: Captured
) -> None:
    output = kind()
    output.log("[red] :x: " + "x" * 300)
    with output.progress("copy", shown=False) as advance:
        advance("bytes", 1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.strip() == "[red] :x: " + "x" * 300


def test_an_error_is_a_sentence_or_an_object(capsys: Captured) -> None:
    ConsoleOutput().error(BusyError("wait [a] while"), 8)
    JsonOutput().error(BusyError("wait [a] while"), 8)
    text, body = capsys.readouterr().err.splitlines()
    assert text == "stateflow: wait [a] while"
    assert json.loads(body) == {"error": {"type": "BusyError", "message": "wait [a] while", "exit_code": 8}}


def test_a_command_gets_the_options_that_all_have_in_one_object() -> None:
    calls: list[Invocation] = []

    @command
    def looks(call: Invocation, name: str) -> None:
        calls.append(call)

    @rootless_command
    def packs(call: Invocation) -> None:
        calls.append(call)

    app = typer.Typer()
    app.command("looks")(looks)
    app.command("packs")(packs)
    assert (
        CliRunner().invoke(app, ["looks", "a", "--checkpoint-dir", "/r", "-o", "json", "--debug"]).exit_code
        == 0
    )
    assert CliRunner().invoke(app, ["packs"]).exit_code == 0
    assert CliRunner().invoke(app, ["packs", "--checkpoint-dir", "/r"]).exit_code == 2
    assert [(type(call.output), call.root, call.debug) for call in calls] == [
        (JsonOutput, "/r", True),
        (ConsoleOutput, None, False),
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_only_the_output_knows_how_to_print(file: Path) -> None:
    if file.name == "output.py":
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
            assert not [name for name in names if name.split(".")[0] == "rich"], f"line {node.lineno}"
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("print", "sys.stdout.write", "sys.stderr.write"), (
                f"line {node.lineno}"
            )


def test_what_json_does_not_know_is_as_in_every_other_answer(capsys: Captured) -> None:
    row = {"mean": float("nan"), "most": float("inf"), "least": float("-inf"), "body": b"\x00\xff"}
    JsonOutput().event({"rows": [row]})

    def refuse(text: str) -> None:
        raise AssertionError(text)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found == {"rows": [{"mean": "NaN", "most": "Infinity", "least": "-Infinity", "body": "AP8="}]}


def test_a_root_that_was_typed_stands_before_the_dashes_of_an_advised_command(capsys: Captured) -> None:
    output = ConsoleOutput()
    output.root = "/a b"
    output.say("`stateflow query orders balance total -- -5` has it, `stateflow host list` has no root")
    assert capsys.readouterr().out == (
        "`stateflow query orders balance total --checkpoint-dir '/a b' -- -5` has it, `stateflow host list` has no root\n"
    )
