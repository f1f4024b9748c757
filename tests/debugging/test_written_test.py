"""A key of a past batch as a pytest file: it fails on the faulty code and passes on the mended one. None of this starts Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag, auto
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest

from stateflow.debugging.literals import Literals, Unwritable
from stateflow.debugging.past_key import PastKey, operator_of
from stateflow.debugging.trial import Trial, tried
from stateflow.debugging.written_test import Expectation, write_test
from stateflow.errors import UsageError
from stateflow.format.instants import BEGIN_OF_TIME, micros_since_epoch
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.context import Moment
from stateflow.pipelines.loading import LoadedPipeline, load_pipeline
from stateflow.pipelines.rows.row_type import RowType
from stateflow.spark.batches.key_rows import InputRows, KeyRows
from stateflow.testing import ColumnarHarness, KeyedHarness
from tests.jobs.log import record

AT = datetime(2026, 11, 20, 10, 22, 7, tzinfo=UTC)
PIPELINE = """
from dataclasses import dataclass
from datetime import datetime, timedelta

import stateflow as sf

FACTOR = 2


@dataclass
class Last:
    amount: float
    at: datetime


class Balance(sf.KeyedProcess):
    total = sf.ValueState(float, default=0.0)
    last = sf.ValueState(Last)
    log = sf.ListState(str)
    remind = sf.Timer("processing")

    def process(self, user, rows, ctx):
        for row in rows:
            self.total.value += FACTOR * row.amount
            self.last.value = Last(row.amount, ctx.now)
            self.log.add(f"{ctx.checkpoint_id} {ctx.random.random()}")
        yield user, self.total.value

    @remind.fires
    def on_remind(self, user, when, ctx):
        self.log.add("reminded")


class Mean(sf.KeyedProcess):
    mean = sf.AggregatingState(list[float], create=list, add=lambda made, value: [*made, value], result=len)

    def process(self, user, rows, ctx):
        for row in rows:
            self.mean.add(FACTOR * row.amount)


@sf.pipeline("orders")
def orders(flow, *, password: str, input: str = "orders"):
    rows = flow.source("orders", sf.files(input, "json"), "user int, amount double")
    rows.key_by("user").process("balance", Balance, output="user int, total double").append("balances", sf.delta("balances"))
    rows.key_by("user").process("mean", Mean, output="user int").append("means", sf.delta("means"))
    sums = rows.key_by("user").aggregate("sums", "user int, amount double", amount=sf.sum("amount"))
    sums.upsert("sums", sf.delta("sums"), keys=["user"])
