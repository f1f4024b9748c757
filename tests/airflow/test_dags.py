"""The DAGs that teams copy: they load, their forms refuse nonsense, nothing is touched unasked, and they do what they say."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, ParamValidationError

from stateflow.airflow.operators.upgrades import pipeline_variable
from stateflow.checkpoint.retention import Retention
from stateflow.config.options import load
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow.pipelines.loading import load_pipeline
from stateflow.savepoints.format import read_savepoint
from stateflow.storage.roots import open_store
from tests.airflow import dag_runs
from tests.airflow.conftest import Connect
from tests.airflow.dag_runs import DAGS
from tests.airflow.runner import Supervisor, run_task, supervised
from tests.jobs.made import ORDERS, REPOSITORY, made_job
from tests.refusals.refusal import lacking, refused

MONDAY = "2026-02-02T01:30:00+00:00"
FORMS = {
    "stateflow_savepoint": {"job", "kind", "note", "conn_id"},
    "stateflow_cleanup": {"job", "retained", "age", "dry_run", "conn_id"},
    "stateflow_stop": {"job", "drain", "savepoint", "note", "conn_id"},
    "stateflow_recovery": {"job", "origin", "rewind_sinks", "with_readers", "note", "conn_id"},
    "stateflow_upgrade": {
        "job",
        "pipeline",
        "shadow_batches",
        "max_changed",
        "rewind_sinks",
        "note",
        "conn_id",
    },
    "stateflow_reprocess": {"job", "fork", "origin", "until", "parameters", "clone_sinks", "note", "conn_id"},
}
"""What the pages' dialogs send, and people."""
SCHEDULED = {"stateflow_host", "stateflow_orders", "stateflow_periodic_savepoints", "stateflow_nightly"}


@pytest.fixture(scope="module")
def bag() -> Iterator[DagBag]:
    sys.path.insert(0, str(DAGS))
    try:
        yield DagBag(str(DAGS))
    finally:
        sys.path.remove(str(DAGS))


def module_of(bag: DagBag, dag_id: str) -> ModuleType:
    """The DAG's file as Airflow has loaded it."""
    return next(
        m for m in list(sys.modules.values()) if getattr(m, "__file__", "") == bag.dags[dag_id].fileloc
    )


