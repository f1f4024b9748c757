"""`stateflow verify`: is everything there that the job needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from stateflow.cli.options import Invocation, JobOrUrl, command, flag, job_of
from stateflow.cli.output import TextTable
from stateflow.errors import CorruptError

if TYPE_CHECKING:
    from stateflow.checkpoint.verification import Finding

_VERIFY = "; run `stateflow verify`"


@command
def verify(
    call: Invocation,
    job: JobOrUrl,
    deep: Annotated[bool, flag("--deep", help="Read every file and compare its checksum.")] = False,
) -> None:
    """Checks a job, or a savepoint: log, files, sizes. Exit code 6 when something is missing or damaged."""
    from stateflow.savepoints.format import verify_savepoint
    from stateflow.storage.roots import open_store

    options = call.options()
    if "/" in job:
        findings = verify_savepoint(open_store(job, options.storage_options), deep=deep)
    else:
        findings = job_of(options, job).verify(deep=deep)
    errors = [finding for finding in findings if finding.severity == "error"]
    sound = f"{'savepoint' if '/' in job else 'job'} {job} is sound{'' if deep else '; --deep reads every file, too'}"
    call.output.answer(
        {
            "job": job,
            "deep": deep,
            "sound": not errors,
            "findings": [
                {"severity": f.severity, "text": _text(f, job), "path": f.path, "checkpoint": f.slot}
                for f in findings
            ],
        },
        TextTable(("", "finding"), [(f.severity, _text(f, job)) for f in findings]) if findings else sound,
    )
    if errors:
        rest = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise CorruptError(f"{_text(errors[0], job)}{rest}")


def _text(finding: Finding, job: str) -> str:
    """Elsewhere an unreadable record advises `stateflow verify`, which has just run."""
    advice = "restore it from a copy, or use another savepoint"
    if "/" not in job:
        advice = "restore an earlier checkpoint, or a savepoint"
    text = finding.text.removesuffix(_VERIFY)
    return text if text == finding.text else f"{text}: {advice}"
