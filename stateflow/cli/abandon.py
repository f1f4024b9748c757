"""`stateflow abandon`: the only way past a record that cannot be carried out."""

from __future__ import annotations

from typing import Annotated

import typer

from stateflow.cli.options import Conf, Debug, JobName, Output, Root, Yes, configured, job_of, pairs
from stateflow.cli.output import document, err, facts, moment, number, table


def abandon(
    job: JobName,
    checkpoint: Annotated[int, typer.Argument(metavar="N", help="The pending record.", show_default=False)],
    yes: Yes = False,
    note: Annotated[str, typer.Option("--note", help="Why: kept with the pin.", show_default=False)] = "",
    conf: Conf = None,
    root: Root = None,
    output: Output = "text",
    debug: Debug = False,
) -> None:
    """Completes a pending record without the outputs that cannot be delivered; they are kept and pinned.

    State and offsets stand. Fences a run that is under way. With --yes tables are asked whether they have the output,
    for which Spark is started.
    """
    found = job_of(configured(root, debug=debug), job)
    if not yes:
        plan = found.plan_abandon(checkpoint)
        if output == "json":
            document(
                {
                    "job": job,
                    "checkpoint": plan.slot,
                    "abandoned": False,
                    "epoch": plan.epoch,
                    "decided_at": plan.decided_at,
                    "rows": plan.rows,
                    "sinks": dict(plan.sinks),
                }
            )
            return
        facts(
            [
                ("record", plan.slot),
                ("decided", f"{moment(plan.decided_at)} by epoch {plan.epoch}"),
                ("rows", number(plan.rows)),
            ]
        )
        table("", ("sink", "target"), list(plan.sinks.items()))
        err().print(
            f"Nothing was done. `stateflow abandon {job} {checkpoint} --yes` asks each table whether it has this output, "
            "and gives up the output of those that have not.",
            markup=False,
            soft_wrap=True,
        )
        return
    done = found.abandon(checkpoint, reason=note, conf=pairs(conf, "--conf"))
    if output == "json":
        document(
            {
                "job": job,
                "checkpoint": done.slot,
                "abandoned": True,
                "delivered": list(done.delivered),
                "undelivered": list(done.undelivered),
                "kept": list(done.kept),
                "pin": done.pin.id,
            }
        )
        return
    table(
        "",
        ("sink", "output"),
        [*((s, "delivered") for s in done.delivered), *((s, "given up") for s in done.undelivered)],
    )
    facts([("pin", done.pin.id), ("kept files", len(done.kept))])
