"""The real spark-submit against an API server: the pod that Spark describes fits the schema and is found again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from stateflow.airflow import Kubernetes
from stateflow.airflow.launchers.kubernetes import FOLDER
from stateflow.driver.run_spec import RunSpec
from tests.airflow.kubernetes_api import Cluster, kube_config, serving
from tests.test_documents import blocks

ROOT = Path(__file__).resolve().parents[2]


def documented_cache() -> dict[str, str]:
    """The settings that `docs/deploying.md` gives for a cache that outlives the pod."""
    [source] = [source for _, source in blocks("docs/deploying.md") if source.startswith("CACHE = ")]
    return eval(source.removeprefix("CACHE = "))  # type: ignore[no-any-return]


@pytest.mark.system
@pytest.mark.timeout(600)  # a JVM starts, on a machine that may be busy
def test_sparks_own_manifest_fits_the_schema_and_the_driver_is_found_by_its_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster()
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(tmp_path))
    with serving(cluster) as address:
        config = tmp_path / "kube.json"
        config.write_text(json.dumps(kube_config(address)))
        monkeypatch.setenv("KUBECONFIG", str(config))
        extra = {"kube_config": kube_config(address)}
        monkeypatch.setenv(
            "AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra})
        )
        monkeypatch.setenv(
            "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": f"k8s://{address}"})
        )
        method = Kubernetes(
            image="registry/orders:1",
            namespace="jobs",
            service_account="spark",
            secrets={"lake": "/etc/lake"},
        )
        spec = RunSpec(
            "/opt/orders.py:orders", "orders", "dag/1", "run", parameters={"token": "hush"}, above=3,
            environment={"STATEFLOW_CHECKPOINT_DIR": "s3://lake/c"}, conf=documented_cache(),
        )  # fmt: skip
        driver = method.bound("spark_default").launch(spec)
        assert driver._submission is not None
        end = time.monotonic() + 500
        while driver._submission.look().running and time.monotonic() < end:
            time.sleep(0.5)
        assert driver._submission.look().exit_code == 0, driver._submission.last_words(40)
        assert cluster.problems == []
        [pod] = cluster.of("pods")
        [container] = pod["spec"]["containers"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        secrets = {
            v["secret"]["secretName"]: mounted[v["name"]] for v in pod["spec"]["volumes"] if "secret" in v
        }
        assert secrets == {driver.secret: FOLDER, "lake": "/etc/lake"}
        [cache] = [v["hostPath"] for v in pod["spec"]["volumes"] if v["name"] == "stateflow-cache"]
        assert cache == {"path": "/var/lib/stateflow/cache", "type": "Directory"}
        assert (
            f"STATEFLOW_CACHE_DIR={mounted['stateflow-cache']} "
            in (ROOT / "docker/spark/Dockerfile").read_text()
        )
        assert "hush" not in json.dumps([pod, *cluster.of("configmaps")])
        assert pod["spec"]["serviceAccountName"] == "spark"
        assert "/opt/orders.py:orders" in container["args"]
        found = method.bound("spark_default").find(spec)
        assert found is not None
        assert (found.name, found.above) == (driver.name, 3)
        [secret] = [each for each in cluster.of("secrets") if each["metadata"]["name"] == driver.secret]
        assert found.look().running
        assert secret["metadata"]["labels"]["stateflow/task"] == pod["metadata"]["labels"]["stateflow/task"]
