"""Columns of other types than the row class says: what stays the same value is converted, the rest refused."""

from __future__ import annotations

import pytest

import stateflow as sf
from stateflow.pipelines.rows.conversions import converted
from tests.refusals.refusal import refused

POINT = "struct<lat:double,lon:double>"


def sql(have: str, want: str) -> str:
    return converted("operator 'totals'", "x", have, want, "Order")


@pytest.mark.parametrize("type", ["bigint", "string", POINT, f"array<{POINT}>", "map<string,decimal(10,2)>"])
def test_a_column_of_the_declared_type_is_taken_as_it_is(type: str) -> None:
    assert sql(type, type) == "`x`"


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ("int", "bigint"),
        ("bigint", "int"),  # one that is too large fails the cast
        ("int", "double"),
        ("float", "double"),
        ("decimal(10,2)", "double"),
        ("decimal(10,2)", "decimal(38,18)"),
        ("int", "decimal(10,2)"),
        ("bigint", "string"),
        ("string", "bigint"),  # 12.5 fails the cast
        ("string", "timestamp"),
        ("date", "timestamp"),
        ("timestamp_ntz", "timestamp"),
        ("void", "date"),
    ],
)
def test_a_column_whose_values_stay_what_they_are_is_cast(have: str, want: str) -> None:
    assert sql(have, want) == f"cast(`x` as {want})"


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ("double", "bigint"),
        ("double", "float"),
        ("double", "decimal(10,2)"),
        ("decimal(10,2)", "bigint"),
        ("decimal(10,2)", "decimal(10,1)"),
        ("bigint", "timestamp"),
        ("double", "timestamp"),
        ("bigint", "boolean"),
        ("boolean", "bigint"),
        ("timestamp", "bigint"),
        ("timestamp", "date"),
        ("string", "date"),
        ("string", "decimal(10,2)"),
    ],
)
def test_a_column_whose_values_would_become_others_is_refused(have: str, want: str) -> None:
    for nested, wanted in ((have, want), (f"array<{have}>", f"array<{want}>")):
        with pytest.raises(sf.IncompatibleError) as caught:
            sql(nested, wanted)
        assert (
            f"operator 'totals': column 'x' is {have}, which Order says is {want}: declare the type"
            in str(caught.value)
        )


@pytest.mark.parametrize(
    ("have", "want", "most"),
    [("bigint", "double", 2**53), ("bigint", "float", 2**24), ("int", "float", 2**24)],
)
def test_a_whole_number_is_held_against_the_floats_that_have_each_up_to_there(
    have: str, want: str, most: int
) -> None:
    assert f"`x` > {most} or `x` < -{most}" in sql(have, want)


def test_a_struct_is_read_by_the_names_of_its_fields() -> None:
    assert sql(POINT, "struct<lon:double,lat:double>") == (
        "if(`x` is null, null, named_struct('lon', `x`.`lon`, 'lat', `x`.`lat`))"
    )


def test_a_field_inside_is_named() -> None:
    with refused(sf.IncompatibleError, "field 'x.lat'", "double", "Order", "bigint"):
        sql(f"array<{POINT}>", "array<struct<lat:bigint>>")
    with refused(sf.IncompatibleError, "column 'x'", "no field 'height'", "Order"):
        sql(POINT, "struct<lat:double,height:double>")


def test_kinds_that_have_nothing_in_common_are_refused() -> None:
    with refused(sf.IncompatibleError, "column 'x' is string", "Order", "array<string>"):
        sql("string", "array<string>")
