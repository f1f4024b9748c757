"""Releases as files: chains of up to five versions of a pipeline, each a file that the command runs, with restores between.

Whatever the chain, the totals of all rows come out at its end: a plain sum is the model. `STATEFLOW_LONG=1` tries more.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not os.environ.get("STATEFLOW_LONG"), reason="minutes each: STATEFLOW_LONG=1 runs them"
    ),
]
REPOSITORY = Path(__file__).resolve().parents[2]
CHAINS = 3

# What a total is, from release to release: the classes, its type, what it is as a number, what is made of a number.
FORMS = (
    ("", "int", "held", "n"),
    ("", "float", "held", "float(n)"),
    ("class Amount:\n    value: float", "Amount", "held.value", "Amount(float(n))"),
    ("class Amount:\n    value: float\n    note: str = '-'", "Amount", "held.value", "Amount(float(n), 'set')"),
    (
        "class Amount:\n    note: str = '-'\n    total: Annotated[float, sf.field(aliases=['value'])] = 0.0",
        "Amount", "held.total", "Amount('set', float(n))",
    ),
)  # fmt: skip
FILE = '''"""Release {number}."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import stateflow as sf


@dataclass
class Order:
    user: int
    amount: int


@dataclass
class Total:
    user: int
    total: int


{classes}

class Totals(sf.KeyedProcess[int, Order, Total]):
    {state} = sf.ValueState({type}{options})
    each = sf.ListState({type}{list_options})

    def process(self, key, rows, ctx):
        for row in rows:
            held = self.{state}.value
            n = (0 if held is None else {plain}) + row.amount
            self.{state}.value = {made}
            n = row.amount
            self.each.add({made})
        held = self.{state}.value
        total = {plain}
        assert total == sum({plain} for held in self.each.get()), (key, total)
        yield Total(key, int(total))


@sf.pipeline("orders")
def orders(flow: sf.Flow, *, input: str, output: str) -> None:
    def deliver(frame, checkpoint):
        rows = [(row["user"], row["total"]) for row in frame.collect()]
        (Path(output) / f"{{checkpoint:06d}}.json").write_text(json.dumps(rows))

    rows = flow.source("orders", sf.files(input, "json"), Order)
    rows.key_by("user").process("totals", Totals).for_each_batch("out", deliver)
'''
MIGRATIONS = """
def of_int(old: int) -> Amount:
    n = old
    return {made}


def of_float(old: float) -> Amount:
    n = old
    return {made}

"""


def source_of(number: int, form: int, state: str, earlier: list[str], ttl: str) -> str:
    classes, type_, plain, made = FORMS[form]
    migrates = ", migrate=[of_int, of_float]" if type_ == "Amount" else ""
    if classes:
        classes = f"@dataclass\n{classes}\n\n{MIGRATIONS.format(made=made)}"
    aliases = f", aliases={[name for name in reversed(earlier) if name != state]!r}" if earlier else ""
    expiry = f", ttl={ttl!r}" if ttl else ""
    return FILE.format(
        number=number, classes=classes, type=type_, plain=plain, made=made, state=state,
        options=f"{aliases}{migrates}{expiry}", list_options=f"{migrates}{expiry}",
    )  # fmt: skip


@dataclass
class Chain:
    """A job in a folder, and what its rows sum up to."""

    folder: Path
    backend: str
    sums: Counter[int] = field(default_factory=Counter)
    files: int = 0

    def __post_init__(self) -> None:
        for name in ("in", "out"):
            (self.folder / name).mkdir(parents=True)

    def command(self, *arguments: object) -> str:
        done = self.tried(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def tried(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "stateflow.cli",
                *map(str, arguments),
                "--checkpoint-dir",
                str(self.folder / "root"),
            ],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def feed(self, rows: list[tuple[int, int]]) -> None:
        lines = [json.dumps({"user": user, "amount": amount}) for user, amount in rows]
        (self.folder / "in" / f"{self.files:04d}.json").write_text("\n".join(lines) + "\n")
        self.files += 1
        for user, amount in rows:
            self.sums[user] += amount

    @property
    def given(self) -> tuple[object, ...]:
        return "-p", f"input={self.folder / 'in'}", "-p", f"output={self.folder / 'out'}"

    def run(self, file: Path) -> None:
        options = (
            "--option",
            f"backend={self.backend}",
            "--option",
            "local_fsync=false",
            "--conf",
            "spark.ui.enabled=false",
        )
        self.command("check", file, "--job", "orders", *self.given) if self.files > 1 else None
        self.command("run", file, "--master", "local[2]", *self.given, *options)

    def head(self) -> int:
        return int(json.loads(self.command("show", "orders", "-o", "json"))["head"])

    def newest(self) -> dict[int, int]:
        """What came out last for each user."""
        found: dict[int, int] = {}
        for path in sorted((self.folder / "out").iterdir()):
            found.update(dict(json.loads(path.read_text())))
        return found


def between(chain: Chain, dice: random.Random, file: Path, marks: list[int]) -> str:
    """What happens before a release begins."""
    what = dice.choice(("nothing", "rescale", "checkpoint", "native", "canonical"))
    if what == "rescale":
        chain.command("rescale", "orders", "--parallelism", dice.choice((1, 2, 3)))
    elif what == "checkpoint":
        origin = f"checkpoint:{dice.choice(marks[-2:])}"
        chain.command("restore", "orders", file, "--from", origin, "--yes", *chain.given)
    elif what in ("native", "canonical"):
        make = ("savepoint", "create", "orders", "-o", "json", "--type")
        tried = chain.tried(*make, what)
        if tried.returncode:
            # Tables are made without the code, so a value that only a function converts cannot go into one.
            assert (what, "migrate=" in tried.stderr) == ("canonical", True), tried.stderr
            what, tried = "canonical refused", chain.tried(*make, "native")
        place = json.loads(tried.stdout)["place"]
        chain.command("restore", "orders", file, "--from", place, "--yes", *chain.given)
    return what


@pytest.mark.parametrize("seed", range(CHAINS))
def test_a_chain_of_releases_sums_up_every_row_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    chain = Chain(tmp_path / "job", ("rocksdb", "memory")[seed % 2])
    forms = sorted(dice.sample(range(len(FORMS)), dice.choice((4, 5))))
    names: list[str] = []
    marks: list[int] = []
    story = []
    for number, form in enumerate(forms):
        names.append(names[-1] if names and dice.random() < 0.5 else f"total{number}")
        ttl = dice.choice(("", "9999 days"))
        file = tmp_path / f"release_{number}.py"
        file.write_text(source_of(number, form, names[-1], names[:-1], ttl))
        story.append((form, names[-1], ttl, between(chain, dice, file, marks) if marks else "begins"))
        users = range(20) if number in (0, len(forms) - 1) else dice.sample(range(20), 6)
        chain.feed([(user, dice.randrange(1, 100)) for user in users])
        chain.run(file)
        marks.append(chain.head())
        newest = chain.newest()
        assert {user: newest[user] for user in users} == {user: chain.sums[user] for user in users}, story
