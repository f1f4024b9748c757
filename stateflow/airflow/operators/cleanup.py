"""Retention: what nobody needs any more is deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow.airflow.operators.arguments import Reader, flag, number, optional, span, text
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.errors import StateflowError, error_of
from stateflow.quantities import size_text

if TYPE_CHECKING:
    from airflow.sdk import Context


class StateflowCleanupOperator(StateflowOperator):
    """Collects subsumed checkpoints, what crashed runs left, and savepoints whose time is over. Safe beside runs.

    Every deletion is complete in itself, so a retry goes on where a try was killed.

    :param job: empty: every job of the root. One that cannot be cleaned up does not keep the others from it.
    :param retained: checkpoints to keep per job, beside what tags and other pins name. By default as many as the
        connection's option `retained_checkpoints` says.
    :param age: younger ones are kept, too; by default as `retained_age` says.
    :param expired_savepoints: dispose of savepoints that have expired, and of those that were never finished.
    :param dry_run: only report.
    """

    template_fields: Sequence[str] = (
        *StateflowOperator.template_fields,
        "retained",
        "age",
        "expired_savepoints",
        "dry_run",
    )
    readers: Mapping[str, Reader[Any]] = {
        **StateflowOperator.readers,
        "job": text,
        "retained": optional(number(1)),
        "age": optional(span),
        "expired_savepoints": flag,
        "dry_run": flag,
    }
    dry_run: bool | str  # type: ignore[assignment]  # the method of this name is nowhere called

    def __init__(
        self,
        *,
        job: str = "",
        retained: int | str | None = None,
        age: timedelta | str | None = None,
        expired_savepoints: bool | str = True,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.retained = retained
        self.age = age
        self.expired_savepoints = expired_savepoints
        self.dry_run = dry_run
        self.check("retained", "age", "expired_savepoints", "dry_run")

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            self.hook.require_root()
            self.linked(context)
            names = [name] if (name := self.given("job")) else self.hook.jobs()
            reports: dict[str, dict[str, Any]] = {}
            failed: list[StateflowError] = []
            for name in names:
                try:
                    reports[name] = self._cleaned(context, name)
                except StateflowError as error:
                    self.log.error("%s: %s", name, error)
                    failed.append(error)
            totals: Counter[str] = Counter()
            for report in reports.values():
                totals.update(report["bytes_by_reason"])
            told = self.result(
                None, jobs=reports, bytes_by_reason=dict(totals), deleted=not self.given("dry_run")
            )
            if failed:
                context["ti"].xcom_push("report", told)
                rest = f"; {len(failed)} of {len(names)} jobs were not cleaned up" if len(names) > 1 else ""
                raise error_of(max(error.exit_code for error in failed), f"{failed[0]}{rest}")
            return told

    def _cleaned(self, context: Context, name: str) -> dict[str, Any]:
        from stateflow.jobs.savepoints import (
            dispose_expired,
            dispose_unfinished,
            expired_savepoints,
            unfinished_savepoints,
        )
        from stateflow.liveness.stale_pins import release_stale

        job = self.job_for(context, name)
        options = self.hook.options()
        kept, age = self.given("retained"), self.given("age")
        kept = options.retained_checkpoints if kept is None else kept
        age = options.retained_age if age is None else age
        dry, with_savepoints = self.given("dry_run"), self.given("expired_savepoints")
        released = [] if dry else release_stale(job.store, job.layout)
        for pin in released:
            self.log.info(
                "%s: let go of checkpoint %d: %s of a process that is gone", name, pin.slot, pin.kind
            )
        plan = job.garbage(kept, age)
        freed: Counter[str] = Counter(plan.bytes_by_reason)
        records, files = dict(plan.records), len(plan.files)
        if not dry:
            done = job.collect(kept, age)
            for url, why in done.undisposed.items():
                self.log.warning("%s stays, and so do the records that name it: %s", url, why)
            freed, files = Counter(done.bytes_by_reason), done.files
            records = {slot: reason for slot, reason in plan.records.items() if slot in done.removed}
        savepoints: dict[str, str] = {}
        if with_savepoints:
            for reason, look, dispose in (
                ("expired savepoint", expired_savepoints, dispose_expired),
                ("unfinished savepoint", unfinished_savepoints, dispose_unfinished),
            ):
                sizes = {url: _size(job, url) for url in look(job)} if dry else dispose(job)
                savepoints |= dict.fromkeys(sizes, reason)
                if sizes:
                    freed[reason] += sum(sizes.values())
        report = {
            "records": dict(Counter(records.values())),
            "files": files,
            "bytes_by_reason": dict(freed),
            "savepoints": savepoints,
            "kept": dict(Counter(reason.partition(" ")[0] for reason in plan.kept.values())),
        }
        sizes_told = ", ".join(f"{reason} {size_text(count)}" for reason, count in sorted(freed.items()))
        self.log.info(
            "%s: %s: records %d, files %d, savepoints %d (%s); checkpoints that are kept: %d",
            name, "would delete" if dry else "deleted", len(records), files, len(savepoints),
            sizes_told or "no bytes", len(plan.kept),
        )  # fmt: skip
        for slot, reason in records.items():
            self.log.info("%s: record %d is %s", name, slot, reason)
        for url, reason in savepoints.items():
            self.log.info("%s: %s is an %s", name, url, reason)
        return report


def _size(job: Any, url: str) -> int:
    from stateflow.savepoints.dispose import size_of
    from stateflow.storage.roots import open_store

    return size_of(open_store(url, job.storage_options))
