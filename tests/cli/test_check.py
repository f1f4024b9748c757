"""check: whether a file fits the job's state, told without Spark."""

from __future__ import annotations

import json
import os
import shutil
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Command, Said
from tests.jobs.made import ORDERS, made_job
from tests.jobs.queried import QueriedJob, entries_of, filled


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(ORDERS, tmp_path / "here_orders.py"))


def edited(file: Path, before: str, after: str) -> Path:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    return file


def test_the_code_that_made_the_state_fits_and_its_parameters_are_known(
    command: Command, root: Path, file: Path
) -> None:
    made_job(root)
    said = command("check", f"{file}:orders", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 0
    assert said.json == {
        "pipeline": "orders",
        "job": "orders",
        "checkpoint": 4,
        "compatible": True,
        "operators": [
            {
                "uid": "balance",
                "verdict": "compatible",
                "states": {"total": "kept", "orders": "kept"},
                "problem": "",
                "evolution": {},
                "entries": None,
                "counts": {},
                "options": {"columns of input 0": "user, amount, ts"},
                "combines": False,
            }
        ],
        "sources": {"events": "continues"},
        "sinks": {"totals": "continues"},
        "warnings": [
            "source 'events': there is no Delta table at /data/orders: correct the path, or run what writes the table first"
        ],
        "problems": [],
    }


def test_a_changed_type_does_not_fit(command: Command, root: Path, file: Path) -> None:
    made_job(root)
    edited(file, "sf.ValueState(float, default=0.0, queryable=True)", "sf.ValueState(str, default='')")
    said = command("check", f"{file}:orders", "--checkpoint-dir", root)
    assert said.code == 4
    assert "operator 'balance', state 'total': its type was" in said.err
    assert "incompatible" in said.out


def test_a_changed_key_does_not_fit(command: Command, root: Path, file: Path) -> None:
    made_job(root)
    edited(file, "    user: int\n    amount", "    user: str\n    amount")
    said = command("check", f"{file}:orders", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 4
    assert said.json["compatible"] is False
    assert "keyed by user (int)" in said.json["problems"][0]


def test_a_source_of_another_kind_does_not_fit(command: Command, root: Path, file: Path) -> None:
    made_job(root)
    edited(file, 'sf.delta(input, options={"maxFilesPerTrigger": "1"})', "sf.files(input, 'json')")
    said = command("check", f"{file}:orders", "--checkpoint-dir", root, "-o", "json")
    assert said.code == 4
    assert said.json["compatible"] is False
    assert said.json["sources"] == {"events": "incompatible"}
    (problem,) = said.json["problems"]
    assert problem in said.err
    assert "source 'events' is now a file source but the checkpoint holds a delta offset" in problem


def test_state_without_an_operator_is_told_and_may_be_allowed(
    command: Command, root: Path, file: Path
) -> None:
    made_job(root)
    edited(file, '"balance"', '"sum"')
    arguments = ("check", f"{file}:orders", "--checkpoint-dir", root, "-o", "json")
    said = command(*arguments)
    assert said.code == 4
    assert "'balance' has no operator" in said.json["problems"][0]
    allowed = command(*arguments, "--allow-non-restored-state")
    assert allowed.code == 0
    assert {o["uid"]: o["verdict"] for o in allowed.json["operators"]} == {"sum": "new", "balance": "dropped"}


def test_states_that_come_and_go_are_told(command: Command, root: Path, file: Path) -> None:
    made_job(root)
    edited(
        file,
        "    orders = sf.ValueState(int, default=0)",
        "    count = sf.ValueState(int, default=0, aliases=['orders'])",
    )
    edited(file, "self.orders.value", "self.count.value")
    edited(file, "    count = sf", "    seen = sf.ListState(str)\n    count = sf")
    operators = command("check", f"{file}:orders", "--checkpoint-dir", root, "-o", "json").json["operators"]
    assert operators[0]["states"] == {"total": "kept", "seen": "new", "count": "renamed from orders"}


def test_another_parallelism_fits_up_to_the_number_of_key_groups(
    command: Command, root: Path, file: Path
) -> None:
    made_job(root)
    fits = command("check", f"{file}:orders", "--checkpoint-dir", root, "--parallelism", "4")
    assert fits.code == 0
    said = command("check", f"{file}:orders", "--checkpoint-dir", root, "--parallelism", "200")
    assert said.code == 2
    assert "max_parallelism (128" in said.err


def test_a_job_that_is_not_there_yet_is_new(command: Command, root: Path, file: Path) -> None:
    arguments = ("check", f"{file}:orders", "-p", "input=a", "-p", "output=b")
    for extra in ((), ("--checkpoint-dir", root)):
        said = command(*arguments, *extra, "-o", "json")
        assert said.code == 0
        assert said.json["checkpoint"] is None
        assert said.json["operators"][0]["verdict"] == "new"


def test_a_root_that_is_not_there_is_told_because_a_slip_in_it_would_pass_every_release(
    command: Command, root: Path, file: Path
) -> None:
    check = ("check", f"{file}:orders", "-p", "input=a", "-p", "output=b", "--checkpoint-dir", root)
    said = command(*check)
    assert said.code == 0, "the first run of all makes the root"
    warning = f"nothing was compared, because the checkpoint root {root} does not exist: check checkpoint_dir"
    assert f"warning: {warning}" in said.err
    assert command(*check, "-o", "json").json["warnings"][0].startswith(warning)
    assert not root.exists()
    made_job(root, "others")
    assert "nothing was compared" not in command(*check).err


def test_without_a_root_it_says_that_nothing_was_compared(
    command: Command, root: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_job(root)
    edited(file, "sf.ValueState(float, default=0.0, queryable=True)", "sf.ValueState(str, default='')")
    check = ("check", f"{file}:orders", "-p", "input=/data/in", "-p", "output=/data/out")
    for variable in (v for v in os.environ if v.startswith("STATEFLOW_") and v != "STATEFLOW_CACHE_DIR"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", "")
    said = command(*check)
    assert said.code == 0
    assert "warning: no checkpoint root is set, so nothing was compared\n" in said.err
    assert "compared with no checkpoint\n" in said.out
    assert command(*check, "-o", "json").json["warnings"][0].startswith("no checkpoint root is set")
    monkeypatch.delenv("STATEFLOW_CHECKPOINT_DIR")
    monkeypatch.setenv("STATEFLOW_ROOT", str(root))
    monkeypatch.setenv("STATEFLOW_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("STATEFLOW_UI_PORT_80_TCP", "tcp://10.0.0.1:80")
    assert (
        "warning: no checkpoint root is set, so nothing was compared (STATEFLOW_ROOT sets no option: the root is in "
        "STATEFLOW_CHECKPOINT_DIR)\n"
    ) in command(*check).err
    monkeypatch.setenv("stateflow_checkpoint_dir", str(root))
    said = command(*check)
    assert said.code == 2
    assert (
        "the variable stateflow_checkpoint_dir sets no option, since letters count: call it STATEFLOW_CHECKPOINT_DIR"
        in said.err
    )
    monkeypatch.delenv("stateflow_checkpoint_dir")
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", str(root))
    assert command(*check).code == 4, "the advice works"


def test_a_job_that_is_named_has_to_be_there(command: Command, root: Path, file: Path) -> None:
    made_job(root)
    assert command("check", f"{file}:orders", "--job", "other", "--checkpoint-dir", root).code == 3
    assert command("check", f"{file}:orders", "--job", "orders", "--checkpoint-dir", root).code == 0


def test_parameters_have_to_be_known_and_complete(command: Command, file: Path) -> None:
    unknown = command("check", f"{file}:orders", "-p", "inputs=a")
    assert unknown.code == 2
    assert "no parameter 'inputs'; it takes: input, output" in unknown.err
    missing = command("check", f"{file}:orders", "-p", "input=a")
    assert missing.code == 2
    assert "-p output=VALUE" in missing.err
    unreadable = command("check", f"{file}:orders", "-p", "input")
    assert unreadable.code == 2
    assert "-p NAME=VALUE" in unreadable.err


def test_what_the_flow_itself_shows_is_refused_without_a_job(command: Command, file: Path) -> None:
    given = ("-p", "input=a", "-p", "output=b")
    edited(file, "sf.delta(output)", "output")
    target = command("check", f"{file}:orders", *given)
    assert (target.code, "cannot write to 'b': give it delta(path), here sf.delta('b')" in target.err) == (
        2,
        True,
    )
    edited(file, "def process(", "def proces(")
    misspelt = command("check", f"{file}:orders", *given)
    assert (misspelt.code, "proces is never called: did you mean process?" in misspelt.err) == (2, True)


def test_two_uids_alike_of_one_kind_are_refused(command: Command, file: Path) -> None:
    edited(file, 'totals.append("totals"', 'totals.append("balance"')
    assert command("check", f"{file}:orders", "-p", "input=a", "-p", "output=b").code == 0
    edited(file, "totals.append(", 'totals.append("balance", sf.delta("/c"))\n    totals.append(')
    said = command("check", f"{file}:orders", "-p", "input=a", "-p", "output=b")
    assert said.code == 2
    assert "sink uid 'balance' is taken: no two sinks" in said.err


def test_a_type_that_changes_by_rule_is_told_and_strict_refuses_it(
    command: Command, root: Path, file: Path
) -> None:
    made_job(root)
    edited(
        file,
        "sf.ValueState(float, default=0.0, queryable=True)",
        "sf.ValueState(float | None, queryable=True)",
    )
    arguments = ("check", f"{file}:orders", "--checkpoint-dir", root, "-o", "json")
    said = command(*arguments)
    assert said.code == 0
    [operator] = said.json["operators"]
    assert operator["states"]["total"] == "kept, evolves by rules: may be None now"
    assert operator["evolution"]["total"]["changes"] == ["may be None now"]
    refused = command(*arguments, "--strict")
    assert refused.code == 4
    assert "the type of state balance.total changes: leave out --strict" in refused.err
    assert command(*arguments[:-2]).code == 0
    for others in (("run",), ("restore", "orders", "--from", "latest")):
        also = command(*others, f"{file}:orders", "--checkpoint-dir", root, "--strict")
        assert (also.code, "the type of state balance.total changes" in also.err) == (4, True), also.err


def test_the_entries_of_each_changed_state_are_counted(command: Command, root: Path, file: Path) -> None:
    job = QueriedJob(root)
    job.checkpoint(entries_of(filled(1, 2, 3)))
    edited(file, "total = sf.ValueState(float,", 'sum = sf.ValueState(float | None, aliases=["total"],')
    edited(file, "orders = sf.ValueState(int, default=0)", "log = sf.ListState(str | None)")
    edited(file, "self.total.value += row.amount", "self.sum.value = row.amount")
    edited(file, "self.orders.value += 1", "self.log.add(None)")
    edited(file, "self.orders.value, self.total.value", "1, 1.0")
    arguments = ("check", f"{file}:orders", "--checkpoint-dir", root, "--allow-non-restored-state")
    arguments = (*arguments, "-p", "input=a", "-p", "output=b")
    [operator] = command(*arguments, "--count", "-o", "json").json["operators"]
    assert operator["counts"] == {"sum": 3, "log": 6}
    assert "sum has 3 entries, log has 6 entries, which are converted as they are read" in (
        command(*arguments, "--count").err
    )
    [operator] = command(*arguments, "-o", "json").json["operators"]
    assert operator["counts"] == {}
    assert operator["evolution"].keys() == {"sum", "log"}


def test_a_restore_plan_counts_the_entries_of_each_changed_state(
    command: Command, root: Path, file: Path
) -> None:
    job = QueriedJob(root)
    job.checkpoint(entries_of(filled(1, 2, 3)))
    edited(file, "total = sf.ValueState(float,", "total = sf.ValueState(float | None,")
    arguments = ("restore", "orders", f"{file}:orders", "--from", "latest", "--checkpoint-dir", root)
    arguments = (*arguments, "--allow-non-restored-state", "-p", "input=a", "-p", "output=b")
    told = "total has 3 entries, which are converted as they are read"
    assert told in command(*arguments, "--count").out
    assert told not in command(*arguments).out
    [operator] = command(*arguments, "--count", "-o", "json").json["operators"]
    assert operator["counts"] == {"total": 3}


def test_a_state_under_another_name_and_type_is_refused_with_what_to_write(
    command: Command, root: Path, file: Path
) -> None:
    made_job(root)
    edited(
        file,
        "total = sf.ValueState(float, default=0.0, queryable=True)",
        "total_v2 = sf.ValueState(str, default='')",
    )
    said = command("check", f"{file}:orders", "--checkpoint-dir", root)
    assert said.code == 4
    assert 'aliases=("total",) and a function migrate=' in said.err
    edited(file, "    total_v2 =", '    forgets = ("total",)\n    total_v2 =')
    assert command("check", f"{file}:orders", "--checkpoint-dir", root).code == 0


def commit(table: Path, version: int, *columns: str) -> None:
    """A commit of a Delta table, which changes its columns if there are any."""
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in columns]
    schema = json.dumps({"type": "struct", "fields": fields})
    actions = [{"metaData": {"id": "t", "schemaString": schema}}] if columns else []
    lines = [*({"commitInfo": {"timestamp": 0}}, *actions), {"add": {"path": '{"metaData"'}}]
    (table / "_delta_log").mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (table / "_delta_log" / f"{version:020d}.json").write_text(text)


def snapshot(table: Path, version: int) -> None:
    """Delta's own checkpoint of what the commit of this version says; older commits are cleaned away."""
    log = table / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
    [metadata] = [action["metaData"] for action in actions if "metaData" in action]
    rows = [{"metaData": None, "txn": "x"}, {"metaData": metadata, "txn": None}]
    pq.write_table(pa.Table.from_pylist(rows), log / f"{version:020d}.checkpoint.parquet")
    for each in range(version + 1):
        (log / f"{each:020d}.json").unlink(missing_ok=True)


@pytest.mark.parametrize("known", [True, False])
def test_columns_that_a_local_table_lacks_are_told_with_the_statement_that_adds_them(
    command: Command, root: Path, file: Path, tmp_path: Path, known: bool
) -> None:
    table = tmp_path / "totals"
    arguments = ("check", f"{file}:orders", "-p", f"output={table}", "-p", "input=/in", "-o", "json")
    if known:
        made_job(root)
        arguments = (*arguments, "--checkpoint-dir", root)
    assert command(*arguments).code == 0  # there is no table yet

    def refused() -> str:
        said = command(*arguments)
        assert (said.code, said.json["compatible"], said.json["sinks"]) == (
            4,
            False,
            {"totals": "incompatible"},
        )
        return str(said.json["problems"][0])

    commit(table, 0, "user", "Orders")
    commit(table, 1)
    said = refused()
    assert said.startswith(
        f"sink 'totals': Delta table {table} has no column 'total': change the output or alter"
    )
    assert said.endswith(f"ALTER TABLE delta.`{table}` ADD COLUMNS (`total` DOUBLE)")
    snapshot(table, 0)
    assert "'total'" in refused()
    commit(table, 1, "user")
    assert "(`orders` BIGINT, `total` DOUBLE)" in refused()
    commit(table, 2, "user", "orders", "total", "more")
    assert command(*arguments).code == 0
    (table / "_delta_log" / f"{3:020d}.json").write_text('{"metaData"')
    assert command(*arguments).code == 0, "what it cannot read is left to the run"


def test_a_table_s_column_is_renamed_where_its_values_go_on_and_not_for_an_aggregate_that_begins_anew(
    command: Command, tmp_path: Path
) -> None:
    table, file = tmp_path / "totals", tmp_path / "renamed.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from typing import Annotated\n"
        "import stateflow as sf\n"
        "@dataclass\n"
        "class Total:\n"
        "    buyer: Annotated[int, sf.field(aliases=['user'])]\n"
        "    paid: Annotated[int, sf.field(aliases=['total'])]\n"
        "@sf.pipeline('renamed')\n"
        "def renamed(flow: sf.Flow) -> None:\n"
        "    rows = flow.source('orders', sf.delta('/in'), 'buyer long, amount long')\n"
        "    totals = rows.key_by('buyer').aggregate('totals', Total, paid=sf.sum('amount'))\n"
        f"    totals.upsert('out', sf.delta({str(table)!r}), keys='buyer')\n"
    )
    commit(table, 0, "user", "total")
    said = command("check", f"{file}:renamed", "--checkpoint-dir", tmp_path / "root", "-o", "json")
    assert said.code == 4
    [problem] = said.json["problems"]
    assert "RENAME COLUMN `user` TO `buyer`" in problem
    assert "ADD COLUMNS (`paid` BIGINT)" in problem


@pytest.mark.parametrize(
    "step",
    [
        ".key_by('store').top('top', 2, by='-takings', per='sku').upsert('out', table)",
        ".key_by('store', order_by='takings').latest('last').changes_as_rows(op='op').append('out', table)",
    ],
)
def test_so_is_one_of_rows_that_a_ready_made_operator_puts_out(
    command: Command, tmp_path: Path, step: str
) -> None:
    table, file = tmp_path / "out", tmp_path / "renamed.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from typing import Annotated\n"
        "import stateflow as sf\n"
        "@dataclass\n"
        "class Sale:\n"
        "    store: Annotated[str, sf.field(aliases=['shop'])]\n"
        "    sku: str\n"
        "    takings: Annotated[float, sf.field(aliases=['price'])]\n"
        f"table = sf.delta({str(table)!r})\n"
        "@sf.pipeline('renamed')\n"
        "def renamed(flow: sf.Flow) -> None:\n"
        f"    flow.source('sales', sf.files('/in', 'json'), Sale){step}\n"
    )
    commit(table, 0, "shop", "sku", "price", "rank", "op")
    said = command("check", f"{file}:renamed", "--checkpoint-dir", tmp_path / "root", "-o", "json")
    [problem] = said.json["problems"]
    assert "RENAME COLUMN `shop` TO `store`" in problem
    assert "RENAME COLUMN `price` TO `takings`" in problem
    assert "ADD COLUMNS" not in problem


def test_a_column_that_the_local_table_of_a_source_lacks_is_told_with_the_nearest_one(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    table, names = tmp_path / "orders", count()

    def warnings(schema: str, options: str = "") -> list[str]:
        # Python takes a file of the same name, size and second for the one that it has compiled.
        file = tmp_path / f"read_{next(names)}.py"
        file.write_text(
            "import stateflow as sf\n"
            '@sf.pipeline("read")\n'
            "def read(flow: sf.Flow) -> None:\n"
            f"    rows = flow.source('orders', sf.delta({str(table)!r}{options}), {schema!r})\n"
            "    rows.append('out', sf.delta('/out'))\n"
        )
        said = command("check", f"{file}:read", "--checkpoint-dir", tmp_path / "root", "-o", "json")
        assert said.code == 0, "where a file is checked there need not be the data"
        found: list[str] = said.json["warnings"]
        return found

    commit(table, 0, "id", "Amount", "currency")
    assert warnings("id long, Amount long") == []
    begins = f"source 'orders' declares 'amuont', and Delta table {table} has no such column: "
    assert warnings("id long, amuont long") == [f"{begins}did you mean Amount?"]
    assert "did you mean Amount?" in warnings("id long, amount long")[0], "a run refuses other letters, too"
    assert warnings("Amount long, amuont long") == [f"{begins}it has id, Amount, currency"]
    feed = "id long, _change_type string, _commit_version long, _commit_timestamp timestamp"
    assert warnings(feed, ", changes=True") == []
    commit(table, 1, "id", "amuont")
    assert warnings("id long, amuont long") == []


def test_the_column_that_says_what_is_deleted_is_no_column_of_the_table(
    command: Command, file: Path, tmp_path: Path
) -> None:
    upsert = 'totals.upsert("totals", sf.delta(output), keys="user", operation="total")'
    edited(file, 'totals.append("totals", sf.delta(output))', upsert)
    arguments = ("check", f"{file}:orders", "-p", f"output={tmp_path / 'totals'}", "-p", "input=/in")
    commit(tmp_path / "totals", 0, "user", "orders")
    assert command(*arguments).code == 0
    commit(tmp_path / "totals", 1, "user")
    assert "has no column 'orders'" in command(*arguments).err


def test_it_is_told_what_each_ready_made_operator_is(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "joined.py"
    file.write_text(
        """import stateflow as sf

@sf.pipeline("joined")
def joined(flow: sf.Flow) -> None:
    def read(uid):
        return flow.source(uid, sf.delta(f"/{uid}"), "id long, ts timestamp", event_time="ts", watermark="1 minute").key_by("id")
    read("lefts").join("pairs", read("rights"), "id long", within=("0 minutes", "5 minutes")).append("out", sf.delta("/out"))
    read("rows").aggregate("counts", "id long, n long", n=sf.count()).upsert("counted", sf.delta("/counted"))
"""
    )
    said = command("check", f"{file}:joined").out
    assert "inner interval join of lefts with rights, within 0 to 5 minutes" in said
    assert "running aggregate n; a batch is summed up before the shuffle if that pays" in said


def test_a_table_that_is_not_there_is_told_and_a_run_is_refused_before_spark_starts(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    file = tmp_path / "read.py"
    file.write_text(
        "import stateflow as sf\n"
        '@sf.pipeline("read")\n'
        "def read(flow: sf.Flow, table: str) -> None:\n"
        '    flow.source("orders", sf.delta(table), "id long").append("out", sf.delta("/out"))\n'
    )
    given = (f"{file}:read", "-p", f"table={tmp_path}/orders")
    sentence = f"source 'orders': there is no Delta table at {tmp_path}/orders: correct the path, or run what writes the table first"
    assert command("check", *given, "--checkpoint-dir", tmp_path / "root", "-o", "json").json["warnings"] == [
        sentence
    ]
    monkeypatch.setattr(
        "stateflow.spark.runner.build_session", lambda *_, **__: pytest.fail("Spark was started")
    )
    refused = command("run", *given, "--checkpoint-dir", tmp_path / "root")
    assert (refused.code, refused.err.splitlines()[-1]) == (3, f"stateflow: {sentence}")
    (tmp_path / "orders" / "_delta_log").mkdir(parents=True)
    assert (
        command("check", *given, "--checkpoint-dir", tmp_path / "root", "-o", "json").json["warnings"] == []
    )


def test_a_folder_of_files_that_is_not_there_is_told_before_a_run_fails(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    file = tmp_path / "read.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "import stateflow as sf\n"
        "@dataclass\n"
        "class Order:\n"
        "    id: int\n"
        '@sf.pipeline("read")\n'
        "def read(flow: sf.Flow, folder: str) -> None:\n"
        '    flow.source("orders", sf.files(folder, "json"), Order).append("out", sf.delta("/out"))\n'
    )
    absent = tmp_path / "orders"

    def checked(folder: object) -> Said:
        return command(
            "check",
            f"{file}:read",
            "-p",
            f"folder={folder}",
            "--checkpoint-dir",
            tmp_path / "root",
            "-o",
            "json",
        )

    def warnings(folder: object) -> list[str]:
        found: list[str] = checked(folder).json["warnings"]
        return found

    assert checked(absent).code == 0, "where a file is checked there need not be the data"
    assert warnings(absent) == [f"source 'orders': there is no folder {absent}: make it, or correct the path"]
    for there in ("s3a://bucket/orders", f"{tmp_path}/2026-*"):
        assert warnings(there) == []
    absent.touch()
    assert warnings(absent) == [
        f"source 'orders': {absent} is a file, and a source reads a folder: give sf.files the folder {tmp_path}"
    ]
    absent.unlink()
    absent.mkdir()
    assert warnings(absent) == []
    for name in ("day=2026-01-01", "_spark_metadata", ".staging"):
        (absent / name).mkdir()
    assert warnings(absent) == []
    (absent / "2026").mkdir()
    assert warnings(absent) == [
        (
            f"source 'orders': files in subfolders of {absent}, such as 2026, are not read: give sf.files "
            "options={'recursiveFileLookup': 'true'} if they are meant"
        )
    ]
    file.write_text(file.read_text().replace('"json"', '"json", options={"recursiveFileLookup": "true"}'))
    assert warnings(absent) == []
    for name in ("1.json", "_draft.json", ".hidden.json"):
        (absent / name).touch()
    (tmp_path / "elsewhere.json").touch()
    for name, target in (
        ("2.json", ".hidden.json"),
        ("3.json", tmp_path / "elsewhere.json"),
        ("_4.json", "1.json"),
    ):
        (absent / name).symlink_to(target)
    assert warnings(absent) == []
    (absent / "5.json").symlink_to("1.json")
    assert warnings(absent) == [
        (
            f"source 'orders': {absent}/5.json is a link to another file of its folder, whose rows would be read twice: remove it, or put "
            "files that are not to be read into another folder"
        )
    ]


@pytest.mark.parametrize("more", [(), ("-o", "json"), ("--debug",)])
def test_a_password_in_a_line_of_the_pipeline_is_not_shown(
    command: Command, root: Path, file: Path, more: tuple[str, ...]
) -> None:
    edited(file, "sf.delta(output)", 'sf.postgres("public.t", connection="postgresql://etl:geheim@db/shop")')
    said = command(
        "check", f"{file}:orders", "-p", "input=a", "-p", "output=b", "--checkpoint-dir", root, *more
    )
    assert said.code == 2
    assert "the connection has a password, which would stand in records" in said.err
    assert "postgresql://etl:***@db/shop" in said.err
    assert "geheim" not in said.out + said.err
