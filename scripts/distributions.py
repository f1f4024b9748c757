"""The project's two distributions: built from a checkout, looked through, and installed in empty environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from scripts.bootstrap import PYTHON, ROOT, uv_environment

LIBRARY, PROVIDER = "stateflow-spark", "airflow-provider-stateflow"
PACKAGES = ("stateflow", "pyspark_stateflow")
"""Folders of the checkout that the library consists of, without `stateflow/airflow`."""
OF_THE_PROVIDER = {
    "stateflow/airflow": "stateflow/airflow",
    "dags": "stateflow/airflow/dags",
    "plugins/stateflow_ui": "stateflow_ui",
}
"""Folders of the checkout, and where the provider has them."""
AT_HOME = ("bench", "dags", "demo", "docs", "examples", "scripts", "tests")
"""Folders of the checkout that no distribution has under this name."""
UNWANTED = re.compile(
    r"(^|/)(__pycache__|tests?|\.env[^/]*|\.git[^/]*|\.cache)(/|$)|\.(pyc|pem|key|p12|jks)$"
)
"""Names of caches, tests and secrets."""
UV = (PYTHON, "-m", "uv")


class CommandFailed(Exception):
    """With everything that the command has said."""


def run(*command: str | Path, env: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise CommandFailed(f"{command}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def project(checkout: Path, folder: str = "") -> dict[str, Any]:
    text = (checkout / folder / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"])


# What is built


def build(source: Path, out: Path, *kinds: str) -> list[Path]:
    """The files that were built of this project, with the locked tools. `kinds` as uv names them; without one a source
    distribution, and a wheel made of that."""
    built_with = ("--no-build-isolation", "--python", PYTHON)
    run(
        *UV, "build", "--quiet", *kinds, *built_with, "--out-dir", out, source,
        env=uv_environment(), cwd=source,
    )  # fmt: skip
    return [path for path in out.iterdir() if path.name.endswith((".whl", ".tar.gz"))]


def complete_provider(checkout: Path) -> Path:
    """The provider's project with its code inside of it. In the checkout its code lies in folders beside it, which a source
    distribution cannot name."""
    folder = checkout / "provider"
    for here, there in OF_THE_PROVIDER.items():
        shutil.copytree(checkout / here, folder / there, dirs_exist_ok=True)
    file = folder / "pyproject.toml"
    text, count = re.subn(
        r"\[tool\.setuptools\.package-dir\]\n(?:.+\n)+", "", file.read_text(encoding="utf-8")
    )
    if count != 1:
        raise ValueError(f"{file} has no section tool.setuptools.package-dir")
    file.write_text(text, encoding="utf-8")
    return folder


# What is in it


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wanted_files(checkout: Path, name: str) -> set[str]:
    """The files that a distribution has to have, and no others."""
    if name == PROVIDER:
        return {
            f"{there}/{file}"
            for here, there in OF_THE_PROVIDER.items()
            for file in files_below(checkout / here)
        }
    files = {f"{package}/{file}" for package in PACKAGES for file in files_below(checkout / package)}
    return {file for file in files if not file.startswith("stateflow/airflow/")}


_ABOUT_ITSELF = re.compile(
    r"(PKG-INFO|pyproject\.toml|README\.md|LICENSE|MANIFEST\.in|setup\.cfg|[^/]+\.egg-info/.+)\Z"
)


def own_files(distribution: Path) -> set[str]:
    """The files of a wheel or a source distribution, without its notes about itself."""
    if distribution.suffix == ".whl":
        info = f"{distribution.name.rpartition('-py3')[0]}.dist-info/"
        with ZipFile(distribution) as wheel:
            return {name for name in wheel.namelist() if not name.startswith(info)}
    with tarfile.open(distribution) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    return {name for name in names if not _ABOUT_ITSELF.match(name)}


def wrong_contents(distribution: Path, wanted: set[str]) -> Iterator[str]:
    """One sentence for each file that a distribution lacks, or that has no business in it."""
    files = own_files(distribution)
    for name in sorted(wanted - files):
        yield f"{distribution.name} lacks {name}"
    for name in sorted(files - wanted | {name for name in files if UNWANTED.search(name)}):
        yield f"{distribution.name} has {name}, which does not belong there"


# What becomes of it elsewhere


def interpreter(version: str) -> Path | None:
    """The command of this Python, if this machine has one; a version manager may keep it off the PATH."""
    name = f"python{version}"
    on_path = [Path(found)] if (found := shutil.which(name)) else []
    for candidate in (*on_path, *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def installation(
    venv: Path, *wheels: Path, python: Path = PYTHON, spark_of: Path | None = None
) -> dict[str, str]:
    """What a shell has in its environment once the wheels are in an empty one; nothing of the checkout is in it.

    pip installs as for a user today: the newest versions that the wheels allow, whatever the project's locks say. `spark_of` is
    a venv that was made so before: its Spark is copied, since the index has it as a source distribution that takes half a minute."""
    env = uv_environment()
    run(*UV, "venv", "--quiet", "--python", python, venv, env=env, cwd=venv.parent)
    if spark_of is not None:
        copy_spark(spark_of, venv)
    run(
        *UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python", *wheels,
        env=env, cwd=venv.parent,
    )  # fmt: skip
    given = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME") and not name.startswith("STATEFLOW_")
    }
    # Nothing of what this machine has fetched before: jars go below this home.
    home = venv.parent / "home"
    home.mkdir()
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**given, "HOME": str(home), "VIRTUAL_ENV": str(venv), "PATH": path}


def copy_spark(here: Path, there: Path) -> None:
    (source,) = here.glob("lib/python*/site-packages")
    (target,) = there.glob("lib/python*/site-packages")
    for folder in (source / "pyspark", *source.glob("pyspark-*.dist-info")):
        shutil.copytree(folder, target / folder.name, ignore=shutil.ignore_patterns("__pycache__"))


def section(page: Path, title: str) -> str:
    _, _, rest = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def readmes_pipeline() -> str:
    _, _, after = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")
    return after.partition("```\n")[0]


def follow_the_readme(env: dict[str, str], folder: Path) -> None:
    """The commands of its section Install after the first one, as they stand there."""
    (folder / "readme.py").write_text(readmes_pipeline(), encoding="utf-8")
    commands = commands_of(section(ROOT / "README.md", "Install"))
    if "pip install" not in commands[0] or "".join(commands).count("stateflow run") != 2:
        raise ValueError("README.md, Install: the first command installs, and two others run the pipeline")
    said = run("sh", "-e", "-c", "".join(commands[1:]), env=env, cwd=folder)
    if said.splitlines()[-1] != "4.0":
        raise CommandFailed(f"the last command of README.md, Install, said this in place of 4.0:\n{said}")


def commands_of(text: str) -> list[str]:
    """The commands in a page's indented blocks; one that ends in a backslash goes on in the next line."""
    commands: list[str] = []
    for line in re.findall(r"^    (.*\n)", text, re.M):
        if commands and commands[-1].endswith("\\\n"):
            commands[-1] += line
        else:
            commands.append(line)
    return commands
