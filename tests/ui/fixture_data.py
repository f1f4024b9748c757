"""What the pages are shown in their tests: a hundred jobs, one of them with ten thousand checkpoints. Made by plain functions.

Nothing here is read from a store. Times are milliseconds since 1970, and the clock stands still unless a test moves it.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs

from stateflow.checkpoint.statistics import HistoryLine, summary
from stateflow.observe.timelines import audit, spans
from stateflow.restore import gone_back
from stateflow_ui import state_documents
from stateflow_ui.charts import percentiles, recent
from stateflow_ui.history_lines import Lines, target_of

NOW = 1_795_143_845_000
"""2026-11-20 03:04:05 UTC."""
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
MB = 1 << 20

ACCOUNT = 9_007_199_254_740_993
"""A whole number that a browser's numbers do not have."""

TEAMS = ("payments", "orders", "ads", "fraud", "search", "ledger", "shipping", "risk", "loyalty", "stock")
THINGS = (
    "totals",
    "sessions",
    "balance",
    "dedup",
    "alerts",
    "features",
    "joins",
    "windows",
    "counts",
    "audit",
)


@dataclass
class World:
    """All that one fixture server shows."""

    roots: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    lines: list[HistoryLine] = field(default_factory=list)
    tags: dict[str, int] = field(default_factory=dict)
    savepoints: list[dict[str, Any]] = field(default_factory=list)
    storage: dict[str, Any] = field(default_factory=dict)
    dags: dict[str, str | None] = field(default_factory=dict)
    posted: list[dict[str, Any]] = field(default_factory=list)
    fault: str = ""
    """When it says something, every answer of the API is a failure that says it."""
    now: int = NOW
    stateless: bool = False
    """Whether the job `orders` has no operators."""
    held: dict[str, Any] | None = None
    """Which source holds the watermark of the job `orders` back, and since when."""

    @property
    def head(self) -> int:
        return self.lines[-1].id

    def tick(self) -> None:
        """One more checkpoint of the job `orders`."""
        self.now += 15_000
        rng = random.Random(self.head)
        last = self.lines[-1]
        self.lines.append(_checkpoint(last.id + 1, self.now - 900, last, rng))


def full_world(checkpoints: int = 10_000, jobs: int = 100) -> World:
    lines = history(checkpoints)
    tags = {"before-prices": _plain_below(lines, 8500), "black-friday": _plain_below(lines, 9400)}
    world = World(
        roots=[
            {"conn_id": "stateflow_default", "root": "s3://lake/checkpoints", "error": None, "read": True},
            {"conn_id": "stateflow_eu", "root": "gs://lake-eu/checkpoints", "error": None, "read": True},
            {
                "conn_id": "stateflow_lab",
                "root": "/mnt/lab/checkpoints",
                "error": "the root /mnt/lab/checkpoints does not exist: mount the share, or correct the connection 'stateflow_lab'",
                "read": False,
            },
        ],
        lines=lines,
        tags=tags,
        savepoints=savepoints(lines),
        storage=storage(lines),
        dags={
            "savepoint": "stateflow_savepoint",
            "cleanup": "stateflow_cleanup",
            "stop": "stateflow_stop",
            "recovery": "stateflow_recovery",
        },
    )
    world.jobs = [_row_of(world), *(other_job(k) for k in range(1, jobs))]
    return world


def empty_world() -> World:
    """No connection of the type at all."""
    return World()


def bare_world() -> World:
    """A root without a job."""
    return World(
        roots=[{"conn_id": "stateflow_default", "root": "s3://lake/checkpoints", "error": None, "read": True}]
    )


def young_world() -> World:
    """One job that has just been made, and no DAG for any action."""
    world = World(
        roots=[
            {"conn_id": "stateflow_default", "root": "s3://lake/checkpoints", "error": None, "read": True}
        ],
        dags=dict.fromkeys(("savepoint", "cleanup", "stop", "recovery")),
        storage={
            "kept": {"checkpoints": 0, "files": 0, "bytes": 0},
            "freed": [],
            "total_bytes": 0,
            "roots": {},
        },
    )
    world.jobs = [
        {
            **_blank("stateflow_default", "orders"),
            "status": "RUNNING",
            "running": True,
            "epoch": 1,
            "reason": "job 'orders' has no checkpoint yet and is running",
        }
    ]
    return world


