"""docs/kill-loop.md: the figures, for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from bench.kill.commits import Seen
from bench.kill.journal import Journal

GOAL = 1_000
SAYS = {
    "calm": "one process, a root on a disk",
    "cluster": "Spark's local cluster: executors in processes of their own",
    "server": "a root in an object store (S3's protocol), whose server is killed and comes back",
    "disk": "root, state and tables on a small disk that is full now and then",
    "clock": "the clock of the driver's Python jumps by up to six hours, forth and back, about every second",
    "liar": "a root in an object store that delays, refuses, repeats, loses and belatedly does what it is asked, reports conflicts "
    "with nothing stored, and shows listings of up to a second ago",
    "kafka": "the input comes from Kafka, whose broker is killed and comes back",
    "host": "each run is one on a [warm host](hosts.md), whose processes are killed and come back",
}
VICTIMS = {
    "driver": "the driver: its Python and its JVM",
    "everything": "the driver and everything that it has started",
    "python": "the driver's Python, where all of the protocol is, at a random moment",
    "point": "the same, at a point of the protocol",
    "executor": "an executor",
    "worker": "a Python worker",
    "stop": "no kill: SIGSTOP for longer than the heartbeat may be missing. Another run takes over, then the first one wakes up",
    "store's server": "the server of the object store",
    "Kafka's broker": "the broker",
    "hosted run": "the run's process on a warm host",
    "client": "the command that waits for that run",
    "host's JVM": "Spark's JVM of the host, with the run",
    "host": "the process of the host's Spark application",
    "zygote": "the process that runs are forked from",
    "host's keeper": "the process that keeps the host's name; the loop starts it again, as systemd does",
    "full disk": "no kill: the disk is full for up to four seconds",
}
HEAD = """# The kill loop

This page shows what random kills of running pipelines have found, and how you can repeat them. `make kill-long`
(`python -m bench.kill`) runs pipelines in processes of their own, with two keyed operators, a side output and four sinks, and
kills what belongs to them with SIGKILL. Input arrives all the while. Every round is a job of its own, in one of the scenes below.
It ends with a run that drains the input. Then the loop makes four checks:

- All outputs equal, row for row, one pass over the input in plain Python. One of them is the [feed](time-machine.md#state-as-a-feed) of a state.
- That pass also knows every key's state, and the files that the last checkpoint names hold the same state.
- Every file can be read, and its checksum is right.
- After a collection no file is left that no record names.
"""
TAIL = """Each round draws from the seed and its own number, so you can play it again. Which instruction a random kill meets depends on the
machine. The loop keeps its rounds by seed and by the last commit that changed the library: when it is started again, it goes on where it was.
The figures above are those of all seeds.

Most of what a driver costs is the start of its JVM. So most kills take the driver's Python only. The loop then stops the dead run's
queries and tasks, and lends the JVM to the next run; what the JVM was about to write to a table it may still write meanwhile. A whole
driver dies once in every round, as *driver* or as *everything*.

A scene that was played alone tells of its victims on its own page: [warm hosts](hosts.md#what-runs-of-one-host-share).

Killed elsewhere: Airflow's scheduler, triggerer and worker, in a real Airflow (`tests/airflow/test_scheduled_runs.py`); HDFS's DataNodes and writers
(`tests/protocol/test_crash_hdfs.py`). The clock jumps in the driver's Python, not
in Spark's JVM and not in the Python workers.
"""


def page(journal: Journal, commit: str, seeds: list[int], commits: Mapping[str, Seen] = {}) -> str:
    kills, points, ends = journal.total("kills"), journal.total("points"), journal.total("ends")
    lies, rounds = journal.total("lies"), journal.rounds
    wrong = [(each.number, each.scene, text) for each in rounds for text in each.wrong]
    verdict = (
        "Nothing was lost, doubled or left behind." if not wrong else f"**{len(wrong)} findings, see below.**"
    )
    told = [
        HEAD,
        f"{verdict} {kills.total():,} of {GOAL:,} kills have been played with the library of commit {commit}.{_others(commits, commit)}",
        "",
        "| victim | what it is | kills |",
        "|---|---|---:|",
        *(f"| {name} | {VICTIMS[name]} | {kills[name]:,} |" for name in VICTIMS),
        "",
        "| scene | what is around the job | rounds | kills |",
        "|---|---|---:|---:|",
        *(
            f"| {name} | {text} | {sum(r.scene == name for r in rounds)} | {sum(r.killed for r in rounds if r.scene == name):,} |"
            for name, text in SAYS.items()
        ),
        "",
        "| what | how much |",
        "|---|---|",
        *(f"| killed at the point *{name}* | {points[name]} |" for name in sorted(points)),
        f"| frozen runs that woke up and ended as fenced | {sum(each.fenced for each in rounds)} of {kills['stop']} |",
        *(f"| {name} | {count} |" for name, count in sorted(ends.items())),
        f"| answers of the store: {', '.join(sorted(lies)) or 'no lies'} | {', '.join(f'{lies[n]:,}' for n in sorted(lies)) or '-'} |",
        f"| jumps of the clock | {sum(each.jumps for each in rounds):,} |",
        f"| runs started | {sum(each.runs for each in rounds):,} |",
        f"| batches that ended | {sum(each.batches for each in rounds):,} |",
        f"| rows checked in four sinks and two operators' state | {sum(each.rows for each in rounds):,} |",
        f"| rounds, each a job of its own | {len(rounds)} |",
        f"| time | {sum(each.seconds for each in rounds) / 60:.0f} minutes |",
        f"| seeds | {', '.join(map(str, seeds))} |",
        f"| machine | {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()} |",
        "",
        TAIL,
        *(f"- round {number}, {scene}: {text.splitlines()[0]}" for number, scene, text in wrong),
    ]
    return "\n".join(told).rstrip() + "\n"


def _others(commits: Mapping[str, Seen], commit: str) -> str:
    """What other commits have seen."""
    others = {name: each for name, each in commits.items() if name != commit}
    if not others:
        return ""
    kills, found = sum(each.kills for each in others.values()), sum(each.found for each in others.values())
    names = ", ".join(f"{name}: {each.kills:,}" for name, each in others.items())
    return f" Other commits saw {kills:,} ({names}), with {found or 'no'} finding{'' if found == 1 else 's'}."
