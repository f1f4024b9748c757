"""The compose file and the images are sound, and what would break them is caught without a container engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.compose_check import check
from scripts.compose_rules import pinned
from scripts.compose_text import ComposeError, interpolated, names_of, parsed
from scripts.docker_env import filled
from scripts.dockerfile import ignore_rules, is_ignored, problems

REPOSITORY = Path(__file__).resolve().parents[1]
COMPOSE, EXAMPLE = "docker/compose.yaml", "docker/.env.example"
AIRFLOW, SPARK = "docker/airflow/Dockerfile", "docker/spark/Dockerfile"
Edit = Callable[..., list[str]]


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """`edit(file, before, after)` says what `compose-check` would say."""
    shutil.copytree(
        REPOSITORY / "docker", tmp_path / "docker", ignore=shutil.ignore_patterns(".env", "schema")
    )
    for path in REPOSITORY.iterdir():
        if path.name not in ("docker", ".git", ".venv", ".cache"):
            (tmp_path / path.name).symlink_to(path)

    def edited(file: str, before: str, after: str) -> list[str]:
        path = tmp_path / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))
        return list(check(tmp_path / "docker", tmp_path))

    return edited


def test_what_is_there_is_sound() -> None:
    assert list(check(REPOSITORY / "docker")) == []


HEALTH_OF_POSTGRES = """\
    healthcheck:
      test: ["CMD", "pg_isready", "--username", "airflow"]
      interval: 10s
      timeout: 5s
      retries: 6
      start_period: 20s
