"""`stateflow doctor`: is everything there that a run needs, and where does each setting come from?"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Annotated

import typer

from stateflow.cli.options import Conf, Invocation, Settings, command, flag, pairs
from stateflow.cli.output import TextTable

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@command
def doctor(
    call: Invocation,
    spark: Annotated[bool, flag("--spark", help="Start a session and look at its executors, too.")] = False,
    master: Annotated[str | None, flag(help="Spark's master, with --spark.")] = None,
    conf: Conf = None,
    option: Settings = None,
) -> None:
    """Looks at Java, jars, versions, disk space, the checkpoint root and every option. Exit code 1 if anything fails."""
    from stateflow.spark.session.doctor import configuration, examine

    options = call.options(option, untrusted="leave out")
    findings = [*configuration(os.environ, Path.cwd()), *examine(options, ids=lambda: uuid.uuid4().hex)]
    if options.host or options.host_only:
        from stateflow.hosts.configured import lacking_host
        from stateflow.spark.session.doctor import DoctorFinding

        lacking = lacking_host(options)
        step = "start it, or mend the options host and host_only" if lacking else ""
        findings.append(
            DoctorFinding("warm host", "warn" if lacking else "ok", lacking or options.host, step)
        )
    if spark:
        from stateflow.spark.doctor import examine_spark

        findings += examine_spark(options, master=master, conf=pairs(conf, "--conf"))
    failed = any(finding.verdict == "fail" for finding in findings)
    settings = list(options.settings())
    call.output.answer(
        {
            "healthy": not failed,
            "checks": [
                {"check": f.check, "verdict": f.verdict, "found": f.found, "next_step": f.next_step}
                for f in findings
            ],
            "configuration": [{"name": s.name, "value": s.value, "origin": s.origin} for s in settings],
        },
        TextTable(
            ("", "check", "found", "next step"),
            [(f.verdict, f.check, f.found, f.next_step) for f in findings],
            colours=_COLOURS,
        ),
        "",
        TextTable(("option", "value", "set by"), [(s.name, s.value, s.origin) for s in settings]),
    )
    if failed:
        raise typer.Exit(1)
