"""Names of files and folders that Spark takes for patterns.

A batch is read from a list of files. For each file whose path has such a character Spark 4.2 puts the whole list in its place
(`checkAndGlobPathIfNecessary` of `DataSource`): all other rows of the batch come twice, without a word. A file that is alone in its
batch is read once.
"""

from __future__ import annotations

import re
from pathlib import Path

from stateflow.format.source_offsets import NOTHING
from stateflow.pipelines.inputs.places import PATTERN, shown
from stateflow.spark.internals.scratch_folder import entries_between, files_between, log_folder, log_offset
from stateflow.storage.roots import local_folder

SPELLED = " ".join(sorted(PATTERN))
_QUOTED = re.compile("|".join(f"%{ord(each):02X}" for each in PATTERN).encode() + rb"|\*")
"""In a URL as Spark writes it, a star alone stays as it is."""


def file_like_a_pattern(location: Path, leaf: int, before: str, after: str) -> str:
    """The first file between two offset lines of a source of files whose path Spark takes for a pattern, if Spark would then
    read the batch's other files again; else empty. `location` has the log of the source."""
    if before == after or after == NOTHING:
        return ""
    folder = log_folder(location, leaf)
    first, last = log_offset(before), log_offset(after)
    # Nobody parses a log of a million files for names that hardly any file has.
    if not any(_QUOTED.search(entry.read_bytes()) for entry in entries_between(folder, first, last)):
        return ""
    files = [shown(file.path) for file in files_between(folder, first, last)]
    return min((path for path in files if PATTERN & set(path)), default="") if len(files) > 1 else ""


def sentence(source: str, path: str) -> str:
    """Why such a batch is refused, with the next step."""
    return (
        f"source {source!r}: Spark takes the path of {path} for a pattern, and would read the other files of its batch twice: rename it "
        f"without any of {SPELLED}, or read one file per batch (per_batch=1)"
    )


def folder_named_like_a_pattern(path: str) -> str:
    """The local folder of exactly this name, if Spark would take the name for a pattern; else empty."""
    folder = local_folder(path) if PATTERN & set(path) else None
    return str(folder) if folder is not None and folder.is_dir() else ""


def folder_sentence(source: str, folder: str) -> str:
    return (
        f"source {source!r}: Spark takes the path of the folder {folder} for a pattern, and would not read its files: rename it without any "
        f"of {SPELLED}"
    )
