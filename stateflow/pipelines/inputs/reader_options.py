"""Options that Spark's readers know. Spark takes any other without a word, so a misspelt one would do nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stateflow.errors import UsageError
from stateflow.names import suggestion

_FILES = (
    "maxFilesPerTrigger maxBytesPerTrigger maxFileAge latestFirst fileNameOnly cleanSource sourceArchiveDir maxCachedFiles "
    "discardCachedInputRatio ignoreCorruptFiles ignoreMissingFiles pathGlobFilter recursiveFileLookup basePath"
)
_TIMES = (
    "dateFormat enableDateTimeParsingFallback locale timeFormat timeZone timestampFormat timestampNTZFormat"
)
_REBASED = "datetimeRebaseMode"
_BY_FORMAT = {
    "avro": f"avroSchema avroSchemaUrl enableStableIdentifiersForUnionType ignoreExtension mode positionalFieldMatching "
    f"recursiveFieldMaxDepth stableIdentifierPrefixForUnionType {_REBASED}",
    "csv": f"charToEscapeQuoteEscaping charset columnNameOfCorruptRecord columnPruning comment delimiter emptyValue encoding "
    f"enforceSchema escape header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace inputBufferSize lineSep maxCharsPerColumn "
    f"maxColumns mode multiLine nanValue negativeInf nullValue positiveInf quote sep unescapedQuoteHandling {_TIMES}",
    "json": f"allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers allowNumericLeadingZeros allowSingleQuotes "
    f"allowUnquotedControlChars allowUnquotedFieldNames charset columnNameOfCorruptRecord encoding lineSep mode multiLine {_TIMES}",
    "orc": "mergeSchema",
    "parquet": f"int96RebaseMode mergeSchema {_REBASED}",
    "text": "encoding lineSep wholetext",
}
_KAFKA = "failOnDataLoss groupIdPrefix maxOffsetsPerTrigger maxRecordsPerPartition maxTriggerDelay minOffsetsPerTrigger minPartitions"
READERS: Mapping[str, frozenset[str]] = {
    **{format: frozenset(f"{_FILES} {own}".split()) for format, own in _BY_FORMAT.items()},
    "kafka": frozenset(_KAFKA.split()),
    "kafka avro": frozenset(f"{_KAFKA} columnNameOfCorruptRecord mode".split()),
    "kafka protobuf": frozenset(f"{_KAFKA} columnNameOfCorruptRecord mode".split()),
    "kafka json": frozenset(f"{_KAFKA} {_BY_FORMAT['json']}".split()),
    "delta": frozenset(
        [
            "maxFilesPerTrigger",
            "maxBytesPerTrigger",
            "ignoreFileDeletion",
            "ignoreChanges",
            "ignoreDeletes",
            "skipChangeCommits",
            "failOnDataLoss",
            "startingVersion",
            "startingTimestamp",
            "readChangeFeed",
            "readChangeData",
            "excludeRegex",
            "schemaTrackingLocation",
            "schemaLocation",
            "streamingSourceTrackingId",
            "allowSourceColumnDrop",
            "allowSourceColumnRename",
            "allowSourceColumnTypeChange",
        ]
    ),
}
"""By format: the options that have an effect on a stream. Spark and Delta take their names in any case."""

_FLAGS = frozenset(
    "latestFirst fileNameOnly ignoreCorruptFiles ignoreMissingFiles recursiveFileLookup enableDateTimeParsingFallback "
    "enableStableIdentifiersForUnionType ignoreExtension positionalFieldMatching columnPruning enforceSchema header "
    "ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace multiLine allowBackslashEscapingAnyCharacter allowComments "
    "allowNonNumericNumbers allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames mergeSchema "
    "wholetext ignoreFileDeletion ignoreChanges ignoreDeletes skipChangeCommits failOnDataLoss readChangeFeed readChangeData "
    "allowSourceColumnDrop allowSourceColumnRename allowSourceColumnTypeChange".lower().split()
)
_NUMBERS = frozenset("maxFilesPerTrigger maxCachedFiles maxColumns inputBufferSize".lower().split())
"""At least one. `maxCharsPerColumn` may be -1."""
_CHOICES = {"cleansource": ("off", "archive", "delete")}
_BYTES = re.compile(r"[1-9][0-9]*(b|k|kb|m|mb|g|gb|t|tb|p|pb)?", re.I)
_AGE = re.compile(r"[0-9]+(us|ms|s|m|min|h|d)?", re.I)

MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""The modes that Spark knows. It takes any other word for PERMISSIVE, and says so only in its log."""

TO_UTF_8 = "convert the file, such as with `iconv -f ISO-8859-1 -t UTF-8`"
"""Spark's reader of text knows `encoding`, and uses it for the option `lineSep` alone."""

_OF_THE_ROW_CLASS = frozenset(
    [
        "inferschema",
        "samplingratio",
        "prefersdecimal",
        "primitivesasstring",
        "infertimestamp",
        "preferdate",
        "schema",
    ]
)


def check_reader_options(what: str, format: str, options: Mapping[str, str]) -> None:
    """UsageError for options that the reader of `format` would not look at; `what` is how the user has called it."""
    known = {name.lower() for name in READERS[format]}
    for name, value in options.items():
        # A name with a dot is one of Hadoop's, which are not to be counted.
        if "." in name:
            continue
        if name.lower() in _OF_THE_ROW_CLASS:
            raise UsageError(
                f"{what}: option {name!r} does nothing, because the row class gives the columns and their types: leave it out"
            )
        if name.lower() not in known:
            raise UsageError(
                f"{what}: Spark's reader of {format} has no option {name!r}{suggestion(name, READERS[format])}"
            )
        if format == "text" and name.lower() == "encoding" and value.lower() not in ("utf-8", "utf8"):
            raise UsageError(
                f"{what}: option {name!r} is {value!r}, and Spark takes every text file for UTF-8: {TO_UTF_8}, and leave the option out"
            )
        if problem := _misfit(name.lower(), value):
            raise UsageError(f"{what}: option {name!r} is {value!r}: {problem}")


def _misfit(name: str, value: str) -> str:
    """The advice about a value on which Spark would fail in the middle of a run, or which it would take for another one; else
    empty."""
    lowered = value.strip().lower()
    if name == "mode" and value.upper() not in MODES:
        return f"say one of {', '.join(MODES)}"
    if name in _FLAGS and lowered not in ("true", "false"):
        return "say 'true' or 'false'"
    if name in _NUMBERS and not (value.strip().isascii() and value.strip().isdigit() and int(value) > 0):
        return "say a number, 1 or more"
    if name == "maxbytespertrigger" and not _BYTES.fullmatch(lowered):
        return "say a size, such as '512m' or '10g'"
    if name == "maxfileage" and not _AGE.fullmatch(lowered):
        return "say a time, such as '36h' or '7d'"
    if name in _CHOICES and lowered not in _CHOICES[name]:
        return f"say one of {', '.join(_CHOICES[name])}"
    if name == "startingversion" and lowered != "latest" and not (value.isascii() and value.isdigit()):
        return "say the number of a version, or 'latest'"
    return ""
