"""What may follow an operator, and what is said where it may not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest

import stateflow as sf
from stateflow.compatibility.flows import compare
from stateflow.pipelines.held_back import comes_when_reached
from stateflow.pipelines.misplaced import Steps
from stateflow.pipelines.ready.operators import Deduplicate
from stateflow.pipelines.streams import ConnectedStreams, KeyedStream, Stream, WindowedStream
from tests.refusals.refusal import refused

HOUR = sf.tumbling("1 hour")


@dataclass
class Sale:
    shop: int
    amount: float
    ts: datetime


@dataclass
class PerHour:
    shop: int
    window_start: datetime
    window_end: datetime
    amount: float


@dataclass
class PerShop:
    shop: int
    amount: float


def sales(flow: sf.Flow, uid: str = "in", **options: Any) -> Stream:
    return flow.source(
        uid, sf.delta(f"/{uid}"), Sale, **{"event_time": "ts", "watermark": "1 minute", **options}
    )


def hours(flow: sf.Flow, emit: str = "changes", source: str = "in", uid: str = "hours") -> Stream:
    per_hour = sales(flow, source).key_by("shop").window(HOUR)
    return per_hour.aggregate(uid, PerHour, emit=emit, amount=sf.sum("amount"))


def built(declare: Callable[[sf.Flow], Stream]) -> sf.Flow:
    @sf.pipeline("chain")
    def chain(flow: sf.Flow) -> None:
        declare(flow).collect("out", sf.memory("out"))

    return chain.build()


def refusal(declare: Callable[[sf.Flow], Stream]) -> str:
    with pytest.raises(sf.UsageError) as caught:
        built(declare)
    return str(caught.value)


def rows_of_changes(flow: sf.Flow, **options: Any) -> Stream:
    return hours(flow).changes_as_rows(op="op", **options)


ADDED = {
    "sum": sf.sum("amount"),
    "count": sf.count(),
    "mean": sf.mean("amount"),
    "stddev": sf.stddev("amount"),
    "quantile": sf.quantile("amount", 0.5),
    "collect": sf.collect("amount", 3),
}


@pytest.mark.parametrize("kind", ADDED)
def test_what_would_count_a_value_and_what_replaced_it_is_refused(kind: str) -> None:
    output = "shop long, total array<double>" if kind == "collect" else "shop long, total double"
    if kind == "count":
        output = "shop long, total long"
    expected = (
        "operator 'shops': its rows replaced each other by shop, window_start, window_end before .changes_as_rows(), and 'total' "
        f"({kind}) would take each of them for one more: aggregate the rows from which the changes come, or windows with "
        "emit='final'; to count the changes themselves say .changes_as_rows(..., counted=True)"
    )
    assert (
        refusal(lambda f: rows_of_changes(f).key_by("shop").aggregate("shops", output, total=ADDED[kind]))
        == expected
    )


def test_nor_may_a_transform_or_a_union_between_hide_it() -> None:
    columns = "shop long, amount double"
    assert "would take each of them for one more" in refusal(
        lambda f: (
            rows_of_changes(f)
            .transform(lambda frame: frame.select("shop", "amount"), columns)
            .union(sales(f, "more").transform(lambda frame: frame.select("shop", "amount"), columns))
            .key_by("shop")
            .aggregate("shops", PerShop, amount=sf.sum("amount"))
        )
    )


def test_nor_a_window() -> None:
    assert "would take each of them for one more" in refusal(
        lambda f: (
            rows_of_changes(f)
            .key_by("shop")
            .window(HOUR, time="window_start")
            .aggregate("days", PerHour, amount=sf.sum("amount"))
        )
    )


LATEST = "country string, user long, o long"


def united(one: Stream, other: Stream, is_first: bool) -> Stream:
    return one.union(other) if is_first else other.union(one)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_union_replaces_its_rows_by_the_same_columns_or_not_at_all(is_first: bool) -> None:
    def declare(flow: sf.Flow, *columns: str, as_rows: bool = False) -> None:
        by_both, others = (
            flow.source(uid, sf.delta(f"/{uid}"), LATEST).key_by(*key, order_by="o").latest(f"{uid}-latest")
            for uid, key in (("one", ("country", "user")), ("two", columns))
        )
        if as_rows:
            rows = united(by_both.changes_as_rows(op="op"), others.changes_as_rows(op="op"), is_first)
            rows.upsert("out", sf.delta("/out"), keys=["country", "user", "op"])
        else:
            united(by_both, others, is_first).upsert("out", sf.delta("/out"))

    with refused(
        sf.UsageError, "union", "by country, user", "by user", "'one-latest'", "'two-latest'", "as_rows("
    ):
        sf.pipeline("other")(lambda flow: declare(flow, "user")).build()
    sf.pipeline("rows")(lambda flow: declare(flow, "user", as_rows=True)).build()
    [sink] = sf.pipeline("same")(lambda flow: declare(flow, "user", "country")).build().sinks
    assert set(sink.options["keys"]) == {"country", "user"}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("other", "key", "options", "found", "taken"),
    [
        (sf.count(), ("country", "user"), {}, sf.max("n"), True),
        (sf.count(where="o > 1"), ("country", "user"), {}, sf.max("n"), False),
        (sf.last("o"), ("country", "user"), {}, sf.max("n"), False),
        (sf.count(), ("user",), {}, sf.count_distinct("user"), True),
        (sf.count(), ("user",), {}, sf.count_distinct("country"), False),
        (sf.count(), ("country", "user"), {}, sf.sum("n"), False),
        (sf.count(), ("country", "user"), {"counted": True}, sf.sum("n"), True),
    ],
)
def test_of_rows_that_were_changes_a_union_knows_what_is_so_of_all(
    other: Any, key: tuple[str, ...], options: dict[str, Any], found: Any, taken: bool, is_first: bool
) -> None:
    def declare(flow: sf.Flow) -> Stream:
        one = flow.source("one", sf.delta("/one"), LATEST).key_by("country", "user", order_by="o")
        two = flow.source("two", sf.delta("/two"), LATEST).key_by(*key, order_by="o")
        of_one = one.aggregate("a", "country string, user long, n long", n=sf.count())
        output = "country string, user long, n long"
        named = {"n": other} if "country" in key else {"n": other, "country": sf.last("country")}
        of_two = two.aggregate("b", output, **named)
        both = united(
            of_one.changes_as_rows(op="op", **options), of_two.changes_as_rows(op="op", **options), is_first
        )
        return both.key_by("op").aggregate("x", "op string, found long", found=found)

    if taken:
        built(declare)
    else:
        with refused(sf.UsageError, "operator 'x'", "'found'"):
            built(declare)


@pytest.mark.parametrize("is_first", [True, False])
def test_each_change_of_a_union_counts_only_where_all_say_so(is_first: bool) -> None:
    def declare(flow: sf.Flow, *, counted: bool) -> Stream:
        one = rows_of_changes(flow, counted=True)
        two = hours(flow, source="more", uid="others").changes_as_rows(op="op", counted=counted)
        return united(one, two, is_first).key_by("shop").aggregate("n", "shop long, n long", n=sf.count())

    with refused(sf.UsageError, "operator 'n'", "counted=True"):
        built(partial(declare, counted=False))
    built(partial(declare, counted=True))


@pytest.mark.parametrize("timed", [True, False])
def test_a_union_with_rows_that_have_no_event_time_is_warned_of(timed: bool) -> None:
    def declare(flow: sf.Flow) -> Stream:
        times = {} if timed else {"event_time": None, "watermark": None}
        more = sales(flow, "more", **times).transform(lambda frame: frame, Sale)
        return sales(flow).union(more).key_by("shop").aggregate("sum", PerShop, amount=sf.sum("amount"))

    expected = (
        "union: 'more' has no event time, so that its rows are judged by the watermark of the others and do not hold it back: "
        "give its source event_time= and watermark="
    )
    found = [
        warning for warning in compare(built(declare), "chain", None).warnings if "event time" in warning
    ]
    assert found == ([] if timed else [expected])


def top(flow: sf.Flow, **options: Any) -> Stream:
    return sales(flow).key_by("shop").top("best", 2, by="-amount", **options)


@pytest.mark.parametrize(
    ("changes", "keys", "own"),
    [
        (hours, "shop", "shop, window_start"),
        (hours, ["shop", "window_start", "amount"], "shop, window_start"),
        (top, "ts", "shop, rank"),
        (lambda f: top(f, per="ts"), ["shop", "rank"], "shop, ts"),
    ],
)
def test_a_table_replaces_rows_as_the_stream_does(changes: Any, keys: Any, own: str) -> None:
    def declare(flow: sf.Flow, **given: Any) -> None:
        changes(flow).upsert("out", sf.delta("/out"), **given)

    names = keys if isinstance(keys, str) else ", ".join(keys)
    with refused(sf.UsageError, f"each other by {own},", f"replace them by {names},", "leave keys= out"):
        sf.pipeline("own")(partial(declare, keys=keys)).build()
    [sink] = sf.pipeline("own")(declare).build().sinks
    assert ", ".join(sink.options["keys"]) == own


def test_the_same_keys_may_be_said_in_other_words() -> None:
    def declare(flow: sf.Flow) -> None:
        hours(flow).upsert("again", sf.delta("/a"), keys=["WINDOW_START", "shop"])
        hours_of = hours(flow, "changes", "more", "others")
        hours_of.upsert("ends", sf.delta("/b"), keys=["shop", "window_start", "window_end"])
        renamed = hours(flow, "changes", "most", "third").transform(
            lambda frame: frame.withColumnRenamed("shop", "store"),
            "store long, window_start timestamp, amount double",
        )
        renamed.upsert("stores", sf.delta("/c"), keys=["store", "window_start"])

    assert len(sf.pipeline("same")(declare).build().sinks) == 3


WINDOWS = {
    "tumbling": HOUR,
    "hopping": sf.hopping("1 hour", "10 minutes"),
    "cumulative": sf.cumulative("1 day", "1 hour"),
}
BOUNDS = ("window_start", "window_end")


def cut(flow: sf.Flow, window: str, *bounds: str, emit: str = "changes") -> Stream:
    output = ", ".join(["shop long", *(f"{bound} timestamp" for bound in bounds), "n long"])
    rows = sales(flow).key_by("shop").window(WINDOWS[window])
    return rows.aggregate(window, output, emit=emit, n=sf.count())


@pytest.mark.parametrize("emit", ["changes", "on_time"])
@pytest.mark.parametrize(
    ("window", "own", "alike"),
    [
        ("tumbling", "window_start", [["window_start"], ["window_end"], BOUNDS]),
        ("hopping", "window_start", [["window_start"], ["window_end"], BOUNDS]),
        ("cumulative", "window_end", [["window_end"], BOUNDS]),
    ],
)
def test_a_table_has_a_row_for_each_window(window: str, own: str, alike: list[Any], emit: str) -> None:
    """Windows that begin together are told apart by their ends alone."""

    def declare(flow: sf.Flow, *keys: str) -> None:
        changes = cut(flow, window, *BOUNDS, emit=emit).transform(
            lambda frame: frame, f"shop long, {BOUNDS[0]} timestamp, {BOUNDS[1]} timestamp, n long"
        )
        changes.upsert("out", sf.delta("/out"), keys=["shop", *keys] if keys else ())

    [sink] = sf.pipeline("own")(declare).build().sinks
    assert sink.options["keys"] == ("shop", own)
    for keys in ([BOUNDS[0]], [BOUNDS[1]], BOUNDS):
        if keys in alike:
            declare(sf.Flow("said"), *keys)
        else:
            with refused(
                sf.UsageError, f"each other by shop, {own},", f"by shop, {keys[0]},", "leave keys= out"
            ):
                declare(sf.Flow("said"), *keys)


WITH_BOUND: dict[str, Callable[[Stream, str], Stream]] = {
    "latest": lambda rows, bound: rows.key_by("shop", bound, order_by="n").latest("next"),
    "last": lambda rows, bound: rows.key_by("shop", bound, order_by="n").aggregate(
        "next", f"shop long, {bound} timestamp, n long", n=sf.last("n")
    ),
    "max": lambda rows, bound: rows.key_by("shop").aggregate(
        "next", "shop long, found timestamp", found=sf.max(bound)
    ),
    "top": lambda rows, bound: rows.key_by(bound, order_by="n").top("next", 3, by="-n", per="shop"),
    "joined": lambda rows, bound: rows.key_by("shop").window(HOUR, time=bound)
    .join("pairs", rows.key_by("shop"), f"shop long, left_{bound} timestamp, left_n long", right_time=bound)
    .key_by("shop").aggregate("next", "shop long, found timestamp", found=sf.max(f"left_{bound}")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "bounds"), [(BOUNDS[0], BOUNDS), (BOUNDS[1], BOUNDS), (BOUNDS[1], BOUNDS[1:])]
)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("way", WITH_BOUND)
def test_a_row_stays_in_its_window_when_another_one_replaces_it(
    way: str, window: str, bound: str, bounds: tuple[str, ...]
) -> None:
    built(lambda flow: WITH_BOUND[way](cut(flow, window, *bounds).changes_as_rows(op="op"), bound))


KEPT = {
    "min": sf.min("amount"), "max": sf.max("amount"), "first": sf.first("amount"), "count_distinct": sf.count_distinct("amount"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEPT)
def test_what_would_keep_a_value_that_was_replaced_is_refused(kind: str) -> None:
    output = "shop long, total long" if kind == "count_distinct" else "shop long, total double"
    expected = (
        "operator 'shops': its rows replaced each other by shop, window_start, window_end before .changes_as_rows(), and 'total' "
        f"({kind}) would keep what has been replaced since: aggregate the rows from which the changes come, or windows with "
        "emit='final'; to count the changes themselves say .changes_as_rows(..., counted=True)"
    )
    assert (
        refusal(
            lambda f: (
                rows_of_changes(f)
                .key_by("shop", order_by="window_end")
                .aggregate("shops", output, total=KEPT[kind])
            )
        )
        == expected
    )


@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [
        (sf.last("amount"), "double"),
        (sf.min("window_start"), "timestamp"),
        (sf.max("window_start"), "timestamp"),
        (sf.first("window_start"), "timestamp"),
        (sf.count_distinct("window_start"), "long"),
    ],
)
def test_what_is_the_same_when_a_row_comes_again_is_taken(aggregate: Any, kind: str) -> None:
    built(
        lambda f: (
            rows_of_changes(f)
            .key_by("shop", order_by="window_end")
            .aggregate("shops", f"shop long, found {kind}", found=aggregate)
        )
    )


def of_users(flow: sf.Flow, *, counted: bool = False) -> Stream:
    """Rows that replace each other by user: the next one may be of another country, and have another time."""
    columns = "user long, country string, seen timestamp, n long"
    users = flow.source("users", sf.delta("/users"), columns, event_time="seen", watermark="1 hour")
    newest = users.key_by("user", order_by="seen").aggregate(
        "users-now", columns, country=sf.last("country"), seen=sf.max("seen"), n=sf.count()
    )
    return newest.changes_as_rows(op="op", counted=counted)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(
    ("declare", "moving"),
    [
        (lambda s: s.key_by("country").aggregate("x", "country string, f long", f=sf.min("user")), "country"),
        (
            lambda s: s.key_by("country", order_by="n").aggregate(
                "x", "country string, f long", f=sf.last("user")
            ),
            "country",
        ),
        (
            lambda s: s.key_by("user", "country").aggregate(
                "x", "user long, country string, f long", f=sf.max("n")
            ),
            "country",
        ),
        (
            lambda s: s.key_by("country", order_by="n").top("x", 3, by="-n", per="user"),
            "country",
        ),
        (lambda s: s.key_by("country", order_by="n").latest("x"), "country"),
        (lambda s: s.key_by("user", order_by="n").latest("x"), ""),
        (lambda s: s.key_by("op", order_by="n").top("x", 3, by="-n", per="user"), ""),
        (lambda s: s.key_by("op").aggregate("x", "op string, f long", f=sf.min("user")), ""),
    ],
)
def test_a_group_that_a_row_can_leave_is_refused(
    declare: Callable[[Stream], Stream], moving: str, counted: bool
) -> None:
    """A minimum, or a list, would keep what has gone to another group, without a word."""

    def declared(flow: sf.Flow) -> Stream:
        return declare(of_users(flow, counted=counted))

    if moving and not counted:
        with refused(sf.UsageError, "operator 'x'", f"another {moving!r}"):
            built(declared)
    else:
        built(declared)


@pytest.mark.parametrize(
    ("order_by", "taken"),
    [("n", True), ("-n", False), ("seen", False), ("country", False), (("seen", "n"), True)],
)
def test_the_last_of_rows_that_replaced_each_other_is_the_newest(order_by: Any, taken: bool) -> None:
    """By an order in which a newer row may come before an older one, the older one would stay."""

    def declare(flow: sf.Flow) -> Stream:
        rows = of_users(flow).key_by("user", order_by=order_by)
        return rows.aggregate("x", "user long, f string", f=sf.last("country"))

    if taken:
        built(declare)
    else:
        with refused(sf.UsageError, "operator 'x'", "'f' (last)", "has been replaced since"):
            built(declare)

    def latest(flow: sf.Flow) -> Stream:
        return of_users(flow).key_by("user", order_by=order_by).latest("x")

    if taken:
        built(latest)
    else:
        with refused(sf.UsageError, "operator 'x'", ".latest()"):
            built(latest)


WHERE = "amount > 100"


@pytest.mark.parametrize(
    "aggregate",
    [
        sf.last("amount", where=WHERE),
        sf.count_distinct("window_start", where=WHERE),
        sf.max("window_start", where="shop > 1 and `amount` > 100"),
        sf.max("amount", where=WHERE),
    ],
)
def test_a_condition_that_a_newer_row_may_not_fulfil_is_refused(aggregate: Any) -> None:
    """One over the columns that stay as they are is taken."""
    of_column = "double" if aggregate.column == "amount" else "timestamp"
    found = "long" if aggregate.kind == "count_distinct" else of_column

    def declare(flow: sf.Flow, where: str) -> Stream:
        per_hour = sales(flow).key_by("shop").window(HOUR)
        newest = per_hour.aggregate("hours", PerHour, emit="changes", amount=sf.max("amount"))
        rows = newest.changes_as_rows(op="op").key_by("shop", order_by="window_end")
        return rows.aggregate("shops", f"shop long, found {found}", found=replace(aggregate, where=where))

    with refused(sf.UsageError, "operator 'shops'", f"'found' ({aggregate.kind})", "has been replaced"):
        built(lambda flow: declare(flow, aggregate.where))
    built(lambda flow: declare(flow, "shop > 100 and window_start is not null"))
    built(lambda flow: declare(flow, ""))


@pytest.mark.parametrize(
    ("aggregate", "kind"),
    [
        (sf.last("amount"), "double"),
        (sf.min("ts"), "timestamp"),
        (sf.max("ts"), "timestamp"),
        (sf.first("ts"), "timestamp"),
        (sf.count_distinct("ts"), "long"),
    ],
)
def test_not_so_where_some_rows_say_what_is_gone(aggregate: Any, kind: str) -> None:
    def declare(flow: sf.Flow, **options: Any) -> Stream:
        rows = top(flow, per="ts").changes_as_rows(op="op", **options)
        return rows.key_by("shop", order_by="ts").aggregate(
            "shops", f"shop long, found {kind}", found=aggregate
        )

    named = "operator 'shops'", f"'found' ({aggregate.kind}) would keep what is gone since", "counted=True"
    with refused(sf.UsageError, *named):
        built(declare)
    built(partial(declare, counted=True))


def others(flow: sf.Flow) -> KeyedStream:
    return sales(flow, "others").key_by("shop")


DAY = ("-1 day", "1 day")
TOTALS = "shop long, window_start timestamp, window_end timestamp, total double"
JOINED = "shop long, window_start timestamp, total double"

PASSED: dict[str, Callable[[sf.Flow, Stream], Stream]] = {
    "enrich": lambda f, rows: rows.key_by("shop").enrich("op", len, f"{JOINED}, zone string"),
    "deduplicate": lambda f, rows: rows.deduplicate("op", by=["shop", "window_start", "change"], time="window_end"),
    "within": lambda f, rows: rows.deduplicate("op", by=["shop", "window_start"], within="1 day", time="window_end"),
    "join_latest": lambda f, rows: rows.key_by("shop").join_latest("op", others(f), JOINED),
    "join_asof": lambda f, rows: rows.key_by("shop").join_asof("op", others(f), JOINED, time="window_end"),
    "left": lambda f, rows: rows.key_by("shop").join("op", others(f), JOINED, within=DAY, time="window_end"),
    "right": lambda f, rows: others(f).join("op", rows.key_by("shop"), JOINED, within=DAY, right_time="window_end"),
    "window": lambda f, rows: rows.key_by("shop").window(HOUR, time="window_end").join("op", others(f), JOINED),
    "semi": lambda f, rows: rows.key_by("shop").join("op", others(f), within=DAY, how="semi", time="window_end"),
}  # fmt: skip


@pytest.mark.parametrize("step", PASSED)
def test_nor_may_an_operator_that_passes_rows_on_hide_it(step: str) -> None:
    """What stays as it is when a row is replaced may be counted behind it, too."""

    def declare(flow: sf.Flow, found: Any, kind: str, **options: Any) -> Stream:
        per_hour = sales(flow).key_by("shop").window(HOUR)
        totals = per_hour.aggregate("hours", TOTALS, emit="changes", total=sf.sum("amount"))
        rows = PASSED[step](flow, totals.changes_as_rows(op="change", **options))
        return rows.key_by("shop").aggregate("shops", f"shop long, found {kind}", found=found)

    with refused(sf.UsageError, "operator 'shops'", "'found' (sum)", "one more"):
        built(lambda flow: declare(flow, sf.sum("total"), "double"))
    with refused(sf.UsageError, "operator 'shops'", "'found' (max)", "has been replaced"):
        built(lambda flow: declare(flow, sf.max("total"), "double"))
    built(lambda flow: declare(flow, sf.count_distinct("window_start"), "long"))
    built(lambda flow: declare(flow, sf.sum("total"), "double", counted=True))


def test_versions_that_were_changes_are_counted_once_with_each_row_that_they_are_joined_to() -> None:
    def declare(flow: sf.Flow) -> Stream:
        known = hours(flow, uid="known").changes_as_rows(op="op").key_by("shop", order_by="window_end")
        now = sales(flow, "now").key_by("shop").join_latest("op", known, "shop long, right_amount double")
        return now.key_by("shop").aggregate("shops", "shop long, total double", total=sf.sum("right_amount"))

    built(declare)


def test_the_first_of_what_replaced_each_other_is_a_row_like_others() -> None:
    def declare(flow: sf.Flow) -> Stream:
        first = rows_of_changes(flow).deduplicate("once", by=["shop", "window_start"], time="window_end")
        return first.key_by("shop").aggregate("shops", "shop long, n long", n=sf.count())

    built(declare)


@pytest.mark.parametrize(
    ("over", "of", "taken"),
    [
        (sf.max, sf.count(), True),
        (sf.max, sf.count(where="amount > 1"), True),
        (sf.max, sf.max("amount"), True),
        (sf.max, sf.sum("amount"), False),
        (sf.max, sf.min("amount"), False),
        (sf.min, sf.min("amount"), True),
        (sf.min, sf.max("amount"), False),
        (sf.min, sf.count(), False),
    ],
)
def test_an_extreme_of_what_only_goes_its_way_is_taken(over: Any, of: Any, taken: bool) -> None:
    kind = "long" if of.kind == "count" else "double"

    def declare(flow: sf.Flow) -> Stream:
        output = f"shop long, window_start timestamp, of {kind}"
        changes = sales(flow).key_by("shop").window(HOUR).aggregate("hours", output, emit="changes", of=of)
        rows = changes.changes_as_rows(op="op")
        return rows.key_by("shop").aggregate("found", f"shop long, found {kind}", found=over("of"))

    if taken:
        built(declare)
    else:
        assert "would keep what has been replaced since" in refusal(declare)


def test_the_advice_holds() -> None:
    """Each of the three ways that the refusal names."""
    built(lambda f: sales(f).key_by("shop").aggregate("shops", PerShop, amount=sf.sum("amount")))
    built(lambda f: hours(f, "final").key_by("shop").aggregate("shops", PerShop, amount=sf.sum("amount")))
    built(
        lambda f: (
            rows_of_changes(f, counted=True).key_by("shop").aggregate("n", "shop long, n long", n=sf.count())
        )
    )


def test_windows_are_a_version_to_join_when_it_shows_which_is_newer() -> None:
    def joined(flow: sf.Flow, **key: Any) -> Stream:
        windows = hours(flow, "final").key_by("shop", **key)
        return (
            sales(flow, "now")
            .key_by("shop")
            .join_latest("known", windows, "shop long, window_end timestamp", how="inner")
        )

    assert refusal(joined) == (
        "operator 'known': which of the windows of operator 'hours' is newer does not show: say key_by(..., order_by=...), such as "
        "order_by='window_end'"
    )
    built(lambda f: joined(f, order_by="window_end"))


def newest(flow: sf.Flow, way: str, rows: Stream, **key: Any) -> Stream:
    keyed = rows.key_by("shop", **key)
    if way == "latest":
        return keyed.latest("known").changes_as_rows(op="again")
    return sales(flow, "now").key_by("shop").join_latest("known", keyed, "shop long, right_amount double")


@pytest.mark.parametrize("way", ["latest", "join_latest"])
def test_rows_that_have_lost_their_event_time_are_ordered_by_a_column_of_theirs(way: str) -> None:
    def declare(flow: sf.Flow, **key: Any) -> Stream:
        sums = sales(flow).key_by("shop").aggregate(
            "sums", "shop long, amount double, n long", amount=sf.sum("amount"), n=sf.count()
        )  # fmt: skip
        return newest(flow, way, sums.changes_as_rows(op="op"), **key)

    with refused(
        sf.UsageError, "operator 'known'", "(ts)", "key_by(..., order_by=...)", "shop, amount, n, op"
    ):
        built(declare)
    built(partial(declare, order_by="n"))


@pytest.mark.parametrize("way", ["latest", "join_latest"])
def test_so_are_rows_that_have_several_event_times(way: str) -> None:
    def declare(flow: sf.Flow, **key: Any) -> Stream:
        columns = "shop long, amount double, ts timestamp, at timestamp"
        more, less = (
            flow.source(uid, sf.delta(f"/{uid}"), columns, event_time=time, watermark="1 minute")
            for uid, time in (("more", "ts"), ("less", "at"))
        )
        return newest(flow, way, more.union(less), **key)

    with refused(sf.UsageError, "operator 'known'", "(at, ts)", "key_by(..., order_by=...)"):
        built(declare)
    built(partial(declare, order_by="ts"))


@pytest.mark.parametrize(("late", "lateness", "warned"), [(True, "2 hours", True), (False, "2 hours", False), (True, "0 seconds", False)])  # fmt: skip
def test_a_lateness_that_no_row_can_use_is_warned_of(late: bool, lateness: str, warned: bool) -> None:
    def declare(flow: sf.Flow) -> Stream:
        side = sf.output("late", Sale)
        rows = sales(flow, late=side) if late else sales(flow)
        if late:
            rows.side(side).collect("too-late", sf.memory("late"))
        per_hour = rows.transform(lambda frame: frame, Sale).key_by("shop").window(HOUR, lateness=lateness)
        return per_hour.aggregate("hours", PerHour, amount=sf.sum("amount"))

    warnings = compare(built(declare), "chain", None).warnings
    expected = (
        "operator 'hours' has lateness='2 hours', but source 'in' splits off its late rows (late=) before, so that none can come to "
        "it: leave late= of the source out, and read .side('late') of the operator"
    )
    assert (expected in warnings) is warned


@pytest.mark.parametrize(("lateness", "warned"), [("2 hours", True), ("0 seconds", False)])
def test_a_lateness_behind_a_deduplicate_is_warned_of(lateness: str, warned: bool) -> None:
    def declare(flow: sf.Flow) -> Stream:
        rows = sales(flow).deduplicate("once", by="shop", within="1 day")
        per_hour = rows.key_by("shop").window(HOUR, lateness=lateness)
        return per_hour.aggregate("hours", PerHour, amount=sf.sum("amount"))

    warnings = compare(built(declare), "chain", None).warnings
    expected = (
        "operator 'hours' has lateness='2 hours', but operator 'once' takes out late rows before, so that none can come to it and "
        "its rows only come later: leave lateness= out"
    )
    assert (expected in warnings) is warned


@pytest.mark.parametrize(("lateness", "warned"), [("2 hours", True), ("0 seconds", False)])
def test_so_is_a_lateness_behind_a_window(lateness: str, warned: bool) -> None:
    def declare(flow: sf.Flow) -> Stream:
        days = (
            hours(flow, "final")
            .key_by("shop")
            .window(sf.tumbling("1 day"), time="window_start", lateness=lateness)
        )
        return days.aggregate("days", PerHour, amount=sf.sum("amount"))

    expected = (
        "operator 'days' has lateness='2 hours', but operator 'hours' takes out late rows before, so that none can come to it and "
        "its rows only come later: leave lateness= out"
    )
    assert (expected in compare(built(declare), "chain", None).warnings) is warned


MISPLACED: list[tuple[Callable[[sf.Flow], Any], str]] = [
    (lambda f: sales(f).key_by("shop").deduplicate("once", by="shop"), "deduplicate is a step of a stream, and this is a keyed stream: ask it before .key_by()"),
    (lambda f: sales(f).aggregate("sum", PerShop), "aggregate is a step of a keyed stream, and this is a stream: ask it after .key_by(...)"),
    (lambda f: sales(f).key_by("shop").window(HOUR).top("best", 3, by="amount"), "top is a step of a keyed stream, and this is a windowed stream: ask it after .key_by(...)"),
    (lambda f: sales(f).key_by("shop").group_by("shop"), "a keyed stream has no 'group_by': that is .key_by('column'), asked before .key_by()"),
    (lambda f: sales(f).where("amount > 1"), "a stream has no 'where': that is .transform(lambda rows: ...), where `rows` is a DataFrame"),
    (lambda f: sales(f).withWatermark("ts", "1 hour"), "a stream has no 'withWatermark': that is flow.source(..., event_time='column', watermark='10 minutes')"),
    (lambda f: sales(f).dropDuplicates("shop"), "a stream has no 'dropDuplicates': that is .deduplicate('uid', by='column', within='1 day')"),
    (lambda f: sales(f).writeStream, "a stream has no 'writeStream': that is .append('uid', sf.delta(path)) or another sink"),
    (lambda f: sales(f).key_by("shop").agg("amount"), "a keyed stream has no 'agg': that is .aggregate('uid', Output, total=sf.sum('column'))"),
    (lambda f: sales(f).transformWithState, "a stream has no 'transformWithState': that is .key_by('column').process('uid', KeyedProcessClass)"),
    (lambda f: sales(f).no_such_step, "a stream has no 'no_such_step'"),
    (lambda f: sales(f).dedupliacte("once", by="shop"), "a stream has no 'dedupliacte': did you mean deduplicate?"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "message"), MISPLACED)
def test_a_step_of_another_kind_of_stream_is_told_where_it_belongs(
    ask: Callable[[sf.Flow], Any], message: str
) -> None:
    assert refusal(ask) == message


def test_every_kind_of_stream_knows_the_steps_of_the_others() -> None:
    for cls in (Stream, KeyedStream, WindowedStream, ConnectedStreams):
        assert issubclass(cls, Steps)
        assert not hasattr(object.__new__(cls), "no_such_step")


ASKED = [
    ({"emit": "changes"}, "operator 'sum' has no option emit: a running aggregate puts out a row per key and batch; emit= is of .window"),
    ({"lateness": "1 hour"}, "operator 'sum' has no option lateness: give it to .window(..., lateness=)"),
    ({"order_by": "ts"}, "operator 'sum' has no option order_by: give it to .key_by(..., order_by=)"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), ASKED)
def test_an_option_of_another_step_is_no_aggregate(options: dict[str, Any], message: str) -> None:
    said = refusal(
        lambda f: sales(f).key_by("shop").aggregate("sum", PerShop, amount=sf.sum("amount"), **options)
    )
    assert said.startswith(message)


def test_dead_letters_of_an_aggregate_are_told_what_to_do_instead() -> None:
    assert refusal(
        lambda f: sales(f).key_by("shop").aggregate("sum", PerShop, amount=sf.sum("amount")).dead_letters
    ) == ("operator 'sum' has no side output 'dead_letters': give it on_error='dead_letter'")


class Deaf(sf.KeyedProcess[int, Sale, PerShop]):
    rates = sf.BroadcastState(str, float)

    def process(self, key: int, rows: Iterator[Sale], ctx: sf.Context) -> Iterator[PerShop]:
        yield PerShop(key, sum(row.amount for row in rows))


class Listening(Deaf):
    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        pass


def test_rows_that_are_broadcast_to_a_class_that_does_not_read_them_are_refused() -> None:
    def declare(process: type[Deaf]) -> Callable[[sf.Flow], Stream]:
        return lambda f: (
            sales(f).key_by("shop").process("op", process, broadcast={"rates": sales(f, "rates")})
        )

    assert refusal(declare(Deaf)) == (
        "operator 'op': Deaf has no process_broadcast, so that nothing would read the rows of broadcast=['rates']: define "
        "process_broadcast(self, name, rows, ctx), or leave broadcast= out"
    )
    built(declare(Listening))


OTHERS = [
    (
        "shop long, amount long, ts timestamp",
        (
            "union: transform-2 and source 'in': column 'amount' is a double in source 'in' and a bigint in transform-2: bring both to the "
            "same columns with transform(..., type=) before"
        ),
    ),
    (
        "shop long, cents double, ts timestamp",
        (
            "union: transform-2 and source 'in': source 'in' has a column 'amount', which transform-2 lacks: bring both to the same columns "
            "with transform(..., type=) before"
        ),
    ),
    (
        "shop long, amount double, ts timestamp, vat double",
        (
            "union: transform-2 and source 'in': transform-2 has a column 'vat', which source 'in' lacks: bring both to the same columns with "
            "transform(..., type=) before"
        ),
    ),
]


@pytest.mark.parametrize(("columns", "message"), OTHERS)
def test_streams_of_other_columns_are_no_union(columns: str, message: str) -> None:
    """Spark would cut an amount of the one to the type of the other."""
    assert (
        refusal(
            lambda f: sales(f).union(sales(f, "more").transform(lambda frame: frame.select("*"), columns))
        )
        == message
    )


def test_columns_in_another_order_and_unknown_ones_are_a_union() -> None:
    built(
        lambda f: sales(f).union(
            sales(f, "more").transform(
                lambda frame: frame.select("*"), "amount double, ts timestamp, shop long"
            )
        )
    )
    built(lambda f: sales(f).union(sales(f, "more").transform(lambda frame: frame.select("*"))))


@dataclass
class Counted:
    shop: int
    n: int = 7


@dataclass
class Uncounted:
    shop: int
    n: int


@dataclass
class Listed:
    shop: int
    n: int = 8


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("other", ["shop long, n long", Uncounted, Listed])
def test_a_union_has_one_default_for_the_nulls_of_a_column(other: Any, is_first: bool) -> None:
    """Where there is none, a class and a schema in words are the same rows."""

    def declare(flow: sf.Flow, one: Any, **type_of_other: Any) -> Stream:
        more = flow.source("more", sf.delta("/more"), other).transform(lambda frame: frame, **type_of_other)
        return united(flow.source("in", sf.delta("/in"), one), more, is_first)

    with refused(sf.UsageError, "union", "'n'", "the default 7 in source 'in'", "transform(..., type=)"):
        built(lambda flow: declare(flow, Counted, type=other))
    built(lambda flow: declare(flow, Counted, type=Counted))
    built(lambda flow: declare(flow, Listed if other is Listed else Uncounted, type=other))


class Reminds(sf.KeyedProcess[int, Sale, Sale]):
    due = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Sale], ctx: sf.Context) -> None:
        for row in rows:
            self.due.set(row.ts)

    @due.fires
    def remind(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Sale]:
        yield Sale(key, 1.0, at)


class Passes(sf.KeyedProcess[int, Sale, Sale]):
    due = sf.Timer("processing")

    def process(self, key: int, rows: Iterator[Sale], ctx: sf.Context) -> Iterator[Sale]:
        yield from rows

    @due.fires
    def remind(self, key: int, at: datetime, ctx: sf.Context) -> None:
        pass


@pytest.mark.parametrize(("process", "waits"), [(Reminds, True), (Passes, False)])
def test_what_event_timers_put_out_comes_when_the_watermark_has_reached_it(
    process: type, waits: bool
) -> None:
    flow = built(
        lambda f: (
            sales(f)
            .key_by("shop")
            .process("op", process)
            .key_by("shop")
            .window(HOUR, time="ts")
            .aggregate("hours", PerHour, amount=sf.sum("amount"))
        )
    )
    assert {node.uid: comes_when_reached(node) for node in flow.operators} == {"op": False, "hours": waits}


@pytest.mark.parametrize(("on_due", "waits"), [(lambda state, ctx: None, True), (None, False)])
def test_so_does_what_a_columnar_operator_puts_out_in_time(on_due: Any, waits: bool) -> None:
    flow = built(
        lambda f: (
            sales(f)
            .key_by("shop")
            .process_arrow(
                "op",
                lambda table, state, ctx: None,
                state=sf.columns({"n": int}, timed=True),
                output=Sale,
                on_due=on_due,
            )
            .key_by("shop")
            .window(HOUR, time="ts")
            .aggregate("hours", PerHour, amount=sf.sum("amount"))
        )
    )
    assert {node.uid: comes_when_reached(node) for node in flow.operators} == {"op": False, "hours": waits}


def test_deduplication_is_no_such_reason() -> None:
    """Of the last rows of each key the newest is told by their time."""
    assert "keep" in inspect.signature(Deduplicate).parameters
    built(
        lambda f: (
            sales(f)
            .deduplicate("once", by="shop", within="1 day", keep="last")
            .key_by("shop")
            .latest("newest")
        )
    )
