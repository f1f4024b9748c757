"""Drivers as pods: started with nothing secret on a command line, found again from any host, followed and ended."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from kubernetes import client

from stateflow.airflow import Kubernetes, StateflowRunOperator
from stateflow.airflow.launchers import driver_pods
from stateflow.airflow.launchers.driver_pods import LAUNCH, TASK, DriverPod, DriverPods
from stateflow.airflow.launchers.kubernetes import FOLDER
from stateflow.airflow.launchers.pod_status import process_status, waits_for
from stateflow.airflow.triggers import run as run_trigger
from stateflow.airflow.triggers.run import StateflowRunTrigger
from stateflow.checkpoint.control import RunOutcome
from stateflow.driver.processes import DriverFolder, DriverProcess, ProcessStatus
from stateflow.driver.run_spec import RunSpec
from stateflow.driver.supervision import Supervision
from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from tests.airflow.kubernetes_api import Cluster, kube_config, serving
from tests.airflow.runner import run_task
from tests.airflow.tasks import fired
from tests.jobs.made import ORDERS, PARAMETERS, MadeJob
from tests.refusals.refusal import refused

SPEC = RunSpec(
    "/opt/pipelines/orders.py:orders",
    "orders",
    "dag/1",
    "run",
    parameters={"input": "s3a://lake/orders", "api_token": "hush"},
    conf={"spark.hadoop.fs.s3a.secret.key": "hush-too", "spark.executor.memory": "2g"},
    above=3,
    environment={
        "STATEFLOW_CHECKPOINT_DIR": "s3://lake/checkpoints",
        "STATEFLOW_STORAGE_OPTIONS": '{"secret_access_key": "hush"}',
    },
)


class Submission(DriverProcess):
    """spark-submit, which a test ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.status = ProcessStatus(True)
        self.stopped: list[float] = []
        self.argv: list[str] = []

    def look(self) -> ProcessStatus:
        return self.status

    def stop(self, grace: float) -> None:
        self.stopped.append(grace)
        self.status = ProcessStatus(False, -9)

    def settings(self) -> dict[str, str]:
        pairs = (word.partition("=") for flag, word in itertools.pairwise(self.argv) if flag == "--conf")
        return {name: value for name, _, value in pairs}

    def labels(self) -> dict[str, str]:
        prefix = "spark.kubernetes.driver.label."
        return {n.removeprefix(prefix): v for n, v in self.settings().items() if n.startswith(prefix)}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def address(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serving(cluster) as address:
        extra = {"kube_config": kube_config(address)}
        monkeypatch.setenv(
            "AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra})
        )
        monkeypatch.setenv(
            "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "k8s://https://api"})
        )
        yield address


@pytest.fixture
def submission(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    made = Submission(tmp_path)

    def start(
        self: DriverFolder, argv: Sequence[str], environment: Mapping[str, str], cwd: Path, **options: Any
    ) -> DriverProcess:
        made.argv = list(argv)
        return made

    monkeypatch.setattr(DriverFolder, "start", start)
    monkeypatch.setattr(DriverFolder, "newest", lambda self: None)  # as on another host
    return made


def launcher(**more: Any) -> Any:
    return Kubernetes(image="registry/orders:1", namespace="jobs", **more).bound("spark_default")


def pods(address: str) -> DriverPods:
    configuration = client.Configuration(host=address)
    configuration.retries = 0
    return DriverPods(client.CoreV1Api(client.ApiClient(configuration)), "jobs")


def test_a_submission_has_the_pods_settings_and_no_secret_on_its_command_line(
    cluster: Cluster, submission: Submission
) -> None:
    launcher(service_account="spark", secrets={"lake-keys": "/etc/lake"}, num_executors=4).launch(SPEC)
    settings = submission.settings()
    assert "hush" not in " ".join(submission.argv)
    assert submission.argv[submission.argv.index("--deploy-mode") + 1] == "cluster"
    assert settings["spark.kubernetes.container.image"] == "registry/orders:1"
    assert settings["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert settings["spark.kubernetes.authenticate.driver.serviceAccountName"] == "spark"
    assert settings["spark.kubernetes.driver.secrets.lake-keys"] == "/etc/lake"
    assert settings["spark.kubernetes.executor.secrets.lake-keys"] == "/etc/lake"
    assert settings["spark.executor.memory"] == "2g"
    [secret] = cluster.of("secrets")
    assert settings[f"spark.kubernetes.driver.secrets.{secret['metadata']['name']}"] == FOLDER
    assert settings["spark.kubernetes.driverEnv.STATEFLOW_RUN_SECRETS_FOLDER"] == FOLDER
    assert json.loads(secret["stringData"]["STATEFLOW_RUN_SECRETS"]) == {
        "parameters": {"api_token": "hush"},
        "conf": {"spark.hadoop.fs.s3a.secret.key": "hush-too"},
    }
    assert "hush" in secret["stringData"]["STATEFLOW_STORAGE_OPTIONS"]
    assert secret["stringData"]["STATEFLOW_CHECKPOINT_DIR"] == "s3://lake/checkpoints"
    assert cluster.problems == []


def test_a_user_s_variables_are_keys_of_the_run_s_secret_which_the_driver_s_jvm_reads_too(
    cluster: Cluster, submission: Submission
) -> None:
    method = Kubernetes(image="registry/orders:1", namespace="jobs", env={"AWS_SESSION_TOKEN": "hush"})
    method.bound("spark_default").launch(SPEC)
    [secret] = cluster.of("secrets")
    assert secret["stringData"]["AWS_SESSION_TOKEN"] == "hush"
    name = f"{secret['metadata']['name']}:AWS_SESSION_TOKEN"
    assert submission.settings()["spark.kubernetes.driver.secretKeyRef.AWS_SESSION_TOKEN"] == name
    assert "hush" not in " ".join(submission.argv)
    assert cluster.problems == []


def test_labels_are_such_that_kubernetes_takes_them(submission: Submission) -> None:
    import re

    spec = RunSpec("f.py:p", "o" + "x" * 61 + "_" + "y" * 50, "dag/" + "x" * 300, "run", above=1)
    launcher().launch(spec)
    for name, value in submission.labels().items():
        assert re.fullmatch(r"[a-z]+/[a-z]+", name)
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value), name


def test_a_retry_on_another_host_finds_the_pod_by_its_labels(
    cluster: Cluster, submission: Submission
) -> None:
    first = launcher().launch(SPEC)
    cluster.driver(submission.labels())
    cluster.driver({**submission.labels(), TASK: "of-another-task"}, "other")
    found = launcher().find(SPEC)
    assert (found.name, found.above) == (first.name, 3)
    assert found.look() == ProcessStatus(True)
    assert launcher().find(RunSpec("f.py:p", "orders", "dag/2", "run")) is None
    elsewhere = {**SPEC.environment, "STATEFLOW_CHECKPOINT_DIR": "s3://another/airflow"}
    assert launcher().find(dataclasses.replace(SPEC, environment=elsewhere)) is None


def test_of_two_launches_the_later_is_found(cluster: Cluster, submission: Submission) -> None:
    for name in ("first", "second"):
        launcher().launch(SPEC)
        cluster.driver(submission.labels(), name)
    assert launcher().find(SPEC).launch == submission.labels()[LAUNCH]


def test_a_pods_end_is_told_with_kubernetes_own_reason(cluster: Cluster, submission: Submission) -> None:
    driver = launcher().launch(SPEC)
    assert driver.look() == ProcessStatus(True), "spark-submit is at work"
    cluster.driver(submission.labels())
    submission.status = ProcessStatus(False, 0)
    assert driver.look() == ProcessStatus(True)
    cluster.begins()
    assert driver.look() == ProcessStatus(True)
    cluster.ends(code=137, reason="OOMKilled")
    assert driver.look() == ProcessStatus(False, 137, reason="OOMKilled")
    cluster.ends(code=3)
    assert driver.look() == ProcessStatus(False, 3)
    cluster.ends()
    assert driver.look() == ProcessStatus(False, 0)
    cluster.ends(code=1, reason="Error")
    cluster.objects["pods", "orders-driver"]["status"] |= {"reason": "Evicted", "message": "low on\n memory"}
    assert driver.look().reason == "Evicted: low on memory"
    del cluster.objects["pods", "orders-driver"]
    assert driver.look() == ProcessStatus(False, reason="its pod was deleted")


def test_a_submission_that_fails_is_the_drivers_failure_and_leaves_no_secret(
    cluster: Cluster, submission: Submission
) -> None:
    (submission.folder / "output.log").write_text("Exception: forbidden: pods\n")
    driver = launcher().launch(SPEC)
    submission.status = ProcessStatus(False, 1)
    assert driver.look() == ProcessStatus(False, 1)
    assert driver.last_words() == ["Exception: forbidden: pods"]
    assert cluster.of("secrets") == []


def test_a_submission_that_is_killed_before_it_has_made_a_pod_leaves_no_secret(
    cluster: Cluster, submission: Submission
) -> None:
    launcher().launch(SPEC).stop(60.0)
    assert submission.stopped == [0]
    assert cluster.of("secrets") == []


@pytest.mark.parametrize("grace", [60.0, 0.0])
def test_a_pod_that_comes_while_its_submission_is_killed_ends_and_its_secret_goes_with_it(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    def stop(self: Submission, grace: float) -> None:
        cluster.driver(submission.labels())
        submission.status = ProcessStatus(False, -9)

    monkeypatch.setattr(Submission, "stop", stop)
    launcher().launch(SPEC).stop(grace)
    pods, secrets = cluster.of("pods"), cluster.of("secrets")
    if grace:
        assert pods[0]["spec"]["activeDeadlineSeconds"] == 60
        assert secrets[0]["metadata"]["ownerReferences"][0]["uid"] == pods[0]["metadata"]["uid"]
    else:
        assert pods == secrets == []


def test_a_submission_that_cannot_be_started_leaves_no_secret(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(DriverFolder, "start", full)
    with pytest.raises(OSError, match="no space left"):
        launcher().launch(SPEC)
    assert cluster.of("secrets") == []


def test_a_retry_deletes_the_secret_of_a_submission_that_died_with_its_task(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher().launch(SPEC)
    (submission.folder / "command.json").write_text(json.dumps({"argv": submission.argv}))
    monkeypatch.setattr(DriverFolder, "newest", lambda self: submission)
    found = launcher().find(SPEC)
    assert found is not None
    assert found.submitting
    assert len(cluster.of("secrets")) == 1
    submission.status = ProcessStatus(False)
    assert launcher().find(SPEC) is None
    assert cluster.of("secrets") == []


def test_the_secret_goes_with_the_pod(cluster: Cluster, submission: Submission) -> None:
    driver = launcher().launch(SPEC)
    pod = cluster.driver(submission.labels())
    driver.look()
    [secret] = cluster.of("secrets")
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", pod["metadata"]["uid"])
    assert cluster.problems == []


def test_lines_of_the_log_come_once_and_in_their_order(cluster: Cluster, submission: Submission) -> None:
    driver = launcher().launch(SPEC)
    cluster.driver(submission.labels())
    cluster.begins()
    driver.look()
    cluster.says("checkpoint 1")
    cluster.says("checkpoint 2")
    assert driver.output() == ["checkpoint 1", "checkpoint 2"]
    assert driver.output() == []
    cluster.says("stateflow: the table is away")
    assert driver.output() == ["stateflow: the table is away"]
    assert driver.last_words()[-1] == "stateflow: the table is away"
    assert launcher().find(SPEC).launch == driver.launch, "another process reads from the beginning"


def test_lines_of_the_log_come_also_after_the_worker_s_clock_was_set_back(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = launcher().launch(SPEC)
    cluster.driver(submission.labels())
    cluster.begins()
    driver.look()
    assert driver.output() == []
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 3600)
    cluster.says("checkpoint 1")
    assert driver.output() == ["checkpoint 1"]


def test_a_log_that_kubernetes_does_not_give_ends_no_following(
    cluster: Cluster, submission: Submission
) -> None:
    driver = launcher().launch(SPEC)
    cluster.driver(submission.labels())
    cluster.begins()
    driver.look()
    cluster.refuses = 403
    [line] = driver.output()
    assert "get pods/log" in line
    assert driver.output() == driver.last_words() == [], "it is told once"
    cluster.refuses = 0
    cluster.says("checkpoint 1")
    assert driver.output() == ["checkpoint 1"]


def test_a_stop_leaves_the_killing_to_the_node(cluster: Cluster, submission: Submission) -> None:
    driver = launcher().launch(SPEC)
    cluster.driver(submission.labels())
    cluster.begins()
    driver.stop(120.0)

    def deadline() -> int:
        seconds: int = cluster.objects["pods", "orders-driver"]["spec"]["activeDeadlineSeconds"]
        return seconds

    assert 120 <= deadline() <= 125
    driver.stop(600.0)
    assert deadline() <= 125, "a deadline is never put off"
    driver.stop(0)
    assert cluster.of("pods") == []
    assert cluster.problems == []


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_a_pod_gets_its_grace_also_where_the_cluster_s_clock_is_another(
    cluster: Cluster, submission: Submission, ahead: int
) -> None:
    driver = launcher().launch(SPEC)
    cluster.driver(submission.labels())
    cluster.ahead = ahead - 400
    cluster.begins()
    cluster.ahead = ahead
    driver.stop(120.0)
    assert 520 <= cluster.objects["pods", "orders-driver"]["spec"]["activeDeadlineSeconds"] <= 525


def test_an_api_that_is_away_is_no_sign_of_death(
    cluster: Cluster, submission: Submission, address: str
) -> None:
    launcher().launch(SPEC)
    cluster.driver(submission.labels())
    driver = DriverPod(pods(address), submission.labels()[LAUNCH], 3)
    assert driver.look().running
    cluster.refuses = 503
    assert driver.look().running
    assert driver.output() == driver.last_words() == []
    with refused(UnavailableError, "503", "'list pods'"):
        DriverPod(pods(address), submission.labels()[LAUNCH], 3).look()
    cluster.refuses = 403
    with refused(UsageError, "list pods", "namespace 'jobs'", "the service account"):
        driver.look()
    with refused(UnavailableError, "out of reach"):
        DriverPods(pods("http://127.0.0.1:9").api, "jobs").newest({})


def test_a_pod_that_never_starts_says_why(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = launcher().launch(SPEC)
    pod = cluster.driver(submission.labels())
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry/orders:1"'}
    pod["status"]["containerStatuses"] = [
        {"name": "spark-kubernetes-driver", "state": {"waiting": waiting}, "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    ]  # fmt: skip
    assert driver.look().running
    monkeypatch.setattr(driver_pods, "PULL_PATIENCE", -60.0)
    status = driver.look()
    assert (status.running, status.exit_code) == (False, 1)
    assert "did not start within" in status.reason
    assert 'ImagePullBackOff: Back-off pulling image "registry/orders:1"' in status.reason
    assert cluster.of("pods") == [], "it would hold the place of the next one"


def test_a_pod_waits_for_its_node_as_long_as_it_is_seen_to_wait_whatever_the_cluster_s_clock_says(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = launcher().launch(SPEC)
    cluster.ahead = -2 * driver_pods.PULL_PATIENCE
    cluster.driver(submission.labels())
    assert driver.look().running
    monkeypatch.setattr(driver_pods, "PULL_PATIENCE", 0.0)
    assert not driver.look().running


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Pending"}, "it has no node yet"),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
            "Unschedulable: 0/3 nodes",
        ),
        ({"phase": "Running"}, ""),
    ],
)  # fmt: skip
def test_why_a_pod_waits(status: dict[str, Any], why: str) -> None:
    assert waits_for({"status": status}) == why
    assert process_status({"status": status}).running


def test_a_task_whose_worker_died_goes_on_with_the_pod_and_tells_how_it_was_killed(
    cluster: Cluster, submission: Submission, tmp_path: Path
) -> None:
    made = MadeJob(tmp_path / "root", "orders")
    made.batch()
    job, owner = Job(str(tmp_path / "root"), "orders"), Owner("r", dag_run="dag/1", task="run")
    spec = RunSpec("/opt/orders.py:orders", "orders", "dag/1", "run")

    def attempt() -> Supervision:
        return Supervision(job, spec, launcher(), owner, patience=0.2, say=said.append)

    said: list[str] = []
    first = attempt()
    first.begin()
    cluster.driver(submission.labels())
    cluster.begins()
    again = attempt()
    again.begin()
    assert again.reattached
    assert len(cluster.of("secrets")) == 1, "nothing was launched again"
    cluster.ends(code=137, reason="OOMKilled")
    with refused(StateflowError, "the driver was killed", "signal 9", "OOMKilled"):
        again.result(again.look())
    # The next try launches again, and the run of that pod ends well.
    third = attempt()
    third.begin()
    assert not third.reattached
    cluster.driver(submission.labels(), "second")
    done = RunOutcome(batches=1, rows=5, checkpoint=2, stopped="drained")
    MadeJob(tmp_path / "root", run="r2").beat(9, owner=owner, ended=True, outcome=done)
    cluster.ends("second")
    assert third.result(third.look()).rows == 5


def task_with_a_pod(root: Path) -> StateflowRunOperator:
    return StateflowRunOperator(
        task_id="run",
        pipeline=f"{ORDERS}:orders",
        parameters=PARAMETERS,
        checkpoint_dir=str(root),
        deferrable=True,
        launcher=Kubernetes(image="registry/orders:1", namespace="jobs"),
    )


def deferred(root: Path) -> tuple[str, dict[str, Any]]:
    """How the task is resumed, and what its trigger gets."""
    told = run_task(task_with_a_pod(root))
    assert told.state is TaskInstanceState.DEFERRED, told.error
    return told.message.next_method, dict(told.message.trigger_kwargs)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trigger, "ASK_AGAIN", 0.1)


class Making(Submission):
    """spark-submit that is at work for some looks, and then has made the pod."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.cluster, self.looks = cluster, 0

    def look(self) -> ProcessStatus:
        self.looks += 1
        if self.looks == 3:
            self.cluster.driver(self.labels())
            self.cluster.begins()
        return ProcessStatus(True) if self.looks < 3 else ProcessStatus(False, 0)


@pytest.fixture
def making(
    cluster: Cluster, submission: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, often: None
) -> Making:
    made = Making(tmp_path, cluster)

    def start(self: DriverFolder, argv: Sequence[str], *_: Any, **named: Any) -> DriverProcess:
        made.argv = list(argv)
        return made

    monkeypatch.setattr(DriverFolder, "start", start)
    return made


def test_a_task_is_deferred_when_its_pod_is_made_and_no_sooner(
    cluster: Cluster, making: Making, tmp_path: Path
) -> None:
    """With KubernetesExecutor the worker's pod, and spark-submit in it, end when the task is deferred."""
    deferred(tmp_path / "root")
    assert making.looks >= 3
    assert len(cluster.of("pods")) == 1


def test_a_submission_that_fails_is_told_at_once_and_not_deferred(
    cluster: Cluster, submission: Submission, tmp_path: Path
) -> None:
    (submission.folder / "output.log").write_text("Exception: forbidden: pods\n")
    statuses = iter([True, True])
    submission.look = lambda: (  # type: ignore[method-assign]
        ProcessStatus(True) if next(statuses, False) else ProcessStatus(False, 1)
    )
    told = run_task(task_with_a_pod(tmp_path / "root"), max_tries=1)
    assert told.state is TaskInstanceState.UP_FOR_RETRY
    assert "forbidden: pods" in str(told.error)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda cluster: cluster.ends(code=137, reason="OOMKilled"), "OOMKilled"),
        (lambda cluster: cluster.objects.pop(("pods", "orders-driver")), "its pod was deleted"),
        (lambda cluster: cluster.ends(code=1), "exit code 1"),
    ],
)
def test_a_deferred_pod_that_dies_before_its_first_heartbeat_is_noticed(
    cluster: Cluster, making: Making, tmp_path: Path, end: Callable[[Cluster], object], why: str
) -> None:
    resume, fields = deferred(tmp_path / "root")
    Timer(0.5, end, [cluster]).start()
    event = fired(StateflowRunTrigger, fields, patience=30)
    told = run_task(task_with_a_pod(tmp_path / "root"), resumed=(resume, event), max_tries=1)
    assert told.state is TaskInstanceState.UP_FOR_RETRY
    assert why in str(told.error)


def test_an_api_that_is_away_ends_no_wait_in_the_triggerer(
    cluster: Cluster, making: Making, tmp_path: Path
) -> None:
    _, fields = deferred(tmp_path / "root")
    cluster.refuses = 403
    with pytest.raises(TimeoutError):
        fired(StateflowRunTrigger, fields, patience=1)


def test_after_its_first_heartbeat_no_pod_is_asked_for(
    cluster: Cluster, making: Making, tmp_path: Path
) -> None:
    _, fields = deferred(tmp_path / "root")
    job = MadeJob(tmp_path / "root", "orders")
    owner = Owner("r", dag_run=fields["dag_run"], task=fields["task"])
    job.beat(1, owner=owner)
    asked = len(cluster.asked)
    with pytest.raises(TimeoutError):
        fired(StateflowRunTrigger, fields, patience=1)
    assert len(cluster.asked) == asked


def test_a_deferred_task_that_is_killed_leaves_the_killing_to_the_node(
    cluster: Cluster, making: Making, tmp_path: Path
) -> None:
    _, fields = deferred(tmp_path / "root")
    asyncio.run(StateflowRunTrigger(**fields).on_kill())
    assert 120 <= cluster.objects["pods", "orders-driver"]["spec"]["activeDeadlineSeconds"] <= 125
    assert cluster.problems == []


def test_what_cannot_work_is_refused_before_anything_is_made(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="does not take deploy_mode"):
        Kubernetes(image="x", namespace="jobs", deploy_mode="client")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    with refused(UsageError, "'spark_default'", "local[2]", "Kubernetes(...) needs a cluster"):
        launcher().launch(SPEC)
    assert cluster.objects == {}


def test_a_connection_that_leads_to_no_cluster_is_refused_in_a_sentence(
    cluster: Cluster, submission: Submission, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with refused(NotFoundError, "no connection 'elsewhere'", "--conn-type kubernetes", "kubernetes_conn_id"):
        launcher(kubernetes_conn_id="elsewhere")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes"}))
    with refused(UsageError, "'kubernetes_default'", "does not lead to Kubernetes", "kube config"):
        launcher()
    assert cluster.objects == {}


def test_the_server_of_these_tests_finds_wrong_manifests() -> None:
    from tests.airflow.kubernetes_api import checked

    right = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    assert checked("pods", right) == []
    wrong = {
        "metadata": {"name": 1},
        "spec": {"containers": [{"image": "i", "comand": []}], "activeDeadlineSeconds": "9"},
    }
    assert len(checked("pods", wrong)) == 4
