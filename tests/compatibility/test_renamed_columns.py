"""A column that the row class has renamed keeps what operators hold of it, and options that name it stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec.structs import replace

import stateflow as sf
from stateflow.compatibility.flows import Check, compare
from stateflow.errors import IncompatibleError
from stateflow.testing import ColumnarHarness
from tests.compatibility.allowed import allowing
from tests.compatibility.test_ready_options import recorded
from tests.jobs.queried import QueriedJob
from tests.refusals.refusal import refused

START = datetime(2026, 1, 1, tzinfo=UTC)


END = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


@dataclass
class Sale:
    shop: int
    product: str
    revenue: int
    ts: datetime


@dataclass
class Renamed:
    shop: int
    takings: Annotated[int, sf.field(aliases=["turnover", "revenue"])]
    item: Annotated[str, sf.field(aliases=["product"])]
    moment: Annotated[datetime, sf.field(aliases=["ts"])]


@dataclass
class Forgetful:
    """The same without aliases."""

    shop: int
    takings: int
    item: str
    moment: datetime


OLD = {"item": "product", "takings": "revenue", "moment": "ts"}
Names = Callable[[str], str]
"""What a column is called in a release."""


def release(
    rows: type, declare: Callable[[Any, Names], Any], after: ColumnarHarness | None = None
) -> tuple[ColumnarHarness, sf.Flow]:
    flow = flow_of(rows, declare, OLD if rows in (Sale, Retyped) else {})
    return ColumnarHarness.of(flow, "op", after=after), flow


def flow_of(rows: type, declare: Callable[[Any, Names], Any], called: dict[str, str]) -> sf.Flow:
    names: Names = lambda name: called.get(name, name)  # noqa: E731

    @sf.pipeline("options")
    def sales(flow: sf.Flow) -> None:
        source = flow.source(
            "sales", sf.delta("/sales"), rows, event_time=names("moment"), watermark="1 minute"
        )
        declare(source, names).collect("out", sf.memory("renamed-columns"))

    return sales.build()


def check_of(declare: Callable[[Any, Names], Any], rows: type) -> Check:
    before = recorded(release(Sale, declare)[1].operators[0])
    return compare(allowing(release(rows, declare)[1]), "options", before)


OUT = "shop long, window_end timestamp, total long"


def total(name: Names, **options: Any) -> dict[str, Any]:
    where = f"{name('takings')} > 0 AND {name('item')} <> 'revenue'"
    return {"total": sf.sum(name("takings"), where=where), **options}


KEEP_ROWS: dict[str, Callable[[Any, Names], Any]] = {
    "latest": lambda s, name: s.key_by("shop", order_by=name("takings")).latest("op"),
    "top": lambda s, name: s.key_by("shop").top("op", 2, by=f"-{name('takings')}"),
    "top per": lambda s, name: s.key_by("shop", order_by=name("moment")).top(
        "op", 2, by=f"-{name('takings')}", per=name("item")
    ),
    "first": lambda s, name: s.deduplicate("op", by="shop", within="1 day"),
    "last": lambda s, name: s.deduplicate("op", by="shop", within="1 day", keep="last"),
    "last so far": lambda s, name: s.deduplicate("op", by="shop", keep="last"),
    "count": lambda s, name: s.key_by("shop").window(sf.count_window(2)).aggregate("op", OUT, **total(name)),
}
KEEP_NONE: dict[str, Callable[[Any, Names], Any]] = {
    "running": lambda s, name: s.key_by("shop", order_by=name("moment")).aggregate(
        "op", "shop long, total long, newest string", newest=sf.last(name("item")), **total(name)
    ),
    "tumbling": lambda s, name: s.key_by("shop").window(sf.tumbling("1 hour")).aggregate("op", OUT, **total(name)),
    "hopping": lambda s, name: s.key_by("shop").window(sf.hopping("2 hours", "1 hour")).aggregate("op", OUT, **total(name)),
    "session": lambda s, name: s.key_by("shop").window(sf.session("1 hour")).aggregate("op", OUT, **total(name)),
}  # fmt: skip


@pytest.mark.parametrize("operator", KEEP_ROWS)
def test_check_says_what_the_columns_were_called_and_strict_refuses(operator: str) -> None:
    check = check_of(KEEP_ROWS[operator], Renamed)
    [found] = check.operators
    assert check.compatible, found.problem
    said = " ".join(found.states.values())
    assert "column row_takings was row_revenue" in said
    assert "loses" not in said
    with refused(IncompatibleError, "leave out --strict"):
        check.refuse_evolution()


@pytest.mark.parametrize("operator", KEEP_NONE)
def test_nothing_changes_where_no_rows_are_kept(operator: str) -> None:
    check = check_of(KEEP_NONE[operator], Renamed)
    [found] = check.operators
    assert check.compatible, found.problem
    assert set(found.states.values()) == {"kept"}
    check.refuse_evolution()


@pytest.mark.parametrize("operator", [*KEEP_ROWS, *KEEP_NONE])
def test_without_an_alias_a_renamed_column_is_another_one(operator: str) -> None:
    [found] = check_of((KEEP_ROWS | KEEP_NONE)[operator], Forgetful).operators
    assert (
        "gone" in " ".join(found.states.values()) or "and its state was made with the former" in found.problem
    )


def test_a_value_in_quotes_is_no_column() -> None:
    def declare(text: str) -> Callable[[Any, Names], Any]:
        return lambda s, name: s.key_by("shop").aggregate(
            "op", "shop long, n long", n=sf.count(where=f"{name('item')} = '{text}'")
        )

    before = recorded(release(Sale, declare("product"))[1].operators[0])
    [found] = compare(allowing(release(Renamed, declare("item"))[1]), "options", before).operators
    assert (
        "its aggregate 'n' was count() where product = 'product' and is count() where item = 'item'"
        in found.problem
    )


def came(harness: ColumnarHarness, *rows: Any) -> list[Any]:
    return [row if isinstance(row, dict) else vars(row) for row in harness.rows(*rows)]


def test_what_is_kept_goes_on_under_the_new_names() -> None:
    def two(operator: str) -> tuple[ColumnarHarness, ColumnarHarness]:
        before, _ = release(Sale, KEEP_ROWS[operator])
        before.rows(Sale(1, "tea", 5, at(1)), Sale(2, "jam", 7, at(2)))
        return before, release(Renamed, KEEP_ROWS[operator], before)[0]

    _, after = two("latest")
    assert came(after, Renamed(1, 4, "rum", at(3))) == [], "the row of the larger takings is the last"
    assert came(after, Renamed(1, 6, "rum", at(3))) == [vars(Renamed(1, 6, "rum", at(3)))]
    for operator in ("top", "top per"):
        _, after = two(operator)
        rows = sorted(came(after, Renamed(1, 9, "rum", at(3))), key=lambda row: row["rank"])
        assert [(row["rank"], row["item"], row["takings"], row["moment"]) for row in rows] == [
            (1, "rum", 9, at(3)),
            (2, "tea", 5, at(1)),
        ]
    for operator in ("first", "last"):
        _, after = two(operator)
        rows = [vars(row) for row in after.advance(at(3000))]
        assert sorted(rows, key=lambda row: row["shop"]) == [
            vars(Renamed(1, 5, "tea", at(1))),
            vars(Renamed(2, 7, "jam", at(2))),
        ]
    _, after = two("count")
    after.rows(Renamed(1, 3, "rum", at(3)))
    assert [(row["shop"], row["total"]) for row in after.advance(at(10))] == [(1, 8)]


@dataclass
class Plain:
    shop: int
    revenue: int
    ts: datetime


@dataclass
class PlainRenamed:
    shop: int
    takings: Annotated[int, sf.field(aliases=["revenue"])]
    ts: datetime


@dataclass
class PlainWider(PlainRenamed):
    channel: str = "web"


@dataclass
class PlainAgain:
    shop: int
    revenue: Annotated[int, sf.field(aliases=["takings"])]
    ts: datetime


@dataclass
class PlainReused:
    shop: int
    takings: int
    revenue: int
    ts: datetime


PLAIN: dict[str, Callable[[Any], Any]] = {
    "latest": lambda s: s.key_by("shop").latest("op"),
    "top": lambda s: s.key_by("shop").top("op", 2, by="-ts"),
    "first": lambda s: s.deduplicate("op", by="shop", within="1 day"),
    "last": lambda s: s.deduplicate("op", by="shop", keep="last"),
}


@pytest.mark.parametrize("operator", PLAIN)
def test_the_release_before_a_rename_does_not_take_the_values_for_gone(operator: str) -> None:
    def of(rows: type, after: ColumnarHarness | None = None) -> ColumnarHarness:
        @sf.pipeline("options")
        def sales(flow: sf.Flow) -> None:
            source = flow.source("sales", sf.delta("/sales"), rows, event_time="ts", watermark="1 minute")
            PLAIN[operator](source).collect("out", sf.memory("renamed-columns"))

        return ColumnarHarness.of(sales.build(), "op", after=after)

    first = of(Plain)
    first.rows(Plain(1, 5, at(1)))
    renamed = of(PlainRenamed, first)
    renamed.rows(PlainRenamed(2, 7, at(2)))
    message = (
        "row_revenue is called row_takings since.*its name of today as an alias.*restore a checkpoint below"
    )
    with pytest.raises(IncompatibleError, match=message):
        of(Plain, renamed)
    of(PlainAgain, renamed)
    reused = of(PlainReused, renamed)
    reused.rows(PlainReused(4, 7, 8, at(2)))
    for rows in (Plain, PlainAgain):
        with pytest.raises(IncompatibleError, match="row_revenue is called row_takings since"):
            of(rows, reused)
    # A release that adds a column and the one before it can follow each other.
    wider = of(PlainWider, renamed)
    wider.rows(PlainWider(3, 7, at(2)))
    of(PlainWider, of(PlainRenamed, wider))


def test_aggregates_of_a_renamed_column_go_on() -> None:
    for declare in KEEP_NONE.values():
        before, _ = release(Sale, declare)
        before.rows(Sale(1, "tea", 5, at(1)))
        after, _ = release(Renamed, declare, before)
        rows = [*after.rows(Renamed(1, 3, "rum", at(3))), *after.advance(at(3000))]
        assert {row["total"] for row in rows} == {8}


@dataclass
class Wider(Renamed):
    channel: str = "web"


@dataclass
class Retyped:
    shop: int
    product: int
    revenue: int
    ts: datetime


class Texts(sf.WindowProcess[int, Any, Any]):
    def process(self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            yield key, repr(dict(sorted(vars(row).items())))


WINDOWS = [
    sf.tumbling("1 hour"), sf.hopping("2 hours", "1 hour"), sf.session("1 hour"), sf.count_window(2), sf.count_window(3),
]  # fmt: skip


def code(window: Any) -> Callable[[Any, Names], Any]:
    return lambda s, name: (
        s.key_by("shop", order_by=name("moment"))
        .window(window)
        .process("op", Texts, output="shop long, text string")
    )


@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_code_per_window_gets_rows_of_earlier_releases_under_the_names_of_today(window: Any) -> None:
    before, _ = release(Sale, code(window))
    before.rows(Sale(1, "tea", 5, at(1)))
    before.advance(at(1.5))
    after, _ = release(Renamed, code(window), before)
    after.rows(Renamed(1, 3, "rum", at(3)))
    last, _ = release(Wider, code(window), after)
    last.rows(Wider(1, 7, "ale", at(4), "shop"))
    rows = [row["text"] for row in last.advance(END)]
    for expected in (
        Wider(1, 5, "tea", at(1)),
        Wider(1, 3, "rum", at(3)),
        Wider(1, 7, "ale", at(4), "shop"),
    ):
        assert repr(dict(sorted(vars(expected).items()))) in rows


@pytest.mark.parametrize("window", WINDOWS, ids=repr)
def test_check_says_what_becomes_of_rows_that_wait_for_code(window: Any) -> None:
    check = check_of(code(window), Wider)
    [found] = check.operators
    assert check.compatible, found.problem
    said = " ".join(found.states.values())
    assert "column takings was revenue" in said
    assert "column channel is new" in said
    assert "loses" not in said
    [refused] = check_of(code(window), Retyped).operators
    assert "column product: str cannot become int by itself" in refused.problem


def test_names_change_over_several_releases_and_are_asked_by_those_of_today(tmp_path: Path) -> None:
    @dataclass
    class Third:
        shop: int
        income: Annotated[int, sf.field(aliases=["takings"])]
        item: str
        moment: datetime

    def latest(name: str) -> Callable[[Any, Names], Any]:
        return lambda s, _: s.key_by("shop", order_by=name).latest("op", queryable="sales")

    first, _ = release(Sale, latest("revenue"))
    first.rows(Sale(1, "tea", 5, at(1)), Sale(2, "jam", 7, at(2)))
    second, _ = release(Renamed, latest("takings"), first)
    second.rows(Renamed(2, 8, "rum", at(3)))
    third, _ = release(Third, latest("income"), second)
    job = QueriedJob(tmp_path / "root", operator="op", backend="memory", key=(("shop", "int"),))
    job.states = dict(third._spec.states)
    job.checkpoint(dict(third._backend.scan(b"", b"\xff" * 8)))
    reader = job.reader(tmp_path / "host")
    rows = {key: reader.get("op", "sales", key) for key in (1, 2)}
    reader.close()
    assert [(rows[key]["row_income"], rows[key]["row_item"]) for key in rows] == [(5, "tea"), (8, "rum")]
    assert came(third, Third(1, 6, "ale", at(4))) == [vars(Third(1, 6, "ale", at(4)))]


@dataclass
class Reused(Renamed):
    """`revenue` is a new column, of another meaning than the one that was called so."""

    revenue: int = 0


BOTH_NAMES: dict[str, Callable[[Any, Names], Any]] = {
    **KEEP_NONE,
    "count": KEEP_ROWS["count"],
    "first by it": lambda s, name: s.deduplicate("op", by=name("takings"), within="1 day"),
    "key": lambda s, name: s.key_by(name("takings")).aggregate(
        "op", f"{name('takings')} long, n long", n=sf.count()
    ),
    "key of code": lambda s, name: s.key_by(name("takings")).map_with_state(
        "op", lambda key, row, value: (None, value), state=int, output="n long"
    ),
    "join": lambda s, name: s.key_by("shop").join(
        "op", s.key_by("shop"), f"shop long, left_{name('takings')} long", within=("0 minutes", "1 hour")
    ),
}
MISREAD = {"takings": "revenue"}
"""What the code of `Reused` calls the column that it takes for the one of before."""


def problem(before: sf.Flow, after: sf.Flow) -> str:
    [operator] = compare(allowing(after), "options", recorded(before.operators[0])).operators
    return operator.problem


@pytest.mark.parametrize("operator", BOTH_NAMES)
def test_a_former_name_that_another_column_has_is_not_taken_for_the_renamed_one(operator: str) -> None:
    declare = BOTH_NAMES[operator]
    before = flow_of(Sale, declare, OLD)
    refusal = problem(before, flow_of(Reused, declare, MISREAD))
    for named in ("operator 'op'", "takings has the alias", "is called", "leave the alias out"):
        assert named in refusal
    assert problem(before, flow_of(Reused, declare, {})) == "", "the renamed column goes on"


@pytest.mark.parametrize("operator", BOTH_NAMES)
def test_a_column_with_a_former_name_of_another_one_goes_on_itself(operator: str) -> None:
    declare = BOTH_NAMES[operator]
    renamed, reused = flow_of(Reused, declare, {}), flow_of(Reused, declare, MISREAD)
    assert problem(flow_of(Renamed, declare, {}), renamed) == ""
    assert problem(renamed, renamed) == problem(reused, reused) == ""
    assert problem(reused, renamed), "the record tells the two apart"


@dataclass
class Worded:
    shop: int
    day: int
    first: int
    count: int
    left: int
    limit: int
    revenue: int
    ts: datetime


@dataclass
class Reworded:
    """Each new name was another column's, and each is a word of some option."""

    shop: int
    weekday: Annotated[int, sf.field(aliases=["day"])]
    earliest: Annotated[int, sf.field(aliases=["first"])]
    number: Annotated[int, sf.field(aliases=["count"])]
    rest: Annotated[int, sf.field(aliases=["left"])]
    most: Annotated[int, sf.field(aliases=["limit"])]
    revenue: int
    ts: datetime
    day: int = 0
    first: int = 0
    count: int = 0
    left: int = 0
    limit: int = 0


