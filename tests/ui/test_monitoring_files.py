"""The files for people's monitoring speak of metrics and labels that the metrics page really has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from stateflow_ui.metrics import METRICS, page
from stateflow_ui.stale_after import StaleAfter
from tests.jobs.records import Made
from tests.ui.test_metrics import NOW, ROOT, facts, state

FOLDER = Path(__file__).resolve().parents[2] / "monitoring"
RULES = yaml.safe_load((FOLDER / "prometheus-rules.yml").read_text())["groups"]
BOARD = json.loads((FOLDER / "grafana-board.json").read_text())
_SELECTOR = re.compile(r"(stateflow_\w+)\s*(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)\s*=~?\s*"')
_PLACE = re.compile(r"\{\{\s*\$labels\.(\w+)\s*\}\}|\{\{(\w+)\}\}")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Per metric of a real page, its labels."""
    folder = tmp_path_factory.mktemp("root")
    jobs = [state(facts(folder, Made("orders"))), state(facts(folder, Made("clicks", running=True)))]
    text = page([ROOT], jobs, NOW, StaleAfter(""))
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """Where, and what."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def named(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Metrics of an expression, each with the labels that it is selected by."""
    # The second argument of `label_values(metric, label)` is no metric.
    for metric, labels in _SELECTOR.findall(re.sub(r",\s*\w+\)$", ")", expression)):
        yield metric, set(_LABEL.findall(labels))


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_and_label_that_is_named_exists(
    where: str, expression: str, exposed: dict[str, set[str]]
) -> None:
    found = list(named(expression))
    assert found, where
    for metric, labels in found:
        assert metric in exposed, f"{where} speaks of {metric}"
        assert labels <= exposed[metric], f"{where} selects {metric} by {labels - exposed[metric]}"
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


def test_the_check_would_notice(exposed: dict[str, set[str]]) -> None:
    assert [metric for metric, _ in named("stateflow_job_misspelt > 1")] == ["stateflow_job_misspelt"]
    assert "stateflow_job_misspelt" not in exposed
    assert list(
        named('sum(stateflow_job_health{conn_id=~"$conn_id", stateflow_job=~"$stateflow_job", state="lost"})')
    ) == [("stateflow_job_health", {"conn_id", "stateflow_job", "state"})]


def test_there_is_a_rule_for_each_thing_that_goes_wrong() -> None:
    said = {rule["alert"]: rule["expr"] for rule in alerts()}
    assert len(said) == len(alerts())
    states = {state for expression in said.values() for state in re.findall(r'state="(\w+)"', expression)}
    assert states == {"stale", "lost", "blocked"}
    watched = {metric for expression in said.values() for metric, _ in named(expression)}
    assert watched >= {
        "stateflow_job_last_run_exit_code",
        "stateflow_job_state_bytes",
        "stateflow_job_recent_checkpoint_duration_seconds",
        "stateflow_root_up",
    }


def test_every_alert_says_what_and_how_bad_by_labels_that_it_has(exposed: dict[str, set[str]]) -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        has = set.intersection(*(exposed[metric] for metric, _ in named(rule["expr"])))
        for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
            wanted = {one or two for one, two in _PLACE.findall(text)}
            assert wanted <= has, f"{rule['alert']} speaks of {wanted - has}"


def test_states_and_quantiles_that_are_selected_exist(tmp_path: Path) -> None:
    text = page([ROOT], [state(facts(tmp_path, Made("orders")))], NOW, StaleAfter(""))
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    for label in ("state", "quantile"):
        there = {sample.labels[label] for sample in samples if label in sample.labels}
        wanted = {
            each
            for _, expression in expressions()
            for values in re.findall(rf'{label}=~?"([^"]+)"', expression)
            for each in values.split("|")
        }
        assert wanted <= there


def test_the_board_is_whole() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert BOARD["uid"] == "stateflow"
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert 0 < place["w"] <= 24 - place["x"]
        assert panel["datasource"]["uid"] == "${datasource}", "everybody's Prometheus has another name"
        assert panel["title"]


def test_the_guide_lists_every_metric() -> None:
    text = (FOLDER.parent / "docs" / "airflow.md").read_text()
    assert [metric.name for metric in METRICS if f"`{metric.name}`" not in text] == []
