"""`stateflow verify`: is everything there that the job needs?"""

from __future__ import annotations

from typing import Annotated

import typer

from stateflow.cli.options import Debug, JobName, Output, Root, configured, job_of
from stateflow.cli.output import document, out, table
from stateflow.errors import CorruptError


def verify(
    job: JobName,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file and compare its checksum.")] = False,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Checks a job's log and files. Exit code 6 when something that is needed is missing or damaged."""
    findings = job_of(configured(root, debug=debug), job).verify(deep=deep)
    errors = [finding for finding in findings if finding.severity == "error"]
    if output == "json":
        body = [
            {"severity": f.severity, "text": f.text, "path": f.path, "checkpoint": f.slot} for f in findings
        ]
        document({"job": job, "deep": deep, "sound": not errors, "findings": body})
    elif findings:
        table("", ("", "finding"), [(f.severity, f.text) for f in findings])
    else:
        out().print(f"job {job} is sound{'' if deep else '; --deep reads every file, too'}", markup=False)
    if errors:
        rest = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CorruptError(f"{errors[0].text}{rest}")
