"""What a user does at a terminal, and what the user then sees: `check` and `run` of a pipeline's file, and the tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from typer.testing import CliRunner

from stateflow.cli.main import app
from tests.mistakes.case import Case, Row

_FIRST = 1_790_000_000
"""When the first file was written, in seconds since 1970: each later one is a minute newer."""


@dataclass
class Seen:
    """What the user was told, and by which command."""

    refused: str = ""
    """The error that ended a command; the user goes no further."""
    by: str = ""
    """check or run"""
    words: list[str] = field(default_factory=list)
    """Warnings and counts of what was left out, from commands that ended well."""


class Scene:
    """A folder of its own with the pipeline's file, its input and its output."""

    def __init__(self, folder: Path, case: Case, text: str) -> None:
        self.folder, self.case, self.text = folder, case, text
        self.seen = Seen()
        self.parameters = {name: str(folder / name) for name in case.files} | {
            "output": str(folder / "output")
        }
        self.options: list[str] = ["--option", "local_fsync=false"]
        self._written = 0
        for name in (*case.files, "checkpoints"):
            (folder / name).mkdir(parents=True)

    @property
    def over(self) -> bool:
        return bool(self.seen.refused)

    def write(self, folder: str, content: str | bytes, *, minutes_older: int = 0) -> Path:
        """A new file for the pipeline to read."""
        self._written += 1
        path = self.folder / folder / f"{self._written:03d}.{self.case.format}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        at = _FIRST + 60 * (self._written - minutes_older)
        os.utime(path, (at, at))
        return path

    def check(self, job: str = "") -> None:
        if self.over:
            return
        done = self._command("check", job)
        if done is not None:
            self.seen.words += json.loads(done)["warnings"]

    def run(self, *, job: str = "", final: bool = False) -> None:
        if self.over:
            return
        done = self._command("run", job, *(["--final"] if final else []))
        if done is None:
            return
        *batches, summary = (json.loads(line) for line in done.splitlines() if line.startswith("{"))
        self.seen.words += summary["warnings"]
        if summary["watermarkHeld"]:
            self.seen.words.append(f"the watermark is held back by {summary['watermarkHeld']['source']}")
        for operator, count in summary["lateRowsUnread"].items():
            self.seen.words.append(f"{count} late rows of {operator} went nowhere")
        letters = sum(batch.get("dead_letters", 0) for batch in batches)
        if letters:
            self.seen.words.append(f"{letters} dead letters")

    def _command(self, verb: str, job: str, *more: str) -> str | None:
        file = self.folder / f"{self.case.recipe}.py"
        file.write_text(self.text, encoding="utf-8")
        sys.modules.pop(self.case.recipe, None)
        given = [word for name, value in self.parameters.items() for word in ("-p", f"{name}={value}")]
        root = self.folder / "checkpoints"
        at = ["--job", job] if job and verb == "run" else []
        done = CliRunner().invoke(
            app,
            [verb, str(file), *given, *self.options, *at, *more, "-o", "json"],
            env={
                "STATEFLOW_CHECKPOINT_DIR": str(root),
                # One for all scenes of a process: Spark keeps its own files there.
                "STATEFLOW_CACHE_DIR": str(self.folder.parent / "cache"),
            },
        )
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code:
            error = [line for line in done.stderr.splitlines() if line.startswith("error")]
            self.seen.refused, self.seen.by = (error or done.stderr.splitlines() or ["?"])[-1], verb
            return None
        # Only here do runs share a session.
        self.seen.words += [
            line for line in done.stderr.splitlines() if "WARNING" in line and "already runs" not in line
        ]
        return done.stdout

    def table(self, name: str) -> list[Row]:
        return rows_of(self.folder / name)


def rows_of(table: Path) -> list[Row]:
    """The rows of a small Delta table, from its log and its files."""
    log = table / "_delta_log"
    if not log.exists():
        return []
    files: dict[str, None] = {}
    for version in sorted(log.glob("*.json")):
        for line in version.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = None
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
    return [row for file in files for row in pq.read_table(table / unquote(file)).to_pylist()]


def agrees(found: Sequence[Row], truth: Sequence[Row]) -> bool:
    """Whether the table has these rows, as often and with these values, in any order."""
    if not truth:
        return not found
    names = sorted(truth[0])
    return sorted(map(repr, _plain(found, names))) == sorted(map(repr, _plain(truth, names)))


def _plain(rows: Sequence[Row], names: Sequence[str]) -> list[tuple[Any, ...]]:
    # A table knows its columns in any case.
    lowered = [{name.lower(): value for name, value in row.items()} for row in rows]
    return [tuple(_value(row.get(name, "absent")) for name in names) for row in lowered]


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.replace(tzinfo=UTC).isoformat()
    if isinstance(value, float):
        return round(value, 9)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def lines(case: Case, rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a file of the case's format."""
    if case.format == "json":
        return "".join(json.dumps({k: _text(v) for k, v in row.items()}) + "\n" for row in rows)
    names = list(rows[0])
    return (
        "\n".join([",".join(names), *(",".join(_cell(row[name]) for name in names) for row in rows)]) + "\n"
    )


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _cell(value: Any) -> str:
    return "" if value is None else str(_text(value))
