"""Reports that are kept beside a job: the newest ones, small, without secrets, and gone with an erasure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from typer.testing import CliRunner

from stateflow.cli.main import app
from stateflow.config.options import load
from stateflow.errors import NotFoundError
from stateflow.format.records import Owner, encode
from stateflow.jobs import running
from stateflow.jobs.described_replay import described_report
from stateflow.jobs.job import Job
from stateflow.replay import reports
from stateflow.replay.comparison import ReplayReport, SinkChanges, Unsteady
from stateflow.replay.rows import RowChange
from stateflow.replay.states import OPERATOR_GONE, STATE_GONE, KeyChange, StateChanges
from stateflow.restore.printing import markdown, text
from tests.jobs.made import MadeJob, made_job
from tests.jobs.queried import queried_job
from tests.refusals.refusal import refused

if TYPE_CHECKING:
    from stateflow.pipelines.loading import LoadedPipeline

ME = Owner("me")


def kept(name: str, at: int = 0, **more: object) -> reports.KeptReport:
    return reports.kept_report(ReplayReport("orders", "orders", 1, 2, **more), name, at=at, owner=ME)  # type: ignore[arg-type]


@pytest.fixture
def job(tmp_path: Path) -> MadeJob:
    return made_job(tmp_path)


def test_the_newest_reports_are_kept_newest_first(job: MadeJob) -> None:
    for n in range(reports.MOST_REPORTS + 3):
        reports.keep(job.store, job.layout, kept(f"r{n}", at=n))
    names = [each.name for each in reports.kept_reports(job.store, job.layout)]
    assert names == [f"r{n}" for n in range(reports.MOST_REPORTS + 2, 2, -1)]
    assert reports.find(job.store, job.layout, "r0") is None


@pytest.mark.slow
def test_a_large_report_is_small_when_it_is_kept() -> None:
    long = {"note": "x" * 100_000, "at": datetime(2026, 1, 1, tzinfo=UTC)}
    changes = [(1, RowChange("different", {"user": n}, long, long)) for n in range(20)]
    sinks = {
        f"s{n}": SinkChanges(f"s{n}", before=9, counts={"new": 20}, changes=list(changes)) for n in range(30)
    }
    unknown = dict.fromkeys(range(10_000), "its files were vacuumed " + "x" * 10_000)
    sinks["s0"].unknown = unknown
    assert len(encode(kept("it", sinks=sinks))) < 256 * 1024


def test_what_is_called_like_a_secret_is_not_kept() -> None:
    row = {
        "user": 1,
        "api_token": "hidden",
        "link": "https://u:hidden@host/x",
        "inner": [{"password": "hidden"}],
    }
    sink = SinkChanges(
        "s", before=1, counts={"gone": 1}, changes=[(1, RowChange("gone", {"user": 1}, row, None))]
    )
    made = kept("it", sinks={"s": sink})
    assert b"hidden" not in encode(made)
    assert made.document["sinks"][0]["changes"][0]["before"]["user"] == 1


def test_what_a_state_or_a_key_column_calls_secret_is_not_kept_either() -> None:
    feed = SinkChanges("changes", before=1, counts={"new": 1})
    row = {
        "user": 7,
        "map_key": "hidden",
        "state_": "access_token",
        "kind": "put",
        "before": None,
        "after": "hidden",
    }
    feed.changes = [(1, RowChange("new", {"user": 7, "map_key": "hidden"}, None, row))]
    of_state = StateChanges(
        "logins", "access_token", 1, {"different": 1}, (KeyChange("different", 7, "hidden", "hidden"),)
    )
    of_key = StateChanges(
        "calls",
        "count",
        1,
        {"different": 1},
        (KeyChange("different", "hidden", 1, 2),),
        key_columns=("api_token",),
    )
    unsteady = Unsteady(
        "operator 'logins'", 2, "state 'access_token'", 7, "hidden", "hidden", "access_token", ("user",)
    )
    made = kept("it", sinks={"changes": feed}, states=[of_state, of_key], unsteady=unsteady)
    assert b"hidden" not in encode(made)
    seen = [each["changes"][0] for each in (*made.document["sinks"], *made.document["states"])]
    assert [each["key"] for each in seen] == [{"user": 7, "map_key": "***"}, 7, "***"]
    assert (seen[2]["before"], seen[2]["after"], made.document["nondeterministic"]["key"]) == (1, 2, 7)


def test_sentences_of_a_kept_report_have_no_secrets() -> None:
    url = "https://u:hidden@host/x"
    unknown = SinkChanges("totals", unknown={1: f"there is no Delta table at {url} any more"})
    made = kept("it", sinks={"totals": unknown}, notes=[f"read from {url}"])
    assert b"hidden" not in encode(made)
    for name in ("uncompared", "findings", "notes"):
        assert "host/x" in made.document[name][0]


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        (StateChanges("balance", "", note=OPERATOR_GONE), "no operator 'balance'"),
        (StateChanges("balance", "total", note=STATE_GONE), "no state 'total' of operator 'balance'"),
    ],
)
def test_state_that_goes_is_more_than_a_limit_lets_pass_without_leave(gone: StateChanges, named: str) -> None:
    report = ReplayReport("orders", "orders", 1, 2, states=[gone])
    assert named in report.excess(0.99)
    assert report.excess(1.0) == ""
    assert replace(report, lets_go=True).excess(0.0) == ""
    assert replace(report, forgotten=frozenset({(gone.operator, gone.state)})).excess(0.0) == ""


def test_names_are_readable_and_unique_by_their_key() -> None:
    name = reports.name_of("shadow-manual__2026-01-01T00:00:00+00:00", "a key")
    assert name.startswith("shadow-manual__2026-01-01T00-00-00-00-00-")
    assert name == reports.name_of("shadow-manual__2026-01-01T00:00:00+00:00", "a key")
    assert name != reports.name_of("shadow-manual__2026-01-01T00:00:00+00:00", "another key")
    assert reports.name_of("/", "k").startswith("replay-")


def test_what_could_not_be_compared_and_what_differs_is_said_as_text_and_as_markdown() -> None:
    sink = SinkChanges(
        "totals", before=10, after=9, counts={"gone": 1}, unknown={3: "its files were vacuumed"}
    )
    sink.columns_new = ("tax",)
    state = StateChanges("balance", "total", note="the state is new")
    made = kept(
        "it",
        sinks={"totals": sink},
        states=[state],
        batches=2,
        notes=["1 batch instead of 2 can be run again"],
    )
    for shown in (text(described_report(made)), markdown(described_report(made))):
        for words in (
            "2 batches",
            "1 batch instead of 2",
            "not compared",
            "now has tax",
            "the state is new",
        ):
            assert words in shown
    assert "nothing differs" in text(described_report(kept("it")))


def test_numbers_that_nobody_knows_are_not_shown() -> None:
    sinks = {
        "some": SinkChanges("some", before=4, after=4, unknown={3: "its files were vacuumed"}),
        "none": SinkChanges("none", unknown={3: "its files were vacuumed"}),
        "all": SinkChanges("all", before=1200, after=1200),
    }
    shown = described_report(kept("it", sinks=sinks))
    for line in (
        "| `some` | 4 + ? | 4 + ? | ? | ? | ? |",
        "| `none` | ? | ? | ? | ? | ? |",
        "| `all` | 1,200 | 1,200 | 0 | 0 | 0 |",
    ):
        assert line in markdown(shown)
    assert "4 + ? delivered, 4 + ? now; ? gone" in text(shown)


def test_a_report_without_a_comparison_says_nothing_of_what_was_delivered() -> None:
    sink = SinkChanges("totals", after=6, changes=[(1, RowChange("new", {}, None, {"user": 7}))])
    shown = described_report(kept("it", sinks={"totals": sink}, compared=False))
    assert "| `totals` | 6 |" in markdown(shown)
    assert "totals: 6 rows" in text(shown)
    for words in ("delivered", "differences", "gone"):
        assert words not in text(shown) + markdown(shown)


def test_a_report_that_takes_the_place_of_another_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_job(tmp_path)
    job, loaded = Job(str(tmp_path), "orders"), cast("LoadedPipeline", SimpleNamespace(pipeline=None))
    monkeypatch.setattr(Job, "replay", lambda *arguments, **request: ReplayReport("orders", "orders", 1, 2))
    monkeypatch.setattr(running, "shipped", lambda *arguments: {})

    def notes(name: str) -> list[str]:
        running.replay_loaded(loaded, job, "1", "2", {}, options=load(env={}, folder=tmp_path), keep=name)
        found = reports.find(job.store, job.layout, name)
        assert found is not None
        return [str(note) for note in found.document["notes"]]

    assert notes("it") == []
    assert notes("other") == []
    (note,) = notes("it")
    assert note.startswith("the report takes the place of the one kept as 'it' on 20")


def test_a_report_that_is_kept_after_an_erasure_of_its_batches_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = queried_job(tmp_path, 1)
    job, loaded = Job(str(tmp_path), "orders"), cast("LoadedPipeline", SimpleNamespace(pipeline=None))
    last = made.log().checkpoints[-1].slot
    reports.keep(job.store, job.layout, kept("older"))
    erase = ["state", "erase", "orders", "1", "--checkpoint-dir", str(tmp_path), "--yes"]

    def replay(*arguments: object, **request: object) -> ReplayReport:
        assert CliRunner().invoke(app, erase).exit_code == 0
        return ReplayReport("orders", "orders", 1, last)

    monkeypatch.setattr(Job, "replay", replay)
    monkeypatch.setattr(running, "shipped", lambda *arguments: {})
    with refused(NotFoundError, "has erased a key", "report 'it'"):
        running.replay_loaded(loaded, job, "1", "2", {}, options=load(env={}, folder=tmp_path), keep="it")
    assert reports.kept_reports(job.store, job.layout) == []


def test_an_erasure_takes_the_reports_along(tmp_path: Path) -> None:
    root = Job(str(tmp_path), "orders")
    job = queried_job(tmp_path, 1)
    reports.keep(job.store, job.layout, kept("it"))
    done = CliRunner().invoke(
        app, ["state", "erase", "orders", "1", "--checkpoint-dir", str(tmp_path), "--yes"]
    )
    assert done.exit_code == 0, done.output
    assert reports.kept_reports(root.store, root.layout) == []


def test_a_deletion_takes_them_along_and_a_collection_and_a_check_do_not_mind_them(tmp_path: Path) -> None:
    job = made_job(tmp_path)
    reports.keep(job.store, job.layout, kept("it"))
    root = Job(str(tmp_path), "orders")
    root.collect(retained=1)
    assert [finding.text for finding in root.verify(deep=True)] == []
    assert [each.name for each in reports.kept_reports(job.store, job.layout)] == ["it"]
    root.delete()
    assert reports.kept_reports(job.store, job.layout) == []


@pytest.mark.parametrize(
    "words", [[], ["--from", "1", "--last", "3"], ["--last", "3", "--to", "5"], ["--last", "0"], ["--last", "3", "--keep", "../x"]]
)  # fmt: skip
def test_a_choice_of_batches_that_says_nothing_or_two_things_is_refused(
    tmp_path: Path, words: list[str]
) -> None:
    made_job(tmp_path)
    done = CliRunner().invoke(app, ["replay", "nowhere.py:p", *words, "--checkpoint-dir", str(tmp_path)])
    assert done.exit_code == 2
