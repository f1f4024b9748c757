"""Finds inputs of a flow that are missing, or there twice. It looks into local folders only, without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stateflow.pipelines.flow import Flow
from stateflow.pipelines.inputs.files import Files
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.spark.sources.pattern_names import folder_named_like_a_pattern, folder_sentence
from stateflow.spark.sources.subfolders import folder_of, is_hidden


def absent_inputs(flow: Flow) -> Iterator[str]:
    """A sentence for each, as a run refuses it and a check warns of it."""
    for source in flow.sources:
        target = source.factory
        if isinstance(target, Files) and (named := folder_named_like_a_pattern(target.path)):
            yield folder_sentence(source.uid, named)
            continue
        if (
            not isinstance(target, Files | DeltaTable)
            or not target.path
            or (folder := folder_of(target.path)) is None
        ):
            continue
        if isinstance(target, DeltaTable):
            if not (folder / "_delta_log").is_dir():
                yield f"source {source.uid!r}: there is no Delta table at {folder}: correct the path, or run what writes the table first"
        elif folder.is_file():
            yield f"source {source.uid!r}: {folder} is a file, and a source reads a folder: give sf.files the folder {folder.parent}"
        elif not folder.exists():
            yield f"source {source.uid!r}: there is no folder {folder}: make it, or correct the path"
        elif link := _link_within(folder):
            yield (
                f"source {source.uid!r}: {link} is a link to another file of its folder, whose rows would be read twice: remove it, or "
                "put files that are not to be read into another folder"
            )


def _link_within(folder: Path) -> Path | None:
    """The first link to a file of the same folder. Spark would read that file under both names."""
    with os.scandir(folder) as entries:
        links = sorted(entry.path for entry in entries if entry.is_symlink() and not is_hidden(entry.name))
    real = folder.resolve()
    for link in map(Path, links):
        target = link.resolve()
        if target.parent == real and target.is_file() and not is_hidden(target.name):
            return link
    return None
