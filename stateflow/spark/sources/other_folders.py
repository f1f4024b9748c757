"""Finds a source of files that reads another folder than before, or the same folder under another name. Spark knows a file by
its whole path, so it would read every file again under the folder's other name: through a link, or after a move. A file with
the name and the time of one that has been read counts as that one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from pyspark.sql import SparkSession

from stateflow.errors import IncompatibleError
from stateflow.format.records import SourceState
from stateflow.format.source_offsets import UNDER_NEW_UIDS
from stateflow.pipelines.inputs.places import shown, spelled_below
from stateflow.spark.internals.file_systems import times_of_files
from stateflow.spark.internals.scratch_folder import ReadFile, log_folder, newest_files
from stateflow.spark.sources.leaves import LeafDescription

_ALL = 1 << 62
_OF_LISTING = ("pathglobfilter", "recursivefilelookup")
"""Options of a source that say which files there are."""


def tell_of_other_folders(
    spark: SparkSession,
    leaves: Sequence[LeafDescription],
    recorded: Mapping[str, SourceState],
    location: Path,
) -> list[tuple[str, str]]:
    """The uid of each source that reads another folder on top of what it has read, and a sentence about it. `location` has the logs of
    the sources. IncompatibleError for one that would read files again."""
    told = []
    for leaf in leaves:
        if leaf.kind == "file":
            log = log_folder(location, leaf.number)
            if sentence := _told(spark, leaf, log, leaf.line_in(recorded)):
                told.append((leaf.uid, sentence))
    return told


def _told(spark: SparkSession, leaf: LeafDescription, log: Path, line: str) -> str:
    newest = newest_files(log, line, 1)
    if not newest or spelled_below(unquote(newest[-1].path), leaf.target):
        return ""
    if leaf.options.get("filenameonly", "").lower() == "true":
        return ""  # to Spark a file is its name then, in whichever folder
    # Here the folder has changed, which is seldom: it may take its time.
    read = newest_files(log, line, _ALL)
    listing = {name: value for name, value in leaf.options.items() if name in _OF_LISTING}
    there = times_of_files(spark.read.format("text").options(**listing).load(leaf.target))
    if again := read_again(read, there):
        raise IncompatibleError(refusal(leaf.uid, leaf.target, again))
    return "" if any(file.path in there for file in read) else warning(leaf.uid, leaf.target, newest[-1])


def read_again(read: Sequence[ReadFile], there: Mapping[str, int]) -> list[tuple[str, str]]:
    """Files that are there and have been read under another path: that path, and the path now. `there` has times by path, as Spark writes both."""
    paths = {file.path for file in read}
    known = {(_name(file.path), file.modified_ms): file.path for file in read}
    same = ((known.get((_name(path), time)), path) for path, time in there.items() if path not in paths)
    return sorted((shown(before), shown(path)) for before, path in same if before is not None)


def refusal(uid: str, target: str, again: Sequence[tuple[str, str]]) -> str:
    """Why a run does not begin, with the next step."""
    before, now = again[0]
    one = len(again) == 1
    return (
        f"source {uid!r} reads {target} now, where {len(again)} {'file is one' if one else 'files are ones'} that the job has read under "
        f"{'another path' if one else 'other paths'}, such as {before} (now {now}): Spark would read {'it' if one else 'them'} again; give "
        f"the source the path that it had, or, to read all once more, {UNDER_NEW_UIDS}"
    )


def warning(uid: str, target: str, newest: ReadFile) -> str:
    """The warning of a folder whose files are all new."""
    return (
        f"source {uid!r} has read {PurePosixPath(shown(newest.path)).parent} and reads {target} now, on top of what the job has: give "
        "another input another uid"
    )


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]