"""
STATES = {
    "total": 120.0,
    "log": ["first"],
    "remind": AT - timedelta(minutes=1),
}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedPipeline:
    return load(tmp_path)


def load(folder: Path, factor: str = "2") -> LoadedPipeline:
    (folder / "orders.py").write_text(PIPELINE.replace("FACTOR = 2", f"FACTOR = {factor}"))
    return load_pipeline("orders.py:orders", folder)


def past(loaded: LoadedPipeline, uid: str = "balance", states: Mapping[str, Any] = STATES) -> PastKey:
    """User 42 in the batch of checkpoint 318, which went wrong."""
    parameters = {"password": "xyz", "input": "orders"}
    flow = loaded.pipeline.build(parameters)
    node = operator_of(flow, uid)
    assert node.rows[0] is not None
    moment = Moment(318, micros_since_epoch(AT), 99, None, loaded.pipeline.arguments(parameters))
    kind: Any = KeyedHarness if node.columnar is None else ColumnarHarness
    harness = kind.of(flow, uid, parameters=moment.parameters)
    if node.columnar is None:
        harness.stand_at(slot=317, now=AT - timedelta(minutes=2), seed=98)
        harness.put(42, **states)
    else:
        harness.rows({"user": 42, "amount": 100.0})
    before = harness.recorded()
    harness.stand_at(slot=318, now=AT, seed=99)
    rows = taken(node.rows[0], [{"user": 42, "amount": -180.0}])
    harness.rows({"user": 42, "amount": -180.0})
    key_states = [each.of_key(uid, 42) for each in (before, harness.recorded())]
    first, then = (replace(each, now=moment.now, watermark=None) for each in key_states)
    made = record(318, operators={uid: then.operator})
    return PastKey("orders", flow, node, 42, "42", made, moment, rows, first, then, parameters)


def taken(of: RowType, rows: Sequence[Mapping[str, Any]]) -> KeyRows:
    table = pa.Table.from_pylist(list(rows), schema=arrow_schema_of(of))
    return KeyRows((InputRows(of, table, (False,) * len(rows), True),), ("int",))


def trial_of(past: PastKey) -> Trial:
    trial = tried(past)
    assert trial is not None
    return trial


def pytest_of(file: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file.name],
        cwd=file.parent, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_rows_are_of_the_class_that_the_pipeline_says(tmp_path: Path) -> None:
    """The operator calls their methods."""
    payment = "@dataclass\nclass Payment:\n    user: int\n    amount: float\n\n    def worth(self):\n        return FACTOR * self.amount\n"
    code = PIPELINE.replace("@dataclass\nclass Last", f"{payment}\n\n@dataclass\nclass Last", 1)
    code = code.replace("FACTOR * row.amount", "row.worth()").replace(
        '"json"), "user int, amount double")', '"json"), Payment)'
    )
    code = code.replace('"user int, amount double", amount=', '"user long, amount double", amount=')
    (tmp_path / "orders.py").write_text(code)
    loaded = load_pipeline("orders.py:orders", tmp_path)

    said = write_test(
        trial_of(past(loaded)), loaded, tmp_path / "test_42.py", Expectation("total", "value = -240")
    )

    assert "passes with this code" in said


@pytest.mark.slow
def test_it_fails_on_the_faulty_code_and_passes_on_the_mended_one(
    loaded: LoadedPipeline, tmp_path: Path
) -> None:
    trial = trial_of(past(loaded))
    assert trial.is_same
    file = tmp_path / "tests" / "test_42.py"

    said = write_test(trial, loaded, file, Expectation("total", "value = previous - 180"))

    assert said.startswith(
        f"wrote {file}, which fails with this code: value = previous - 180 does not hold: total of key 42 is -240.0"
    )
    code, out = pytest_of(file)
    assert code == 1, out
    assert "does not hold: total of key 42 is -240.0, and was 120.0 before the batch" in out
    load(tmp_path, "1")
    code, out = pytest_of(file)
    assert code == 0, out


def test_the_file_reads_as_state_rows_and_the_time_of_the_batch(
    loaded: LoadedPipeline, tmp_path: Path
) -> None:
    file = tmp_path / "test_42.py"
    write_test(trial_of(past(loaded)), loaded, file, Expectation("total", "value = -60"))

    text = file.read_text()
    for line in (
        "KEY = 42",
        "    'total': 120.0,",
        "    'log': ['first'],",
        "    'remind': datetime(2026, 11, 20, 10, 21, 7, tzinfo=UTC),",
        "    {'user': 42, 'amount': -180.0},",
        "        now=datetime(2026, 11, 20, 10, 22, 7, tzinfo=UTC),",
        "        slot=318,",
        "        seed=99,",
        "    'password': '***',",
        "    harness.expect('value = -60', of='total', key=KEY)",
    ):
        assert line in text.splitlines(), text
    assert "xyz" not in text, "a secret is not written"
    assert "RecordedState" not in text


def test_a_value_as_json_is_another_way_to_say_what_is_right(loaded: LoadedPipeline, tmp_path: Path) -> None:
    trial, file = trial_of(past(loaded)), tmp_path / "test_log.py"
    right = json.dumps(trial.then["log"])
    assert "passes with this code" in write_test(trial, loaded, file, Expectation("log", value=right))
    other = tmp_path / "test_other.py"
    assert "fails with this code" in write_test(trial, loaded, other, Expectation("log", value='["first"]'))


def test_who_has_not_said_what_is_right_gets_a_place_for_it(loaded: LoadedPipeline, tmp_path: Path) -> None:
    file = tmp_path / "test_42.py"
    said = write_test(trial_of(past(loaded)), loaded, file, Expectation())

    assert "fails with this code" in said
    assert "    # Put the right values here. Checkpoint 318 holds:" in file.read_text()
    assert "    #     'total': -240.0" in file.read_text()


def test_a_watermark_before_the_first_instant_is_written_as_that_instant(
    loaded: LoadedPipeline, tmp_path: Path
) -> None:
    early = BEGIN_OF_TIME - 600_000_000
    found = past(loaded)
    found = replace(found, moment=replace(found.moment, watermark=early, watermark_before=early))
    file = tmp_path / "test_42.py"

    assert "passes with this code" in write_test(
        trial_of(found), loaded, file, Expectation("total", value="-240.0")
    )
    for name in ("watermark", "watermark_before"):
        assert f"        {name}=datetime(1, 1, 1, tzinfo=UTC)," in file.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("uid", ["mean", "sums"])
def test_state_that_has_no_literals_goes_in_as_it_is_stored(
    loaded: LoadedPipeline, tmp_path: Path, uid: str
) -> None:
    found = past(loaded, uid, {})
    if uid == "mean":
        filled = KeyedHarness.of(found.flow, uid)
        filled.rows({"user": 42, "amount": 1.0})
        before = replace(found.before, entries=filled.recorded().entries)
        found = replace(found, before=before)
    trial, file = trial_of(found), tmp_path / "test_42.py"
    state = next(iter(trial.after))

    said = write_test(trial, loaded, file, Expectation(state, value=json.dumps(trial.after[state])))

    assert "passes with this code" in said
    assert "# As people read it: {" in file.read_text()
    assert pytest_of(file)[0] == 0


@pytest.mark.slow
def test_classes_of_a_module_beside_the_pipeline_are_imported_once_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "lasts_of_orders.py").write_text(
        "from dataclasses import dataclass\nfrom datetime import datetime\n\n\n"
        "@dataclass\nclass Former:\n    amount: float\n    at: datetime\n"
    )
    beside = PIPELINE.replace("import stateflow as sf", "import lasts_of_orders\nimport stateflow as sf", 1)
    beside = beside.replace("ValueState(Last)", "ValueState(lasts_of_orders.Former)")
    (tmp_path / "orders.py").write_text(beside.replace("= Last(", "= lasts_of_orders.Former("))
    loaded = load_pipeline("orders.py:orders", tmp_path)
    former = sys.modules["lasts_of_orders"].Former(100.0, AT)
    trial, file = trial_of(past(loaded, states={**STATES, "last": former})), tmp_path / "tests" / "test_42.py"

    said = write_test(trial, loaded, file, Expectation("total", value="-240.0"))

    assert "passes with this code" in said
    assert "'last': Former(" in file.read_text()
    code, out = pytest_of(file)
    assert code == 0, out


@pytest.mark.parametrize("key", ["10 m²", "½ _ ①", "…"])
def test_any_key_makes_a_file_of_python(loaded: LoadedPipeline, tmp_path: Path, key: str) -> None:
    trial = trial_of(past(loaded))
    trial = replace(trial, past=replace(trial.past, text=key))
    file = tmp_path / "test_key.py"
    write_test(trial, loaded, file, Expectation("total", value="-240.0"))
    assert pytest_of(file)[0] == 0


def test_a_file_that_cannot_be_run_does_not_stay(
    loaded: LoadedPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = trial_of(past(loaded))

    def fails(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KeyedHarness, "batch", fails)
    with pytest.raises(KeyboardInterrupt):
        write_test(trial, loaded, tmp_path / "test_key.py", Expectation())
    assert not (tmp_path / "test_key.py").exists()


def test_what_is_wrong_about_an_expectation_is_said_before_a_file_is_written(
    loaded: LoadedPipeline, tmp_path: Path
) -> None:
    trial, file = trial_of(past(loaded)), tmp_path / "test_42.py"
    for expectation, why in (
        (
            Expectation(condition="value = 1"),
            r"several states: say of which, with --state \(last, log, remind, total\)",
        ),
        (Expectation("totl", "value = 1"), "no state 'totl' in checkpoint 318"),
        (Expectation("total", "valu = 1"), "valu"),
        (Expectation("log", value="first"), "is not JSON"),
    ):
        with pytest.raises(UsageError, match=why):
            write_test(trial, loaded, file, expectation)
        assert not file.exists()
    file.write_text("mine")
    with pytest.raises(UsageError, match="is there already: name another file"):
        write_test(trial, loaded, file, Expectation())
    assert file.read_text() == "mine"


class Colour(Enum):
    RED = 1


class Right(Flag):
    READ = auto()
    WRITE = auto()


class Pair(NamedTuple):
    left: int
    right: tuple[str, ...]


class Struct(msgspec.Struct):
    colours: list[Colour]


def test_literals_make_the_same_values_again() -> None:
    module = ModuleType("code")
    module.Struct = Struct  # type: ignore[attr-defined]
    literals = Literals(module)
    value = {
        "a": [1, 2.5, None, True, b"x", float("inf")],
        1: Pair(1, ("x",)),
        "struct": Struct([Colour.RED]),
        "rights": [Right.READ | Right.WRITE, Right.READ, Right(0)],
        "times": (AT, AT.date(), timedelta(days=1, microseconds=5), Decimal("1.20")),
        "set": {1, 2},
        "empty": (),
    }

    text = literals.text(value)

    names: dict[str, Any] = {"CODE": module}
    exec("\n".join(literals.imports), names)
    assert eval(text, names) == value
    assert "CODE.Struct(" in text
    with pytest.raises(Unwritable):
        literals.text(object())
    with pytest.raises(Unwritable, match="not in UTC"):
        literals.text(datetime(2026, 1, 1))
