"""`stateflow verify`: is everything there that the job needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateflow.cli.options import Debug, Output, Root, configured, job_of
from stateflow.cli.output import document, out, table
from stateflow.errors import CorruptError

if TYPE_CHECKING:
    from stateflow.checkpoint.verification import Finding

_VERIFY = "; run `stateflow verify`"


def verify(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|URL", help="A job, or the folder or URL of a savepoint.", show_default=False
        ),
    ],
    deep: Annotated[bool, typer.Option("--deep", help="Read every file and compare its checksum.")] = False,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Checks a job, or a savepoint: log, files, sizes. Exit code 6 when something is missing or damaged."""
    from stateflow.savepoints.format import verify_savepoint
    from stateflow.storage.roots import open_store

    options = configured(root, debug=debug)
    if "/" in job:
        findings = verify_savepoint(open_store(job, options.storage_options), deep=deep)
    else:
        findings = job_of(options, job).verify(deep=deep)
    errors = [finding for finding in findings if finding.severity == "error"]
    if output == "json":
        body = [
            {"severity": f.severity, "text": _told(f, job), "path": f.path, "checkpoint": f.slot}
            for f in findings
        ]
        document({"job": job, "deep": deep, "sound": not errors, "findings": body})
    elif findings:
        table("", ("", "finding"), [(f.severity, _told(f, job)) for f in findings])
    else:
        out().print(
            f"{'savepoint' if '/' in job else 'job'} {job} is sound{'' if deep else '; --deep reads every file, too'}",
            markup=False,
        )
    if errors:
        rest = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CorruptError(f"{_told(errors[0], job)}{rest}")


def _told(finding: Finding, job: str) -> str:
    """What a record that cannot be read advises elsewhere has just been done."""
    advice = "restore it from a copy, or use another savepoint"
    if "/" not in job:
        advice = "restore an earlier checkpoint, or a savepoint"
    text = finding.text.removesuffix(_VERIFY)
    return text if text == finding.text else f"{text}: {advice}"
