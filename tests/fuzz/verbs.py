"""What is done with a root or a savepoint that somebody else has written: every way in that a stranger's bytes have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from typer.testing import CliRunner

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.log import list_jobs
from stateflow.cli.main import app
from stateflow.errors import StateflowError
from stateflow.format.records import Owner
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.savepoints import dispose_expired
from stateflow.observe.health import health_of
from stateflow.reading.query import StateReader
from stateflow.reading.snapshots import checkpoint_reader, reader_context, savepoint_reader
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import list_savepoints, read_savepoint, verify_savepoint
from stateflow_ui import charts, details, documents, metrics
from stateflow_ui.catalog import Catalog
from stateflow_ui.root import Root
from stateflow_ui.stale_after import StaleAfter
from tests.fuzz.scene import KEYS, PARAMETERS, Scene, base, orders
from tests.jobs.builder import T0
from tests.ui.catalogs import Clock

Verb = Callable[[Scene, int], object]
"""What is done with the scene; the number chooses among several ways."""
OWNER = Owner(run="fuzz", user="fuzz")


def clock() -> int:
    return T0 + 10**10


def each(*acts: Callable[[], object]) -> None:
    """All of them: an error of ours in one does not spare the others."""
    for act in acts:
        try:
            act()
        except StateflowError:
            continue


def command(scene: Scene, *arguments: str) -> None:
    """As typed. What the command did not expect would have ended it with a traceback."""
    result = CliRunner().invoke(app, [*arguments, "--checkpoint-dir", scene.root])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception


def read_job(scene: Scene, seed: int) -> None:
    job = scene.job()
    each(
        lambda: list_jobs(job.store),
        lambda: str(job.status()),
        job.glance,
        lambda: msgspec.json.encode(job.summary()),
        job.checkpoints,
        lambda: [msgspec.json.encode(line) for line in job.history()],
        lambda: job.garbage(1 + seed % 3),
        lambda: list_savepoints(job.store),
        lambda: health_of(job.glance(), job.clock(), None),
    )


def verify_root(scene: Scene, seed: int) -> None:
    findings = scene.job().verify(deep=bool(seed % 2))
    assert all(finding.text for finding in findings)


SHOWN = (
    ("jobs",), ("show", "orders"), ("show", "orders", "-o", "json"), ("checkpoints", "orders"),
    ("checkpoints", "orders", "-o", "json"), ("verify", "orders"), ("gc", "orders"), ("savepoint", "list"),
    ("savepoint", "list", "-o", "json"), ("query", "orders", "total", "3"), ("abandon", "orders", "6"),
)  # fmt: skip


def show_root(scene: Scene, seed: int) -> None:
    command(scene, *SHOWN[seed % len(SHOWN)])


def look_up(reader: StateReader) -> None:
    """Keys of every state, each alone and several at once."""
    for operator, state in reader.record.operators.items():
        for name in (*state.states, "unknown"):
            for key in KEYS:
                _look_up(reader, operator, name, key)
        each(partial(reader.look_up_many, operator, "total", list(KEYS)))


def _look_up(reader: StateReader, operator: str, state: str, key: int) -> None:
    each(
        lambda: _shown(reader.look_up(operator, state, key, limit=5)),
        lambda: _shown(reader.look_up(operator, state, key, "sku1")),
        lambda: reader.target(operator, state).key_of_text(str(key)),
    )


def _shown(result: Any) -> None:
    json.dumps(result.json)


def query_job(scene: Scene, seed: int) -> None:
    which = ("latest", "checkpoint:6", "tag:v1", "5")[seed % 4]
    context = reader_context(scene.options, scene.root, clock)
    with checkpoint_reader(context, "orders", which, owner=OWNER, ids=lambda: f"q{seed}") as reader:
        look_up(reader)


def query_savepoint(scene: Scene, seed: int) -> None:
    context = reader_context(scene.options, scene.savepoint, clock)
    with savepoint_reader(context, scene.savepoint) as reader:
        look_up(reader)


def claim_job(scene: Scene, seed: int) -> None:
    """As a run does that begins: it carries out what is pending, decides a record and collects."""
    job = scene.job()

    def carry_out(record: Any, still_owner: Any) -> Mapping[str, str]:
        return dict.fromkeys(record.sinks, "committed")

    writer = claim(
        job.store, job.layout, owner=OWNER, ids=job.new_id, clock=clock, carry_out=carry_out,
        probe=lambda store, ids: None,
    )  # fmt: skip
    collect(job.store, job.layout, collector=f"c{writer.epoch}", retained=1, orphans=True)


def change_job(scene: Scene, seed: int) -> None:
    job = scene.job()
    (
        lambda: job.collect(1),
        lambda: job.tag("v2", note="|"),
        lambda: job.untag("v1"),
        lambda: job.rescale(1 + seed % 5, takeover=True),
        lambda: job.savepoint("native", options=scene.options, name=f"s{seed}", max_files=seed % 3),
        lambda: job.delete(takeover=True),
        lambda: job.stop(),
        lambda: job.plan_abandon(6),
        lambda: plan_erase(job, "3", scene.options, absent=seed % 2 == 0),
    )[seed % 9]()


def restore_job(scene: Scene, seed: int) -> None:
    origin = ("latest", "tag:v1", "checkpoint:5")[seed % 3]
    plan = scene.job().restore(origin, orders, PARAMETERS, options=scene.options, takeover=True)
    _said(plan)
    plan.apply()


def restore_savepoint(scene: Scene, seed: int) -> None:
    """Into the job, or as a new one; copied or claimed."""
    into = ("orders", "copy")[seed % 2]
    given = PARAMETERS if into == "orders" else {**PARAMETERS, "output": "/data/copy"}
    mode = ("no-claim", "claim")[seed // 2 % 2]
    job = scene.job(into)
    plan = job.restore(scene.savepoint, orders, given, options=scene.options, claim_mode=mode, takeover=True)
    _said(plan)
    plan.apply()
    each(lambda: job.verify(deep=True), lambda: str(job.status()), lambda: job.collect(1))


def _said(plan: Any) -> None:

    str(plan)
    json.dumps(plan.document())
    plan.markdown()


def read_foreign(scene: Scene, seed: int) -> None:
    store = scene.savepoint_store
    each(lambda: read_savepoint(store), lambda: verify_savepoint(store, deep=bool(seed % 2)))
    if seed % 16 < 2:  # a command takes as long as twenty readings
        what = (("savepoint", "show", scene.savepoint), ("verify", scene.savepoint, "--deep"))
        command(scene, *what[seed % 2])


def dispose_foreign(scene: Scene, seed: int) -> None:
    each(
        lambda: dispose_savepoint(scene.savepoint_store, owner=OWNER, clock=clock),
        lambda: dispose_expired(scene.job()),
    )


def pages(scene: Scene, seed: int) -> None:
    """All that the plugin answers of a root, and what Prometheus reads."""
    catalog = Catalog(
        lambda: [Root("main", scene.root, scene.root)],
        clock=clock,
        monotonic=Clock(),
        patience=20.0,
        ticking=False,
    )
    stale = StaleAfter("")

    async def ask() -> None:
        roots, jobs = await catalog.overview()
        msgspec.json.encode(documents.overview(roots, jobs, clock(), stale))
        metrics.page(roots, jobs, clock(), stale)
        try:
            facts = await catalog.job("main", "orders")
            msgspec.json.encode(documents.job(facts, clock(), stale, catalog.error_of("main", "orders")))
            msgspec.json.encode(charts.timeline(facts.lines, 100, None, None))
            msgspec.json.encode(documents.history(facts, None, 100, "", ""))
        except StateflowError:
            return
        for slot in (4, 6, 10):
            try:
                facts, body = await catalog.checkpoint("main", "orders", slot)
            except StateflowError:
                continue
            if (line := facts.lines.find(slot)) is not None:
                msgspec.json.encode(details.checkpoint(facts, line, body))
        try:
            listed = await catalog.savepoints("main", "orders")
            msgspec.json.encode(details.graph(facts, listed, clock()))
            msgspec.json.encode(details.savepoints(facts.status.root, listed, clock()))
            msgspec.json.encode(details.storage(await catalog.storage("main", "orders", 1 + seed % 3)))
        except StateflowError:
            return

    asyncio.run(ask())


ROOT: dict[str, Verb] = {
    "read": read_job,
    "verify": verify_root,
    "show": show_root,
    "query": query_job,
    "claim": claim_job,
    "change": change_job,
    "restore": restore_job,
    "pages": pages,
}
SAVEPOINT: dict[str, Verb] = {
    "read foreign": read_foreign,
    "query foreign": query_savepoint,
    "restore foreign": restore_savepoint,
    "dispose foreign": dispose_foreign,
}
VERBS = {**ROOT, **SAVEPOINT}
__all__ = ["ROOT", "SAVEPOINT", "VERBS", "base"]
