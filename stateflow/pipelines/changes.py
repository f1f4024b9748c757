"""Streams whose rows replace each other: what may follow them, and making rows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.code.source_text import shown_filter
from stateflow.pipelines.graph import (
    FormerChanges,
    Graph,
    KeyedNode,
    Node,
    NodeRows,
    SinkNode,
    TransformNode,
    UnionNode,
)
from stateflow.pipelines.ready.aggregates import Aggregate, condition_of_rows
from stateflow.pipelines.ready.enrichment import Enrich
from stateflow.pipelines.ready.joined_columns import KEY, LEFT, RIGHT
from stateflow.pipelines.ready.joins import AsofJoin, JoinOperator, LatestJoin
from stateflow.pipelines.ready.operators import (
    WINDOW_END,
    WINDOW_START,
    Deduplicate,
    WindowAggregate,
    bounds_that_tell,
)
from stateflow.pipelines.rows.row_type import RowType

OPERATION, UPSERT, DELETE = "_op", "upsert", "delete"
"""The column that says what a change is, in streams that also delete, and its two values."""


def refuse_changes(step: str, changes: tuple[str, ...] | None, step_before: str) -> None:
    """Refuses a step that takes each row for a new one."""
    if changes is not None:
        keys = f" by {', '.join(changes)}" if changes else ""
        raise UsageError(
            f"{step}: the rows of {step_before} replace each other{keys}: take them with .upsert(), or make them rows with "
            ".changes_as_rows(op='op')"
        )


def refuse_mixed(operations: set[str], step_before: str) -> None:
    """Refuses a union of streams whose rows mean different things."""
    if len(operations) > 1:
        raise UsageError(
            f"union: of the streams beside {step_before} some delete and others do not: make rows of each with "
            ".changes_as_rows(op='op') first"
        )


def changes_of_all(streams: Sequence[NodeRows]) -> tuple[str, ...] | None:
    """The columns by which the rows of a union replace each other; refuses streams that do so by different ones."""
    changing = [(each, each.changes) for each in streams if each.changes is not None]
    for other, keys in changing[1:]:
        one, own = changing[0]
        if set(keys) != set(own or ()):
            raise UsageError(
                f"union: the rows of {one.node.named} replace each other by {', '.join(own or ())}, and those of {other.node.named} by "
                f"{', '.join(keys)}: make rows of each with .changes_as_rows(op='op') first, or .upsert() each into a table of its own"
            )
    return changing[0][1] if changing else None


def former_of_all(streams: Sequence[NodeRows]) -> FormerChanges | None:
    """What the rows of a union were as changes: of what the streams say, that which is so of all of them that were changes."""
    formers = [each.former for each in streams if each.former is not None]
    if not formers:
        return None
    first = formers[0]
    return FormerChanges(
        tuple(name for name in first.keys if all(name in each.keys for each in formers)),
        any(each.deletes for each in formers),
        {
            name: found
            for name, found in first.aggregates.items()
            if all(each.aggregates.get(name) == found for each in formers)
        },
        all(each.counted for each in formers),
        any(each.forgets for each in formers),
        first.operation if all(each.operation == first.operation for each in formers) else "",
    )


def refuse_filtered(uid: str, stream: NodeRows) -> None:
    """Whether changes can be upserted: a filter, as far as the text of a step shows one, would leave rows in the table for ever."""
    node = stream.node
    if stream.changes is None or not isinstance(node, TransformNode | UnionNode):
        return
    if isinstance(node, TransformNode) and (found := shown_filter(node.function)):
        raise UsageError(filters(node.uid, found, f"sink {uid!r}"))
    for before in node.inputs:
        refuse_filtered(uid, before)


def with_bounds(columns: Sequence[str], stream: NodeRows) -> tuple[str, ...]:
    """Columns of changes, and the bounds of windows that follow from them: rows that are alike in the first are alike in these."""
    if _bounds_that_tell(stream.node).isdisjoint(name.lower() for name in columns):
        return tuple(columns)
    bounds = (WINDOW_START, WINDOW_END)
    there = bounds if stream.rows is None else (n for n in stream.rows.names if n.lower() in bounds)
    return tuple(dict.fromkeys((*columns, *there)))


def _bounds_that_tell(node: Node) -> set[str]:
    """The bounds of which each alone tells the windows of a node's rows apart; empty where the rows are of no windows."""
    if isinstance(node, KeyedNode):
        declared = node.columnar
        return set(bounds_that_tell(declared.window)) if isinstance(declared, WindowAggregate) else set()
    return set.intersection(*(_bounds_that_tell(each.node) for each in node.inputs)) if node.inputs else set()


