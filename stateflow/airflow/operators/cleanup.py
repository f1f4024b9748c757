"""Cleanup: deletes checkpoints and savepoints that nobody needs any more."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from airflow.sdk.exceptions import AirflowFailException

from stateflow.airflow.operators.arguments import (
    Argument,
    Count,
    Flag,
    Rule,
    Span,
    is_deferred,
    text,
)
from stateflow.airflow.operators.base import StateflowOperator
from stateflow.errors import StateflowError, error_of
from stateflow.quantities import several, size_text, written_duration

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.collection import CollectionPlan, CollectionReport
    from stateflow.config.options import Options
    from stateflow.config.retention_rule import RetentionRule


ALL = "*"
"""In place of a job's name: every job of the root."""


def _one_or_all(value: Any) -> str:
    """Empty for every job."""
    name = text(value)
    return "" if name == ALL else name


class StateflowCleanupOperator(StateflowOperator):
    """Collects subsumed checkpoints, what crashed runs left, and savepoints that have expired. Safe beside runs.

    Each deletion can be repeated, so a retry continues where a killed try ended.
    """

    def __init__(
        self,
        *,
        job: Annotated[
            str,
            Argument(_one_or_all),
            "empty or `*`: every job of the root. One that cannot be cleaned up does not keep the others from it. A template that comes out "
            "empty fails the task",
        ] = "",
        retained: Annotated[
            Count | None,
            "checkpoints to keep per job, beside what tags and other pins name. By default as many as the connection's "
            "option `retained_checkpoints` says",
        ] = None,
        age: Annotated[Span | None, "younger ones are kept, too; by default as `retained_age` says"] = None,
        retention: Annotated[
            Rule | None,
            "older ones to keep as well, such as 'hourly for 2 days, daily for 30 days'; by default as `retention` says, also beside an `age`; "
            "'none' keeps none of them. What a job's last run keeps stays in any case",
        ] = None,
        expired_savepoints: Annotated[
            Flag, "dispose of savepoints that have expired, and of those that were never finished"
        ] = True,
        dry_run: Annotated[Flag, "only report"] = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            self.hook.require_root()
            self.linked(context)
            name = self.given("job")
            # What a mapped task is expanded over comes later, too.
            came_later = (
                is_deferred(self.as_written.get("job")) or getattr(context["ti"], "map_index", -1) >= 0
            )
            if came_later and not text(getattr(self, "job", "")):
                raise AirflowFailException(
                    f"{self.argument_owner()}: job came out empty, and this task would clean up every job of the root: give its template a job's "
                    f"name, or {ALL!r} to clean up all"
                )
            names = [name] if name else self.hook.jobs()
            reports: dict[str, dict[str, Any]] = {}
            errors: list[StateflowError] = []
            for name in names:
                try:
                    reports[name] = self._clean_up(context, name)
                except StateflowError as error:
                    self.log.error("%s: %s", name, error)
                    errors.append(error)
            totals: Counter[str] = Counter()
            for report in reports.values():
                totals.update(report["bytes_by_reason"])
            result = self.result(
                None, jobs=reports, bytes_by_reason=dict(totals), deleted=not self.given("dry_run")
            )
            if errors:
                context["ti"].xcom_push("report", result)
                rest = f"; {len(errors)} of {len(names)} jobs were not cleaned up" if len(names) > 1 else ""
                raise error_of(max(error.exit_code for error in errors), f"{errors[0]}{rest}")
            return result

    def _clean_up(self, context: Context, name: str) -> dict[str, Any]:
        from stateflow.jobs.cleaning import clean_up  # loads stateflow.spark, and a DAG file must not

        job = self.job_for(context, name)
        options = self.hook.options()
        dry = self.given("dry_run")
        from stateflow.checkpoint.retention import cleanup_rules  # loads the log, and a DAG file must not

        retained, age, rule = cleanup_rules(
            options, self.given("retained"), self.given("age"), self.given("retention")
        )
        by_number = self._origin("retained", options, "retained_checkpoints")
        by_age = self._origin("age", options, "retained_age")
        from stateflow.liveness.stale_pins import release_stale  # loads the log, too

        pins = [] if dry else release_stale(job.store, job.layout)
        for pin in pins:
            self.log.info(
                "%s: let go of checkpoint %d: %s of a process that is gone", name, pin.slot, pin.kind
            )

        def warn(report: CollectionReport) -> None:
            for sentence in report.warnings:
                self.log.warning("%s", sentence)

        cleaned = clean_up(
            job,
            retained,
            age,
            rule,
            delete=not dry,
            savepoints=self.given("expired_savepoints"),
            collected=warn,
        )
        plan, records = cleaned.plan, cleaned.records
        freed = Counter(cleaned.bytes_by_reason)
        savepoints: dict[str, str] = {}
        for reason, urls in (
            ("expired savepoint", cleaned.expired),
            ("unfinished savepoint", cleaned.unfinished),
        ):
            savepoints |= dict.fromkeys(urls, reason)
            if urls:
                freed[reason] += sum(_size(job, url) if dry else cleaned.freed[url] for url in urls)
        report: dict[str, Any] = {
            "records": dict(Counter(records.values())),
            "files": cleaned.files,
            "bytes_by_reason": dict(freed),
            "savepoints": savepoints,
            "kept": dict(Counter(reason.partition(" ")[0].rstrip(":") for reason in plan.kept.values())),
        }
        sizes_text = ", ".join(f"{reason} {size_text(count)}" for reason, count in sorted(freed.items()))
        self.log.info(
            "%s: %s: records %d, files %d, savepoints %d (%s); checkpoints that are kept: %d",
            name, "would delete" if dry else "deleted", len(records), cleaned.files, len(savepoints),
            sizes_text or "no bytes", len(plan.kept),
        )  # fmt: skip
        report["kept_by"] = kept_by(
            plan, f"{retained}, by {by_number}", f"{written_duration(age)}, by {by_age}"
        )
        for sentence in report["kept_by"]:
            self.log.info("%s: keeps %s", name, sentence)
        for slot, reason in records.items():
            self.log.info("%s: record %d is %s", name, slot, reason)
        for url, reason in savepoints.items():
            self.log.info("%s: %s is an %s", name, url, reason)
        advice = []
        if plan.young:
            advice.append(young_stay(len(plan.young), retained, age, rule, by_age))
        if plan.announced:
            advice.append(still_kept(len(plan.announced), retained, age, rule))
        if advice:
            report["advice"] = "; ".join(advice)
            self.log.warning("%s: %s", name, report["advice"])
        return report

    def _origin(self, argument: str, options: Options, option: str) -> str:
        """Who says the value: the task, else the option."""
        if self.given(argument) is not None:
            return f"{argument} of this task"
        return f"option {option} ({options.origin(option)})"


def kept_by(plan: CollectionPlan, retained: str, age: str) -> list[str]:
    """Which rule keeps how many checkpoints. Each counts once: as young if nothing but its age keeps it."""
    from stateflow.checkpoint.collection import ANNOUNCED  # loads the log, as above
    from stateflow.checkpoint.retention import BY_RULE, RETAINED, YOUNG

    counts = Counter(plan.kept.values())
    newest = counts.pop("head", 0) + counts.pop(RETAINED, 0)
    rules = {"as one of the newest": newest, YOUNG: counts.pop(YOUNG, 0), **counts}
    said = {
        "as one of the newest": f"as the newest ({retained})",
        YOUNG: f"as younger than {age}",
        ANNOUNCED: "because the job's last run keeps them by its own options retained_checkpoints, retained_age and retention",
        "pending": "because their output is not delivered yet",
    }
    return [
        f"{several(count, 'checkpoint')} {said.get(rule, f'by the {rule}' if rule.startswith(BY_RULE) else f'for {rule}')}"
        for rule, count in rules.items()
        if count
    ]


def young_stay(more: int, retained: int, age: timedelta, rule: RetentionRule, origin: str) -> str:
    """Why checkpoints stay that the cleanup was not told to keep by number, and what to change."""
    return (
        f"{_more(more)}, because {'they are' if more > 1 else 'it is'} younger than {written_duration(age)}, by {origin}: to keep "
        f"{retained}{_and_by(rule)}, give the cleanup age='0 seconds'"
    )


def still_kept(more: int, retained: int, age: timedelta, rule: RetentionRule) -> str:
    """Why more checkpoints stay than the cleanup was told to keep, and what to change."""
    wanted = f"{retained}{_and_by(rule)}"
    if rule:
        # The options refuse a rule and an age together.
        rule, age = rule.beside(age), timedelta(0)
    return (
        f"{_more(more)}, because the job's last run keeps {'them' if more > 1 else 'it'} by its own options retained_checkpoints, "
        f"retained_age and retention: to keep {wanted}, set retained_checkpoints={retained}, retained_age='{written_duration(age)}' and "
        f"retention='{rule}' in the job's connection or in options= of its run operator; its next checkpoint then deletes the others"
    )


def _and_by(rule: RetentionRule) -> str:
    return f" and what {rule} keeps" if rule else ""


def _more(count: int) -> str:
    return f"{several(count, 'more checkpoint')} stay{'' if count > 1 else 's'}"


def _size(job: Any, url: str) -> int:
    from stateflow.savepoints.dispose import size_of  # loads stores, and a DAG file must not

    return size_of(job.open_base(url))