@dataclass
class Unworded:
    shop: int
    weekday: Annotated[int, sf.field(aliases=["day"])]
    last: Annotated[int, sf.field(aliases=["first"])]
    number: Annotated[int, sf.field(aliases=["count"])]
    rest: Annotated[int, sf.field(aliases=["left"])]
    most: Annotated[int, sf.field(aliases=["limit"])]
    revenue: int
    ts: datetime


WORDS: dict[str, Callable[[Any, Names], Any]] = {
    "tumbling": lambda s, name: s.key_by("shop").window(sf.tumbling("1 day")).aggregate(
        "op", OUT, total=sf.count(where=f"{name('number')} > 0")
    ),
    "running": lambda s, name: s.key_by("shop", order_by="ts").aggregate(
        "op", "shop long, n long, each array<long>", n=sf.count(), each=sf.collect("revenue", limit=10)
    ),
    "first": lambda s, name: s.deduplicate("op", by="shop", within="1 day"),
    "join": lambda s, name: s.key_by("shop").join(
        "op", s.key_by("shop"), "shop long, left_revenue long", within=("0 minutes", "1 day"), how="left"
    ),
}  # fmt: skip
WORDED = {"moment": "ts", "number": "count"}


@pytest.mark.parametrize("operator", WORDS)
@pytest.mark.parametrize("rows", [Reworded, Unworded], ids=["reused", "renamed"])
def test_a_word_of_an_option_is_no_column(rows: type, operator: str) -> None:
    before = flow_of(Worded, WORDS[operator], WORDED)
    refusal = problem(before, flow_of(rows, WORDS[operator], {"moment": "ts"}))
    if rows is Reworded and operator == "first":
        assert "'waiting'" in refusal, "the rows that it keeps have the columns"
    else:
        assert refusal == ""