def refuse_other_keys(uid: str, stream: NodeRows, keys: Sequence[str]) -> None:
    """Whether changes replace each other in the table as they do in the stream, as far as its columns are known."""
    if not stream.changes or stream.rows is None:
        return
    there = {name.lower() for name in stream.rows.names}

    if not there.issuperset(name.lower() for name in (*stream.changes, *keys)):
        return

    by_keys, by_changes = (
        {name.lower() for name in with_bounds(names, stream)} for names in (keys, stream.changes)
    )
    if by_keys != by_changes:
        raise UsageError(
            f"sink {uid!r} (upsert): the rows of {stream.node.named} replace each other by {', '.join(stream.changes)}, and the table would "
            f"replace them by {', '.join(keys)}, so that it keeps or loses others: leave keys= out"
        )


def upserted_by(graph: Graph, node: Node) -> str:
    """The sink that upserts the changes that a step puts out; empty when there is none."""
    for reader, stream in graph.consumers(node):
        if stream.changes is None:
            continue
        if isinstance(reader, SinkNode) and reader.sink_kind.changes == "replace":
            return reader.named
        if isinstance(reader, TransformNode | UnionNode) and (sink := upserted_by(graph, reader)):
            return sink
    return ""


def filters(step: str, what: str, sink: str) -> str:
    """The refusal of a step that leaves out changes."""
    return (
        f"{step} leaves out rows that replace others ({what}), and {sink} would keep what they replace for ever: say which rows "
        "delete with .upsert(..., delete_when=...), or filter before the rows become changes"
    )


def refuse_stale(
    uid: str,
    former: FormerChanges | None,
    order_by: Sequence[str],
    per: str | Sequence[str],
    group: Sequence[str],
) -> None:
    """Whether rows that were changes can be ranked: a list that knows no newer row keeps the best that there ever was."""
    if former is None:
        return
    where, keys = f"operator {uid!r}", f" by {', '.join(former.keys)}" if former.keys else ""
    if former.deletes:
        raise UsageError(
            f"{where}: some of its rows say that a row is gone, and the list would rank them like others: rank the rows from which "
            "the changes come, without .changes_as_rows()"
        )
    if not former.counted and (moving := former.moving(group)):
        raise UsageError(
            f"{where}: its rows replaced each other{keys} before .changes_as_rows(), and the list would keep what has another {moving!r} since: "
            "rank the rows from which the changes come; where it stays with the row say .changes_as_rows(..., counted=True)"
        )
    if not order_by or not per:
        raise UsageError(
            f"{where}: its rows replaced each other{keys} before .changes_as_rows(), and the list would keep a value that has fallen "
            "since: say which row is newer with key_by(..., order_by=...), such as a column that counts the rows, and whose "
            "rows replace each other with per="
        )
    names = [name.removeprefix("-") for name in order_by]
    if former.forgets and (anew := next((name for name in names if name in former.aggregates), "")):
        raise UsageError(
            f"{where}: order_by says which row is newer, and {anew!r} begins anew when the ttl= of its aggregate is over, so that the list "
            "would keep the row from before: leave that ttl= out, or rank what windows put out, with .window(...).aggregate(...)"
        )
    if falls := _falls(former.aggregates, order_by):
        raise UsageError(
            f"{where}: order_by says which row is newer, and {falls!r} does not grow with every row, so that the list would keep a value "
            "that is out of date: add n=sf.count() to the aggregates, without a column or where=, and say key_by(..., order_by='n')"
        )


def _falls(aggregates: Mapping[str, Aggregate], order_by: Sequence[str]) -> str:
    """The aggregate that lets a newer row come before an older one, or at its place; empty for none."""
    ties = ""
    for name in order_by:
        found = aggregates.get(name.removeprefix("-"))
        if found == Aggregate("count") and not name.startswith("-"):
            return ""
        if found is not None and (found.kind != "max" or name.startswith("-")):
            return name
        ties = name if found is not None else ties
    return ties


_OF_KEYS = {"min", "max", "first", "count_distinct", "approximate_count_distinct"}
"""Aggregates that stay the same when a row comes again with the same value, as the columns of its key do."""
_GROWS = {"count", "count_distinct", "approximate_count_distinct", "max"}
"""Aggregates whose value never falls while rows are only added."""


def refuse_counted_again(
    uid: str,
    stream: NodeRows,
    aggregates: Mapping[str, Aggregate],
    group: Sequence[str],
    order_by: Sequence[str],
) -> None:
    """Whether rows that were changes can be aggregated: a sum would add to a value the one that replaces it, and a minimum keep it.

    `group` has the columns of the key, and the one by which windows are cut.
    """
    former, rows = stream.former, stream.rows
    if former is None or former.counted or rows is None:
        return
    keys = f" by {', '.join(former.keys)}" if former.keys else ""
    moving = former.moving(group)
    falls = _falls(former.aggregates, order_by)
    for name, aggregate in aggregates.items():
        if isinstance(aggregate, Aggregate) and (
            moving or (falls and aggregate.kind == "last") or not _holds(uid, name, aggregate, former, rows)
        ):
            kind = aggregate.kind
            outcome = "take each of them for one more"
            if moving and not former.deletes:
                outcome = f"keep what has another {moving!r} since"
            elif kind in _OF_KEYS or kind == "last":
                outcome = f"keep what {'is gone' if former.deletes else 'has been replaced'} since"
            raise UsageError(
                f"operator {uid!r}: its rows replaced each other{keys} before .changes_as_rows(), and {name!r} ({kind}) would {outcome}: "
                "aggregate the rows from which the changes come, or windows with emit='final'; to count the changes themselves say "
                ".changes_as_rows(..., counted=True)"
            )


