"""Finds values that Spark's readers of files would misread, by SQL that the read itself evaluates.

Spark rounds digits that a decimal has no room for, and takes "1,5" for 15. It reads any number as seconds since 1970, so that
milliseconds become the year 57971. Of bytes that are no UTF-8 it makes the same character, so that Müller and Möller are one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stateflow.errors import ERROR_MARK, IncompatibleError
from stateflow.pipelines.rows.row_type import quoted, text_in_sql
from stateflow.pipelines.rows.type_text import fields_of, inside_of, parts_of_schema, size_of

_TIMES = ("timestamp", "timestamp_ltz", "timestamp_ntz")
_DATE = r"^ *[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T]00:00(:00([.]0+)?)?(Z|[+]00:00)?)? *$"
"""A day, or its midnight, as some programs write a day."""
_IN_BASE64 = "base64:"
"""What comes before the bytes of a row that is no text."""
_REPLACED = "\ufffd"
"""What Spark's reader of CSV puts in the place of bytes that are no UTF-8."""
_IN_FILE = "concat('the file ', input_file_name(), ' has a row')"
_OF_FILE = "; mend or move the file and run again, or "
_APART = (
    "let such rows come in a column of their own with options={'columnNameOfCorruptRecord': 'broken'} "
    "(docs/sources.md, bad rows)"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the types of a row class are read from files of a format."""

    texts: bool
    """The files have texts, in which a decimal may stand in any form."""
    dates: bool = False
    """The texts have dates as Spark writes them, and Spark's reader would take a time for its day."""
    utf8: bool = False
    """The reader takes the files for UTF-8 because nobody has said what they are."""
    doubled: bool = False
    """A quote in a quoted text may be doubled, as RFC 4180 has it, where the reader expects a backslash: it then leaves all quotes in the text."""
    raw: bool = False
    """The reader leaves bytes as they are, which Python cannot read if they are no UTF-8."""

    def type(self, type: str) -> str:
        """The columns that the reader is asked for, with decimals as text."""
        if not self.texts:
            return type
        if size_of(type) or (self.dates and type == "date"):
            return "string"
        kind, inside = inside_of(type)
        if kind == "struct":
            return f"struct<{','.join(f'{quoted(name)}:{self.type(of)}' for name, of in fields_of(inside))}>"
        if kind == "map":
            # The keys of an object are texts, whatever they stand for.
            return f"map<string,{self.type(parts_of_schema(inside)[1])}>"
        return f"array<{self.type(inside)}>" if kind else type

    def value(self, type: str, sql: str, depth: int = 0) -> str:
        """SQL for the value of a column that was read as `type(type)`; null where it does not fit."""
        if self.type(type) == type:
            return sql
        kind, inside = inside_of(type)
        each = f"x{depth}"
        if kind == "struct":
            pairs = (
                f"{text_in_sql(name)}, {self.value(of, f'{sql}.{quoted(name)}', depth)}"
                for name, of in fields_of(inside)
            )
            return f"if({sql} is null, null, named_struct({', '.join(pairs)}))"
        if kind == "array":
            return f"transform({sql}, {each} -> {self.value(inside, each, depth + 1)})"
        if kind == "map":
            key, of = parts_of_schema(inside)
            value, both = self.value(of, each, depth + 1), f"(k{depth}, {each})"
            values = sql if value == each else f"transform_values({sql}, {both} -> {value})"
            if _is_text(key):
                return values
            return f"transform_keys({values}, {both} -> try_cast(k{depth} as {key}))"
        return f"try_cast({sql} as {type})"

    def wrong(self, type: str, sql: str, depth: int = 0) -> str:
        """A condition for values that do not fit; empty where all fit."""
        kind, inside = inside_of(type)
        if kind == "struct":
            found = (self.wrong(of, f"{sql}.{quoted(name)}", depth) for name, of in fields_of(inside))
            return " or ".join(each for each in found if each)
        if kind:
            each, values = f"x{depth}", sql if kind == "array" else f"map_values({sql})"
            found_inside = self.wrong(parts_of_schema(inside)[-1], each, depth + 1)
            inner = f"exists({values}, {each} -> {found_inside})" if found_inside else ""
            return " or ".join(filter(None, (self._wrong_keys(kind, inside, sql, depth), inner)))
        if self.texts and (size := size_of(type)):
            return f"({sql} is not null and not ({_fits(sql, *size)}))"
        if self.type(type) != type:
            return f"({sql} is not null and (not rlike({sql}, '{_DATE}') or try_cast({sql} as date) is null))"
        if type == "string" and (self.utf8 or self.doubled):
            wrong = [f"contains({sql}, '{_REPLACED}')"] if self.utf8 else []
            wrong += [_doubled(sql)] if self.doubled else []
            return f"({' or '.join(wrong)})"
        if self.raw and type == "string":
            return f"not is_valid_utf8({sql})"
        if type in _TIMES or type == "date":
            least, most = (
                ("date'0001-01-01'", "date'9999-12-31'") if type == "date" else _bounds_of_time(type)
            )
            return f"({sql} < {least} or {sql} > {most})"
        return ""

    def _wrong_keys(self, kind: str, inside: str, sql: str, depth: int) -> str:
        """A condition for maps with a key that does not fit; empty where all fit."""
        if kind != "map" or not self.texts or _is_text(key := parts_of_schema(inside)[0]):
            return ""
        return f"coalesce(exists(map_keys({sql}), k{depth} -> {self._wrong_key(key.strip(), f'k{depth}')}), false)"

    def _wrong_key(self, key: str, sql: str) -> str:
        own = self.wrong(key, sql) if self.type(key) != key else ""
        return own or f"try_cast({sql} as {key}) is null"

    def reason(self, type: str, sql: str, path: str, depth: int = 0) -> str:
        """The misfit in words, where `wrong` holds."""
        kind, inside = inside_of(type)
        if kind == "struct":
            fields = (
                f"when {wrong} then {self.reason(of, field, f'{path}.{name}', depth)}"
                for name, of in fields_of(inside)
                if (wrong := self.wrong(of, field := f"{sql}.{quoted(name)}", depth))
            )
            return f"case {' '.join(fields)} end"
        if kind:
            each, values = f"x{depth}", sql if kind == "array" else f"map_values({sql})"
            of, reason = parts_of_schema(inside)[-1], "null"
            if wrong := self.wrong(of, each, depth + 1):
                first = f"get(filter({values}, {each} -> {wrong}), 0)"
                reason = self.reason(of, first, path, depth + 1)
            if not (keys := self._wrong_keys(kind, inside, sql, depth)):
                return reason
            key = parts_of_schema(inside)[0].strip()
            first = f"get(filter(map_keys({sql}), k{depth} -> {self._wrong_key(key, f'k{depth}')}), 0)"
            said = text_in_sql(f" of {path!r} is no {key}")
            return f"if({keys}, concat('the key ', left({first}, 100), {said}), {reason})"
        if size := size_of(type):
            room = f"decimal({size[0]},{size[1]})"
            said = f" for {path!r}, a {room}, which has room for {size[0] - size[1]} digits before the point and {size[1]} after it"
            return f"concat('the value ', left({sql}, 100), {text_in_sql(said)})"
        if self.type(type) != type:
            said = f" for {path!r}, a date, which is written like 2026-01-31, with no time of day behind it"
            return f"concat('the value ', left({sql}, 100), {text_in_sql(said)})"
        if self.raw and type == "string":
            return f"concat('its text ', left(make_valid_utf8({sql}), 100), ' is no UTF-8, for which Spark takes every text file')"
        if type == "string":
            said = (
                f" for {path!r} has {_REPLACED}, which stands for bytes that are no UTF-8: say what the file is written in, such as "
                "options={'encoding': 'ISO-8859-1'} or 'windows-1252' (if it is UTF-8 and has this character, 'UTF-8')"
            )
            reason = f"concat('the value ', left({sql}, 100), {text_in_sql(said)})"
            if not self.doubled:
                return reason
            said = (
                f" for {path!r} begins with a quote and has doubled ones: say options={{'escape': '\"'}} if the files double them because "
                "they stand in a text in quotes (if a backslash stands before such a quote, {'escape': '\\\\'})"
            )
            quotes = f"concat('the value ', left({sql}, 100), {text_in_sql(said)})"
            return f"if({_doubled(sql)}, {quotes}, {reason})"
        if type == "date":
            return f"concat({text_in_sql(f'{path!r} is a date in the year ')}, year({sql}), ', not one of 1 to 9999')"
        said = " seconds since 1970: Spark takes a number for seconds, so divide milliseconds by 1000)"
        seconds = f"unix_seconds(cast({sql} as timestamp))"
        return (
            f"concat({text_in_sql(f'{path!r} is a time in the year ')}, year({sql}), ', not one of 1 to 9999 (', {seconds}, "
            f"{text_in_sql(said)})"
        )


@dataclass(frozen=True, slots=True)
class Misfits:
    """The columns that are read, a type by each name, and the reader's word for rows that do not fit."""

    columns: Mapping[str, str]
    reading: Reading
    mode: str
    """FAILFAST fails the batch, PERMISSIVE makes nulls, and DROPMALFORMED leaves the rows out."""
    broken: str = ""
    """The column for rows that do not fit: the row as JSON, where Spark did not put its line there."""
    row: str = ""
    """SQL for the row as it was written, which the column gets then; empty if only its fields are left."""
    where: str = _IN_FILE
    """SQL for the subject of a sentence: where such a row is."""
    advice: str = _OF_FILE
    """What can be done about it."""
    apart: str = _APART
    """How such rows can be kept apart; empty where the reader cannot."""

    @property
    def condition(self) -> str:
        """A condition for rows that do not fit; empty if all fit."""
        return " or ".join(self._wrong().values())

    @property
    def selected(self) -> list[str]:
        """Expressions for the columns, that let nothing through which does not fit."""
        wrong = self._wrong()
        return [
            f"{self._checked(name, type, wrong)} as {quoted(name)}" for name, type in self.columns.items()
        ]

    def _wrong(self) -> dict[str, str]:
        # The text of a row that does not fit need not fit.
        found = {
            name: self.reading.wrong(type, quoted(name))
            for name, type in self.columns.items()
            if name != self.broken
        }
        return {name: wrong for name, wrong in found.items() if wrong}

    def _checked(self, name: str, type: str, wrong: Mapping[str, str]) -> str:
        sql, value = quoted(name), self.reading.value(type, quoted(name))
        if name == self.broken:
            others = ", ".join(quoted(each) for each in self.columns if each != self.broken)
            row = _readable(self.row) if self.row else f"to_json(struct({others}))"
            found = _readable(sql)
            return f"coalesce({found}, if({' or '.join(wrong.values())}, {row}, null))" if wrong else found
        if name not in wrong:
            return value
        fails = not self.broken and self.mode == "FAILFAST"
        reason = self.reading.reason(type, sql, name)
        otherwise = f"cast({self.failure(reason)} as {type})" if fails else "null"
        return f"if({wrong[name]}, {otherwise}, {value})"

    def failure(self, reason: str) -> str:
        """SQL that fails the batch; `reason` is SQL for the misfit in words."""
        advice = text_in_sql(self.advice + self.apart)
        return failed_batch(f"concat({self.where}, ' that does not fit the row class: ', {reason}, {advice})")


def failed_batch(message: str) -> str:
    """SQL that fails the batch with an IncompatibleError; `message` is SQL, too."""
    error = f"to_json(named_struct('type', '{IncompatibleError.__name__}', 'message', {message}))"
    return f"raise_error(concat({text_in_sql(ERROR_MARK)}, {error}))"


def _readable(sql: str) -> str:
    """SQL for a text that others can read too. Spark writes bytes that are no UTF-8 as they are, and whoever reads them later fails: they
    come in Base64. So does a text that begins as those do, so that two rows stay two."""
    plain = f"is_valid_utf8({sql}) and not startswith({sql}, '{_IN_BASE64}')"
    return f"if({plain}, {sql}, concat('{_IN_BASE64}', base64(cast({sql} as binary))))"


def _is_text(key: str) -> bool:
    return key.strip().lower() == "string"


def _doubled(sql: str) -> str:
    return f"(startswith({sql}, '\"') and contains({sql}, '\"\"'))"


def _fits(sql: str, precision: int, scale: int) -> str:
    """Whether a text is a number that a decimal has room for. Most texts are short and plain, and need no regular expression."""
    plain = f"not contains({sql}, 'e') and not contains({sql}, 'E')"
    point = f"instr({sql}, '.')"
    short = f"({point} = 0 or length({sql}) - {point} <= {scale}) and {plain}"
    # Zeros at the end are no digits. A number with an exponent is written by programs that have it as a double.
    zeros = f"rlike({sql}, '^[-+ ]*[0-9]*[.]?[0-9]{{0,{scale}}}0* *$')"
    value = f"try_cast({sql} as decimal({precision},{scale}))"
    power = f"(not ({plain}) and cast({value} as double) = try_cast({sql} as double))"
    return f"{value} is not null and ({short} or {zeros} or {power})"


def _bounds_of_time(type: str) -> tuple[str, str]:
    word = "timestamp_ntz" if type == "timestamp_ntz" else "timestamp"
    zone = "" if type == "timestamp_ntz" else "Z"
    return f"{word}'0001-01-01 00:00:00{zone}'", f"{word}'9999-12-31 23:59:59.999999{zone}'"