def test_a_changed_word_of_an_option_is_no_renamed_column() -> None:
    def keeping(which: str) -> Callable[[Any, Names], Any]:
        return lambda s, name: s.deduplicate("op", by="shop", within="1 day", keep=which)

    before = flow_of(Worded, keeping("first"), WORDED)
    assert "keep was first" in problem(before, flow_of(Unworded, keeping("last"), WORDED))


@dataclass
class Unaliased(Forgetful):
    """`Reused` without its aliases."""

    revenue: int = 0


@dataclass
class RenamedAgain:
    shop: int
    income: Annotated[int, sf.field(aliases=["revenue", "takings"])]
    item: Annotated[str, sf.field(aliases=["product"])]
    moment: datetime
    revenue: int = 0


@pytest.mark.parametrize("operator", BOTH_NAMES)
def test_a_record_that_does_not_say_what_columns_there_were_refuses_no_unchanged_code(operator: str) -> None:
    for called in ({}, MISREAD):
        flow = flow_of(Reused, BOTH_NAMES[operator], called)
        before = recorded(flow.operators[0])
        op = before.operators["op"]
        kept = {name: text for name, text in op.options.items() if not name.startswith("columns of input")}
        assert kept != op.options
        before = replace(before, operators={"op": replace(op, options=kept)})
        [found] = compare(allowing(flow), "options", before).operators
        assert found.problem == ""


