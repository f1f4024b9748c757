"""Copies the example DAGs into a DAGs folder: `stateflow-dags FOLDER`. They are a team's own from then on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from stateflow.errors import NotFoundError, StateflowError, UsageError

_IGNORED = ".airflowignore"
_PACKAGED = Path(__file__).parent / "dags"
_CHECKOUT = Path(__file__).parents[2] / "dags"


def packaged_dags() -> list[Path]:
    """The files, where the provider is installed or in a checkout."""
    files = sorted((_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT).glob("stateflow_*.py"))
    if not files:
        raise NotFoundError(
            f"{_PACKAGED} has no DAGs: install the provider again, pip install --force-reinstall airflow-provider-stateflow"
        )
    return files


def copy_dags(folder: Path) -> list[Path]:
    """Copies the files that are not there yet. Nothing is copied if one of them would replace a file with other content."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is no folder: name the folder that Airflow reads DAGs from")
    missing = []
    for source in packaged_dags():
        target = folder / source.name
        if not target.exists():
            missing.append((source, target))
        elif target.read_bytes() != source.read_bytes():
            raise UsageError(
                f"{target} differs from this version's file, and nothing was copied: move it away, copy again, and put your "
                "changes back"
            )
    for source, target in missing:
        target.write_bytes(source.read_bytes())
    return [target for _, target in missing] + _ignore_modules(folder)


def _ignore_modules(folder: Path) -> list[Path]:
    """Modules that DAGs import are no DAGs themselves. A team's own file keeps its lines, and gets those that it lacks."""
    target = folder / _IGNORED
    wanted = (packaged_dags()[0].parent / _IGNORED).read_text(encoding="utf-8").splitlines()
    text = target.read_text(encoding="utf-8") if target.exists() else ""
    known = {line.strip() for line in text.splitlines()}
    lacking = [line for line in wanted if line not in known]
    if not lacking:
        return []
    begin = text if not text or text.endswith("\n") else f"{text}\n"
    target.write_text(begin + "".join(f"{line}\n" for line in lacking), encoding="utf-8")
    return [target]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Its exit code is that of the error, as with `stateflow`."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if len(words) != 1 or words[0].startswith("-"):
            raise UsageError("give the folder that Airflow reads DAGs from: stateflow-dags FOLDER")
        copied = copy_dags(Path(words[0]))
    except StateflowError as error:
        sys.stderr.write(f"stateflow-dags: {error}\n")
        return error.exit_code
    for path in copied:
        sys.stdout.write(f"{path}\n")
    return 0
