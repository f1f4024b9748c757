"""`stateflow gc --explain`, and what answers questions about checkpoints that only a retention rule keeps. No Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stateflow.checkpoint.kept_past import KeptPast
from stateflow.checkpoint.retention import Retention
from stateflow.cli.past_drawing import CELLS, line
from stateflow.config.retention_rule import retention_rule
from stateflow.jobs.job import Job
from stateflow.replay.span import span
from stateflow.state.values.serializers import serializer_for
from tests.cli.conftest import Command
from tests.reading.grown import TOTAL, GrownJob, full

RULE = "hourly for 3000 weeks"
"""So long that no clock ends it."""
MINUTE = 60_000_000
_int = serializer_for(int)


class PastJob(GrownJob):
    """A checkpoint of user 1's total every 25 minutes or so, in a state file of its own."""

    def grow(self, totals: range, rule: str = "") -> None:
        self.tick = 5 * MINUTE
        for total in totals:
            self.batch(lambda model, total=total: {full(TOTAL, 1): _int.dumps(total)})  # type: ignore[misc]
            if rule:
                self.writer.collect(self.by(rule), orphans=True)

    def by(self, rule: str) -> Retention:
        return Retention(2, rule=retention_rule(rule), now=self.clock())

    def go_by(self, rule: str) -> None:
        """A run with this rule."""
        self.beat(ended=True)
        self.begin("next", self.by(rule))


@pytest.fixture
def job(root: Path) -> PastJob:
    made = PastJob(root)
    made.grow(range(10, 22))
    made.beat(ended=True)
    return made


def kept(job: PastJob) -> list[int]:
    return [record.slot for record in job.log().checkpoints]


def test_what_is_explained_is_what_the_rule_does_then(command: Command, root: Path, job: PastJob) -> None:
    before = {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    gc = ("gc", "orders", "--retained", "2", "--retention", RULE, "--explain", "--checkpoint-dir", root)
    told = command(*gc, "-o", "json").json
    assert {path: path.stat().st_size for path in root.rglob("*") if path.is_file()} == before
    newest, by_rule = (part for part in told["parts"] if part["part"] in ("newest", RULE))
    assert newest["checkpoints"] == kept(job)[-2:]
    assert 3 <= len(by_rule["checkpoints"]) < 9
    assert sorted([*newest["checkpoints"], *by_rule["checkpoints"], *told["going"]]) == kept(job)
    job.go_by(RULE)
    job.grow(range(22, 23))
    job.writer.collect(job.by(RULE), orphans=True)
    after = kept(job)
    assert set(by_rule["checkpoints"]) <= set(after)
    assert not set(told["going"]) & set(after)
    gone = sum(size for path, size in before.items() if not path.exists() and path.suffix in (".sst", ""))
    assert 0 < told["going_bytes"] <= gone + 4096 * len(told["going"])
    only = sum(
        size
        for path, size in before.items()
        if any(f"chk-{slot:08d}" in str(path) for slot in by_rule["checkpoints"])
    )
    assert told["rule_bytes"] >= only > 0
    assert told["rule_bytes"] == by_rule["bytes"]


def test_restores_are_counted_as_a_history_counts_them(command: Command, root: Path, job: PastJob) -> None:
    early = job.restore(kept(job)[3])
    job.grow(range(30, 34))
    late = job.restore(kept(job)[-2])
    job.grow(range(40, 42))
    job.beat(ended=True)
    history = command("history", "orders", "balance", "total", 1, "-o", "json", "--checkpoint-dir", root).json
    gc = ("gc", "orders", "--retained", "3", "--explain", "--checkpoint-dir", root)
    told = command(*gc, "-o", "json").json
    staying = {part["part"]: part["checkpoints"] for part in told["parts"]}
    assert (staying.pop("edits"), told["going_edits"]) == ([late], [early])
    assert sum(map(len, staying.values())) + len(told["going"]) == history["checkpoints"]
    assert history["edits"] == 2
    assert "1 restore or other edit" in command(*gc).out
    job.claim("next", 3)
    job.writer.collect(Retention(3), orphans=True)
    left = {record.slot for record in job.log().chain if record.carries_state}
    assert left == {*staying["newest"], late}, "what is explained is what a collection leaves"


def test_a_person_sees_lines_of_time_and_what_they_cost(command: Command, root: Path, job: PastJob) -> None:
    shown = command(
        "gc", "orders", "--retained", "2", "--retention", "daily for 2999 weeks, weekly for 3000 weeks", "--explain",
        "--checkpoint-dir", root,
    )  # fmt: skip
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert [text.split("  ")[0].strip() for text in lines[1:5]] == [
        "newest 2",
        "daily for 2999 weeks",
        "weekly for 3000 weeks",
        "goes",
    ]
    assert "checkpoints only they hold" in " ".join(lines[0].split())
    assert "that only they hold, beside the live state of" in shown.out
    assert "in time daily up to 20,994 checkpoints and weekly up to 3,001 checkpoints" in shown.out
    assert "# stays, o goes, . no checkpoint. Nothing was deleted" in shown.err


def test_a_line_shows_what_stays_what_goes_and_where_nothing_is() -> None:
    past = KeptPast(
        now=CELLS * MINUTE,
        times={
            1: 0,
            2: MINUTE,
            3: 2 * MINUTE,
            4: 2 * MINUTE,
            5: (CELLS - 1) * MINUTE,
            6: 99 * CELLS * MINUTE,
        },
        live_bytes=1,
        groups=(),
        rule_bytes=0,
        going=(2, 4),
        going_edits=(),
        going_bytes=0,
    )
    assert line(past, CELLS * MINUTE) == "o#" + "." * (CELLS - 4) + "##"
    assert line(replace(past, times={}), MINUTE) == "." * CELLS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--retention", "houry for 2 days"),
            "(--retention), is not usable: 'houry' in 'houry for 2 days' is no step: did you mean hourly?",
        ),
        (
            ("--retention", "daily for 9 days", "--age", "1 hour"),
            "says how long every checkpoint stays, as does retained_age",
        ),
        (
            ("--explain", "--yes"),
            "--explain deletes nothing and lets nothing go: leave out --yes and --release",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: tuple[str, ...], said: str, command: Command, root: Path, job: PastJob
) -> None:
    refused = command("gc", "orders", *arguments, "--checkpoint-dir", root)
    assert refused.code == 2
    assert said in refused.err


