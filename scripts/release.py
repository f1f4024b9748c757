"""`make release`: builds what would be uploaded into dist/, and checks it.

1. The commit is exported, so nothing that is not in it can get into a distribution.
2. A source distribution is built of each project, and a wheel of each source distribution.
3. What is in them is compared with the commit's files, and their metadata is checked as the package index does.
4. Both wheels are installed in an empty environment of each Python, where the README's commands have to work.

It ends with what still stands in the way of an upload, and then with exit code 1. It uploads nothing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.bootstrap import ROOT, uv_environment
from scripts.distributions import (
    LIBRARY,
    PROVIDER,
    UV,
    CommandFailed,
    build,
    complete_provider,
    follow_the_readme,
    installation,
    interpreter,
    project,
    run,
    wanted_files,
    wrong_contents,
)
from stateflow.spark.session.versions import supported_pythons

CHECKER = "requirements-release.txt"


def main() -> int:
    version = project(ROOT)["version"]
    tags = _git("tag", "--points-at", "HEAD").split()
    in_the_way = [
        *differing_versions(ROOT), *unnamed_in_changes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version),
        *unfinished(version, changed=_git("status", "--porcelain").splitlines(), tags=tags),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="stateflow-release-") as work:
        try:
            built = checked(Path(work), in_the_way)
        except CommandFailed as failure:
            print(failure, file=sys.stderr)
            print(f"{version} cannot be released: the command above failed")
            return 1
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        for path in built:
            shutil.copy(path, dist)
            print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  dist/{path.name}")
    for sentence in in_the_way:
        print(f"- {sentence}")
    print(f"{version} {'is not ready to be uploaded' if in_the_way else 'can be uploaded'}")
    return 1 if in_the_way else 0


def checked(work: Path, in_the_way: list[str]) -> list[Path]:
    """The distributions of the commit. What is wrong with them is added to `in_the_way`."""
    checkout = exported(work / "checkout")
    wanted = {name: wanted_files(checkout, name) for name in (LIBRARY, PROVIDER)}
    provider = complete_provider(checkout)
    _say("source distributions and wheels")
    built = {name: build(folder, work / name) for name, folder in ((LIBRARY, checkout), (PROVIDER, provider))}
    for name, paths in built.items():
        for path in paths:
            in_the_way += wrong_contents(path, wanted[name])
    every = sorted(path for paths in built.values() for path in paths)
    if len(every) != 4:
        in_the_way.append(f"there are {len(every)} files in place of two of each distribution")
    _say("metadata")
    check_metadata(work, every)
    wheels = [path for path in every if path.suffix == ".whl"]
    for python in supported_pythons(project(ROOT)["classifiers"]):
        _say(f"Python {python}")
        in_the_way += try_out(work / python, python, wheels)
    return every


def exported(folder: Path) -> Path:
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    _git("archive", "--format=tar", f"--output={archive}", "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def check_metadata(work: Path, distributions: Sequence[Path]) -> None:
    """As the index does when they are uploaded; the checker comes from a lock with hashes."""
    venv, env = work / "checker", uv_environment()
    run(*UV, "venv", "--quiet", "--python", sys.executable, venv, env=env, cwd=work)
    install = ("pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", ROOT / CHECKER)
    run(*UV, *install, "--python", venv / "bin" / "python", env=env, cwd=work)
    run(venv / "bin" / "twine", "check", "--strict", *distributions, env=env, cwd=work)


def try_out(folder: Path, python: str, wheels: Sequence[Path]) -> Iterator[str]:
    command = interpreter(python)
    if command is None:
        yield f"this machine has no Python {python}, so nothing was tried with it: install it, such as by `uv python install {python}`"
        return
    folder.mkdir()
    env = installation(folder / "venv", *wheels, python=command)
    follow_the_readme(env, folder)
    look = "import stateflow.airflow; from stateflow_ui.plugin import StateflowPlugin"
    run("python", "-c", look, env={**env, "AIRFLOW_HOME": str(folder / "airflow")}, cwd=folder)


# What stands in the way of an upload


def differing_versions(checkout: Path) -> Iterator[str]:
    library, provider = project(checkout), project(checkout, "provider")
    version = library["version"]
    if provider["version"] != version:
        yield f"{PROVIDER} has version {provider['version']} and {LIBRARY} {version}: give them the same one"
    if f"{LIBRARY}=={version}" not in provider["dependencies"]:
        yield f"{PROVIDER} does not ask for {LIBRARY}=={version}: change its dependencies"


def unnamed_in_changes(changes: str, version: str) -> Iterator[str]:
    heading = re.search(rf"^## {re.escape(version)}(?![\w.])(.*)$", changes, re.MULTILINE)
    if heading is None:
        yield f"CHANGELOG.md has no section {version}: write what it brings"
    elif "unreleased" in heading[1]:
        yield f"CHANGELOG.md calls {version} unreleased: write the day of the release"


def unfinished(version: str, *, changed: Sequence[str], tags: Sequence[str]) -> Iterator[str]:
    if changed:
        yield f"{len(changed)} files have changes that are not committed, so they are not in what was built: commit them"
    if f"v{version}" not in tags:
        yield f"the commit has no tag v{version}: run `git tag v{version}`"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _say(what: str) -> None:
    print(f"-- {what} ...", flush=True)


if __name__ == "__main__":
    sys.exit(main())
