"""`stateflow abandon`: the only way past a record that cannot be carried out."""

from __future__ import annotations

from typing import Annotated

from stateflow.cli.options import Conf, Invocation, JobName, Yes, argument, command, flag, pairs
from stateflow.cli.output import Facts, TextTable
from stateflow.cli.text import moment, number


@command
def abandon(
    call: Invocation,
    job: JobName,
    checkpoint: Annotated[int, argument(metavar="N", help="The pending record.")],
    yes: Yes = False,
    note: Annotated[str, flag("--note", help="Why: kept with the pin.")] = "",
    conf: Conf = None,
) -> None:
    """Completes a pending record without the outputs that cannot be delivered; they are kept and pinned.

    State and offsets stand. Fences a run that is under way. With --yes tables are asked whether they have the output,
    for which Spark is started.
    """
    found = call.job(job)
    if not yes:
        plan = found.plan_abandon(checkpoint)
        call.output.answer(
            {
                "job": job,
                "checkpoint": plan.slot,
                "abandoned": False,
                "epoch": plan.epoch,
                "decided_at": plan.decided_at,
                "rows": plan.rows,
                "sinks": plan.sinks,
            },
            Facts(
                [
                    ("record", plan.slot),
                    ("decided", f"{moment(plan.decided_at)} by epoch {plan.epoch}"),
                    ("rows", number(plan.rows)),
                ]
            ),
            TextTable(("sink", "target"), plan.sinks.items()),
            note=f"Nothing was done. `{call.again('--yes')}` asks each table whether it has this "
            "output, and gives up the output of those that have not.",
        )
        return
    done = found.abandon(checkpoint, reason=note, conf=pairs(conf, "--conf"))
    outputs = [*((s, "delivered") for s in done.delivered), *((s, "given up") for s in done.undelivered)]
    call.output.answer(
        {
            "job": job,
            "checkpoint": done.slot,
            "abandoned": True,
            "delivered": done.delivered,
            "undelivered": done.undelivered,
            "kept": done.kept,
            "pin": done.pin.id,
        },
        TextTable(("sink", "output"), outputs),
        Facts([("pin", done.pin.id), ("kept files", len(done.kept))]),
    )
