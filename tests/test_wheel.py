"""What `pip install` brings under the project's own name, and what of the repository stays at home."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest

from demo.table import read
from scripts import distributions
from scripts.bootstrap import uv_environment
from scripts.distributions import (
    AT_HOME,
    UV,
    build,
    files_below,
    installation,
    interpreter,
    own_files,
    readmes_pipeline,
    run,
    wanted_files,
    wrong_contents,
)
from stateflow.airflow.provider_info import PROVIDER, get_provider_info
from stateflow.distribution import DISTRIBUTION, installed_version
from stateflow.spark.session.versions import supported_pythons

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (*distributions.PACKAGES, "plugins/stateflow_ui")
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER_PYTHONS = ("3.12", "3.13")
"""Those that the project names beside the one of its lock."""
EACH = pytest.mark.skipif(
    not os.environ.get("STATEFLOW_LONG"), reason="`make release` tries every Python: STATEFLOW_LONG=1 runs it"
)
OTHER_PROJECT = re.compile(r"pip install [^\n`]*(?<![\w./-])stateflow(?![\w-])|(?<![\w-])stateflow\[[a-z]")


project = partial(distributions.project, ROOT)


def test_the_library_knows_the_name_that_it_is_installed_under() -> None:
    assert project()["name"] == DISTRIBUTION == distributions.LIBRARY
    assert project()["version"] == installed_version()
    assert (
        project("provider")["name"]
        == PROVIDER
        == distributions.PROVIDER
        == get_provider_info()["package-name"]
    )


def test_nothing_that_is_installed_for_everybody_needs_airflow() -> None:
    assert not [each for each in project()["dependencies"] if "airflow" in each]


def test_the_provider_has_every_room_of_airflow() -> None:
    listed = set(
        tomllib.loads((ROOT / "provider" / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    rooms = {path.parent for path in (ROOT / "stateflow" / "airflow").rglob("*.py")}
    assert listed == {
        *(".".join(room.relative_to(ROOT).parts) for room in rooms), "stateflow.airflow.dags", "stateflow_ui",
    }  # fmt: skip


def test_no_page_and_no_message_advises_to_install_the_other_project() -> None:
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").rglob("*")]
    places += [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    advice = {
        str(path.relative_to(ROOT)): OTHER_PROJECT.findall(path.read_text(encoding="utf-8"))
        for path in places
        if path.is_file()
    }
    assert len(advice) > 300
    assert {name: found for name, found in advice.items() if found} == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install stateflow", True),
        ("pip install 'stateflow[airflow]'", True),
        ("install stateflow[otel]", True),
        ("pip install -U stateflow==0.1", True),
        ("pip install stateflow-spark", False),
        ("pip install 'stateflow-spark[airflow]'", False),
        ("pip install /srv/stateflow", False),
        ("`pip install x` and then `stateflow doctor`", False),
    ],
)
def test_that_advice_is_told_from_harmless_words(text: str, wrong: bool) -> None:
    assert bool(OTHER_PROJECT.search(text)) == wrong


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.slow
def test_what_is_installed_imports_nothing_that_stays_at_home() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if set(AT_HOME) & set(imported(path))] == []


def test_the_readme_quotes_its_pipeline_as_the_examples_have_it() -> None:
    assert readmes_pipeline() == (ROOT / "examples" / "readme.py").read_text(encoding="utf-8")


# The wheel itself


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name. Built from a copy: a build leaves folders behind, and takes up what an older one has left."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("stateflow", "pyspark_stateflow", "plugins", "provider", *AT_HOME):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "build"))
    built = {}
    for name, source in ((DISTRIBUTION, copy), (PROVIDER, copy / "provider")):
        (built[name],) = build(source, copy / "out" / name, "--wheel")
    return built


@pytest.fixture(scope="module")
def wheel(wheels: dict[str, Path]) -> Path:
    return wheels[DISTRIBUTION]


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        text = archive.read(f"{wheel.name.rpartition('-py3')[0]}.dist-info/METADATA").decode()
    return Parser().parsestr(text)


@pytest.mark.system
def test_the_wheel_has_the_librarys_files_and_nothing_of_airflows(wheel: Path) -> None:
    assert list(wrong_contents(wheel, wanted_files(ROOT, DISTRIBUTION))) == []
    session = "stateflow/spark/session"
    assert {
        "stateflow/py.typed",
        f"{session}/log4j2.properties",
        "stateflow/spark/internals/LocalFiles.java",
    } <= own_files(wheel)


@pytest.mark.system
def test_the_providers_wheel_has_operators_pages_and_dags_and_shares_no_file_with_the_librarys(
    wheels: dict[str, Path],
) -> None:
    assert list(wrong_contents(wheels[PROVIDER], wanted_files(ROOT, PROVIDER))) == []
    provider = own_files(wheels[PROVIDER])
    assert {"stateflow_ui/static/index.html", "stateflow/airflow/dags/stateflow_recovery.py"} <= provider
    assert not provider & own_files(wheels[DISTRIBUTION]), "removing one would break the other"


@pytest.mark.system
def test_the_wheel_has_its_own_name_and_the_extras_of_the_project(wheel: Path, metadata: Message) -> None:
    assert wheel.name.startswith("stateflow_spark-")
    assert metadata["Name"] == DISTRIBUTION
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "dev",
        "iceberg",
        "kafka",
        "kerberos",
        "otel",
        "postgres",
        "prometheus",
        "serve",
    }


def newest_python() -> Path:
    """The newest that this machine has of those that the project names."""
    return next(found for version in (*OTHER_PYTHONS[::-1], HERE) if (found := interpreter(version)))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a shell has in its environment once the wheel is in an empty one; nothing of the checkout is in it."""
    return installation(tmp_path_factory.mktemp("installed") / "venv", wheel, python=newest_python())