def history(checkpoints: int) -> list[HistoryLine]:
    """Hourly runs of some thirty checkpoints, two restores, a rescale, one output that was given up."""
    rng = random.Random(5)
    lines: list[HistoryLine] = []
    taken, run = 0, 0
    at = NOW - (checkpoints // 30) * HOUR
    marks = {3800: "restore", 6100: "rescale", 8900: "restore"}
    last: HistoryLine | None = None
    timeline = 1
    while taken < checkpoints:
        run += 1
        name = f"stateflow_orders/scheduled__{_iso(at - at % HOUR)}"
        lines.append(_fence(len(lines) + 1, at, last, run, name, timeline))
        for k in range(30):
            if taken >= checkpoints:
                break
            taken += 1
            slot = len(lines) + 1
            if taken in marks and last is not None:
                kind, target, origin = marks[taken], last, ""
                if kind == "restore":
                    timeline += 1
                    below = [line for line in lines if line.kind == "checkpoint" and line.id < slot - 120]
                    target = below[-1]
                    origin = f"checkpoint:{target.id}"
                last = _act(slot, at + k * 100_000, target, kind, origin, run, timeline)
                lines.append(last)
                continue
            last = _checkpoint(
                slot, at + k * 100_000 + rng.randrange(20_000), last, rng, run=run, dag_run=name, timeline=timeline,
                status="ABANDONED" if taken == 7200 else "COMPLETED",
            )  # fmt: skip
            lines.append(last)
        at += HOUR
    # The newest lies a few seconds back, as that of a job that runs does.
    shift = NOW - 4_000 - lines[-1].latest_ack_timestamp
    return [_moved(line, shift) for line in lines]


def _moved(line: HistoryLine, shift: int) -> HistoryLine:
    import msgspec

    watermark = None if line.watermark is None else line.watermark + shift
    return msgspec.structs.replace(
        line,
        trigger_timestamp=line.trigger_timestamp + shift,
        latest_ack_timestamp=line.latest_ack_timestamp + shift,
        watermark=watermark,
    )


def _checkpoint(
    slot: int,
    at: int,
    last: HistoryLine | None,
    rng: random.Random,
    *,
    run: int | None = None,
    dag_run: str = "",
    timeline: int | None = None,
    status: str = "COMPLETED",
) -> HistoryLine:
    day = 0.55 + 0.45 * math.sin(at / DAY * 2 * math.pi - 1.5)
    rows = round((120_000 + 900_000 * day) * rng.lognormvariate(0, 0.12))
    compaction = 6 if slot % 41 == 0 else 1
    uploaded = round(rows * 18 * compaction * rng.lognormvariate(0, 0.2))
    full = round((last.state_size if last else 180 * MB) * rng.uniform(0.9995, 1.0009) + rows * 0.02)
    duration = round(
        (900 + rows / 450)
        * rng.lognormvariate(0, 0.16)
        * (3.2 if rng.random() < 0.006 else 1)
        * compaction**0.35
    )
    return HistoryLine(
        id=slot,
        kind="checkpoint",
        status=status,
        epoch=run if run is not None else last.epoch if last else 1,
        timeline=timeline if timeline is not None else last.timeline if last else 1,
        based_on=last.id if last else None,
        writer=f"w{slot}",
        run=f"run-{run}",
        dag_run=dag_run or (last.dag_run if last else ""),
        user="airflow",
        host=f"worker-{slot % 3}",
        trigger_timestamp=at - duration,
        latest_ack_timestamp=at,
        end_to_end_duration=duration,
        state_size=full,
        checkpointed_size=uploaded,
        num_files=96 + slot % 40,
        num_subtasks=8,
        processed_rows=rows,
        emitted_rows=round(rows * 0.97),
        watermark=at - 600_000,
        sinks={"totals": "abandoned" if status == "ABANDONED" else "committed", "alerts": "committed"},
        metrics={
            "evaluate_ms": round(duration * 0.78),
            "decide_ms": round(duration * 0.05),
            "commit_ms": round(duration * 0.17),
            "batch_size": {"target_ms": 3000, "streams": []},
        },
    )


def _fence(slot: int, at: int, last: HistoryLine | None, run: int, name: str, timeline: int) -> HistoryLine:
    return HistoryLine(
        id=slot, kind="fence", status="COMPLETED", epoch=run, timeline=timeline, based_on=last.id if last else None,
        dag_run=name, user="airflow", host="worker-0", trigger_timestamp=at - 2000, latest_ack_timestamp=at - 2000,
        state_size=last.state_size if last else 0,
    )  # fmt: skip


def _act(
    slot: int, at: int, target: HistoryLine, kind: str, origin: str, run: int, timeline: int
) -> HistoryLine:
    notes = {
        "restore": "prices of 11 November were wrong by a factor of ten",
        "rescale": "4 -> 8 for the sale",
    }
    return HistoryLine(
        id=slot, kind=kind, status="COMPLETED", epoch=run, timeline=timeline, based_on=target.id, origin=origin,
        dag_run="stateflow_recovery/manual__2026-11-12T09:14:00+00:00" if kind == "restore" else "",
        user="anna", host="ops-1", note=notes[kind], trigger_timestamp=at, latest_ack_timestamp=at,
        end_to_end_duration=420, state_size=target.state_size, num_files=target.num_files, watermark=target.watermark,
        metrics=gone_back.note("a" * 64, "b" * 64) if kind == "restore" else {},
    )  # fmt: skip


def _plain_below(lines: list[HistoryLine], slot: int) -> int:
    return max(
        (line.id for line in lines if line.kind == "checkpoint" and line.id <= slot), default=lines[-1].id
    )


def savepoints(lines: list[HistoryLine]) -> list[dict[str, Any]]:
    by_id = {line.id: line for line in lines}
    found = []
    wanted = (
        (
            "before-2.0",
            "canonical",
            9800,
            None,
            "upgrade to 2.0: the new join needs its state to be rewritten",
        ),
        ("nightly-19", "native", 9300, NOW + 5 * DAY, ""),
        ("nightly-18", "native", 8600, NOW - HOUR, ""),
    )
    for name, kind, near, expires, note in wanted:
        slot = _plain_below(lines, min(near, lines[-1].id))
        found.append(
            {
                "url": f"s3://lake/checkpoints/_savepoints/orders/{name}", "name": name, "kind": kind, "checkpoint": slot,
                "at": by_id[slot].latest_ack_timestamp + 40_000, "bytes": by_id[slot].state_size, "files": 96,
                "expires": expires, "note": note, "by": {"user": "anna"}, "claimed_by": None,
                "expired": expires is not None and expires < NOW, "problem": None,
            }
        )  # fmt: skip
    return found


def storage(lines: list[HistoryLine]) -> dict[str, Any]:
    kept = lines[-1].state_size + 210 * MB
    freed = [
        {"reason": "orphan", "files": 37, "bytes": 61 * MB},
        {"reason": "subsumed", "files": 412, "bytes": 640 * MB},
    ]
    return {
        "retained": 3,
        "age": "0",
        "retention": "hourly for 2 days",
        "kept": {"checkpoints": 5, "files": 288, "bytes": kept},
        "roots": {"retained": 2, "head": 1, "tag before-prices": 1, "tag black-friday": 1},
        "freed": freed,
        "freed_records": 118,
        "elsewhere": {"files": 0, "bytes": 0},
        "total_bytes": kept + sum(each["bytes"] for each in freed),
    }


def storage_keeping(world: World, retained: int, age: str = "") -> dict[str, Any]:
    """More checkpoints kept, less that goes. An age keeps two more."""
    if age and not age.startswith("0"):
        found = storage_keeping(world, retained + 2)
        return {**found, "retained": retained, "age": age, "roots": {**found["roots"], "young": 2}}
    freed = [
        {**each, "bytes": max(0, each["bytes"] - (retained - 3) * 30 * MB)} for each in world.storage["freed"]
    ]
    freed = [each for each in freed if each["bytes"]]
    kept = {**world.storage["kept"], "checkpoints": world.storage["kept"]["checkpoints"] + retained - 3}
    total = kept["bytes"] + sum(each["bytes"] for each in freed)
    return {**world.storage, "retained": retained, "kept": kept, "freed": freed, "total_bytes": total}


def _blank(conn: str, name: str) -> dict[str, Any]:
    return {
        "conn_id": conn, "job": name, "status": "CREATED", "health": "new", "reason": f"job {name!r} has no checkpoint yet",
        "head": None, "last_checkpoint_at": None, "last_duration": None, "age": None, "fresh_at": None, "lag": None,
        "lag_unit": "ms", "watermark": None, "watermark_held": None, "state_size": None, "num_files": None, "running": False, "epoch": 0,
        "dag_run": None, "task": None, "machine": None, "warm_host": None, "pending": [], "rows_per_second": None, "outcome": None,
        "recent": {"t": [], "duration": [], "full": []}, "as_of": NOW, "error": None,
    }  # fmt: skip


def _row_of(world: World) -> dict[str, Any]:
    last = world.lines[-1]
    return {
        **_blank("stateflow_default", "orders"),
        "status": "RUNNING",
        "health": "ok",
        "reason": "job 'orders' has a checkpoint of 4 seconds ago",
        "head": last.id,
        "last_checkpoint_at": last.latest_ack_timestamp,
        "last_duration": last.end_to_end_duration,
        "age": world.now - last.latest_ack_timestamp,
        "lag": world.now - (last.watermark or 0),
        "watermark": last.watermark,
        "watermark_held": world.held,
        "state_size": last.state_size,
        "num_files": last.num_files,
        "running": True,
        "epoch": last.epoch,
        "dag_run": last.dag_run,
        "task": "run_orders",
        "machine": "worker-1",
        "warm_host": "team",
        "rows_per_second": 41_800.0,
        "recent": recent(Lines(world.lines[-60:]), 50),
    }


_SORROWS = {
    "lost": "job {name!r} has lost its run (epoch 12, DAG run stateflow_{name}/scheduled__2026-11-20T02:00:00+00:00 on worker-2), "
    "which has given no sign of life for 14 minutes: start the next run, it carries on from checkpoint 411",
    "stale": "job {name!r} is stale: its newest checkpoint is 31 hours old: start its next run, or see why the schedule does not",
    "blocked": "job {name!r} has decided record 233 and not delivered it: start the next run, which delivers it, or if that fails see "
    "`stateflow abandon {name} 233`",
    "new": "job {name!r} has no checkpoint yet",
    "ok": "job {name!r} had nothing left to read 18 minutes ago",
}


REFUSED = {
    "exit_code": 7, "error": "sink 'totals' and the log disagree: table s3://lake/totals was recreated, see `stateflow abandon`",
    "batches": 0, "rows": 0, "checkpoint": 232, "stopped": "", "at": NOW - 2 * HOUR,
}  # fmt: skip


def other_job(k: int) -> dict[str, Any]:
    rng = random.Random(k)
    name = f"{TEAMS[k % 10]}_{THINGS[(k // 10 + k) % 10]}"
    conn = "stateflow_eu" if k % 4 == 3 else "stateflow_default"
    health = {7: "lost", 23: "stale", 58: "stale", 41: "blocked", 77: "new"}.get(k, "ok")
    blank = {**_blank(conn, name), "health": health, "reason": _SORROWS[health].format(name=name)}
    if health == "new":
        return blank
    running = health == "ok" and rng.random() < 0.2
    age = {"lost": 14 * MINUTE, "stale": 31 * HOUR, "blocked": 3 * HOUR}.get(
        health, rng.randrange(3_000, 40_000) if running else rng.randrange(2 * MINUTE, 20 * HOUR)
    )
    size, base = rng.lognormvariate(19, 2), rng.lognormvariate(7.6, 0.7)
    durations = [round(base * rng.lognormvariate(0, 0.2)) for _ in range(50)]
    return {
        **blank,
        "status": "LOST" if health == "lost" else "RUNNING" if running else "IDLE",
        "head": rng.randrange(100, 9000),
        "last_checkpoint_at": NOW - age,
        "last_duration": durations[-1],
        "age": age,
        "lag": age + rng.randrange(4_000, 900_000),
        "watermark": NOW - age - 600_000,
        "state_size": round(size),
        "num_files": rng.randrange(4, 400),
        "running": running,
        "epoch": rng.randrange(2, 400),
        "dag_run": f"stateflow_{name}/scheduled__{_iso(NOW - age - age % HOUR)}",
        "task": f"run_{name}",
        "machine": f"worker-{k % 2 + 1}",
        "warm_host": "team" if k % 3 == 0 else None,
        "pending": [233] if health == "blocked" else [],
        "outcome": REFUSED if health == "blocked" else None,
        "rows_per_second": rng.lognormvariate(9.5, 0.9) if running else None,
        "recent": {
            "t": [NOW - age - (50 - n) * MINUTE for n in range(50)],
            "duration": durations,
            "full": [round(size * (0.9 + 0.002 * n + 0.01 * rng.random())) for n in range(50)],
        },
    }


def _iso(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def lines_of(world: World, job: str) -> list[HistoryLine]:
    """The large history belongs to `orders`; the others have its last few hundred lines."""
    return world.lines if job == "orders" else world.lines[-200:]


def job_document(world: World, row: dict[str, Any]) -> dict[str, Any]:
    lines = lines_of(world, row["job"]) if row["head"] is not None else []
    if row["job"] == "orders" and lines:
        row = _row_of(world)
    return {
        **{
            name: row[name]
            for name in ("health", "reason", "age", "lag", "lag_unit", "outcome", "error", "as_of")
        },
        "now": world.now,
        "partial": False,
        "status": status(world, row),
        "summary": structs.asdict(summary(lines)),
        "percentiles": percentiles(Lines(lines).columns) if lines else {},
    }


def status(world: World, row: dict[str, Any]) -> dict[str, Any]:
    made = row["head"] is not None
    return {
        "name": row["job"],
        "root": next((root["root"] for root in world.roots if root["conn_id"] == row["conn_id"]), ""),
        "uuid": "0f3c",
        "created_at": NOW - 40 * DAY,
        "status": row["status"],
        "epoch": row["epoch"],
        "owner": {
            "run": "r",
            "host": "worker-1",
            "user": "airflow",
            "dag_run": row["dag_run"] or "",
            "task": row["task"] or "",
        },
        "heartbeat_at": world.now - 1500,
        "head": row["head"],
        "last_checkpoint_at": row["last_checkpoint_at"],
        "pending": row["pending"],
        "timeline": 3 if row["job"] == "orders" and made else 1,
        "floor": 1,
        "watermark": row["watermark"],
        "watermark_held": row["watermark_held"],
        "state_size": row["state_size"] or 0,
        "num_files": row["num_files"] or 0,
        "operators": operator_rows() if made else [],
        "sources": source_rows(world.now) if made else [],
        "sinks": sink_rows(row["head"]) if made else [],
        "tags": world.tags if made else {},
        "pins": [],
        "parameters": {"input": "s3://lake/orders", "output": "s3://lake/totals"},
        "versions": {"stateflow": "0.1.0", "pyspark": "4.2.0"},
        "checkpoints": {},
        "progress": {},
        "over": False,
        "looked_at": None,
        **chosen_sizes(world, row["job"] == "orders" and made),
    }


def chosen_sizes(world: World, made: bool) -> dict[str, Any]:
    """Of a job whose runs have a target, and a source that is ahead."""
    if not made:
        return {"batch_size": {}, "waited": {}}
    streams = [
        {"source": "events", "unit": "bytes", "most": 48 * MB, "took": 47 * MB},
        {"source": "prices", "unit": "rows", "most": 120_000, "took": 0},
    ]
    last = world.lines[-1]
    sizes = {"target_ms": 3000, "duration_ms": last.end_to_end_duration, "rows": last.processed_rows}
    return {"batch_size": {**sizes, "streams": streams}, "waited": {"prices": "events"}}


def operator_rows() -> list[dict[str, Any]]:
    return [
        {
            "uid": uid, "key": key, "parallelism": 8, "max_parallelism": groups, "shards": 8, "entries": entries,
            "state_size": size, "backend": "rocksdb", "states": states, "expired": expired, "expiring": expired > 0,
            "ttl": {"by_page": "7 days after it was written"} if expired else {},
            "live_bytes": {"by_page": 48_000_000} if expired else {},
            "expired_bytes": {"by_page": 1_200_000} if expired else {},
            "hot_key": {"share": 0.52, "subtask": 3} if expired else {},
        }
        for uid, key, groups, entries, size, states, expired in (
            ("balance", "user bigint", 128, 18_204_113, 1_340 * MB, {"total": "value double", "seen": "value timestamp"}, 0),
            ("sessions", "user bigint, device string", 1024, 2_204_991, 391 * MB, {"events": "list Event", "by_page": "map string -> long"}, 12_408),
        )
    ]  # fmt: skip


def source_rows(now: int) -> list[dict[str, Any]]:
    return [
        {
            "uid": "events",
            "kind": "delta",
            "position": "version 48211, index 12",
            "offsets": [],
            "event_time": now - 560_000,
        },
        {
            "uid": "prices",
            "kind": "kafka",
            "position": "prices[0]=88214402, prices[1]=88199371, prices[2]=88200018, prices[3]=88213777",
            "offsets": [],
            "event_time": now - 12_000,
        },
    ]


def sink_rows(head: int | None) -> list[dict[str, Any]]:
    return [
        {"uid": "alerts", "kind": "function", "target": "pager", "last_commit": head},
        {"uid": "totals", "kind": "delta", "target": "s3://lake/totals", "last_commit": head},
    ]


def timeline(
    lines: list[HistoryLine], points: int, since: int | None, until: int | None
) -> dict[str, list[Any]]:
    inside = [
        line
        for line in lines
        if line.kind != "fence" and (since or 0) <= line.latest_ack_timestamp <= (until or 1 << 60)
    ]
    step = max(1, math.ceil(len(inside) / points))
    drawn = []
    for at in range(0, len(inside), step):
        stretch = inside[at : at + step]
        acts = [line for line in stretch if line.kind != "checkpoint"]
        drawn += acts or [max(stretch, key=lambda line: line.end_to_end_duration)]
    if inside and drawn[-1].id != inside[-1].id:
        drawn.append(inside[-1])
    return {
        "id": [line.id for line in drawn],
        "t": [line.latest_ack_timestamp for line in drawn],
        "duration": [line.end_to_end_duration for line in drawn],
        "size": [line.checkpointed_size for line in drawn],
        "full": [line.state_size for line in drawn],
        "rows": [line.processed_rows for line in drawn],
        "target": [target_of(line) for line in drawn],
        "kind": [line.kind for line in drawn],
        "timeline": [line.timeline for line in drawn],
    }


def history_page(
    lines: list[HistoryLine], before: int | None, limit: int, kind: str, dag_run: str
) -> dict[str, Any]:
    page, following = Lines(lines).page(before, limit, kind, dag_run)
    return {
        "lines": [structs.asdict(line) for line in page],
        "total": len(lines),
        "next": following,
        "partial": False,
    }


def graph(world: World, lines: list[HistoryLine]) -> dict[str, Any]:
    if not lines:
        return {
            "spans": [],
            "more": False,
            "tags": {},
            "savepoints": [],
            "head": None,
            "audit": [],
            "partial": False,
        }
    kept = {*world.tags.values(), *(line.id for line in lines[-90:])}
    tags = {name: slot for name, slot in world.tags.items() if slot >= lines[0].id}
    return {
        "spans": [asdict(span) for span in spans(lines, tags, lines[-1].id, kept)],
        "more": False,
        "tags": tags,
        "savepoints": world.savepoints,
        "head": lines[-1].id,
        "audit": [structs.asdict(line) for line in audit(lines)],
        "partial": False,
    }


def _kept(world: World, slot: int) -> bool:
    return slot >= world.head - 120 or slot in world.tags.values()


def checkpoint_document(world: World, lines: list[HistoryLine], slot: int) -> dict[str, Any] | None:
    line = next((line for line in lines if line.id == slot), None)
    if line is None:
        return None
    collected = not _kept(world, slot)
    return {
        "kept": not collected,
        "since": next((at for at in range(line.based_on or 0, 0, -1) if _kept(world, at)), None),
        "line": structs.asdict(line),
        "collected": collected,
        "tags": [name for name, tagged in world.tags.items() if tagged == slot],
        "head": slot == lines[-1].id,
        "operators": []
        if collected or world.stateless
        else [_operator_details(row, slot) for row in operator_rows()],
        "sources": [] if collected else source_rows(line.latest_ack_timestamp),
        "sinks": [
            {
                "uid": uid,
                "kind": kind,
                "target": target,
                "rows": rows,
                "prev": slot - 1,
                "outcome": line.sinks.get(uid, "none"),
            }
            for uid, kind, target, rows in (
                ("alerts", "function", "pager", 212),
                ("totals", "delta", "s3://lake/totals", line.emitted_rows),
            )
        ],
        "owner": {}
        if collected
        else {"run": "r", "host": line.host, "user": line.user, "dag_run": line.dag_run},
        "statistics": {
            **line.metrics,
            "operators": {"balance": {"keys": 412_008}, "sessions": {"keys": 96_114}},
        },
        "parameters": {},
        "versions": {}
        if collected
        else {"pipeline": f"orders.py@sha256:{'0123456789abcdef' * 4}", "revision": "team@1a2b"},
    }


def _operator_details(row: dict[str, Any], slot: int) -> dict[str, Any]:
    rng = random.Random(row["uid"])
    groups, tasks = row["max_parallelism"], row["parallelism"]
    shards = []
    for task in range(tasks):
        weight = rng.lognormvariate(0, 0.25) * (3.4 if row["uid"] == "sessions" and task == 5 else 1)
        shards.append(
            {
                "subtask": task, "first": task * groups // tasks, "last": (task + 1) * groups // tasks - 1,
                "entries": round(row["entries"] / tasks * weight), "bytes": round(row["state_size"] / tasks * weight),
                "files": 6 + task, "backend": "rocksdb", "host": f"worker-{task % 3}.spark.internal",
            }
        )  # fmt: skip
    return {
        "uid": row["uid"],
        "key": row["key"],
        "parallelism": tasks,
        "max_parallelism": groups,
        "states": [
            {
                "name": name,
                "kind": text.partition(" ")[0],
                "type": text.partition(" ")[2],
                "ttl": None,
                "queryable": True,
            }
            for name, text in row["states"].items()
        ],
        "shards": shards,
        "key_groups": [
            round(shard["bytes"] / (shard["last"] - shard["first"] + 1))
            for shard in shards
            for _ in range(shard["first"], shard["last"] + 1)
        ],
    }


def key_history(world: World, key: str) -> dict[str, Any]:
    """A balance that falls below zero, is deleted, and comes back with a restore."""
    slots = [line for line in world.lines if line.kind != "fence"][-40:]
    values = [round(120 + 40 * math.sin(k / 3) - (260 if 18 <= k < 24 else 0), 2) for k in range(40)]
    versions: list[dict[str, Any]] = []
    for k, line in enumerate(slots):
        of_keys = {"fields": {"total": values[k], "seen": k}, "text": f"a text of {k}", "large": ACCOUNT - k}
        value = None if k == 24 else of_keys.get(key, values[k])
        versions.append(
            {
                "slot": line.id, "at": line.latest_ack_timestamp, "kind": "restore" if k == 25 else "checkpoint",
                "what": "kept" if k == 0 else "deleted" if k == 24 else "set" if k == 25 else "changed",
                "value": state_documents.shown(value), "numbers": state_documents.numbers(value),
                "previous": slots[k - 2 if k == 30 else k - 1].id if k else None, "more": False, "dag_run": line.dag_run, "code": "1a2b3c4d5e6f",
            }
        )  # fmt: skip
    return {
        "operator": "balance", "state": "total", "key": key, "map_key": None, "namespace": None,
        "versions": [] if key == "nobody" else versions, "checkpoints": 200,
        "nothing": f"no checkpoint that was looked at has anything under key {key}: a key of operator 'balance' is user str: text",
        "notes": [
            "these are the newest 200 of 10,004 kept checkpoints: `stateflow history` looks at all of them",
            "in checkpoint 10300 the state is called 'sum'",
        ],
    }  # fmt: skip


def differences(world: World, before: str, after: str) -> dict[str, Any]:
    at = {line.id: line.latest_ack_timestamp for line in world.lines}
    one = int(before) if before.isdecimal() else world.head - 1
    other = world.head if after == "latest" else int(after)
    first = [
        {
            "kind": kind, "key": str(40 + k), "namespace": None, "part": None,
            "before": None if kind == "came" else str(120.5 + k),
            "after": None if kind == "went" else f'{{"total":-240.25,"account":{ACCOUNT},"note":"{"x" * 300}"}}',
        }
        for k, kind in enumerate(("came", "went", "changed", "changed"))
    ]  # fmt: skip
    counts = {"came": 1, "went": 1, "changed": 1204}
    states = [{"operator": "balance", "state": "total", "counts": counts, "first": first}]
    return {
        "before": {"slot": one, "at": at.get(one, NOW)},
        "after": {"slot": other, "at": at.get(other, NOW)},
        "kinds": [] if one == other else list(counts),
        "states": [] if one == other else states,
        "notes": [] if one == other else ["operator 'sessions' is only in checkpoint 10334"],
    }


def replays(world: World) -> dict[str, Any]:
    user, row = f'{{"user":{ACCOUNT}}}', f'{{"user":{ACCOUNT},"total":%s}}'
    change = {
        "slot": world.head - 3, "kind": "different", "key": user, "before": row % 120.0, "after": row % 240.0,
    }  # fmt: skip
    sink = {
        "sink": "totals", "before": 41_000, "after": 41_000, "gone": 0, "new": 0, "different": 20_411, "columns_gone": [],
        "columns_new": [], "changes": [change] * 4,
    }  # fmt: skip
    state = {
        "operator": "balance", "state": "total", "keys": 20_000, "gone": 0, "new": 0, "different": 20_000, "note": "",
        "changes": [{"kind": "different", "key": "42", "before": "120.0", "after": "240.0"}],
    }  # fmt: skip
    report = {
        "job": "orders", "pipeline": "orders", "from": world.head - 20, "to": world.head, "batches": 20, "rows": 8_204_113,
        "seconds": 61.2, "live_seconds": 58.1, "compared": True, "same": False, "nondeterministic": None, "uncompared": [],
        "findings": [],
        "notes": ["20 batches instead of 50 can be run again: record 10311, from which 10312 goes on, is no longer kept"],
        "sinks": [sink], "states": [state],
    }  # fmt: skip
    same = {
        **report,
        "same": True,
        "notes": [],
        "findings": ["nothing differs"],
        "sinks": [{**sink, "different": 0, "changes": []}],
        "states": [],
    }
    run = "stateflow_upgrade/manual__2026-11-20T02:00:00+00:00"
    beyond = "20,411 of 41,000 rows of sink 'totals' would be others, and max_changed=0.01 lets 410 pass"
    shadow = {
        "name": SHADOW, "at": NOW - HOUR, "by": {"run": "r", "user": "anna", "dag_run": run, "task": "shadow"},
        "max_changed": 0.01, "excess": beyond, "report": report,
    }  # fmt: skip
    by_hand = {
        "name": "by-hand", "at": NOW - DAY, "by": {"run": "r", "user": "anna"}, "max_changed": None, "excess": "", "report": same,
    }  # fmt: skip
    return {"replays": [shadow, by_hand]}


SHADOW = "shadow-manual__2026-11-20T02-00-00-00-00-1a2b3c4d5e6f"
