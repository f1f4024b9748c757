from __future__ import annotations

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.observe.timelines import audit, graph, spans


def line(
    slot: int, based_on: int | None, kind: str = "checkpoint", timeline: int = 1, **more: str
) -> HistoryLine:
    return HistoryLine(
        id=slot,
        kind=kind,
        status=more.pop("status", "COMPLETED"),
        based_on=based_on,
        timeline=timeline,
        **more,
    )


REWOUND = [
    line(1, None),
    line(2, 1),
    line(3, 2),
    line(4, 3),
    line(5, 4, "fence"),
    line(6, 2, "restore", 2, origin="checkpoint:2", user="ana", note="bad prices"),
    line(7, 6, timeline=2),
    line(8, 7, timeline=2),
]


def test_a_restore_is_a_branch_and_the_abandoned_timeline_stays_visible() -> None:
    drawn = [row.split("  ")[0].rstrip() + " " + row.split()[-0] for row in graph(REWOUND, {}, 8)]
    shapes = [row.split("  ")[0] for row in graph(REWOUND, {}, 8)]
    assert shapes == ["*", "*", "*", "| *", "| /", "*", "*"], drawn


def test_rows_name_what_people_look_for() -> None:
    text = "\n".join(graph(REWOUND, {"v1": 3}, 8))
    assert "8 (head)" in text
    assert "6 restore from checkpoint:2" in text
    assert "by ana: bad prices" in text
    assert "3 (tag v1)" in text
    assert "fence" not in text


def test_plain_checkpoints_in_a_row_are_one_line_but_never_across_a_branch_or_a_tag() -> None:
    long = [line(1, None), *(line(n, n - 1) for n in range(2, 41))]
    assert [(s.newest, s.oldest) for s in spans(long, {"v1": 20}, 40)] == [
        (40, 40), (39, 21), (20, 20), (19, 1),
    ]  # fmt: skip
    assert len(graph(long, {"v1": 20}, 40)) == 4


def test_records_that_were_collected_without_a_trace_cut_the_graph_and_nothing_breaks() -> None:
    assert [row[0] for row in graph([line(9, 8), line(10, 9)], {}, 10)] == ["*", "*"]
    assert [s.newest for s in spans([line(9, 8), line(10, 9)], {}, 10)] == [10, 9]
    assert graph([], {}, None) == []


def test_the_audit_trail_holds_what_people_did_newest_first() -> None:
    lines = [*REWOUND, line(9, 8, status="ABANDONED"), line(10, 9, "rescale")]
    assert [entry.id for entry in audit(lines)] == [10, 9, 6]
