"""`history`, `diff` and `bisect` as they are typed; none of this starts Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from stateflow.checkpoint.draft import Draft
from stateflow.cli.change_files import change_file
from stateflow.errors import UserCodeError
from stateflow.format.encoding import list_position
from stateflow.format.records import Savepoint, encode
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.roots import open_store
from tests.cli.conftest import Command, Said
from tests.jobs.operators import operator_of
from tests.reading.grown import EVERY_KIND, LOG, OPEN, TOTAL, GrownJob, fall_below_zero, full, put

_int, _str = serializer_for(int), serializer_for(str)
PIPELINE = """
import stateflow as sf


class Balance(sf.KeyedProcess):
    total = sf.ValueState(int, default=0)

    def process(self, key, rows, ctx):
        self.total.value += sum(row["amount"] for row in rows)
        yield {"user": key}


@sf.pipeline("orders")
def orders(flow):
    rows = flow.source("orders", sf.files("nowhere", "json", schema="user int, amount int"))
    rows.key_by("user").process("balance", Balance, "user int").for_each_batch("out", print)
"""


def never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("this starts Spark")


Typed = Callable[..., Said]


@pytest.fixture
def job(root: Path) -> GrownJob:
    """Checkpoints 2 to 7; user 1 falls below zero in 5."""
    made = GrownJob(root)
    fall_below_zero(made)
    return made


@pytest.fixture
def typed(command: Command, root: Path, job: GrownJob) -> Typed:
    return lambda *arguments: command(*arguments, "--checkpoint-dir", root)


def test_a_history_has_each_checkpoint_in_which_the_key_changed(typed: Typed) -> None:
    said = typed("history", "orders", "balance", "total", 1, "-o", "json")
    assert said.code == 0, said.err
    versions = [(v["checkpoint"], v["what"], v["value"]) for v in said.json["versions"]]
    assert versions == [(2, "kept", 5), (4, "changed", 8), (5, "changed", -3), (7, "changed", -1)]
    assert said.json["checkpoints"] == 6
    shown = typed("history", "orders", "balance", "total", 3)
    assert "deleted" in shown.out
    assert "6 kept checkpoints read" in shown.err


def test_a_namespace_is_searched_and_the_way_to_it_is_told(command: Command, root: Path) -> None:
    windows = GrownJob(root, schemas=EVERY_KIND)
    for value in (1, 2, -3, -4):
        windows.batch(lambda model, value=value: {full(OPEN, 7, "noon"): _int.dumps(value)})
    words = ("orders", "balance", "open", 7, "--checkpoint-dir", root)
    lost = command("bisect", *words, "--first", "value < 0")
    assert "has namespaces: name one with --namespace" in lost.err
    named = (*words, "--namespace", "noon", "-o", "json")
    assert command("bisect", *named, "--first", "value < 0").json["checkpoint"] == 4
    assert [v["value"] for v in command("history", *named).json["versions"]] == [1, 2, -3, -4]


def test_a_history_can_begin_later_and_show_less(typed: Typed) -> None:
    since = typed("history", "orders", "balance", "total", 1, "--since", 5, "-o", "json").json
    assert [v["checkpoint"] for v in since["versions"]] == [5, 7]
    newest = typed("history", "orders", "balance", "total", 1, "--limit", 1)
    assert "there are older versions: --limit above 1 shows them" in newest.err


def test_what_reaches_further_back_than_what_is_kept_says_so(typed: Typed, job: GrownJob) -> None:
    job.begin("another", retained=3)
    put(job, u1=1)
    job.collect()
    assert "no checkpoint 3 (any more)" in typed("query", "orders", "balance", "total", 1, "--at", 3).err
    words = ("history", "orders", "balance", "total", 1)
    for since in (3, "2020-01-01T00:00"):
        assert "nothing from before checkpoint 6 is kept" in typed(*words, "--since", since).err
        assert typed(*words, "--since", since, "-o", "json").json["begins_later"] == 6
    for since in ((), ("--since", 6), ("--since", 7)):
        assert "nothing from before" not in typed(*words, *since).err


def test_a_search_that_begins_behind_its_end_is_refused(typed: Typed, job: GrownJob) -> None:
    words = ("bisect", "orders", "balance", "total", 1, "--first", "value < 0")
    said = typed(*words, "--since", 6, "--until", 4)
    assert said.code == 2
    assert "--since 6 begins behind --until 4: nothing lies between them" in said.err
    assert "its newest one is 7 of" in typed(*words, "--since", 99).err


def test_a_key_that_never_was_is_told_with_how_a_key_is_written(typed: Typed, root: Path) -> None:
    sentence = "no checkpoint that was looked at has anything under key 9: a key of operator 'balance' is user int: a whole number of 64 bits, such as 42"
    said = typed("history", "orders", "balance", "total", 9)
    assert said.err == f"{sentence}; 6 kept checkpoints read\n"
    for condition in ("value < 0", "value IS NULL"):
        assert sentence in typed("bisect", "orders", "balance", "total", 9, "--first", condition).err
    assert sentence not in typed("bisect", "orders", "balance", "total", 1, "--first", "value < -9").err
    entry = typed("history", "orders", "balance", "items", 1, "--map-key", "sku7").err
    assert "has anything under key 1 and map key sku7:" in entry


def renamed(job: GrownJob, former: str, name: str) -> None:
    """A release that renames a state: from the next record on it has the other name, under the same number."""
    schemas = {each: schema for each, schema in job.schemas.items() if each != former}
    job.schemas = {**schemas, name: msgspec.structs.replace(job.schemas[former], aliases=(former,))}


@pytest.mark.parametrize("state", ["total", "sum", "balance"])
def test_a_renamed_state_is_followed_under_each_of_its_names(typed: Typed, job: GrownJob, state: str) -> None:
    renamed(job, "total", "sum")
    put(job, u1=-2)
    renamed(job, "sum", "balance")
    put(job, u1=7, u3=100)
    said = typed("history", "orders", "balance", state, 1, "-o", "json")
    assert said.code == 0, said.err
    assert [(v["checkpoint"], v["value"]) for v in said.json["versions"]] == [
        (2, 5), (4, 8), (5, -3), (7, -1), (8, -2), (9, 7)
    ]  # fmt: skip
    told = {
        "total": "in checkpoints 2 to 7 the state is called 'total'",
        "sum": "in checkpoint 8 the state is called 'sum'",
        "balance": "in checkpoint 9 the state is called 'balance'",
    }
    shown = typed("history", "orders", "balance", state, 1).err
    assert [name for name, sentence in told.items() if sentence in shown] == [n for n in told if n != state]
    if state == "balance":
        found = typed(
            "bisect", "orders", "balance", state, 1, "--first", "value - previous > 2", "-o", "json"
        )
        assert found.json["checkpoint"] == 4
        found = typed("bisect", "orders", "balance", state, "--any", "--first", "value < 0", "-o", "json")
        assert (found.json["checkpoint"], found.json["key"]) == (5, "1")
        # An entry that nobody has written since is no change of the checkpoint in which the state got its name.
        found = typed("bisect", "orders", "balance", state, "--any", "--since", 7, "--first", "previous < 0")
        assert "checkpoint 8" in found.out + found.err


def test_a_diff_across_a_rename_compares_the_state_with_itself(typed: Typed, job: GrownJob) -> None:
    renamed(job, "total", "sum")
    put(job, u1=-2)
    renamed(job, "sum", "balance")
    # A third release that no longer says how the state was called.
    job.schemas["balance"] = msgspec.structs.replace(job.schemas["balance"], aliases=("sum",))
    put(job, u1=7, u3=100)
    for points, now, then, values in (
        ((7, 9), "balance", "total", (-1, 7)),
        ((9, 7), "total", "balance", (7, -1)),
    ):
        shown = typed("diff", "orders", *points)
        assert shown.err.count(f"state '{now}' of operator 'balance' is called '{then}' in checkpoint") == 1
        assert "declared only in" not in shown.err
        said = typed("diff", "orders", *points, "-o", "json").json
        assert said["renamed"] == [{"operator": "balance", "state": now, "before": then}]
        (state,) = said["states"]
        assert state["state"] == now
        assert ("1", *values) in [(c["key"], c["before"], c["after"]) for c in state["first"]]
        assert len(state["first"]) == 2
        for name in (now, then):
            assert (
                typed("diff", "orders", *points, "--state", name, "-o", "json").json["states"]
                == said["states"]
            )
    assert typed("diff", "orders", 3, 7, "-o", "json").json["renamed"] == []
    # A look at one checkpoint is by the names of then, and the refusal has them.
    then = typed("query", "orders", "balance", "balance", 1, "--at", 7)
    assert "has no state 'balance' in checkpoint 7: its states are" in then.err
    assert "total" in then.err
    assert typed("query", "orders", "balance", "total", 1, "--at", 7).out == "-1\n"


def test_a_name_that_another_state_has_now_is_not_followed(typed: Typed, job: GrownJob) -> None:
    renamed(job, "total", "sum")
    job.schemas["total"] = msgspec.structs.replace(job.schemas["sum"], id=90, aliases=())
    put(job, u1=-2)
    said = typed("history", "orders", "balance", "sum", 1, "-o", "json").json
    assert [(v["checkpoint"], v["what"]) for v in said["versions"]][-1] == (8, "changed")
    said = typed("history", "orders", "balance", "total", 1, "-o", "json").json
    assert [(v["checkpoint"], v["what"]) for v in said["versions"]][-1] == (8, "deleted")


def test_a_negative_key_stands_behind_two_dashes(command: Command, root: Path, job: GrownJob) -> None:
    said = command("history", "orders", "balance", "total", "--checkpoint-dir", root, "--", "-1")
    assert "has anything under key -1:" in said.err
    assert "a negative one behind --" in " ".join(command("history", "--help").out.replace("│", "").split())


def test_restores_are_read_and_not_counted_as_the_retention_does_not(
    typed: Typed, job: GrownJob, root: Path
) -> None:
    put(job, u1=3)
    job.writer.complete(job.writer.decide(Draft("restore", based_on=4, operators=job.at(4).operators)), {})
    said = typed("history", "orders", "balance", "total", 1)
    assert "8 (restore)" not in said.out
    assert "changed (restore)" in said.out
    assert "7 kept checkpoints and 1 restore or other edit read" in said.err
    found = typed("bisect", "orders", "balance", "total", 1, "--first", "value < -90", "--scan").err
    assert "(8 look-ups of 7 kept checkpoints and 1 restore or other edit)" in found
    by_restore = typed("bisect", "orders", "balance", "total", 1, "--first", "value = 8", "--since", 7)
    assert "checkpoint 9 is the first one" in by_restore.err
    assert "stateflow debug" not in by_restore.err, "a restore runs no batch"
    assert "record 9 put back an older state" in by_restore.err
    parts = typed("gc", "orders", "--retained", 2, "--explain", "-o", "json").json
    kept = {part["part"]: part["checkpoints"] for part in parts["parts"]}
    assert (kept["newest"], kept["edits"]) == ([7, 8], [9])
    assert len(kept["newest"]) + len(parts["going"]) == 7
    assert "restores and other edits" in typed("gc", "orders", "--retained", 2, "--explain").out


def test_what_a_test_is_to_assert_is_checked_before_spark_starts(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "orders.py"
    file.write_text(PIPELINE)
    monkeypatch.setattr("stateflow.replay.evaluation.build_session", never)
    debug = ("debug", f"{file}:orders", "balance", 1, "--at", 5, "--test", tmp_path / "test_1.py")
    for arguments, why in (
        (("--expect", "value = 1"), "has several states: say of which, with --state (brief, "),
        (("--expect", "value = 1", "--state", "totals"), "has no state 'totals' in checkpoint 5: its states are brief"),
        (("--expect", "amount = 1", "--state", "total"), "needs column 'amount'"),
        (("--expect-value", "ann", "--state", "total"), "--expect-value 'ann' is not JSON"),
        (("--expect", "value = 1", "--expect-value", "1"), "say what is right once"),
    ):  # fmt: skip
        said = typed(*debug, *arguments)
        assert (said.code, why in said.err) == (2, True), said.err
    for name, why in (
        ("test_1.txt", "is no file of Python: end it in .py"),
        (file, "is there already: name another file"),
    ):
        said = typed("debug", f"{file}:orders", "balance", 1, "--at", 5, "--test", tmp_path / name)
        assert (said.code, why in said.err) == (2, True), said.err


def test_what_expired_is_told_from_what_was_deleted(command: Command, root: Path) -> None:
    job = GrownJob(root)
    job.batch(lambda model: job.put(model, "brief", 1, 7))
    job.batch(seconds=20)
    said = command("history", "orders", "balance", "brief", 1, "-o", "json", "--checkpoint-dir", root)
    assert [(v["what"], v["value"]) for v in said.json["versions"]] == [("kept", 7), ("expired", None)]
    made = command("diff", "orders", 2, 3, "-o", "json", "--checkpoint-dir", root).json["states"]
    assert [(s["state"], s["expired"], s["went"]) for s in made] == [("brief", 1, 0)]


def test_a_diff_counts_and_shows_what_changed(typed: Typed, tmp_path: Path) -> None:
    said = typed("diff", "orders", 4, 7, "-o", "json")
    assert said.code == 0, said.err
    (state,) = said.json["states"]
    assert (state["state"], state["came"], state["changed"], state["went"]) == ("total", 0, 1, 0)
    assert [(c["key"], c["before"], c["after"]) for c in state["first"]] == [("1", 8, -1)]
    assert typed("diff", "orders", 7, 7).err.startswith(
        "from checkpoint 7 of job 'orders' to checkpoint 7 of job"
    )
    assert "-1" in typed("diff", "orders", 4, 7).out


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_all_changes_go_into_a_file(typed: Typed, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"changes.{ending}"
    assert typed("diff", "orders", 2, 5, "--all", file, "--limit", 0).code == 0
    if ending == "jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        rows = [
            row | {name: json.loads(row[name]) for name in ("before", "after") if row[name]}
            for row in pq.read_table(file).to_pylist()
        ]
    found = sorted((row["key"], row["kind"], row["before"], row["after"]) for row in rows)
    assert found == [("1", "changed", 5, -3), ("2", "changed", 1, 2), ("3", "came", None, 4)]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_two_commands_at_once_each_write_a_whole_file(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"changes.{ending}"
    with change_file(file), change_file(file):
        assert not file.exists()
    assert list(tmp_path.iterdir()) == [file]


def test_two_jobs_and_a_tag_are_compared(typed: Typed, root: Path, job: GrownJob) -> None:
    job.tag(4, "before")
    other = GrownJob(root, "candidate")
    put(other, u1=8, u2=3)
    said = typed("diff", "orders", "tag:before", "latest", "--with", "candidate", "-o", "json")
    assert [(c["key"], c["before"], c["after"]) for c in said.json["states"][0]["first"]] == [("2", 2, 3)]


def test_native_savepoints_are_points_of_a_diff(typed: Typed, job: GrownJob, tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    job.save(4, old)
    job.save(7, new)
    expected = typed("diff", "orders", 4, 7, "-o", "json").json["states"]
    assert expected
    for before, after in ((old, 7), (4, new), (old, new), (f"{old}/", f"{new}//")):
        said = typed("diff", "orders", before, after, "-o", "json")
        assert said.code == 0, said.err
        assert said.json["states"] == expected
    assert typed("diff", "orders", old, 4, "-o", "json").json["states"] == []
    assert f"from the savepoint {old} to checkpoint 7" in typed("diff", "orders", old, 7).err


def test_a_savepoint_that_cannot_be_compared_is_refused(
    typed: Typed, job: GrownJob, root: Path, tmp_path: Path
) -> None:
    foreign, canonical = str(tmp_path / "foreign"), str(tmp_path / "canonical")
    other = GrownJob(root, "copy")
    put(other, u1=5)
    other.save(2, foreign)
    refused = typed("diff", "orders", foreign, 7)
    assert (refused.code, "is of job 'copy', not of 'orders'" in refused.err) == (2, True), refused.err
    assert typed("diff", "orders", 7, foreign, "--with", "copy").code == 0
    record = msgspec.structs.replace(job.head(), operators={})
    body = Savepoint(id="s", kind="canonical", job="orders", record=record, owner=job.owner())
    open_store(canonical).create("_metadata", encode(body))
    refused = typed("diff", "orders", canonical, 7)
    assert refused.code == 2
    assert (
        "is canonical: it consists of tables; compare it as a table, with `stateflow state export "
        in refused.err
    )


def test_a_key_that_looks_like_an_option_stands_behind_dashes_in_what_is_advised(
    typed: Typed, command: Command, root: Path, job: GrownJob
) -> None:
    put(job, **{"u-5": 1})
    put(job, **{"u-5": -1})
    words = ("bisect", "orders", "balance", "total", "--first", "value < 0")
    said = command(*words, "--checkpoint-dir", root, "--", -5)
    debug = "`stateflow debug FILE:PIPELINE balance --job orders --at"
    assert f"{debug} 9 --checkpoint-dir {root} -- -5` shows why" in said.err
    assert f"{debug} 5 1 --checkpoint-dir {root}` shows why" in typed(*words, 1).err
    refused = typed("query", "orders", "balance", "total", -5)
    assert refused.code == 2
    assert "No such option: -5. A value that begins with - stands behind --" in " ".join(refused.err.split())


def test_a_bisection_finds_when_it_went_wrong(typed: Typed, root: Path) -> None:
    said = typed("bisect", "orders", "balance", "total", 1, "--first", "value < 0")
    assert said.code == 0, said.err
    assert "checkpoint 5 is the first one" in said.err
    assert f"`stateflow diff orders 4 5 --checkpoint-dir {root}` shows what changed" in said.err
    answer = typed("bisect", "orders", "balance", "total", 1, "--first", "value < 0", "-o", "json").json
    assert (answer["checkpoint"], answer["value"], answer["before"], answer["previous"]) == (5, -3, 4, 8)
    assert answer["look_ups"] <= 3


def test_a_condition_on_the_value_before_looks_at_every_checkpoint(typed: Typed) -> None:
    answer = typed(
        "bisect", "orders", "balance", "total", 1, "--first", "value < previous", "-o", "json"
    ).json
    assert (answer["checkpoint"], answer["scanned"], answer["look_ups"]) == (5, True, 4)


def test_a_python_function_is_a_condition_too(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def wrong(value):\n    return value is not None and value < 0\n")
    found = typed("bisect", "orders", "balance", "total", 1, "--first", f"{file}:wrong", "-o", "json").json
    assert found["checkpoint"] == 5


def test_a_function_that_fails_on_nothing_says_what_it_gets(typed: Typed, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def wrong(value):\n    return value < 0\n")
    said = typed("bisect", "orders", "balance", "total", 3, "--first", f"{file}:wrong")
    assert said.code != 0
    assert f"{file}:wrong failed: TypeError: " in said.err
    assert "; where there is nothing it gets None" in said.err


def test_a_check_reaches_the_modules_beside_its_file(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "limits_of_checks.py").write_text("LEAST = 0\n")
    file = tmp_path / "wrong.py"
    file.write_text(
        "import limits_of_checks\n\n\n"
        "def wrong(value):\n    return value is not None and value < limits_of_checks.LEAST\n"
    )
    found = typed("bisect", "orders", "balance", "total", 1, "--first", f"{file}:wrong", "-o", "json").json
    assert found["checkpoint"] == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def wrong(value:\n", "line 1: '(' was never closed"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError"),
        ("raise SystemExit\n", "line 1: SystemExit"),
    ],
)
def test_a_check_file_that_does_not_load_is_told_with_the_place(
    typed: Typed, tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(text)
    said = typed("bisect", "orders", "balance", "total", 1, "--first", f"{file}:wrong")
    assert said.code == UserCodeError.exit_code
    assert f"{file}, {why}" in said.err
    assert "once the file loads" in said.err
    assert "not expected" not in said.err


def test_a_state_that_was_renamed_and_keys_of_another_type_are_told(typed: Typed, job: GrownJob) -> None:
    job.schemas = {("sum" if name == "total" else name): schema for name, schema in job.schemas.items()}
    last = put(job, u1=9)
    gone = typed("bisect", "orders", "balance", "total", 1, "--first", "value < 0")
    assert (
        gone.code,
        "its states are brief, idle, items, kept, log, sum; --until 7 searches" in gone.err,
    ) == (3, True)
    assert "checkpoint 5 is the first one" in typed(
        "bisect", "orders", "balance", "total", 1, "--first", "value < 0", "--until", 7
    ).err  # fmt: skip
    operator, model = job.operator(), job.model
    texts = msgspec.structs.replace(operator, key=(("user", "str"),))
    other = job.record(texts, {})
    job.record(operator, model)
    said = typed("history", "orders", "balance", "sum", 1)
    sentence = (
        f"in checkpoint {other} the operator had keys of another type, and the key was not looked up there"
    )
    assert sentence in said.err
    versions = typed("history", "orders", "balance", "sum", 1, "-o", "json").json["versions"]
    assert [(v["checkpoint"], v["what"]) for v in versions] == [
        (last, "set"), (other, "undeclared"), (other + 1, "set"),
    ]  # fmt: skip
    found = typed("bisect", "orders", "balance", "sum", 1, "--first", "value IS NULL", "--since", last)
    assert "holds in no checkpoint" in found.err, "a key that is not looked up is not missing"
    assert sentence in found.err
    refused = typed("diff", "orders", last, other)
    assert "choose other operators with --operator, or two points on one side of that change" in refused.err


def test_where_a_state_had_a_type_that_the_condition_does_not_fit_is_told(
    typed: Typed, job: GrownJob
) -> None:
    job.schemas = {
        **job.schemas,
        "total": msgspec.structs.replace(job.schemas["total"], value="str", versions=()),
    }
    last = job.batch(lambda model: {full(TOTAL, 1): _str.dumps("lost"), full(TOTAL, 2): _str.dumps("a")})
    for key in (("1",), ("--any",)):
        said = typed("bisect", "orders", "balance", "total", *key, "--first", "value = 'lost'")
        assert f"checkpoint {last} is the first one" in said.err
        assert (
            "in checkpoint 2, 3, 4, 5, 6, 7 the state had another type, which the condition does not fit"
            in said.err
        )
    refused = typed("bisect", "orders", "balance", "total", 1, "--first", "value < 0")
    assert (refused.code, "does not take string and number" in refused.err) == (2, True), refused.err


def test_values_that_are_cut_are_said_to_be(command: Command, root: Path) -> None:
    job = GrownJob(root)
    for number in range(2):
        entry = {full(LOG, 1) + list_position(1, 0): _str.dumps("x" * 90 + str(number))}
        job.batch(lambda model, entry=entry: entry)  # type: ignore[misc]
    place = ("--checkpoint-dir", root)
    sentence = "values are cut after 60 characters: -o json has them whole"
    assert sentence in command("history", "orders", "balance", "log", 1, *place).err
    assert sentence in command("diff", "orders", 2, 3, *place).err
    assert sentence not in command("history", "orders", "balance", "log", 2, *place).err
    whole = command("history", "orders", "balance", "log", 1, "-o", "json", *place).json["versions"]
    assert [len(version["value"][0]) for version in whole] == [91, 91]


def test_what_changes_behind_the_entries_that_are_shown_is_a_change(
    command: Command, root: Path, tmp_path: Path
) -> None:
    job = GrownJob(root)
    for batch in range(3):
        entries = {
            full(LOG, 1) + list_position(batch, n): _str.dumps("x") for n in range(3 if batch else 1000)
        }
        job.batch(lambda model, entries=entries: entries)  # type: ignore[misc]
    place = ("--checkpoint-dir", root, "-o", "json")
    said = command("history", "orders", "balance", "log", 1, *place).json["versions"]
    assert [(v["checkpoint"], v["what"], v["more"]) for v in said] == [
        (2, "kept", False),
        (3, "changed", True),
        (4, "changed", True),
    ]
    (tmp_path / "checks.py").write_text("def long(value):\n    return len(value) > 1005\n")
    first = f"{tmp_path / 'checks.py'}:long"
    assert command("bisect", "orders", "balance", "log", 1, "--first", first, *place).json["checkpoint"] == 4


def test_of_the_oldest_checkpoint_nobody_knows_what_was_before(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text("def new(value, previous):\n    return previous is None\n")
    said = typed("bisect", "orders", "balance", "total", 1, "--first", f"{tmp_path / 'checks.py'}:new")
    assert said.code == 0, said.err
    assert "holds in no checkpoint that was looked at" in said.err


def test_any_key_of_a_state_is_found_by_what_changed(typed: Typed) -> None:
    answer = typed("bisect", "orders", "balance", "total", "--any", "--first", "value = 4", "-o", "json").json
    assert (answer["checkpoint"], answer["key"]) == (5, "3")
    nothing = typed("bisect", "orders", "balance", "total", "--any", "--first", "value = 44")
    assert "value = 44 holds in no checkpoint" in nothing.err
    gone = typed(
        "bisect", "orders", "balance", "total", "--any", "--first", "value IS NULL", "-o", "json"
    ).json
    assert (gone["checkpoint"], gone["key"], gone["value"], gone["previous"]) == (6, "3", None, 4)


def test_of_several_entries_of_a_key_the_one_that_was_found_is_named(command: Command, root: Path) -> None:
    job = GrownJob(root, schemas=EVERY_KIND)
    for number in (1, 9):
        job.batch(lambda model, number=number: job.put(model, "items", 1, number, "sku7"))  # type: ignore[misc]
        job.batch(lambda model, number=number: job.put(model, "open", 1, number, "", "noon"))  # type: ignore[misc]
    place = ("--any", "--first", "value > 5", "--checkpoint-dir", root)
    for state, entry in (
        ("items", {"namespace": None, "part": "sku7"}),
        ("open", {"namespace": "noon", "part": None}),
    ):
        found = command("bisect", "orders", "balance", state, *place, "-o", "json").json
        assert found | entry == found
        shown = command("bisect", "orders", "balance", state, *place).out
        assert next(iter(filter(None, entry.values()))) in shown


def test_any_key_is_not_looked_for_where_keys_had_another_type(typed: Typed, job: GrownJob) -> None:
    operator, model = job.operator(), job.model
    other = job.record(msgspec.structs.replace(operator, key=(("user", "str"),)), {})
    job.record(operator, model)
    said = typed("bisect", "orders", "balance", "total", "--any", "--first", "value = 44")
    assert f"in checkpoint {other} the operator had keys of another type" in said.err, said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("history", "orders", "balance", "totals", 1), "has no state 'totals' in checkpoint 7: its states are brief"),
        (("history", "orders", "nobody", "total", 1), "has no operator 'nobody': its operators are balance"),
        (("history", "orders", "balance", "total", "a"), "'a'"),
        (("history", "nothing", "balance", "total", 1), "there is no job 'nothing'"),
        (("history", "orders", "balance", "total", 1, "-p", "a=b"), "name their pipeline with --rows FILE:PIPELINE, or leave them out"),
        (("history", "orders", "balance", "total", 1, "--since", 99), "keeps no checkpoint in that time: its newest one is 7"),
        (("diff", "orders", 3, 99), "has no checkpoint 99 (any more): it keeps 2, 3, 4, 5, 6, 7"),
        (("diff", "orders", 3, "tag:none"), "has no tag 'none'; its tags are: none"),
        (("diff", "orders", 3, 4, "--all", "x.csv"), "end it in .parquet or .jsonl"),
        (("diff", "orders", 3, 4, "--state", "nothing"), "has a state 'nothing': their states are brief"),
        (("diff", "orders", 3, 4, "--state", "total", "--state", "totl"), "has a state 'totl': their states are brief"),
        (("diff", "orders", 3, 4, "--operator", "balance", "--state", "totl"), "has a state 'totl' of balance: their states are brief"),
        (("bisect", "orders", "balance", "total", 1), "say what is wrong: --first 'value < 0'"),
        (("bisect", "orders", "balance", "total", "--first", "value < 0"), "name a key, or search all keys of the state with --any"),
        (("bisect", "orders", "balance", "items", "--any", "--map-key", "a", "--first", "value < 0"), "--any looks at every entry of the state: leave out --map-key"),
        (("bisect", "orders", "balance", "total", 1, "--first", "amount < 0"), "needs column 'amount', but the state has none; it has value, previous"),
        (("bisect", "orders", "balance", "total", 1, "--first", "abs(value) > 5"), "conditions have no functions: give a Python function, as FILE:FUNCTION"),
        (("bisect", "orders", "balance", "log", 1, "--first", "value < 0"), "have no columns for a condition: give a Python function"),
        (("bisect", "orders", "balance", "total", 1, "--first", "none.py:wrong"), "there is no file none.py"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_refused_in_one_sentence(
    typed: Typed, arguments: tuple[Any, ...], sentence: str
) -> None:
    said = typed(*arguments)
    assert said.code in (2, 3), said.out
    assert sentence in said.err
    assert "Traceback" not in said.err


def test_an_erased_key_is_gone_from_its_history(command: Command, root: Path, job: GrownJob) -> None:
    erased = command("state", "erase", "orders", 1, "--yes", "--checkpoint-dir", root)
    assert erased.code == 0, erased.err
    versions = command(
        "history", "orders", "balance", "total", 1, "-o", "json", "--checkpoint-dir", root
    ).json["versions"]
    assert [(v["kind"], v["what"], v["value"]) for v in versions] == [("erase", "not there", None)]
    refused = command("diff", "orders", 5, "latest", "--checkpoint-dir", root)
    assert "has no checkpoint 5 (any more)" in refused.err


def test_a_misspelt_key_erases_nothing(command: Command, root: Path, job: GrownJob) -> None:
    before = {entry.path for entry in job.store.list("")}
    said = command("state", "erase", "orders", 11, "--yes", "--checkpoint-dir", root)
    assert said.code == 3
    assert "has nothing under the key '11'" in said.err
    assert "--absent" in said.err
    assert {entry.path for entry in job.store.list("")} == before
    done = command(
        "state", "erase", "orders", 11, "--absent", "--yes", "-o", "json", "--checkpoint-dir", root
    )
    assert (done.json["entries_found"], done.json["entries"]) == ({"balance": 0}, 0)


def test_operators_that_an_erasure_does_not_look_at_are_named(
    command: Command, root: Path, job: GrownJob
) -> None:
    pairs = operator_of((), key=(("user", "int"), ("shop", "str")))
    job.decide(operators={**job.head().operators, "pairs": pairs})
    named = "pairs, whose key is (user int, shop str) as a JSON array, or its parts with commas between"
    said = command("state", "erase", "orders", 1, "--checkpoint-dir", root)
    assert named in said.out
    assert "balance (1 entry)" in said.out
    done = command("state", "erase", "orders", 1, "--yes", "--checkpoint-dir", root)
    assert f"not looked at: {named}" in done.out.splitlines()[-1]
    assert done.code == 0