"""
BROKEN = {
    "not YAML": (COMPOSE, "services:\n", "services: [\n", "it is not YAML"),
    "no services": (COMPOSE, "services:\n", "service:\n", "it has no services"),
    "unknown key": (COMPOSE, "    stop_grace_period: 2m", "    stop_grace: 2m", "'stop_grace' was unexpected"),
    "wrong type": (COMPOSE, 'command: ["airflow", "scheduler"]', "command: {run: airflow}", "services.airflow-scheduler.command"),
    "no number": (COMPOSE, "      retries: 4\n", "      retries: four times\n", "its retries are no number"),
    "no duration": (COMPOSE, "      interval: 15s\n", "      interval: 15 seconds\n", "its interval '15 seconds' is no duration"),
    "newest image": (COMPOSE, "postgres:17.6-bookworm", "postgres:latest", "'latest', which is not a version"),
    "no tag": (COMPOSE, "apache/kafka:4.1.0", "apache/kafka", "apache/kafka has no tag"),
    "open port": (COMPOSE, '"127.0.0.1:8080:8080"', '"8080:8080"', "8080:8080 is open to the network"),
    "all interfaces": (COMPOSE, '"127.0.0.1:7070:7070"', '"0.0.0.0:7070:7070"', "is open to the network"),
    "host network": (COMPOSE, "    stop_grace_period: 2m", "    network_mode: host", "shares the host's network"),
    "privileged": (COMPOSE, "    stop_grace_period: 2m", "    privileged: true", "airflow-scheduler is privileged"),
    "misspelt for Airflow": (COMPOSE, "AIRFLOW__CORE__LOAD_EXAMPLES", "AIRFLOW__CORE__LOAD_EXAMPLE", "no option of Airflow"),
    "removed from Airflow": (COMPOSE, "AIRFLOW__API__BASE_URL", "AIRFLOW__WEBSERVER__BASE_URL", "no option of Airflow"),
    "wrong for Airflow": (COMPOSE, 'PARALLELISM: "8"', "PARALLELISM: eight", "has to be a integer, not 'eight'"),
    "misspelt for Stateflow": (COMPOSE, "SPARK_DAEMON_MEMORY: 512m", "STATEFLOW_BACKENDS: memory", "no option of Stateflow"),
    "read by nobody": (COMPOSE, "POSTGRES_DB: airflow", "POSTGRES_DATABASE: airflow", "nothing here reads POSTGRES_DATABASE"),
    "connection": (COMPOSE, '{"conn_type": "stateflow", "extra": {', '{"conn_type": "stateflow", "extra": ', "is no JSON"),
    "connection without a root": (COMPOSE, '"checkpoint_dir"', '"checkpoints"', "does not say its checkpoint_dir"),
    "connection with a stranger": (COMPOSE, '"storage_options"', '"storage"', "storage is nothing that a connection has"),
    "unknown dependency": (COMPOSE, "      store:\n        condition", "      stores:\n        condition", "which does not exist"),
    "circle": (
        COMPOSE,
        "    depends_on:\n      postgres:\n",
        "    depends_on:\n      airflow-scheduler:\n        condition: service_healthy\n      postgres:\n",
        "in a circle: ",
    ),
    "waits for no health": (
        COMPOSE,
        HEALTH_OF_POSTGRES,
        "",
        "waits until postgres is healthy, which has no healthcheck",
    ),
    "starts too early": (COMPOSE, "      postgres:\n        condition: service_healthy", "      postgres:\n        condition: service_started", "only waits until postgres has been started"),
    "waits for no end": (COMPOSE, '    restart: "no"\n', "", "waits for the end of airflow-init, which is started again"),
    "empty healthcheck": (COMPOSE, 'test: ["CMD", "nc", "-z", "127.0.0.1", "9092"]', 'test: ["CMD"]', "tests nothing"),
    "hasty healthcheck": (COMPOSE, "      interval: 10s\n      timeout: 5s\n", "      interval: 10s\n", "does not say timeout"),
    "unknown volume": (COMPOSE, "- kafka:/var/lib/kafka/data", "- kafkas:/var/lib/kafka/data", "volume kafkas is not declared"),
    "volume of nobody": (COMPOSE, "  tables:\n", "  tables:\n  more:\n", "volume more is used by no service"),
    "missing folder": (COMPOSE, "../dags:", "../dag:", "../dag does not exist"),
    "writable sources": (COMPOSE, "../dags:/opt/stateflow/dags:ro", "../dags:/opt/stateflow/dags", "could be written to"),
    "password in the file": (COMPOSE, "${POSTGRES_PASSWORD:?run make docker-env}\n    volumes", "hunter2\n    volumes", "POSTGRES_PASSWORD stands in the file"),
    "default password": (COMPOSE, "${AIRFLOW_ADMIN_PASSWORD:?run make docker-env}", "${AIRFLOW_ADMIN_PASSWORD:-admin}", "has the default 'admin'"),
    "password that may be missing": (COMPOSE, "${AIRFLOW_JWT_SECRET:?run make docker-env}", "${AIRFLOW_JWT_SECRET}", "may be missing"),
    "variable of nobody": (COMPOSE, "${AIRFLOW_SECRET_KEY:?run", "${AIRFLOW_SECRETS_KEY:?run", "not set"),
    "example with a password": (EXAMPLE, "STORE_SECRET_KEY=", "STORE_SECRET_KEY=minio123", "everybody would have the same secret"),
    "example with too much": (EXAMPLE, "STORE_SECRET_KEY=", "STORE_SECRET_KEY=\nMORE=", "MORE, which nothing uses"),
    "wrong address": (COMPOSE, '"endpoint": "http://store:7070"', '"endpoint": "http://minio:7070"', "minio:7070 is no service"),
    "wrong host of Spark": (COMPOSE, "Worker spark://spark-master:7077", "Worker spark://master:7077", "master:7077 is no service"),
    "Kafka's protocols": (COMPOSE, "OUTSIDE:PLAINTEXT,", "", "listener OUTSIDE has no protocol"),
    "Kafka's voters": (COMPOSE, "1@kafka:9093", "2@kafka:9093", "not this node"),
    "Kafka's controller": (COMPOSE, "LISTENER_NAMES: CONTROLLER", "LISTENER_NAMES: CONTROL", "not among its listeners"),
    "Kafka's address": (COMPOSE, "INSIDE://kafka:19092,", "INNER://kafka:19092,", "INNER is advertised"),
    "another version": (COMPOSE, "stateflow-spark:0.1.0", "stateflow-spark:0.0.9", "is built as 0.0.9"),
    "no Dockerfile": (COMPOSE, "docker/spark/Dockerfile", "docker/sparks/Dockerfile", "does not exist"),
    "source that is gone": (AIRFLOW, "COPY dags ", "COPY dag ", "dag does not exist"),
    "source that is left out": (SPARK, "COPY docker/spark/requirements.txt", "COPY requirements-dev.txt", "left out by .dockerignore"),
    "unknown instruction": (AIRFLOW, "COPY dags ", "COPPY dags ", "'COPPY' is no instruction"),
    "backslash": (AIRFLOW, "USER stateflow", "USER stateflow \\", "USER takes one word"),
    "root": (SPARK, "USER stateflow\n", "", "its last stage runs as root"),
    "newest base": (SPARK, "FROM python:3.11.14-slim-bookworm\n", "FROM python\n", "image python has no tag"),
    "no base": (SPARK, "FROM python:3.11.14-slim-bookworm AS wheel\n", "", "does not begin with FROM"),
    "two Pythons": (SPARK, "FROM python:3.11.14-slim-bookworm\n", "FROM python:3.12.1-slim\n", "images have different Pythons"),
    "unpinned package": (AIRFLOW, "-r /locks/postgres.txt", "psycopg2-binary", "pip install psycopg2-binary takes whatever"),
    "other lock": ("docker/airflow/postgres.txt", "asyncpg==", "asyncpg==9", "requirements-dev.txt has"),
    "unknown stage": (AIRFLOW, "--from=wheel", "--from=wheels", "--from=wheels is no earlier stage"),
    "shell form": (AIRFLOW, 'CMD ["airflow", "version"]', "CMD airflow version", "write it as a JSON list"),
    "broken list": (AIRFLOW, 'CMD ["airflow", "version"]', 'CMD ["airflow", "version"', "CMD cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_would_not_work_is_caught(edit: Edit, case: str) -> None:
    file, before, after, said = BROKEN[case]
    found = edit(file, before, after)
    assert found, "nothing was noticed"
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("image", "fine"),
    [
        ("postgres:17.6-bookworm", True),
        ("registry.example.org:5000/team/app:1.2", True),
        ("versity/versitygw:v1.8.0", True),
        ("python@sha256:" + "a" * 64, True),
        ("python:3", False),
        ("python:slim", False),
        ("registry.example.org:5000/team/app", False),
        ("python@sha256:abc", False),
    ],
)
def test_an_image_is_pinned_by_a_version_or_a_digest(image: str, fine: bool) -> None:
    assert (pinned(image) == "") is fine


def test_variables_are_put_in_as_engines_do() -> None:
    values = {"A": "1", "EMPTY": ""}
    text = "$A ${A} ${B:-x} ${EMPTY:-x} ${EMPTY-x} ${A:+y} ${B:+y} $${HOME} ${B}"
    assert interpolated({"k": [text, 3]}, values) == {"k": ["1 1 x x  y  ${HOME} ", 3]}
    with pytest.raises(ComposeError, match="variable B is not set: make it"):
        interpolated("${B:?make it}", values)


def test_secrets_are_made_once_all_different_and_never_for_a_comment() -> None:
    example = (REPOSITORY / EXAMPLE).read_text()
    first = filled(example)
    values = names_of(first)
    assert set(values) == set(names_of(example))
    assert len({value for value in values.values() if len(value) >= 40}) == len(values)
    assert filled(example, first) == first
    assert names_of(filled(example + "NEW_SECRET=\n", first))["NEW_SECRET"]
    from cryptography.fernet import Fernet

    Fernet(values["AIRFLOW_FERNET_KEY"])


def test_the_store_s_credentials_reach_the_connection_as_they_are() -> None:
    values = names_of(filled((REPOSITORY / EXAMPLE).read_text()))
    services = interpolated(parsed((REPOSITORY / COMPOSE).read_text()), values)["services"]
    extra = json.loads(services["airflow-scheduler"]["environment"]["AIRFLOW_CONN_STATEFLOW_DEFAULT"])[
        "extra"
    ]
    assert (
        extra["storage_options"]["secret_access_key"] == services["store"]["environment"]["ROOT_SECRET_KEY"]
    )


def test_a_context_leaves_out_what_its_rules_say(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*\n!app\napp/secret\n**/*.pyc\n")
    rules = ignore_rules(tmp_path)
    seen = {name: is_ignored(name, rules) for name in ("app", "app/x.py", "app/secret", "app/x.pyc", "other")}
    assert seen == {"app": False, "app/x.py": False, "app/secret": True, "app/x.pyc": True, "other": True}


def test_a_dockerfile_s_lines_go_together(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    text = "# c\nARG V=1\nFROM x:1.0 AS one\nRUN a \\\n  # within\n  && b\nCOPY --chown=1 a ./\nFROM one\nUSER u\n"
    assert list(problems(text, tmp_path, pinned)) == []
    assert list(problems(text + "COPY a b c\n", tmp_path, pinned)) == [
        "line 10: b does not exist in " + tmp_path.name,
        "line 10: several sources need a target that ends with a slash, not c",
    ]
