"""run, as far as it goes without Spark: everything that is wrong is said before a session starts."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stateflow.cli.progress import taken_document, taken_line
from stateflow.cli.run import AnnouncedStop
from stateflow.errors import UsageError
from stateflow.format.records import Owner
from stateflow.pipelines.bounds import parse_bounds
from stateflow.spark.runner import RunReport
from tests.cli.conftest import Command
from tests.jobs.made import ORDERS, made_job, orders_pipeline
from tests.jobs.made import PARAMETERS as GIVEN

PARAMETERS = ("-p", "input=a", "-p", "output=b")


def test_a_file_that_is_not_there(command: Command, root: Path) -> None:
    said = command("run", "nothing.py:orders", "--checkpoint-dir", root)
    assert said.code == 3
    assert "nothing.py does not exist" in said.err


BROKEN = """import stateflow as sf

def rate() -> float:
    return 1 / 0

@sf.pipeline("orders")
def orders(flow: sf.Flow) -> None:
    rate()
"""


@pytest.mark.parametrize("code", [BROKEN, BROKEN + "\nrate()\n"], ids=["pipeline", "file"])
def test_what_the_pipelines_code_raises_is_shown_with_its_frames_and_not_tried_again(
    command: Command, root: Path, tmp_path: Path, code: str
) -> None:
    (tmp_path / "here" / "bad.py").write_text(code)
    said = command("run", "bad.py:orders", "--checkpoint-dir", root)
    assert said.code == 2
    assert 'bad.py", line 4, in rate' in said.err
    assert "    return 1 / 0" in said.err
    assert said.err.splitlines()[-1].startswith("stateflow: ")
    assert "site-packages" not in said.err
    as_json = command("run", "bad.py:orders", "--checkpoint-dir", root, "-o", "json")
    assert "line 4, in rate" in json.loads(as_json.err)["error"]["frames"]


@pytest.mark.parametrize(
    ("pipeline", "text", "told"),
    [
        ("bad.py:orders", "x = 1\ndef broken(:\n", "line 2:"),
        ("bad.py", "import json\n\njson.loads('{')\n", "line 3: JSONDecodeError"),
        ("bad.py", "import nowhere\n", "line 1: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_file_that_fails_is_told_with_its_own_line(
    command: Command, root: Path, tmp_path: Path, pipeline: str, text: str, told: str
) -> None:
    (tmp_path / "here" / "bad.py").write_text(text)
    said = command("run", pipeline, "--checkpoint-dir", root)
    assert said.code == 2
    assert f"bad.py, {told}" in said.err
    assert "Traceback" not in said.err


def test_a_traceback_is_shown_when_asked_for(command: Command, root: Path, tmp_path: Path) -> None:
    (tmp_path / "here" / "failing.py").write_text("1 / 0\n")
    said = command("run", "failing.py", "--debug", "--checkpoint-dir", root)
    assert said.code == 2
    assert "Traceback" in said.err
    assert "ZeroDivisionError" in said.err


def test_an_unknown_pipeline_is_told_with_those_there_are(command: Command, root: Path) -> None:
    said = command("run", f"{ORDERS}:order", *PARAMETERS, "--checkpoint-dir", root)
    assert said.code == 3
    assert "no pipeline 'order'; it has: orders" in said.err


def test_an_unknown_parameter_a_missing_root_and_an_unknown_option(command: Command, root: Path) -> None:
    parameter = command("run", ORDERS, *PARAMETERS, "-p", "x=1", "--checkpoint-dir", root)
    assert (parameter.code, "no parameter 'x'" in parameter.err) == (2, True)
    rootless = command("run", ORDERS, *PARAMETERS)
    assert (rootless.code, "no checkpoint root" in rootless.err) == (2, True)
    option = command(
        "run", ORDERS, *PARAMETERS, "--option", "retained_checkpoint=2", "--checkpoint-dir", root
    )
    assert (option.code, "did you mean retained_checkpoints?" in option.err) == (2, True)
    trigger = command("run", ORDERS, *PARAMETERS, "--trigger", "sometimes", "--checkpoint-dir", root)
    assert (trigger.code, "sometimes" in trigger.err) == (2, True)
    until = command("run", ORDERS, *PARAMETERS, "--until", "soon", "--checkpoint-dir", root)
    assert (until.code, "neither a version nor a time" in until.err) == (2, True)
    assert not root.exists()


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The parameters of runs that were to begin."""
    began: list[dict[str, str]] = []
    report = RunReport("orders", 1, 0, 0, None, "drained")

    def run_loaded(loaded: object, found: object, given: dict[str, str], **request: object) -> RunReport:
        began.append(given)
        return report

    monkeypatch.setattr("stateflow.jobs.running.run_loaded", run_loaded)
    return began


