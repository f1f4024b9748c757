"""`stateflow doctor`: is everything there that a run needs, and where does each setting come from?"""

from __future__ import annotations

import uuid
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from stateflow.cli.options import Conf, Debug, Output, Root, Settings, configured, pairs
from stateflow.cli.output import document, out, table

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    spark: Annotated[
        bool, typer.Option("--spark", help="Start a session and look at its executors, too.")
    ] = False,
    master: Annotated[
        str | None, typer.Option(help="Spark's master, with --spark.", show_default=False)
    ] = None,
    conf: Conf = None,
    option: Settings = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Looks at Java, jars, versions, disk space, the checkpoint root and every option. Exit code 1 if anything fails."""
    from stateflow.spark.session.doctor import examine

    options = configured(root, option, debug=debug)
    findings = list(examine(options, ids=lambda: uuid.uuid4().hex))
    if spark:
        from stateflow.spark.doctor import examine_spark

        findings += examine_spark(options, master=master, conf=pairs(conf, "--conf"))
    failed = any(finding.verdict == "fail" for finding in findings)
    if output == "json":
        settings = [{"name": s.name, "value": s.value, "origin": s.origin} for s in options.settings()]
        checks = [
            {"check": f.check, "verdict": f.verdict, "found": f.found, "next_step": f.next_step}
            for f in findings
        ]
        document({"healthy": not failed, "checks": checks, "configuration": settings})
    else:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("", "check", "found", "next step"):
            shown.add_column(name, overflow="fold")
        for f in findings:
            colour = _COLOURS[f.verdict]
            shown.add_row(f"[{colour}]{f.verdict}[/]", escape(f.check), escape(f.found), escape(f.next_step))
        out().print(shown)
        out().print()
        table("", ("option", "value", "set by"), [(s.name, s.value, s.origin) for s in options.settings()])
    if failed:
        raise typer.Exit(1)