@pytest.fixture(scope="module")
def with_provider(
    installed: dict[str, str], wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Both wheels with the oldest Python, and the jars that are there already."""
    venv = tmp_path_factory.mktemp("both") / "venv"
    made = installation(venv, *wheels.values(), spark_of=Path(installed["VIRTUAL_ENV"]))
    return {**made, "HOME": installed["HOME"]}


def follow_the_readme(env: dict[str, str], folder: Path) -> None:
    distributions.follow_the_readme(env, folder)
    assert sorted(row["balance"] for row in read(folder / "balances")) == [2.5, 4.0]


@pytest.mark.system
@pytest.mark.timeout(1800)  # three starts of Spark, on a machine that may be busy
def test_who_follows_the_readme_with_the_newest_python_gets_what_it_says(
    installed: dict[str, str], tmp_path: Path
) -> None:
    follow_the_readme(installed, tmp_path)


@EACH
@pytest.mark.system
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", [HERE, *OTHER_PYTHONS[:-1]])
def test_the_readme_is_right_for_every_other_python_that_the_project_names(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    follow_the_readme(installation(tmp_path / "venv", wheel, python=python), tmp_path)


def test_the_project_and_the_provider_name_the_same_pythons() -> None:
    assert supported_pythons(project()["classifiers"]) == supported_pythons(
        project("provider")["classifiers"]
    )
    assert [HERE, *OTHER_PYTHONS] == supported_pythons(project()["classifiers"]), "the lock's is the oldest"
    for page in ("README.md", "docs/start.md"):
        assert f"Python {HERE} to {OTHER_PYTHONS[-1]}" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.system
@pytest.mark.timeout(900)
def test_a_package_of_delta_whose_jar_is_not_locked_runs_with_the_locked_jar(
    installed: dict[str, str], tmp_path: Path
) -> None:
    """What the index offered one day: a package of Delta without its jar on Maven."""

    def install(package: str) -> None:
        python = Path(installed["VIRTUAL_ENV"]) / "bin" / "python"
        asked = (*UV, "pip", "install", "--quiet", "--python", python, "--no-deps", package)
        run(*asked, env=uv_environment(), cwd=tmp_path)

    install("delta-spark==4.4.1")
    try:
        said = run("python", "-m", "stateflow.spark.session.jars", env=installed, cwd=tmp_path)
        assert re.match(r"\d+ jars in ", said)
        doctor = ("stateflow", "doctor", "-o", "json", "--checkpoint-dir", "root")
        found = run(*doctor, env=installed, cwd=tmp_path)
    finally:
        install("delta-spark==4.4.0")
    delta = next(each for each in json.loads(found)["checks"] if each["check"] == "delta-spark")
    assert (delta["verdict"], delta["found"]) == ("warn", "4.4.1")
    assert "pip install 'delta-spark==4.4.0'" in delta["next_step"]


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("environment", ["installed", "with_provider"])
def test_the_installed_command_knows_its_version_and_finds_everything(
    environment: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With the newest Python, and with the oldest one beside Airflow."""
    installed: dict[str, str] = request.getfixturevalue(environment)
    assert run("stateflow", "--version", env=installed, cwd=tmp_path) == f"stateflow {installed_version()}\n"
    where = "import stateflow, pyspark_stateflow as spark; print(stateflow.__file__, spark.__file__)"
    for module in run("python", "-c", where, env=installed, cwd=tmp_path).split():
        assert Path(module).is_relative_to(installed["VIRTUAL_ENV"])
    run("python", "-m", "stateflow.spark.session.jars", env=installed, cwd=tmp_path)
    found = run("stateflow", "doctor", "-o", "json", "--checkpoint-dir", "root", env=installed, cwd=tmp_path)
    verdicts = {each["check"]: each["verdict"] for each in json.loads(found)["checks"]}
    assert "fail" not in verdicts.values(), found
    assert (verdicts[DISTRIBUTION], verdicts["jars"]) == ("ok", "ok")


@pytest.mark.system
def test_the_installed_library_has_no_module_of_the_repositorys_own_and_none_of_airflows(
    installed: dict[str, str], tmp_path: Path
) -> None:
    names = (*AT_HOME, "airflow", "stateflow.airflow", "stateflow_ui")
    look = f"from importlib.util import find_spec; print([name for name in {names!r} if find_spec(name)])"
    assert run("python", "-c", look, env=installed, cwd=tmp_path) == "[]\n"


# The provider


@pytest.mark.system
@pytest.mark.timeout(900)  # Airflow is large, and the machine may be busy
def test_with_the_provider_airflow_knows_connection_decorator_and_pages(
    with_provider: dict[str, str], tmp_path: Path
) -> None:
    env = {**with_provider, "AIRFLOW_HOME": str(tmp_path)}
    said = run("airflow", "providers", "get", PROVIDER, "--output", "json", env=env, cwd=tmp_path)
    assert json.loads(said[said.index("[") :])[0]["Version"] == project("provider")["version"]
    for command, name in (("hooks", "stateflow"), ("notifications", "StaleJobs")):
        assert name in run("airflow", "providers", command, "--output", "plain", env=env, cwd=tmp_path)
    look = (
        "from importlib.metadata import entry_points; import stateflow.airflow as a\n"
        "print(*[e.load().__name__ for e in entry_points(group='airflow.plugins', name='stateflow')])\n"
        "print(a.StateflowRunOperator.__module__)"
    )
    plugin, operator = run("python", "-c", look, env=env, cwd=tmp_path).splitlines()[-2:]
    assert (plugin, operator) == ("StateflowPlugin", "stateflow.airflow.operators.run")


@pytest.mark.system
def test_the_provider_copies_its_dags_and_leaves_changed_ones_alone(
    with_provider: dict[str, str], tmp_path: Path
) -> None:
    said = run("stateflow-dags", tmp_path, env=with_provider, cwd=tmp_path).split()
    assert {Path(path).name for path in said} == files_below(ROOT / "dags")
    assert run("stateflow-dags", tmp_path, env=with_provider, cwd=tmp_path) == "", "they are there already"


@pytest.mark.system
def test_a_package_for_executors_has_the_library_and_not_the_provider(
    with_provider: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "readme.py").write_text(readmes_pipeline(), encoding="utf-8")
    look = (
        "from pathlib import Path\n"
        "from stateflow.packaging.build import _imported_distributions\n"
        "from stateflow.pipelines.code.own_modules import sources\n"
        "print(*_imported_distributions(sources(Path('readme.py')), ()))"
    )
    asked = run("python", "-c", look, env=with_provider, cwd=tmp_path).split()
    assert DISTRIBUTION in asked
    assert PROVIDER not in asked