def test_a_run_says_which_parameters_it_takes_over_from_the_last_record(
    command: Command, root: Path, not_run: list[dict[str, str]]
) -> None:
    made_job(root)
    said = command("run", ORDERS, "-p", "output=b", "--checkpoint-dir", root)
    assert said.code == 0
    assert said.err == f"orders: takes over from its last record input={GIVEN['input']}\n"
    whole = command("run", ORDERS, *PARAMETERS, "--checkpoint-dir", root)
    assert (whole.code, whole.err) == (0, "")
    assert not_run == [{"input": GIVEN["input"], "output": "b"}, {"input": "a", "output": "b"}]


def test_programs_are_told_what_a_run_takes_over_in_an_event_of_its_own(
    command: Command, root: Path, not_run: list[dict[str, str]]
) -> None:
    made_job(root)
    said = command("run", ORDERS, "--checkpoint-dir", root, "-o", "json")
    first, last = map(json.loads, said.out.splitlines())
    assert first == {"event": "parameters", "job": "orders", "taken_over": GIVEN}
    assert last["event"] == "summary"
    assert said.err == ""


@pytest.mark.parametrize(("words", "user"), [(("--user", "ann"), "ann"), ((), "me")])
def test_a_run_is_of_who_asked_for_it_else_of_its_own_user(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], user: str
) -> None:
    owners: list[Owner] = []

    def run_loaded(*_: object, owner: Owner, **request: object) -> RunReport:
        owners.append(owner)
        return RunReport("orders", 1, 0, 0, None, "drained")

    monkeypatch.setattr("stateflow.jobs.running.run_loaded", run_loaded)
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    assert command("run", ORDERS, *PARAMETERS, *words, "--checkpoint-dir", root).code == 0
    assert [owner.user for owner in owners] == [user]


def test_a_secret_that_is_taken_over_is_not_shown() -> None:
    body = taken_document("orders", {"db_password": "hunter2", "input": "/data\nx"})
    assert body["taken_over"] == {"db_password": "***", "input": "/data\nx"}
    assert taken_line(body) == "orders: takes over from its last record db_password=***, input=/data\\nx"


def test_a_bound_is_a_version_or_a_time_for_all_sources_or_for_each() -> None:
    assert parse_bounds(None) is None
    assert parse_bounds(["17"]) == 17
    assert parse_bounds(["2026-01-31T12:00:00"]) == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_bounds(["2026-01-31T12:00:00+02:00"]) == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert parse_bounds(["orders=3", "clicks=2026-01-31"]) == {
        "orders": 3,
        "clicks": datetime(2026, 1, 31, tzinfo=UTC),
    }
    with pytest.raises(UsageError):
        parse_bounds(["3", "orders=4"])


def test_an_unknown_command_and_an_unknown_format_are_usage_errors(command: Command) -> None:
    assert command("runs").code == 2
    assert command("jobs", "-o", "yaml").code == 2


def test_help_names_every_command_and_every_exit_code(command: Command) -> None:
    said = command("--help")
    assert said.code == 0
    for name in ("run", "check", "jobs", "show", "checkpoints", "stop", "abandon", "verify", "gc", "doctor"):
        assert name in said.out
    assert "fenced" in said.out


def test_the_version_is_told(command: Command) -> None:
    assert command("--version").out.startswith("stateflow ")


def test_commands_that_only_look_load_neither_spark_nor_arrow(root: Path) -> None:
    made_job(root)
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom stateflow.cli.main import app\n"
        f"for words in (['--help'], ['jobs'], ['show', 'orders'], ['checkpoints', 'orders'], ['verify', 'orders'], ['gc', 'orders']):\n"
        f"    given = [] if words == ['--help'] else ['--checkpoint-dir', {str(root)!r}]\n"
        "    result = CliRunner().invoke(app, [*words, *given])\n"
        "    assert result.exit_code == 0, (words, result.output)\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'rocksdict', 'obstore'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_key_groups_that_a_job_does_not_take_are_said(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from stateflow.config.options import load
    from stateflow.spark.runner import RunRequest, _Run

    made_job(root)

    def warned(**given: str) -> str:
        caplog.clear()
        options = load(cli={"checkpoint_dir": str(root), **given}, env={}, folder=tmp_path)
        _Run(RunRequest(orders_pipeline(), options, GIVEN))._check_before_spark()
        return caplog.text

    assert warned() == warned(max_parallelism="128") == ""
    said = warned(max_parallelism="256")
    assert (
        "the command line (--max-parallelism), is not taken: instead of 256 key groups 'balance' keeps 128"
        in said
    )
    assert "restore orders ... --from URL --max-parallelism 256" in said


def test_a_stop_promises_what_the_next_ctrl_c_does_only_to_who_can_type_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    AnnouncedStop().set()
    assert capsys.readouterr().err == "stopping after this batch\n"
    monkeypatch.setenv("FORCE_COLOR", "1")  # as if stderr were a terminal
    stop = AnnouncedStop()
    stop.set()
    stop.set()
    said = capsys.readouterr().err
    assert said.count("stopping after this batch; Ctrl-C ends it at once") == 1
