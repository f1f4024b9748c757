"""Facets of OpenLineage. Only its provider's call leads here: nothing else imports this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    RunFacet,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    storage_dataset,
)

from stateflow.airflow.operators.task_lineage import TaskLineage, dataset_name
from stateflow.checkpoint.lineage import Dataset, Endpoint
from stateflow.format.records import SourceState
from stateflow.observe.status import decoded_offsets, position_data


@define
class StateflowRunFacet(RunFacet):
    """What a run is to its job, and where each source was before and after it."""

    job: str
    root: str
    epoch: int
    checkpoint: int | None
    batches: int
    sources: dict[str, Any]


def operator_lineage(lineage: TaskLineage) -> OperatorLineage[Any, Any]:
    inputs = [
        InputDataset(
            *dataset_name(dataset),
            facets=_facets(endpoint, dataset),
            inputFacets={
                "inputStatistics": input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                    rowCount=rows
                )
            }
            if (rows := _rows(lineage.read, endpoint)) is not None
            else {},
        )
        for endpoint in lineage.inputs
        for dataset in endpoint.datasets
    ]
    outputs = [
        OutputDataset(
            *dataset_name(dataset),
            facets=_facets(endpoint, dataset),
            outputFacets={
                "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    rowCount=rows
                )
            }
            if (rows := _rows(lineage.written, endpoint)) is not None
            else {},
        )
        for endpoint in lineage.outputs
        for dataset in endpoint.datasets
    ]
    run = StateflowRunFacet(
        job=lineage.job,
        root=lineage.root,
        epoch=lineage.epoch,
        checkpoint=lineage.checkpoint,
        batches=lineage.batches,
        sources={
            endpoint.uid: {"before": _positions(endpoint.before), "after": _positions(endpoint.after)}
            for endpoint in lineage.inputs
        },
    )
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets={"stateflow": run})


def _rows(rows: Mapping[str, int], endpoint: Endpoint) -> int | None:
    """Rows are counted by source: of one that reads several tables, nobody knows how many each had."""
    return rows.get(endpoint.uid, 0) if len(endpoint.datasets) == 1 else None


def _facets(endpoint: Endpoint, dataset: Dataset) -> dict[str, Any]:
    facets: dict[str, Any] = {
        "schema": schema_dataset.SchemaDatasetFacet(
            fields=[
                schema_dataset.SchemaDatasetFacetFields(name=name, type=type_)
                for name, type_ in endpoint.fields
            ]
        )
    }
    if dataset.kind == "delta":
        facets["storage"] = storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet")
    if dataset.version is not None and dataset.version >= 0:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=str(dataset.version)
        )
    return facets


def _positions(lines: tuple[str, ...]) -> list[dict[str, Any]]:
    return [position_data(offset) for offset in decoded_offsets(SourceState(lines=lines))]
