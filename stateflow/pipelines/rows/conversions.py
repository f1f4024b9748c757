"""A column that has another type than the row class says: in SQL, if its values stay what they are, or refused.

Spark's own cast would cut 12.5 to 12 and a time to its day, take a number for a time, and fill the fields of a struct by their
places, whatever their names are.
"""

from __future__ import annotations

from stateflow.errors import IncompatibleError
from stateflow.format.scalars import COLUMN_TYPES
from stateflow.format.sql_texts import text_in_quotes
from stateflow.pipelines.rows.misfits import failed_batch
from stateflow.pipelines.rows.row_type import quoted, text_in_sql
from stateflow.pipelines.rows.type_text import fields_of, inside_of, parts_of_schema, size_of

_FAMILIES = {column.name: column.family for column in COLUMN_TYPES if column.name != "decimal"}
_NUMBERS = ("int", "decimal", "single", "double")
_LOSES = {
    "bool": _NUMBERS,
    "int": ("bool", "date", "time"),
    "decimal": ("bool", "int", "date", "time"),
    "single": ("bool", "int", "decimal", "date", "time"),
    "double": ("bool", "int", "decimal", "single", "date", "time"),
    "text": ("decimal", "date"),
    "date": _NUMBERS,
    "time": (*_NUMBERS, "date"),
}
"""What a value of a family would not be the same value in. A number that is too large for a smaller type fails Spark's cast."""
_WHOLE = {("bigint", "double"): 2**53, ("bigint", "float"): 2**24, ("int", "float"): 2**24}
"""Up to which number a type of floating point has each whole one. Spark's cast gives the nearest beyond."""


class _Unlike(Exception):
    def __init__(self, path: str, have: str, want: str) -> None:
        self.path, self.have, self.want = path, have, want

    def of(self, column: str, owner: str) -> str:
        if not self.have:
            return f"column {column!r} has no field {self.path.partition('.')[2]!r}, which {owner} has"
        what = f"column {column!r}" if self.path == column else f"field {self.path!r} of its input"
        return f"{what} is {self.have}, which {owner} says is {self.want}"


def converted(where: str, name: str, have: str, want: str, owner: str = "the row class") -> str:
    """The column as the type `want`, in SQL. `where` says what reads it, such as `operator 'totals'`."""
    try:
        return _as(quoted(name), have, want, name)
    except _Unlike as found:
        raise IncompatibleError(
            f"{where}: {found.of(name, owner)}: declare the type that it has, or convert it in a step before, as in "
            f".withColumn({name!r}, F.col({name!r}).cast(...)), where you see what a cast makes of it"
        ) from None


def _as(sql: str, have: str, want: str, path: str, depth: int = 0) -> str:
    have, want = have.strip(), want.strip()
    if have == want:
        return sql
    kind, of = inside_of(have)
    wanted, inside = inside_of(want)
    if kind != wanted:
        raise _Unlike(path, have, want)
    each = f"x{depth}"
    if kind == "struct":
        return _struct(sql, of, inside, path, depth)
    if kind == "array":
        return f"transform({sql}, {each} -> {_as(each, of, inside, path, depth + 1)})"
    if kind == "map":
        (key, value), (key_wanted, value_wanted) = parts_of_schema(of), parts_of_schema(inside)
        keys = f"transform_keys({sql}, ({each}, v{depth}) -> {_as(each, key, key_wanted, path, depth + 1)})"
        values = _as(each, value, value_wanted, path, depth + 1)
        return f"transform_values({sql if key == key_wanted else keys}, (k{depth}, {each}) -> {values})"
    if _loses(have, want):
        raise _Unlike(path, have, want)
    cast = f"cast({sql} as {want})"
    if most := _WHOLE.get((have.lower(), want.lower())):
        said = f" in {path!r} is none of {want}: declare {path!r} as an int"
        failed = failed_batch(f"concat('the number ', {sql}, {text_in_sql(said)})")
        # What is beyond the largest bigint, Spark takes back for that one.
        same = f"try_cast({cast} as bigint) <=> {sql} and {sql} < {2**63 - 1}"
        other = f"({sql} > {most} or {sql} < -{most}) and not ({same})"
        return f"if({other}, cast({failed} as {want}), {cast})"
    return cast


def _struct(sql: str, have: str, want: str, path: str, depth: int) -> str:
    """By the names of its fields."""
    there = dict(fields_of(have))
    lower = {name.lower(): name for name in there}
    values = []
    for name, type in fields_of(want):
        found = name if name in there else lower.get(name.lower())
        if found is None:
            raise _Unlike(f"{path}.{name}", "", type)
        value = _as(f"{sql}.{quoted(found)}", there[found], type, f"{path}.{name}", depth)
        values += [text_in_quotes(name), value]
    return f"if({sql} is null, null, named_struct({', '.join(values)}))"


def _loses(have: str, want: str) -> bool:
    of, into = size_of(have), size_of(want)
    if of is not None and into is not None:
        return into[1] < of[1]
    family = "decimal" if of is not None else _FAMILIES.get(have.lower())
    wanted = "decimal" if into is not None else _FAMILIES.get(want.lower())
    return wanted in _LOSES.get(family or "", ())