@pytest.mark.parametrize("operator", BOTH_NAMES)
def test_an_alias_that_comes_back_takes_no_column_from_code_that_knew_both(operator: str) -> None:
    declare = BOTH_NAMES[operator]
    for called in ({}, MISREAD):
        between = flow_of(Unaliased, declare, called)
        assert problem(flow_of(Reused, declare, called), between) == ""
        assert problem(between, flow_of(Reused, declare, called)) == ""
    assert problem(flow_of(Unaliased, declare, MISREAD), flow_of(Reused, declare, {}))


@pytest.mark.parametrize("operator", [*KEEP_NONE, "first by it", "key", "key of code"])
def test_a_column_that_is_renamed_again_keeps_to_its_newest_name(operator: str) -> None:
    declare = BOTH_NAMES[operator]
    for before, after in ((MISREAD, MISREAD), ({}, {"takings": "income"})):
        assert problem(flow_of(Reused, declare, before), flow_of(RenamedAgain, declare, after)) == ""
    assert problem(flow_of(Sale, declare, OLD), flow_of(RenamedAgain, declare, MISREAD))


def test_a_key_that_was_renamed_and_whose_name_is_reused_finds_its_state() -> None:
    before, _ = release(Sale, BOTH_NAMES["key"])
    before.rows(Sale(1, "tea", 5, at(1)))
    after, _ = release(Reused, BOTH_NAMES["key"], before)
    assert after.rows(Reused(1, 5, "rum", at(3), 7)) == [{"takings": 5, "n": 2}]