def refuse_left_behind(uid: str, stream: NodeRows, group: Sequence[str], order_by: Sequence[str]) -> None:
    """Whether of rows that were changes the last one of each key can be kept: none of them says that a row has left for another key."""
    former = stream.former
    if former is None or former.counted:
        return
    if moving := former.moving(group):
        outcome = f"what has another {moving!r} since"
    elif falls := _falls(former.aggregates, order_by):
        outcome = f"what has been replaced by a row with a lower {falls!r}"
    else:
        return
    keys = f" by {', '.join(former.keys)}" if former.keys else ""
    raise UsageError(
        f"operator {uid!r}: its rows replaced each other{keys} before .changes_as_rows(), and .latest() would keep {outcome}: take the "
        "latest of the rows from which the changes come; for the last change of each key say .changes_as_rows(..., counted=True)"
    )


def _holds(uid: str, name: str, aggregate: Aggregate, former: FormerChanges, rows: RowType) -> bool:
    """True if an aggregate over all changes equals the aggregate over the rows that remain."""
    if former.deletes:
        return False
    # A row that fulfils a condition may be replaced by one that does not.
    if aggregate.where:
        condition = condition_of_rows(f"operator {uid!r}", name, aggregate.where, rows)
        if not former.keys_have(condition.columns()):
            return False
    if aggregate.kind == "last":
        return True
    if aggregate.kind in _OF_KEYS and former.keys_have([aggregate.column]):
        return True
    found = former.aggregates.get(aggregate.column)
    # What begins anew is less than it was.
    if found is None or former.forgets:
        return False
    return (aggregate.kind == "max" and found.kind in _GROWS) or aggregate.kind == found.kind == "min"


def passed_on(declared: Any, inputs: Sequence[NodeRows]) -> FormerChanges | None:
    """What the rows were as changes that a ready-made operator passes on: it takes nothing back of what has been replaced."""
    former = inputs[0].former
    match declared:
        case JoinOperator():
            return _of_pairs(declared, former, inputs[-1].former)
        case Deduplicate() if former is not None and declared.changes is None:
            # The first of all rows that replaced each other is one row, which nothing replaces.
            is_one = declared.within is None and former.keys_have(declared.key_columns)
            return None if is_one else replace(former, aggregates={})
        case Enrich() if former is not None:
            names = set(declared.rows.names).intersection(declared.output.names)
            return replace(former, keys=tuple(key for key in former.keys if key in names), aggregates={})
    return None


def _of_pairs(
    declared: JoinOperator, left: FormerChanges | None, right: FormerChanges | None
) -> FormerChanges | None:
    """What joined rows were: a newer row of either input makes pairs of its own. A right row that only is the version of left rows
    makes none."""
    if declared.is_of_left_alone or isinstance(declared, LatestJoin | AsofJoin):
        right = None
    both = [each for each in (left, right) if each is not None]
    if not both:
        return None
    stay = {
        *((LEFT, name) for name in (left.keys if left is not None else ())),
        *((RIGHT, name) for name in (right.keys if right is not None else ())),
    }
    # The key comes out under the left input's name.
    names = zip(declared.left.key, declared.right.key, strict=True)
    of_key = {mine for mine, theirs in names if stay.intersection({(LEFT, mine), (RIGHT, theirs)})}
    keys = tuple(
        each.field
        for each in declared.filled
        if (each.of, each.column) in stay or (each.of.endswith(KEY) and each.column in of_key)
    )
    return FormerChanges(
        keys,
        any(each.deletes for each in both),
        counted=all(each.counted for each in both),
        forgets=any(each.forgets for each in both),
    )


def operation_rows(rows: RowType, op: str, operation: str) -> RowType:
    """The rows with a column `op` that says what each change is; `operation` is the column that has it already, if any."""
    if rows.field(op) is not None and op != operation:
        raise UsageError(f"changes_as_rows: {rows.name} has a column {op!r} already: give op= another name")
    plain = replace(rows, fields=tuple(field for field in rows.fields if field.name != operation))
    return plain.with_columns(**{op: "string"})


def with_operation(op: str, operation: str, frame: Any) -> Any:
    """A DataFrame with that column as its last one."""
    names = [f"`{name}`" for name in frame.columns if name != operation]
    return frame.selectExpr(*names, f"`{operation}` as `{op}`" if operation else f"'{UPSERT}' as `{op}`")