def accepted(bag: DagBag, dag_id: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of a form: its values, or ParamValidationError."""
    params = copy.deepcopy(bag.dags[dag_id].params)
    params.update(conf)
    return dict(params.validate())


def test_every_dag_is_imported(bag: DagBag) -> None:
    assert bag.import_errors == {}
    assert set(bag.dags) == {*FORMS, *SCHEDULED}
    assert {d for d, dag in bag.dags.items() if dag.timetable.can_be_scheduled} == SCHEDULED


def test_every_dag_says_what_it_does_and_when_to_press_it(bag: DagBag) -> None:
    for dag_id, dag in bag.dags.items():
        text = str(dag.doc_md)
        assert text.startswith("### "), dag_id
        assert "fail" in text or "Press" in text, dag_id
        assert dag.description, dag_id


@pytest.mark.slow
def test_parsing_loads_neither_spark_nor_what_reads_state(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from airflow.dag_processing.dagbag import DagBag\n"
        "import airflow.providers.apache.spark.operators.spark_submit\n"
        "bag = DagBag(sys.argv[1]); assert len(bag.dags) == 10, bag.import_errors\n"
        "heavy = ('pyspark', 'delta', 'rocksdict', 'pyarrow', 'pandas', 'obstore', 'stateflow.jobs.job', 'stateflow.storage.roots')\n"
        "print('LOADED', [name for name in heavy if name in sys.modules])"
    )
    # No connection, and no database: parsing asks neither a store nor Airflow for anything.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW_")}
    told = subprocess.run(
        [sys.executable, "-c", code, str(DAGS)],
        env={**environment, "AIRFLOW_HOME": str(tmp_path)}, capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    assert told.stdout.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize("dag_id", FORMS)
def test_forms_have_the_fields_that_dialogs_send(bag: DagBag, dag_id: str) -> None:
    assert FORMS[dag_id] <= set(bag.dags[dag_id].params)
    assert accepted(bag, dag_id, {})["conn_id"] == "stateflow_default"


@pytest.mark.parametrize("dag_id", FORMS)
def test_the_job_is_chosen_from_a_list_that_takes_other_names(bag: DagBag, dag_id: str) -> None:
    assert bag.dags[dag_id].params.get_param("job").schema["examples"] == ["orders"]
    assert accepted(bag, dag_id, {"job": "orders-test.2"})["job"] == "orders-test.2"


@pytest.mark.parametrize(
    ("dag_id", "nonsense"),
    [
        *((dag_id, {"job": job}) for dag_id in FORMS for job in ("../orders", "a/b", "-x", "a b", 7)),
        *((dag_id, {"job": None}) for dag_id in FORMS if dag_id != "stateflow_cleanup"),
        *((dag_id, {"conn_id": conn_id}) for dag_id in FORMS for conn_id in ("", "a b", None, "other_default")),
        *((dag_id, {"conn_id": "other_default"}) for dag_id in sorted(SCHEDULED - {"stateflow_host", "stateflow_orders"})),
        ("stateflow_savepoint", {"kind": "parquet"}),
        ("stateflow_savepoint", {"kind": ""}),
        ("stateflow_savepoint", {"note": "x" * 501}),
        ("stateflow_cleanup", {"retained": 0}),
        ("stateflow_cleanup", {"retained": "all"}),
        ("stateflow_cleanup", {"retained": 2.5}),
        ("stateflow_cleanup", {"age": "1 fortnight"}),
        ("stateflow_cleanup", {"age": 5}),
        ("stateflow_cleanup", {"dry_run": "no"}),
        ("stateflow_stop", {"drain": "yes"}),
        ("stateflow_stop", {"savepoint": 1}),
        ("stateflow_recovery", {"origin": "newest"}),
        ("stateflow_recovery", {"origin": "checkpoint:"}),
        ("stateflow_recovery", {"origin": "checkpoint:-1"}),
        ("stateflow_recovery", {"origin": "tag:a b"}),
        ("stateflow_recovery", {"origin": ""}),
        ("stateflow_recovery", {"rewind_sinks": "maybe"}),
        ("stateflow_upgrade", {"pipeline": ""}),
        ("stateflow_reprocess", {"fork": "a/b"}),
        ("stateflow_reprocess", {"parameters": {}}),
        ("stateflow_reprocess", {"parameters": "output=/data"}),
        ("stateflow_reprocess", {"origin": "yesterday"}),
        ("stateflow_reprocess", {"clone_sinks": "some"}),
        ("stateflow_recovery", {"with_readers": "some"}),
        ("stateflow_upgrade", {"pipeline": None}),
        ("stateflow_orders", {"input": ""}),
        ("stateflow_orders", {"bounded": "sometimes"}),
    ],
)  # fmt: skip
def test_nonsense_in_a_form_is_refused_before_anything_runs(
    bag: DagBag, dag_id: str, nonsense: dict[str, Any]
) -> None:
    with pytest.raises(ParamValidationError):
        accepted(bag, dag_id, nonsense)


@pytest.mark.parametrize(
    "origin",
    ["latest", "checkpoint:42", "tag:before-prices", "s3://bucket/a b", "file:///backup/x", "/backup/x"],
)
def test_every_kind_of_restore_point_can_be_given(bag: DagBag, origin: str) -> None:
    assert accepted(bag, "stateflow_recovery", {"origin": origin})["origin"] == origin


def test_a_field_that_may_stay_empty_may_be_emptied(bag: DagBag) -> None:
    """Airflow's form sends null for a text that somebody has deleted."""
    for dag_id in FORMS:
        if "note" in FORMS[dag_id]:
            accepted(bag, dag_id, {"note": None})
    accepted(bag, "stateflow_cleanup", {"job": None, "age": None})
    for age in ("", "0 seconds", "90 minutes", "1.5 days", "2 weeks"):
        accepted(bag, "stateflow_cleanup", {"age": age})
    accepted(bag, "stateflow_recovery", {"pipeline": None})


def test_the_pipeline_runs_one_at_a_time_retries_and_updates_its_asset(bag: DagBag) -> None:
    dag = bag.dags["stateflow_orders"]
    run = dag.get_task("run")
    assert (dag.max_active_runs, dag.catchup, run.retries) == (1, False, 3)
    assert [asset.uri for asset in run.outlets] == ["stateflow://stateflow_default/orders"]


@pytest.mark.parametrize(
    ("bounded", "interval", "until"),
    [(False, {"data_interval_end": "2026-02-01"}, ""), (True, {"data_interval_end": "2026-02-01"}, "2026-02-01"), (True, {}, "")],
)  # fmt: skip
def test_a_bounded_run_ends_where_its_data_interval_does(
    bag: DagBag, bounded: bool, interval: dict[str, str], until: str
) -> None:
    run = bag.dags["stateflow_orders"].get_task("run")
    context: Any = {"params": {"bounded": bounded}, **interval}
    assert run.render_template(run.until, context) == until


def test_what_an_upgrade_has_switched_to_is_what_runs(bag: DagBag, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bag.dags["stateflow_orders"].get_task("run")
    values: dict[str, str] = {}
    context: Any = {"var": {"value": values}}
    assert run.render_template(run.pipeline, context) == f"{REPOSITORY}/examples/orders.py:orders"
    steps = sys.modules["stateflow_steps"]
    variable = pipeline_variable("stateflow_default", "orders")
    values[variable] = "/new/orders_2.py:orders"
    assert run.render_template(run.pipeline, context) == "/new/orders_2.py:orders"
    monkeypatch.setenv(f"AIRFLOW_VAR_{variable.upper()}", "/new/orders_2.py:orders")
    assert steps.running_pipeline("stateflow_default", "orders") == "/new/orders_2.py:orders"
    assert steps.running_pipeline("stateflow_default", "nobody") == ""


def test_a_job_of_the_same_name_on_another_connection_is_another_job(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, steps = sys.modules["stateflow_settings"], sys.modules["stateflow_steps"]
    jobs = {
        key: settings.Pipeline(pipeline=f"/opt/{dag_id}.py:orders", dag_id=dag_id)
        for key, dag_id in (("orders", "here"), ("lake/orders", "there"))
    }
    strict = msgspec.structs.replace(settings.SETTINGS, jobs=jobs, conn_ids=["lake", "sea"])
    for module in (settings, steps):
        monkeypatch.setattr(module, "SETTINGS", strict)
    switched: dict[str, str] = {}
    with supervised(Supervisor(variables=switched)):
        switch = bag.dags["stateflow_upgrade"].get_task("switch")
        switch.python_callable("/opt/there_2.py:orders", "lake", "orders")
    assert list(switched.values()) == ["/opt/there_2.py:orders"]
    for variable, pipeline in switched.items():
        monkeypatch.setenv(f"AIRFLOW_VAR_{variable.upper()}", pipeline)
    there, here = steps.known("lake", "orders"), steps.known("stateflow_default", "orders")
    assert (there["pipeline"], there["dag_id"]) == ("/opt/there_2.py:orders", "there")
    assert (here["pipeline"], here["dag_id"]) == ("/opt/here.py:orders", "here")
    with refused(AirflowFailException, "'orders'", "'sea'", "lake/orders"):
        steps.known("sea", "orders")
    assert settings.job_field("").schema["examples"] == ["orders"]


def test_the_trial_of_an_upgrade_may_run_another_file(bag: DagBag) -> None:
    assert bag.dags["stateflow_upgrade"].get_task("trial").any_version is True
    assert "`pipeline_template`" in bag.dags["stateflow_upgrade"].get_task("approve").body


def test_nothing_of_a_recovery_is_touched_without_an_approval(bag: DagBag) -> None:
    dag = bag.dags["stateflow_recovery"]
    harmless = {"known_job", "known_readers", "plan", "hold", "dags_of", "approve", "let_go"}
    for task in dag.tasks:
        if task.task_id not in harmless:
            assert "approve" in task.get_flat_relative_ids(upstream=True), task.task_id
            assert task.trigger_rule == "all_success", task.task_id
    assert dag.get_task("plan").dry_run is True
    assert dag.get_task("hold").is_setup
    assert dag.get_task("let_go").is_teardown
    assert dag.get_task("approve").retries == 0


def test_a_recovery_restores_what_was_planned_after_the_driver_has_stopped(bag: DagBag) -> None:
    dag = bag.dags["stateflow_recovery"]
    order = [
        "known_job",
        "plan",
        "hold",
        "dags_of",
        "approve",
        "stop",
        "plan_again",
        "still_holds",
        "restore",
        "verify",
        "start",
    ]
    for before, after in itertools.pairwise(order):
        assert before in dag.get_task(after).get_flat_relative_ids(upstream=True)
    plan, restore = dag.get_task("plan"), dag.get_task("restore")
    of_approvals = {"approved", "approval", "four_eyes", "approvers"}
    same = set(plan.template_fields) - {"dry_run", "takeover", "origin", *of_approvals}
    again = dag.get_task("plan_again")
    for task in (again, restore):
        assert {n: str(getattr(plan, n)) for n in same} == {n: str(getattr(task, n)) for n in same}
        # What `latest` was when it was approved.
        assert task.origin == "{{ ti.xcom_pull('plan')['document']['from'] }}"
    assert restore.approved == "{{ ti.xcom_pull('plan')['digest'] }}"
    approve = dag.get_task("approve")
    assert "{{ ti.xcom_pull('plan')['digest'][:12] }}" in approve.subject
    # A note is the words of whoever asks: in the plan it cannot look like a part of it.
    assert "params.note" not in approve.body
    # A run that the pipeline's DAG starts between the stop and the restore is fenced.
    assert restore.takeover is True


def test_readers_run_what_the_settings_say_and_no_file_from_elsewhere(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recovery = module_of(bag, "stateflow_recovery")
    settings = sys.modules["stateflow_settings"]
    jobs = {
        name: settings.Pipeline(pipeline=f"{tmp_path}/{name}.py:{name}", dag_id=dag_id)
        for name, dag_id in (("orders", "a"), ("daily", "b"), ("weekly", "b"), ("lost", ""))
    }
    for module in (recovery, settings, sys.modules["stateflow_steps"]):
        monkeypatch.setattr(module, "SETTINGS", msgspec.structs.replace(settings.SETTINGS, jobs=jobs))
    switched = f"AIRFLOW_VAR_{pipeline_variable('stateflow_default', 'daily').upper()}"
    monkeypatch.setenv(switched, f"{tmp_path}/daily_2.py:daily")
    known_readers, dags_of = (
        bag.dags["stateflow_recovery"].get_task(name).python_callable for name in ("known_readers", "dags_of")
    )
    default = "stateflow_default"
    assert known_readers(default, "orders", {"with_readers": False}) == {}
    assert known_readers(default, "orders", {"with_readers": True}) == {
        "daily": f"{tmp_path}/daily_2.py:daily",  # an upgrade has switched to it
        "weekly": f"{tmp_path}/weekly.py:weekly",
        "lost": f"{tmp_path}/lost.py:lost",
    }
    monkeypatch.setenv(switched, "/tmp/evil.py:daily")
    with pytest.raises(AirflowFailException, match=r"/evil.py lies in none of the allowed folders"):
        known_readers(default, "orders", {"with_readers": True})
    monkeypatch.delenv(switched)
    assert dags_of(default, ["orders", "daily", "weekly"]) == ["a", "b"]
    with refused(AirflowFailException, "which DAG", "'lost'", "'stateflow_default'", "Variable 'stateflow'"):
        dags_of(default, ["orders", "lost"])


def test_each_job_that_goes_back_is_tagged_and_the_way_back_too(
    bag: DagBag, tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    for name in ("orders", "daily"):
        made_job(tmp_path, name)
    dag = bag.dags["stateflow_recovery"]
    hold, holds, let_go = (dag.get_task(name).python_callable for name in ("hold", "still_holds", "let_go"))
    plan = {"checkpoint": 2, "digest": "1", "document": {"with_readers": [{"job": "daily", "checkpoint": 3}]}}
    jobs = hold(plan, "stateflow_default", "orders", "manual__1")
    assert jobs == ["orders", "daily"]
    assert [Job(str(tmp_path), name).status().tags for name in jobs] == [
        {"recovery-manual__1": 2},
        {"recovery-manual__1": 3},
    ]
    assert holds(plan, plan, "stateflow_default", jobs, "manual__1") == "before-recovery-manual__1"
    let_go("stateflow_default", jobs, "recovery", "manual__1")
    assert [Job(str(tmp_path), name).status().tags for name in jobs] == [{"before-recovery-manual__1": 4}] * 2

    # A second try finds the jobs where they were, a DAG run that was cleared later somewhere else.
    assert holds(plan, plan, "stateflow_default", jobs, "manual__1") == "before-recovery-manual__1"
    orders = Job(str(tmp_path), "orders")
    orders.untag("before-recovery-manual__1")
    orders.tag("before-recovery-manual__1", "checkpoint:3")
    assert holds(plan, plan, "stateflow_default", jobs, "manual__1") == "before-recovery-manual__1-2"
    assert orders.status().tags == {"before-recovery-manual__1": 3, "before-recovery-manual__1-2": 4}


def test_dag_runs_with_long_names_have_tags_of_their_own(bag: DagBag) -> None:
    steps = sys.modules["stateflow_steps"]

    one, other = (steps.tag_name("recovery", "x" * 200 + end) for end in "ab")
    assert len({one[:128], other[:128]}) == 2
    assert one == steps.tag_name("recovery", "x" * 200 + "a")


def test_an_approval_whose_time_is_up_says_what_to_do(bag: DagBag) -> None:
    approve = bag.dags["stateflow_recovery"].get_task("approve")
    with pytest.raises(
        AirflowFailException, match=r"nobody approved within 1:00:00, so nothing was changed: trigger"
    ):
        approve.execute_complete({}, {"error": "The timeout has passed", "error_type": "timeout"})


@pytest.mark.parametrize("what", ["recovery", "upgrade"])
def test_one_person_cannot_ask_and_approve_where_the_settings_want_two(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    approval = sys.modules["stateflow_approval"]
    strict = msgspec.structs.replace(approval.SETTINGS, four_eyes=True, approvers=["bob"])
    monkeypatch.setattr(approval, "SETTINGS", strict)
    approve = bag.dags[f"stateflow_{what}"].get_task("approve")
    asked: Any = {"dag_run": SimpleNamespace(triggering_user_name="ann", clear_number=0)}

    def answered(by: str) -> Any:
        event = {
            "chosen_options": ["Approve"], "params_input": {}, "responded_at": datetime(2026, 1, 1, tzinfo=UTC),
            "responded_by_user": {"id": by, "name": by},
        }  # fmt: skip
        return approve.execute_complete(asked, event)

    assert answered("bob")["chosen_options"] == ["Approve"]
    for by in ("ann", "eve"):
        with pytest.raises(
            AirflowFailException, match=f"this {RESTORED[what]}, and is none of its approvers"
        ):
            answered(by)
    asked["dag_run"].clear_number = 1
    with refused(AirflowFailException, "four_eyes", "cleared"):
        answered("bob")


RESTORED = {"recovery": "restore", "upgrade": "upgrade"}


def test_whoever_marks_the_approval_as_success_changes_nothing(
    bag: DagBag, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sys.modules["stateflow_settings"]
    strict = msgspec.structs.replace(settings.SETTINGS, four_eyes=True, approvers=["bob"])
    for module in (settings, sys.modules["stateflow_approval"]):
        monkeypatch.setattr(module, "SETTINGS", strict)
    dags = {}
    for dag_id in ("stateflow_recovery", "stateflow_upgrade"):
        loaded = module_of(bag, dag_id)
        monkeypatch.setitem(sys.modules, loaded.__name__, loaded)  # `bag` keeps the one that it has
        dags[dag_id] = DagBag(str(DAGS / f"{dag_id}.py")).dags[dag_id]
        restore = dags[dag_id].get_task("restore")
        assert (restore.four_eyes, restore.approvers) == (True, ["bob"])
        assert restore.approval.operator is dags[dag_id].get_task("approve")
    # Somebody may have marked `restore` as success, too.
    results = {
        "stop": STOPPED,
        "old_version": {"pipeline": "/old.py:p", "dag_id": "stateflow_orders", "switched_to": ""},
    }
    for task_id in ("stop", "trial", "switch", "switch_back", "roll_back"):
        told = run_task(dags["stateflow_upgrade"].get_task(task_id), results=results)
        assert isinstance(told.error, AirflowFailException), task_id
        assert not lacking(str(told.error), ("this upgrade", "approval task")), task_id


def test_an_upgrade_is_tried_on_past_batches_and_approved_before_the_job_is_stopped(bag: DagBag) -> None:
    dag = bag.dags["stateflow_upgrade"]
    before_stop = dag.get_task("stop").get_flat_relative_ids(upstream=True)
    assert before_stop >= {"paused", "check", "shadow", "approve", "still_paused"}
    assert dag.get_task("approve").upstream_task_ids == {"shadow"}
    assert dag.get_task("still_paused").upstream_task_ids >= {"approve"}
    shadow, approve = dag.get_task("shadow"), dag.get_task("approve")
    params = accepted(bag, "stateflow_upgrade", {})
    assert (params["shadow_batches"], params["max_changed"]) == (20, 0.01)
    rendered = [
        shadow.render_template(shadow.max_changed, {"params": {"max_changed": most}})
        for most in (None, 0, 0.2)
    ]
    assert rendered == ["", "0", "0.2"], "no limit, and a limit of nothing"
    # A shadow that was left out, and one whose report is shown.
    assert approve.trigger_rule == "none_failed"
    for result, shown in ((None, "**not tried**"), ({"report": "**Replay**"}, "**Replay**")):
        ti = SimpleNamespace(xcom_pull=lambda task_id, result=result: result)
        assert shown in approve.render_template(approve.body, {"ti": ti})


@pytest.mark.parametrize(
    ("dag_id", "restore", "run"), [("reprocess", "fork", "run"), ("upgrade", "restore", "trial")]
)
def test_a_dag_s_own_run_behind_its_restore_has_the_parameters_that_the_restore_took(
    bag: DagBag, dag_id: str, restore: str, run: str
) -> None:
    dag = bag.dags[f"stateflow_{dag_id}"]
    took, goes_on = dag.get_task(restore), dag.get_task(run)
    assert goes_on.recorded_parameters is True
    assert str(goes_on.parameters) == str(took.parameters)
    assert (goes_on.job, str(goes_on.pipeline)) == (took.job, str(took.pipeline))


def test_a_fork_by_the_job_s_own_parameters_is_refused_whatever_their_types(
    bag: DagBag, tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    file = tmp_path / "typed.py"
    signature = "input: str, output: str"
    file.write_text(ORDERS.read_text().replace(signature, f"{signature}, strict: bool, days: list[str]"))
    made_job(tmp_path)
    own = {"output": "/data/totals", "strict": True, "days": ["a", "b"]}
    typed = load_pipeline(f"{file}:orders", tmp_path).pipeline
    Job(str(tmp_path), "orders").restore("latest", typed, own).apply()
    chosen = bag.dags["stateflow_reprocess"].get_task("chosen").python_callable

    def asked(**parameters: Any) -> Any:
        return chosen("stateflow_default", "orders", "again", {"parameters": parameters})

    for same in (own, {"strict": True}, {"days": ["a", "b"]}, {"strict": None}, {**own, "input": None}):
        with refused(AirflowFailException, "tables of job 'orders'", "Parameters", '"output"'):
            asked(**same)
    for other in ({"output": "/data/again"}, {**own, "days": ["a"]}):
        assert asked(**other) == other


def test_a_shadow_of_no_batches_is_skipped(bag: DagBag) -> None:
    shadow = copy.copy(bag.dags["stateflow_upgrade"].get_task("shadow"))
    shadow.batches = "0"
    with pytest.raises(AirflowSkipException, match="no shadow batches were asked for"):
        shadow.execute({})


PLAN = {
    "timeline": 2,
    "sinks": {"totals": {"again": False}},
    "parameters": {"output": ["/data/totals", "job"]},
}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ({"timeline": 3}, "somebody has restored the job meanwhile"),
        ({"sinks": {"totals": {"again": True}}}, 'sink totals was {"again": false} and is {"again": true}'),
        (
            {"parameters": {"output": ["/evil", "given"]}},
            r'parameter output was \["/data/totals", "job"\] and is \["/evil", "given"\]',
        ),
        ({}, "a value that the plan does not show has changed"),
    ],
)
def test_a_plan_that_no_longer_holds_is_noticed(bag: DagBag, now: dict[str, Any], changed: str) -> None:
    holds = bag.dags["stateflow_recovery"].get_task("still_holds").python_callable
    approved, other = (
        {"digest": d, "document": {"bound": b}} for d, b in (("1", PLAN), ("2", {**PLAN, **now}))
    )
    with pytest.raises(
        AirflowFailException, match=f"{changed}; nothing was restored, and job 'orders' is stopped"
    ):
        holds(approved, other, "nowhere", ["orders"], "manual__1")


def test_going_back_begins_with_any_failure_once_the_restore_has_begun_and_with_none_before(
    bag: DagBag,
) -> None:
    dag = bag.dags["stateflow_upgrade"]
    upgrade, wrong = module_of(bag, "stateflow_upgrade"), dag.get_task("wrong")
    assert wrong.trigger_rule == "one_failed"
    assert wrong.upstream_task_ids >= {
        "keep_before",
        "plan",
        "alone",
        "restore",
        "trial",
        "verify",
        "switch",
    }
    assert [state for state in ("success", "failed", "upstream_failed", None) if upgrade.is_touched({"restore": state})] == [
        "success", "failed",
    ]  # fmt: skip
    assert "wrong" in dag.get_task("roll_back").get_flat_relative_ids(upstream=True)
    assert dag.get_task("roll_back").takeover is True
    # The new version is never restored over a run that somebody has started since the stop.
    assert dag.get_task("restore").takeover is False
    assert "keep_before" in dag.get_task("restore").get_flat_relative_ids(upstream=True)


def test_the_tag_of_before_stays_only_where_going_back_has_failed(bag: DagBag) -> None:
    """Then both tasks that go back have failed for Airflow; where there was nothing to take back, they are skipped."""
    let_go = bag.dags["stateflow_upgrade"].get_task("let_go")
    assert let_go.upstream_task_ids >= {"keep_before", "verify_rolled_back"}
    assert not let_go.upstream_task_ids & {"plan", "alone", "restore", "trial", "verify", "switch"}
    assert let_go.trigger_rule == "none_failed_min_one_success"


def test_an_upgrade_takes_the_job_over_only_by_a_plan_in_which_nobody_has_delivered_since_the_stop(
    bag: DagBag,
) -> None:
    dag = bag.dags["stateflow_upgrade"]
    plan, restore = dag.get_task("plan"), dag.get_task("restore")
    assert (plan.dry_run, plan.origin) == (True, restore.origin)
    assert "stop" in plan.get_flat_relative_ids(upstream=True)
    assert restore.upstream_task_ids >= {"alone"}
    alone = dag.get_task("alone").python_callable
    sinks = [{"uid": "totals", "again": False}, {"uid": "latest", "again": False}]
    assert alone({"document": {"sinks": sinks}, "digest": "a" * 64}, "orders") == "a" * 64
    sinks[0]["again"] = True
    with refused(
        AirflowFailException, "'orders'", "totals", "nothing was restored", "trigger this DAG again"
    ):
        alone({"document": {"sinks": sinks}, "digest": "a" * 64}, "orders")


def test_a_relative_new_version_lies_beside_the_dags_wherever_the_worker_was_started(
    bag: DagBag, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path / "root")
    made_job(tmp_path / "root")
    upgrade, dag = module_of(bag, "stateflow_upgrade"), bag.dags["stateflow_upgrade"]
    settings, steps = sys.modules["stateflow_settings"], sys.modules["stateflow_steps"]
    for module in (upgrade, settings, steps):
        monkeypatch.setattr(module, "DAGS", tmp_path)
    monkeypatch.setattr(
        steps, "SETTINGS", msgspec.structs.replace(settings.SETTINGS, pipeline_folders=["new"])
    )
    worker = tmp_path / "worker"
    for folder, text in ((tmp_path / "new", ORDERS.read_text()), (worker / "new", "raise SystemExit")):
        folder.mkdir(parents=True)
        (folder / "orders.py").write_text(text)
    monkeypatch.chdir(worker)
    check, paused = (dag.get_task(name).python_callable for name in ("check", "paused"))
    assert check("new/orders.py:orders", "stateflow_default", "orders") == {"balance": "compatible"}
    for same in (f"{tmp_path}/new/orders.py:orders", "new/../new/orders.py", "new/orders.py:orders"):
        with refused(AirflowFailException, "new/orders.py:orders", "a file of its own"):
            paused(same, "new/orders.py:orders", "stateflow_orders", None)


def test_a_restore_that_was_refused_leaves_nothing_to_take_back_from_others(
    bag: DagBag, tmp_path: Path
) -> None:
    upgrade = module_of(bag, "stateflow_upgrade")
    made_job(tmp_path, "orders")
    job = Job(str(tmp_path), "orders")
    for run in ("manual__1", "manual__2"):
        owner = Owner(run=run, dag_run=f"stateflow_upgrade/{run}")
        assert upgrade.has_restored(job, owner.dag_run) is False
        pipeline = load_pipeline(f"{ORDERS}:orders", tmp_path).pipeline
        job.restore("latest", pipeline, {}, owner=owner).apply()
        assert upgrade.has_restored(job, owner.dag_run) is True


@pytest.mark.parametrize("connection", [{}, {"retained_age": "1 day"}, {"retention": "hourly for 2 days"}])
def test_a_trial_deletes_no_checkpoint_that_the_pipeline_s_own_dag_keeps(
    bag: DagBag, tmp_path: Path, connection: dict[str, str]
) -> None:
    """The DAG that runs the job may keep more than the connection says, such as 20 where it says 3."""
    options = load(code={**connection, **bag.dags["stateflow_upgrade"].get_task("trial").options}, env={})
    made = made_job(tmp_path, "orders", batches=6, retained=20)
    before = [record.slot for record in made.opened().checkpoints()]
    retained = Retention.of(options, made.clock())
    made.claim("trial", retained)
    made.opened().collect(1)
    assert [record.slot for record in made.opened().checkpoints()] == before


@pytest.mark.parametrize("earlier", ["", "/opt/orders_1.py:orders"])
def test_going_back_switches_back_what_had_been_switched(bag: DagBag, earlier: str) -> None:
    upgrade, dag = module_of(bag, "stateflow_upgrade"), bag.dags["stateflow_upgrade"]
    name = pipeline_variable("stateflow_default", "orders")
    before = {name: earlier} if earlier else {}
    airflow = Supervisor(variables=dict(before))
    with supervised(airflow):
        switch, switch_back = (dag.get_task(each).python_callable for each in ("switch", "switch_back"))
        switch("/opt/orders_2.py:orders", "stateflow_default", "orders")
        assert airflow.variables != before
        for _ in range(2):  # a retry, too
            switch_back(earlier, "stateflow_default", "orders")
            assert airflow.variables == before
    assert dag.get_task("roll_back").upstream_task_ids >= {"switch_back"}
    assert dag.get_task("switch_back").upstream_task_ids >= {"wrong"}
    assert upgrade.misnamed(earlier, earlier, name) == ""
    said = upgrade.misnamed("/opt/orders_2.py:orders", earlier, name)
    assert not lacking(said, (name, "/opt/orders_2.py:orders", earlier or "delete"))


def test_a_verdict_is_red_while_the_variable_names_another_version(bag: DagBag) -> None:
    verdict = bag.dags["stateflow_upgrade"].get_task("verdict").python_callable
    states = {"switch": "success"}
    done = SimpleNamespace(dag_id="stateflow_upgrade", get_task_states=lambda dag_id, run_ids: {"1": states})
    name = pipeline_variable("stateflow_default", "orders")
    airflow = Supervisor(variables={name: "/new.py:p"})
    asked: Any = (
        {"pipeline": "/old.py:p", "switched_to": ""},
        "/new.py:p",
        STOPPED,
        "stateflow_default",
        "orders",
        done,
        "1",
    )
    with supervised(airflow):
        assert verdict(*asked).startswith("upgraded")
        airflow.variables[name] = "/other.py:p"
        with refused(AirflowFailException, "upgraded", name, "/other.py:p", "/new.py:p"):
            verdict(*asked)
        states.update(GOOD, switch="failed", switch_back="success", verify_rolled_back="success")
        with refused(AirflowFailException, "taken back", name, "/other.py:p", "delete it"):
            verdict(*asked)
        states.update(restore="upstream_failed", switch_back="skipped", alone="failed")
        with refused(AirflowFailException, "nothing was changed") as said:
            verdict(*asked)
        assert name not in str(said.value), "somebody else's upgrade has set it"


STOPPED = {"checkpoint": 7, "savepoint": "s3://bucket/_savepoints/orders/x"}
GOOD = dict.fromkeys(
    (
        "old_version",
        "paused",
        "deploy",
        "check",
        "shadow",
        "approve",
        "still_paused",
        "stop",
        "keep_before",
        "plan",
        "alone",
        "restore",
    ),
    "success",
)


@pytest.mark.parametrize(
    ("states", "stopped", "done", "sentence"),
    [
        ({"switch": "success"}, STOPPED, True, "upgraded: every DAG that names its pipeline by pipeline_template runs /new.py:p"),
        ({"paused": "failed", "restore": "upstream_failed"}, None, False, "nothing was changed: paused failed"),
        (
            {"keep_before": "failed", "restore": "upstream_failed"}, STOPPED, False,
            "keep_before failed, and nothing was changed but that the job was stopped",
        ),
        (
            {"alone": "failed", "restore": "upstream_failed"}, STOPPED, False,
            "alone failed, and nothing was changed but that the job was stopped",
        ),
        (
            {"restore": "failed", "roll_back": "skipped"}, STOPPED, False,
            "restore failed, and nothing was changed but that the job was stopped",
        ),
        ({"shadow": "failed", "restore": "upstream_failed"}, None, False, "nothing was changed: shadow failed"),
        ({"still_paused": "skipped", "restore": "skipped"}, None, False, "nothing was changed: the upgrade was rejected"),
        (
            {"verify": "failed", "switch": "upstream_failed", "verify_rolled_back": "success"}, STOPPED, False,
            "verify failed, and the job was taken back to checkpoint 7 with /old.py:p",
        ),
        (
            {"trial": "failed", "roll_back": "failed", "verify_rolled_back": "upstream_failed"}, STOPPED, False,
            "trial failed, and so did going back: the job is not where it was",
        ),
    ],
)  # fmt: skip
def test_the_verdict_says_how_things_stand(
    bag: DagBag, states: dict[str, str], stopped: Any, done: bool, sentence: str
) -> None:
    upgrade = module_of(bag, "stateflow_upgrade")
    found = upgrade.verdict_on({**GOOD, **states}, "/old.py:p", "/new.py:p", stopped or {})
    assert found[0] is done
    assert found[1].startswith(sentence)
    if "so did" in sentence:
        assert STOPPED["savepoint"] in found[1]


@pytest.mark.parametrize(
    ("weekday", "asked", "weekly"), [(6, False, True), (0, False, False), (0, True, True)]
)
def test_canonical_savepoints_are_made_on_sundays_and_on_demand(
    bag: DagBag, weekday: int, asked: bool, weekly: bool
) -> None:
    is_weekly = bag.dags["stateflow_periodic_savepoints"].get_task("is_weekly").python_callable
    run_after = SimpleNamespace(weekday=lambda: weekday)
    assert is_weekly({"canonical": asked}, SimpleNamespace(run_after=run_after)) is weekly


def test_settings_come_from_a_variable(bag: DagBag) -> None:
    read = sys.modules["stateflow_settings"].read_settings
    assert set(read("{}").jobs) == {"orders"}
    given = read('{"schedule": null, "jobs": {"a": {"pipeline": "/a.py:a", "dag_id": "a"}}}')
    assert given.schedule is None
    # Forms take no other connection, recoveries no pipeline from elsewhere.
    assert (given.connections, [str(each) for each in given.folders]) == (["stateflow_default"], ["/"])
    more = read('{"conn_id": "a", "conn_ids": ["b", "a"], "pipeline_folders": ["/opt/pipelines"]}')
    assert (more.connections, [str(each) for each in more.folders]) == (["a", "b"], ["/opt/pipelines"])
    assert given.jobs["a"].dag_id == "a"
    for text in ("nonsense", '{"job": {}}', '{"conn_id": 1}', '{"jobs": {"a": {}}}'):
        with pytest.raises(ValueError, match="the Airflow Variable 'stateflow' is not usable"):
            read(text)


def test_a_dag_runs_own_tag_has_a_name_that_the_job_takes(bag: DagBag) -> None:
    from stateflow.format.layout import checked_name

    tag_name = sys.modules["stateflow_steps"].tag_name
    name = tag_name("recovery", "manual__2026-01-31T00:00:00.5+00:00")
    assert name == "recovery-manual__2026-01-31T00-00-00.5-00-00"
    assert checked_name("tag", tag_name("recovery", "x y/" * 100))


@dataclass
class Played:
    """The DAGs as Airflow has run them, on jobs that were made without Spark."""

    root: Path
    told: dict[str, dict[str, Any]]

    def state(self, name: str, task: str = "") -> str:
        return str(self.told[name]["tasks"][task]["state"] if task else self.told[name]["state"])

    def result(self, name: str, task: str) -> Any:
        return self.told[name]["tasks"][task]["result"]

    def said(self, name: str, task: str) -> str:
        return str(self.told[name]["tasks"][task]["said"])

    def job(self, name: str) -> Job:
        return Job(str(self.root), name)


CHANGED = ORDERS.read_text().replace("ValueState(float, default=0.0", "ValueState(str, default=''")
STORIES: dict[str, dict[str, Any]] = {
    "savepoint": {"dag": "stateflow_savepoint", "conf": {"job": "kept", "note": "before"}},
    "dry cleanup": {"dag": "stateflow_cleanup", "conf": {"job": "crowded", "retained": 2, "age": None}},
    "cleanup": {"dag": "stateflow_cleanup", "conf": {"job": "crowded", "retained": 2, "age": "0 seconds", "dry_run": False}},
    "stop": {"dag": "stateflow_stop", "conf": {"job": "kept", "savepoint": True, "note": "over"}},
    "stop nobody": {"dag": "stateflow_stop", "conf": {"job": "nobody"}},
    "nowhere": {"dag": "stateflow_savepoint", "conf": {"job": "kept", "conn_id": "nowhere"}},
    "periodic": {"dag": "stateflow_periodic_savepoints", "at": MONDAY},
    "recovery": {"dag": "stateflow_recovery", "conf": {"origin": "checkpoint:5", "note": "bad"}, "mark": "approve"},
    "recovery of nothing": {"dag": "stateflow_recovery", "conf": {"origin": "checkpoint:99"}, "mark": "approve"},
    "recovery of a stranger": {"dag": "stateflow_recovery", "conf": {"job": "kept"}, "mark": "approve"},
    "reprocessing": {
        "dag": "stateflow_reprocess",
        "conf": {"fork": "again", "origin": "checkpoint:5", "parameters": {"output": "/data/again"}},
        "mark": "run",
    },
    "reprocessing with copies": {
        "dag": "stateflow_reprocess",
        "conf": {"fork": "copies", "parameters": {"output": "/data/copies"}, "clone_sinks": True},
    },
    "reprocessing into its tables": {
        "dag": "stateflow_reprocess", "conf": {"fork": "twice", "parameters": {"output": "/data/totals"}},
    },
    "reprocessing of a stranger": {
        "dag": "stateflow_reprocess",
        "conf": {
            "job": "kept", "fork": "of-kept", "origin": "latest", "parameters": {"output": "/data/of-kept"}, "clone_sinks": False,
        },
        "mark": "run",
    },
    "reprocessing of a stranger by no file": {
        "dag": "stateflow_reprocess",
        "conf": {"job": "kept", "fork": "of-none", "parameters": {"output": "/data/of-none"}, "pipeline": None},
    },
    "reprocessing with a file from elsewhere": {"dag": "stateflow_reprocess"},
    "reprocessing into null": {"dag": "stateflow_reprocess", "conf": {"job": "orders", "fork": "null", "parameters": {"output": None}}},
    "upgrade that does not fit": {"dag": "stateflow_upgrade"},
    "upgrade that is refused": {"dag": "stateflow_upgrade", "mark": "shadow|approve|plan"},
    "upgrade": {"dag": "stateflow_upgrade", "mark": "trial|shadow|approve"},
    "recovery with a file from elsewhere": {"dag": "stateflow_recovery", "mark": "approve"},
    "upgrade with a file from elsewhere": {"dag": "stateflow_upgrade"},
    "upgrade beside": {"dag": "stateflow_upgrade", "unpaused": ["stateflow_orders"]},
    "nightly": {"dag": "stateflow_nightly", "at": MONDAY},
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All of them in one process and one database, since starting Airflow is what takes the time."""
    folder = tmp_path_factory.mktemp("played")
    root = folder / "root"
    for name in ("orders", "kept", "damaged"):
        made_job(root, name, batches=6)
    crowded = made_job(root, "crowded", batches=6)
    crowded.retained = 2
    crowded.begin("another run")
    shutil.rmtree(root / "damaged" / "shared")
    (folder / "orders_2.py").write_text(CHANGED)
    (folder / "orders_3.py").write_text(ORDERS.read_text())
    fits, does_not = ({"pipeline": f"{folder}/orders_{number}.py:orders"} for number in (3, 2))
    for story in ("upgrade that is refused", "upgrade"):
        STORIES[story]["conf"] = fits
    for story in ("upgrade that does not fit", "upgrade beside"):
        STORIES[story]["conf"] = does_not
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "evil.py").write_text(f"open({str(elsewhere / 'was-run')!r}, 'w')\n{ORDERS.read_text()}")
    (folder / "linked.py").symlink_to(elsewhere / "evil.py")
    STORIES["recovery with a file from elsewhere"]["conf"] = {
        "job": "orders",
        "pipeline": f"{folder}/linked.py:orders",
    }
    STORIES["reprocessing with a file from elsewhere"]["conf"] = {
        "job": "kept", "fork": "evil", "parameters": {"output": "/data/evil"}, "pipeline": f"{elsewhere}/evil.py:orders",
    }  # fmt: skip
    STORIES["reprocessing of a stranger"]["conf"]["pipeline"] = f"{folder}/orders_3.py:orders"
    there = made_job(tmp_path_factory.mktemp("saved"), "orders")
    saved = Job(there.store.url, "orders").savepoint(to=str(folder / "saved")).url
    STORIES["reprocessing with copies"]["conf"]["origin"] = saved
    STORIES["upgrade with a file from elsewhere"]["conf"] = {"pipeline": f"{elsewhere}/evil.py:orders"}
    return Played(
        root, dict(zip(STORIES, dag_runs.played(folder, root, list(STORIES.values())), strict=True))
    )


pytestmark = pytest.mark.timeout(900)  # Airflow, on a machine that may be busy


@pytest.mark.system
def test_a_savepoint_by_form(played: Played) -> None:
    assert played.state("savepoint") == "success"
    made = played.result("savepoint", "savepoint")
    assert read_savepoint(open_store(made["savepoint"])).note == "before"
    assert (made["job"], made["kind"], made["checkpoint"]) == ("kept", "native", 7)


@pytest.mark.system
def test_a_cleanup_only_tells_unless_it_is_told_otherwise(played: Played) -> None:
    dry, done = played.result("dry cleanup", "cleanup"), played.result("cleanup", "cleanup")
    assert (dry["deleted"], done["deleted"]) == (False, True)
    assert dry["jobs"]["crowded"]["records"]["subsumed"] >= 4
    # What the first one told was still there for the second one to delete.
    assert done["jobs"]["crowded"]["records"] == dry["jobs"]["crowded"]["records"]
    assert len(played.job("crowded").checkpoints()) == 2


@pytest.mark.system
def test_a_stop_with_a_savepoint(played: Played) -> None:
    stopped = played.result("stop", "stop")
    assert (played.state("stop"), stopped["outcome"], stopped["checkpoint"]) == ("success", "not running", 7)
    assert read_savepoint(open_store(stopped["savepoint"])).note == "over"


@pytest.mark.system
def test_an_unknown_job_and_an_unknown_connection_fail_with_a_sentence(played: Played) -> None:
    assert played.state("stop nobody") == "failed"
    assert played.said("stop nobody", "stop").startswith("there is no job 'nobody' in")
    assert played.state("nowhere") == "failed"
    assert played.said("nowhere", "savepoint").startswith("there is no connection 'nowhere': add it with")


@pytest.mark.system
def test_every_job_gets_its_nightly_savepoint_and_no_canonical_one_on_a_monday(played: Played) -> None:
    tasks = played.told["periodic"]["tasks"]
    made = {
        t["result"]["job"]: t["result"] for n, t in tasks.items() if n.startswith("native[") and t["result"]
    }
    assert set(made) == {"orders", "kept", "crowded"}
    assert read_savepoint(open_store(made["orders"]["savepoint"])).expires is not None
    assert played.state("periodic", "canonical") == "skipped"


@pytest.mark.system
def test_a_recovery_restores_starts_the_pipeline_and_leaves_a_way_back(played: Played) -> None:
    assert played.state("recovery") == "success"
    planned = played.result("recovery", "plan")
    assert "checkpoint:5" in planned["plan"]
    assert "| note | `bad` |" in planned["plan"]
    assert played.result("recovery", "restore")["digest"] == planned["digest"]
    restored = played.job("orders").log().record(played.result("recovery", "restore")["record"])
    assert (restored.kind, restored.origin, restored.owner.note) == ("restore", "checkpoint:5", "bad")
    assert restored.owner.dag_run == f"stateflow_recovery/{played.told['recovery']['run_id']}"
    tags = played.job("orders").status().tags
    assert tags[played.result("recovery", "still_holds")] == 7
    assert not [name for name in tags if name.startswith("recovery-")]


@pytest.mark.system
def test_a_recovery_to_nothing_changes_nothing(played: Played) -> None:
    assert played.state("recovery of nothing") == "failed"
    assert "99" in played.said("recovery of nothing", "plan")
    for task in ("hold", "approve", "stop", "restore", "start"):
        assert played.state("recovery of nothing", task) == "upstream_failed"


@pytest.mark.system
def test_a_job_whose_pipeline_nobody_named_is_refused(played: Played) -> None:
    said = played.said("recovery of a stranger", "known_job")
    assert not lacking(said, ("which pipeline", "'kept'", "'stateflow_default'", "Variable 'stateflow'"))
    assert played.state("recovery of a stranger", "plan") == "upstream_failed"


@pytest.mark.system
def test_an_interval_is_processed_again_in_a_fork_that_leaves_the_job_alone(played: Played) -> None:
    assert played.state("reprocessing") == "success"
    forked = played.result("reprocessing", "fork")
    record = played.job("again").log().record(forked["record"])
    assert (record.kind, record.parameters["output"]) == ("restore", "/data/again")
    assert played.result("reprocessing", "verify")["sound"]
    run = played.told["reprocessing"]["run_id"]
    assert not [r for r in played.job("orders").log().chain if r.owner.dag_run.endswith(run)]


@pytest.mark.system
def test_an_interval_of_a_job_that_the_settings_do_not_have_needs_its_file_alone(played: Played) -> None:
    said = played.said("reprocessing of a stranger by no file", "known_pipeline")
    for part in ("pipeline", "'kept'", "field Pipeline", "Variable 'stateflow'"):
        assert part in said
    assert played.state("reprocessing of a stranger by no file", "fork") == "upstream_failed"
    assert played.state("reprocessing of a stranger") == "success"
    assert played.job("of-kept").log().head is not None


@pytest.mark.system
def test_what_an_interval_s_form_asks_to_copy_is_asked_of_the_restore(played: Played) -> None:
    """These jobs have no tables, so that the refusal shows that the form's field has arrived."""
    said = played.said("reprocessing with copies", "fork")
    assert "--clone-sinks needs a checkpoint of the other job" in said
    assert played.state("reprocessing with copies", "run") == "upstream_failed"


@pytest.mark.system
def test_a_fork_into_the_job_s_own_tables_is_refused(played: Played) -> None:
    for story in ("reprocessing into its tables", "reprocessing into null"):
        said = played.said(story, "chosen")
        assert said.startswith("the fork would write into the tables of job 'orders': name other outputs")
        assert played.state(story, "fork") == "upstream_failed"


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "step", "after"),
    [
        ("recovery with a file from elsewhere", "known_job", ("plan", "approve", "restore")),
        ("upgrade with a file from elsewhere", "paused", ("stop", "check", "restore", "trial")),
        ("reprocessing with a file from elsewhere", "known_pipeline", ("fork", "run")),
    ],
)
def test_a_file_outside_the_settings_folders_is_refused_before_it_is_loaded_and_before_an_approval(
    played: Played, name: str, step: str, after: tuple[str, ...]
) -> None:
    said = played.said(name, step)
    assert "/evil.py lies in none of the allowed folders (" in said
    assert "; `pipeline_folders` in the Airflow Variable 'stateflow' lists the folders" in said
    assert {played.state(name, task) for task in after} == {"upstream_failed"}
    evil = Path(said.split("the pipeline file ")[1].split(" lies in")[0])
    assert evil.is_file()
    assert not (evil.parent / "was-run").exists()


@pytest.mark.system
def test_an_upgrade_that_does_not_fit_changes_nothing(played: Played) -> None:
    name = "upgrade that does not fit"
    assert played.state(name) == "failed"
    assert "total" in played.said(name, "check")
    assert played.state(name, "restore") == "upstream_failed"
    assert played.state(name, "roll_back") == "skipped"
    said = played.said(name, "verdict")
    assert said.startswith("nothing was changed: check failed")
    assert {played.state(name, task) for task in ("shadow", "approve", "stop")} == {"upstream_failed"}
    records = played.job("orders").log().chain
    assert not [
        r for r in records if r.owner.dag_run.endswith(played.told[name]["run_id"]) and r.carries_state
    ]


@pytest.mark.system
def test_an_upgrade_that_is_refused_after_the_stop_leaves_no_tag(played: Played) -> None:
    """A tag would keep its checkpoint for good, whatever the retention says. Here `alone` has no plan to look at."""
    name = "upgrade that is refused"
    states = {task: played.state(name, task) for task in ("keep_before", "alone", "restore", "roll_back")}
    assert states == {
        "keep_before": "success", "alone": "failed", "restore": "upstream_failed", "roll_back": "skipped",
    }  # fmt: skip
    assert played.state(name, "let_go") == "success"
    assert played.result(name, "keep_before") not in played.job("orders").status().tags
    assert played.state(name) == "failed"


@pytest.mark.system
def test_an_upgrade_takes_the_savepoint_over_and_switches_every_dag(played: Played) -> None:
    assert played.state("upgrade") == "success"
    stopped, restored = played.result("upgrade", "stop"), played.result("upgrade", "restore")
    assert restored["document"]["from"] == stopped["savepoint"]
    new = STORIES["upgrade"]["conf"]["pipeline"]
    said = played.result("upgrade", "verdict")
    assert said.startswith(
        f"upgraded: every DAG that names its pipeline by pipeline_template runs {new} from now on"
    )
    assert said.endswith("; unpause the pipeline's DAG")
    # The next one finds it running.
    assert played.result("upgrade beside", "old_version")["pipeline"] == new
    assert not [name for name in played.job("orders").status().tags if name.startswith("before-upgrade")]


@pytest.mark.system
def test_an_upgrade_beside_a_dag_that_may_start_runs_is_refused(played: Played) -> None:
    assert played.state("upgrade beside") == "failed"
    assert played.said("upgrade beside", "paused").startswith("DAG 'stateflow_orders' is not paused")
    assert played.state("upgrade beside", "stop") == "upstream_failed"
    assert played.state("upgrade beside", "roll_back") == "skipped"
    assert played.said("upgrade beside", "verdict").startswith("nothing was changed: paused failed")


@pytest.mark.system
def test_the_night_cleans_up_and_finds_what_is_damaged(played: Played) -> None:
    assert played.result("nightly", "report")["deleted"] is False
    assert played.state("nightly", "cleanup") == "success"
    verified = [t["state"] for n, t in played.told["nightly"]["tasks"].items() if n.startswith("verify[")]
    assert sorted(verified) == ["failed", *["success"] * 5]
    assert played.state("nightly") == "failed"
