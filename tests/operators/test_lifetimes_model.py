"""Keys with a ttl: totals, last rows and versions of a join begin anew once their time is over, whatever comes between batches.

Either clock, what renews, and releases that give another ttl, take it away or bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.format.encoding import split
from stateflow.pipelines.graph import KeyedNode
from tests.operators.lives import LATER, Lives, Living, check_indexes, with_ttl
from tests.operators.plays import Play, Row, Rows, Said, model, plain, played, plays, rows_of, times
from tests.operators.ready.driving import END, Driven

ROWS = "id string, n long, ts timestamp"
SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
ROW = rows_of({"id": st.sampled_from("aabcd"), "n": st.sampled_from([None, 1, 2, 3]), "ts": st.one_of(*[times] * 9, st.none())})  # fmt: skip
KINDS = ["total", "latest", "joined"]
ENTRY = "entry"


@dataclass(frozen=True)
class Case:
    kind: str
    releases: list[Living]


@st.composite
def cases(draw: Any, kind: str) -> Case:
    releases = [draw(with_ttl(Living(time=draw(st.sampled_from(["processing", "event"])))))]
    for _ in range(draw(st.integers(0, 3))):
        releases.append(draw(with_ttl(releases[-1])))
    return Case(kind, releases)


def node_of(case: Case, number: int) -> KeyedNode:
    ttl = case.releases[number].declared_ttl

    @sf.pipeline("made")
    def made(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds").key_by("id")
        if case.kind == "total":
            rows.aggregate(
                "op", "id string, rows long, total long", rows=sf.count(), total=sf.sum("n"), ttl=ttl
            )
        elif case.kind == "latest":
            rows.latest("op", ttl=ttl)
        else:
            rights = flow.source("rights", sf.delta("/r"), ROWS, event_time="ts", watermark="0 seconds")
            output = "id string, left_n long, right_n long, right_ts timestamp"
            rows.join_latest("op", rights.key_by("id"), output, ttl=ttl)

    return made.build().operators[0]


@dataclass
class Keys(Lives):
    case: Case
    driven: Driven
    code: int = 0

    @property
    def declared(self) -> dict[str, Living]:
        return {ENTRY: self.case.releases[self.code]}

    def release(self) -> KeyedNode | None:
        if self.code + 1 == len(self.case.releases):
            return None
        self.code += 1
        self.go_on(ENTRY, self.case.releases[self.code - 1], self.case.releases[self.code])
        return node_of(self.case, self.code)

    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        self.mark, self.now, said = mark, self.driven.now, Said()
        self.expire()
        came: dict[Any, Row] = {}
        for piece in pieces:
            if self.case.kind == "joined":
                said.rows += self._joined(*piece)
                continue
            for key, rows in by_key(piece[0]).items():
                if (row := (self._total if self.case.kind == "total" else self._last)(key, rows)) is not None:
                    came[key] = row
        said.rows += came.values()
        said.kept = len(self.entries)
        return said

    def _known(self, key: str) -> Any:
        return self.see([(ENTRY, key)])[0] if (ENTRY, key) in self.entries else None

    def _total(self, key: str, rows: Rows) -> Row:
        count, total = self._known(key) or (0, None)
        numbers = [row["n"] for row in rows if row["n"] is not None]
        total = sum(numbers, total or 0) if numbers else total
        self.put((ENTRY, key), (count + len(rows), total))
        return {"id": key, "rows": count + len(rows), "total": total}

    def _last(self, key: str, rows: Rows) -> Row | None:
        """None: there is a newer one."""
        known = self._known(key)
        last = max(rows, key=newness)
        if known is not None and newness(last) <= newness(known):
            return None
        self.put((ENTRY, key), last)
        return last

    def _joined(self, lefts: Rows, rights: Rows) -> Rows:
        for key, rows in by_key(rights).items():
            self._last(key, rows)
        found = []
        for key, rows in by_key(lefts).items():
            version = self._known(key) or {"n": None, "ts": None}
            found += [
                {"id": key, "left_n": row["n"], "right_n": version["n"], "right_ts": version["ts"]}
                for row in rows
            ]
        return found


def by_key(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def newness(row: Row) -> Any:
    return [(row[name] is not None, row[name] or 0) for name in ("ts", "n")]


class KeysDriven(Driven):
    def _run(self, inputs: list[pa.Table], watermark: int | None, tables: int) -> Rows:
        newest = (plain(row["ts"]) for table in inputs for row in table.to_pylist() if row["ts"] is not None)
        self.now = max([self.now, *newest]) + (LATER if watermark == END else 0)
        return super()._run(inputs, watermark, tables)

    def entries(self) -> int:
        found = [key for _, backend, _ in self._shards for key, _ in backend.scan(b"", b"\xff" * 8)]
        [schema] = self._states.values()
        check_indexes(found, [shard for _, _, shard in self._shards], [schema], self.now, self._watermark)
        return sum(split(key).state_id == schema.id for key in found)


def check(case: Case, play: Play) -> None:
    driven = KeysDriven.of(node_of(case, 0), play.shards, backend=play.backend)
    inputs = 2 if case.kind == "joined" else 1
    played(play, driven, Keys(case, driven), [SCHEMA] * inputs, reads_sides=False)


@model(25, 3000)
@given(case=cases("total"), play=plays(ROW, releases=True))
def test_a_total_begins_anew_once_its_key_had_no_row_for_so_long(case: Case, play: Play) -> None:
    check(case, play)


@model(25, 3000)
@given(case=cases("latest"), play=plays(ROW, releases=True))
def test_a_last_row_is_forgotten_once_it_is_so_old(case: Case, play: Play) -> None:
    check(case, play)


@pytest.mark.slow
@model(25, 3000)
@given(case=cases("joined"), play=plays(ROW, ROW, releases=True))
def test_a_version_is_forgotten_once_it_is_so_old(case: Case, play: Play) -> None:
    check(case, play)