def test_gc_keeps_what_the_last_run_announced_and_says_so(command: Command, root: Path, job: PastJob) -> None:
    job.go_by(RULE)
    job.grow(range(22, 25), RULE)
    before = kept(job)
    told = command("gc", "orders", "--retained", "1", "--checkpoint-dir", root, "-o", "json").json
    assert {slot for slot, reason in told["kept"].items() if reason == "announced"} == {
        str(n) for n in before[:-1]
    }
    assert (
        "retained_age or retention"
        in command("gc", "orders", "--retained", "1", "--checkpoint-dir", root).out
    )
    assert command("gc", "orders", "--retained", "1", "--yes", "--checkpoint-dir", root).code == 0
    assert kept(job) == before


def test_gc_by_a_rule_deletes_nothing_that_the_rule_keeps_though_a_run_has_let_it_go(
    command: Command, root: Path, job: PastJob
) -> None:
    job.beat(ended=True)
    job.claim("keeps one and dies before it collects", 1)
    gc = ("gc", "orders", "--retained", "1", "--checkpoint-dir", root, "-o", "json")
    by_rule = command(*gc, "--retention", RULE, "--yes").json
    last_of_hours = [int(slot) for slot, reason in by_rule["kept"].items() if reason == f"rule: {RULE}"]
    assert len(last_of_hours) >= 3
    assert set(last_of_hours) < set(kept(job))
    assert len(by_rule["records"]) >= 3
    assert command(*gc, "--yes").code == 0
    assert len(kept(job)) == 1


def test_kept_checkpoints_answer_like_any_other(command: Command, root: Path, job: PastJob) -> None:
    total = {record.slot: 8 + record.slot for record in job.log().checkpoints}
    job.go_by(RULE)
    total |= {job.writer.next_slot + n: 22 + n for n in range(4)}
    job.grow(range(22, 26), RULE)
    log = job.log()
    behind = list(log.kept)
    assert len(behind) >= 3
    assert max(behind) < log.floor

    def said(*arguments: object) -> dict[str, object]:
        answer = command(*arguments, "--checkpoint-dir", root, "-o", "json")
        assert answer.code == 0, answer.err
        return answer.json  # type: ignore[no-any-return]

    history = said("history", "orders", "balance", "total", 1)
    assert [(v["checkpoint"], v["value"]) for v in history["versions"]] == [(n, total[n]) for n in kept(job)]  # type: ignore[attr-defined]
    at = said("query", "orders", "balance", "total", 1, "--at", behind[1])
    assert str(total[behind[1]]) in str(at)
    diff = said("diff", "orders", behind[0], behind[1], "--before")
    assert str(total[behind[0]]) in str(diff)
    assert str(total[behind[1]]) in str(diff)
    first = said("bisect", "orders", "balance", "total", 1, "--first", f"value >= {total[behind[1]]}")
    assert str(behind[1]) in str(first)
    assert command("verify", "orders", "--deep", "--checkpoint-dir", root).code == 0
    assert command("tag", "orders", "incident", "--checkpoint", behind[0], "--checkpoint-dir", root).code == 0
    last = kept(job)[-1]
    assert [step.record.slot for step in span(log, last, last)] == [last]


def test_the_same_in_python(root: Path, job: PastJob) -> None:
    past = Job(str(root), "orders").kept_past(2, rule=retention_rule(RULE))
    assert past.by_rule >= 3
    assert past.staying | set(past.going) == set(kept(job))
