"""What every sink promises, as tests: whoever writes one runs them against the real target. docs/connectors.md shows how."""

from __future__ import annotations

import math
import threading
import time
import unittest
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from stateflow.connectors import DisagreementError, FencedError, Prepared, Sink, SinkKind, StateflowError
from stateflow.format.records import encode
from stateflow.pipelines.sink_kinds import kind_of
from stateflow.spark.sinks.kinds import prepare_rewind
from stateflow.testing.accidents import Accidents, DeathError
from stateflow.testing.sink_log import SinkLog, make_sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, Any]
_WHEN = datetime(2025, 3, 1, 12, 30, 5, 123456)
ODD_VALUES: Mapping[str, tuple[Any, Any]] = {
    "tinyint": (-128, 127),
    "smallint": (-32768, 32767),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
    "float": (1.5, math.inf),
    "double": (math.nan, 5e-324),
    "boolean": (False, True),
    "string": ("", 'a,"b"\'\n\\.\\N \t{}€😀'),
    "date": (date(1900, 1, 1), date(9999, 12, 31)),
    "timestamp": (_WHEN.replace(tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
    "timestamp_ntz": (_WHEN, datetime(1969, 12, 31, 23, 59, 59, 999999)),
    "binary": (b"", b"\x00\xff\n"),
    "decimal(12,3)": (Decimal("-999999999.999"), Decimal("0.001")),
    "array<string>": ([], ["x", None, ""]),
    "struct<x: int, y: string>": ({"x": 1, "y": None}, {"x": None, "y": "{"}),
    "map<string, int>": ({}, {"k": 1, "l": None}),
    "array<timestamp>": ([], [_WHEN.replace(tzinfo=UTC), None]),
    "map<string, timestamp_ntz>": ({}, {"k": _WHEN, "l": None}),
    "struct<at: timestamp, day: date, sum: decimal(12,3), raw: binary, part: struct<at: timestamp_ntz>>": (
        {
            "at": _WHEN.replace(tzinfo=UTC),
            "day": date(1900, 1, 1),
            "sum": Decimal("0.001"),
            "raw": b"\x00\xff\n",
            "part": {"at": _WHEN},
        },
        {"at": None, "day": None, "sum": None, "raw": None, "part": None},
    ),
}
"""By type, two values that are seldom thought of. A row of nulls comes with them."""

_bases = count(1000, 1000)
_Test = TypeVar("_Test", bound=Callable[..., None])


def promise(test: _Test) -> _Test:
    """A test that says what was promised when it fails: its own first lines."""

    @wraps(test)
    def promised(self: Any, tmp_path: Path) -> None:
        try:
            test(self, tmp_path)
        except unittest.SkipTest:
            raise
        except (Exception, DeathError) as error:
            said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            promise = " ".join((test.__doc__ or "").split())
            raise AssertionError(f"{test.__name__}: {said}\nPromised is: {promise}") from error

    return promised  # type: ignore[return-value]


class SinkConformance:
    """The promises of `Sink`, each as a test of pytest, against a real target.

    A subclass whose name begins with `Test` says what a pipeline would write to (`target`), and how to read it (`rows`). Fixtures
    come in as an attribute that an `autouse` fixture of the class sets.
    """

    mode: str = "append"
    """The method of a stream that takes the target: append, upsert, for_each_batch is `function`, collect."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Options of that method beside `keys`, `order_by` and `delete_when`, which the tests give."""
    types: ClassVar[Sequence[str]] = tuple(ODD_VALUES)
    """The types of columns that the target holds without loss."""
    secrets: ClassVar[Sequence[str]] = ()
    """Texts that no record may have, such as the password of the connection."""
    failure: type[Exception] = ConnectionError
    """What the client of the target raises when a call of it fails."""
    ordered: bool = False
    """Whether `rows` has them in the order in which slots were committed."""
    every: int = 1
    """At every how many lines of `commit` there is an accident: more than 1 only where each takes long, for a line in between may be the
    wrong one."""
    any_columns: bool = False
    """Whether the target takes rows of any columns, side by side."""
    knows_records: bool = True
    """Whether the target keeps which record took its last slot. Without it rows are doubled or lost when checkpoints are put back from a
    copy, and nobody hears of it."""
    makes_target: bool = True
    """Whether `open` makes a target that is missing."""
    lag: float = 0.0
    """Seconds after which readers see at the latest what `commit` has put in. Only for targets that answer before: Kafka shows a
    transaction to readers a moment after it has said that it is committed."""

    def target(self, folder: Path, name: str) -> Any:
        """What a pipeline writes to, with this name; `folder` is of the test alone. The rows that it has already, those of an earlier
        test, are left alone."""
        raise NotImplementedError

    def rows(self, target: Any) -> Iterable[Row]:
        """All rows that a reader of the target sees now."""
        raise NotImplementedError

    def code(self, sink: Sink) -> Sequence[str]:
        """Where accidents happen: how the names of the files begin that have the sink's own code. By default those of its package."""
        import sys

        module = sys.modules[type(sink).__module__]
        file = Path(module.__file__ or "")
        return [f"{file.parent}/" if module.__package__ else str(file)]

    def break_connection(self) -> None:
        """Breaks the connections between sink and target from outside, as a server that is restarted does. The next call succeeds again."""

    def spark(self) -> SparkSession:
        from stateflow.spark.session.build import build_session

        return build_session("tests of a sink", master="local[2]")

    # --- when rows are seen

    @promise
    def test_rows_are_seen_when_their_record_is_committed_and_not_before(self, tmp_path: Path) -> None:
        """prepare() makes nothing visible, for its record may never be decided; commit() makes all of it visible, by the record alone."""
        life = _Life(self, tmp_path)
        for _ in range(2):
            prepared, after = life.prepare()
            life.expect(life.model, "before its record is committed")
            outcome = life.log.commit(prepared)
            life.expect(after, "after the commit")
            require(outcome == "committed", f"commit() says {outcome!r} of rows that it committed")
            life.model = after

    @promise
    def test_a_batch_that_fails_before_its_record_leaves_nothing(self, tmp_path: Path) -> None:
        """What a run prepared for a slot that it did not decide is never seen, though the next run prepares the same slot."""
        life = _Life(self, tmp_path)
        life.deliver()
        life.prepare()
        life.log.slot -= 1
        life.deliver()

    @promise
    def test_a_batch_without_rows_and_slots_left_out_change_nothing(self, tmp_path: Path) -> None:
        """A slot may have no rows, and the log may leave numbers out: restores and fences take some."""
        life = _Life(self, tmp_path)
        life.deliver(rows=False)
        life.log.slot += 3
        life.deliver()
        life.deliver(rows=False)
        life.log.slot += 1
        life.deliver()

    # --- a slot once

    @promise
    def test_a_record_that_is_committed_again_is_in_once(self, tmp_path: Path) -> None:
        """Whoever finds a decided record commits it, so the same record is committed again at any time: keep the slot in the transaction
        that writes the rows, and do nothing if it is there."""
        life = _Life(self, tmp_path)
        for _ in range(2):
            prepared = life.deliver()
            for _ in range(2):
                outcome = life.log.commit(prepared)
                life.expect(life.model, "after the second commit of one record")
            known = outcome == "already" or life.kind.calls_function
            require(known, f"commit() says {outcome!r} of a record that was in")

    @promise
    def test_of_several_who_commit_a_record_at_once_one_does(self, tmp_path: Path) -> None:
        """Two runs may both believe to be the newest, and commit one record in the same moment: the target has to choose, by a lock or a
        conflict. The other one says "already", or fails and is called again."""
        life = _Life(self, tmp_path)
        for _ in range(2):
            prepared, after = life.prepare()
            threads = [threading.Thread(target=life.try_to_commit, args=(prepared,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
                require(not thread.is_alive(), "a commit beside another one hangs")
            life.log.commit(prepared)
            life.expect(after, "after four commits at once")
            life.model = after

    @promise
    def test_a_run_that_was_replaced_writes_nothing(self, tmp_path: Path) -> None:
        """still_owner() raises FencedError in a run that was replaced: let it through, and write nothing before or after. A run that
        slept may come with an older slot: the target has a newer one by then, and nothing of the old may be written again. So ask before
        you refuse a record: for this run target and log do not disagree."""
        life = _Life(self, tmp_path)
        old = life.deliver()
        life.deliver()
        life.try_to_commit(old, life.log.slot - 1)
        life.expect(life.model, "after a late commit of an older slot")
        life.log.still_owner = _Replaced(2)  # the library has asked once before the sink is called
        with suppress(FencedError):
            life.log.commit(old, life.log.slot - 1)
        life.expect(life.model, "after a late commit by a run that hears meanwhile that it was replaced")
        prepared, after = life.prepare()
        for number in range(1, 20):
            asked = life.log.still_owner = _Replaced(number)
            try:
                life.log.commit(prepared)
            except FencedError:
                life.expect(life.model, f"after the run heard at question {number} that it was replaced")
            else:
                require(asked.times < number, "commit() went on though still_owner() had raised FencedError")
                break
        life.expect(after, "after the newest run's commit")

    @promise
    def test_another_job_has_slots_of_its_own(self, tmp_path: Path) -> None:
        """A job that is made again, also under its old name, has another UUID and begins at slot 1: what the target keeps of slots is by
        `at.job` and `at.sink`."""
        life = _Life(self, tmp_path)
        life.deliver()
        life.log.functions = life.functions("more")
        for other in (replace(life.log, job=str(uuid.uuid4())), replace(life.log, sink="more")):
            life.log = replace(other, slot=0, last=None)
            life.base = next(_bases)
            life.deliver()

    # --- accidents

    @promise
    def test_an_accident_in_prepare_leaves_nothing_to_be_seen(self, tmp_path: Path) -> None:
        """A process may die at any line of prepare(): nothing is visible, and the next run can prepare the slot."""
        life = _Life(self, tmp_path)
        life.deliver()
        accidents = Accidents(self.code(life.sink), _die, every=3)
        while True:
            life.log.slot = 1
            with suppress(DeathError), accidents:
                prepared, after = life.prepare()
            life.expect(life.model, f"after an accident at {accidents.at}")
            if not accidents.at:
                break
        life.log.commit(prepared)
        life.expect(after, "after the commit")

    @promise
    def test_a_death_at_any_line_of_commit_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
        """A process may die at any line of commit(), and the next one commits the record again: the rows of a slot and the slot itself
        become visible in one step."""
        self._enumerate(_Life(self, tmp_path), _die)

    @promise
    def test_an_error_at_any_line_of_commit_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
        """A call of the target's client may fail at any line of commit(): raise, so that the run ends and the next one tries again; or
        try again yourself. A commit() that returns has its rows in."""

        def fail() -> None:
            raise self.failure("the connection is lost")

        self._enumerate(_Life(self, tmp_path), fail)

    @promise
    def test_a_connection_that_breaks_at_any_line_of_commit_loses_and_doubles_nothing(
        self, tmp_path: Path
    ) -> None:
        """The server may go away at any line of commit(), also after it has carried the transaction out and before it says so."""
        breaks = type(self).break_connection is not SinkConformance.break_connection
        self._skip_unless(breaks, "the class has no break_connection()")
        self._enumerate(_Life(self, tmp_path), self.break_connection, anew=True)

    def _enumerate(self, life: _Life, act: Callable[[], None], anew: bool = False) -> None:
        """`anew`: a commit that gets over an accident has its record in, so that the next one needs another record."""
        for _ in range(1 if anew else 2):  # the first slot of a sink makes what later ones find
            accidents = Accidents(self.code(life.sink), act, self.every)
            while True:
                prepared, after = life.prepare()
                life.survive(accidents, lambda prepared=prepared: life.log.commit(prepared), after, anew)  # type: ignore[misc]
                if not accidents.at:
                    break

    # --- logs and targets of another time

    @promise
    def test_what_a_copy_of_the_log_committed_is_not_taken_for_this_record(self, tmp_path: Path) -> None:
        """Checkpoints that were put back from a copy decide another record for a slot that the target has: keep `at.record`, or
        `at.mark`, with the slot, and raise DisagreementError for a slot of another record: before the decision, where the target can be asked."""
        self._skip_unless(self.knows_records, "its target keeps no records (knows_records)")
        life = _Life(self, tmp_path)
        life.deliver()
        copy = replace(life.log, writer="copy")
        mine, _ = life.prepare()
        original, life.log = life.log, copy
        life.deliver()
        life.log = original
        life.refused("a record whose slot the target has of a copy", lambda: life.log.commit(mine))
        life.log.slot -= 1
        attempt = life.prepare if life.kind.tells_slot else life.deliver
        life.refused("a slot that the target has of a copy", attempt)
        life.log = copy
        life.deliver()
        copy.slot, copy.last = 1, 1
        attempt = life.prepare if life.kind.tells_slot else life.deliver
        life.refused("checkpoints that were put back, with the target two slots ahead", attempt)

    @promise
    def test_a_target_that_lost_slots_is_refused(self, tmp_path: Path) -> None:
        """The log says which slot was last committed (`prev`). If the target says another one, it was put back or exchanged: raise
        DisagreementError (`at.refuse_disagreement`) in prepare(), so that nobody goes on over a gap: a record that is decided and
        cannot be committed stops the job until somebody gives its rows up."""
        self._skip_unless(self._kind().tells_slot, "its target cannot be asked for its slot (tells_slot)")
        life = _Life(self, tmp_path)
        life.deliver()
        life.log.slot = life.log.last = 4
        life.refused("a log that has committed slot 4, with slot 1 in the target", life.prepare)

    @promise
    def test_a_target_that_is_gone_is_not_made_anew(self, tmp_path: Path) -> None:
        """A target that is missing, and had rows by the log, was dropped or moved. An empty one in its place would look to readers as if there
        had been no rows: let open() call `refuse_gone` before it makes one."""
        self._skip_unless(self.makes_target, "its sink makes no target (makes_target)")
        life = _Life(self, tmp_path)
        life.target = self.target(tmp_path, "gone")
        sink = life.declared(life.columns)
        sink.last_commit = life.log.at(1)
        with suppress(DisagreementError):
            life.opened(sink, life.columns)
            raise AssertionError("open() took a missing target that had slot 1 by the log")

    @promise
    def test_an_abandoned_slot_may_have_arrived_or_not(self, tmp_path: Path) -> None:
        """After `stateflow abandon` a run that was slow may deliver the abandoned slot all the same: slots in `at.late` are as right as
        `prev`, and none of them has to be there."""
        life = _Life(self, tmp_path)
        life.deliver()
        for arrives in (True, False):
            prev = life.log.last
            given_up, after = life.prepare()
            if arrives:
                life.log.commit(given_up)
                life.model = after
            life.log.last, life.log.late = prev, (life.log.slot,)
            life.deliver()
            life.log.late = ()

    @promise
    def test_the_target_says_which_slot_it_has(self, tmp_path: Path) -> None:
        """last_slot() is how `stateflow abandon` learns whether a record is in: the last committed slot of this job's sink, or None."""
        self._skip_unless(self._kind().tells_slot, "its target cannot be asked for its slot (tells_slot)")
        life = _Life(self, tmp_path)
        for expected in (None, 1):
            prepared, after = life.prepare()
            found = type(life.sink).last_slot(life.log.spark, prepared, life.log.at())
            require(found == expected, f"last_slot() says {found}, and {expected} was committed last")
            life.log.commit(prepared)
            life.model = after

    @promise
    def test_the_target_says_whose_rows_it_has(self, tmp_path: Path) -> None:
        """Two jobs that write to one target double its rows, and only the target knows of both: let `writers` name every sink that it has
        rows of. A target that keeps no such names cannot tell, and leaves `writers` out."""
        life, spark = _Life(self, tmp_path), self.spark()
        self._skip_unless(type(life.sink).writers is not Sink.writers, "the sink does not tell (writers)")
        at = life.log.at()
        require(at.app_id not in life.sink.writers(spark), "writers() names a sink before it has rows there")
        life.deliver()
        named = life.sink.writers(spark)
        require(at.app_id in named, f"writers() is {named} after rows of {at.app_id}")
        require(named[at.app_id] in ("", at.job_name), f"writers() calls the job {named[at.app_id]!r}")

    @promise
    def test_the_output_goes_back_to_an_older_slot_or_says_that_it_cannot(self, tmp_path: Path) -> None:
        """`stateflow restore --rewind-sinks`: a kind that says `rewound_as` takes its target back, in a record of its own that is
        committed as any other; every other kind refuses before the decision, and leaves the target as it is. A target that has another slot
        than the log is refused, too. What was taken back can be wanted again: it comes back whole, or is refused."""
        life = _Life(self, tmp_path)
        start = life.model
        life.deliver()
        first, at_first = life.log.slot, life.model
        life.deliver()
        newest = life.deliver()
        last, at_last = life.log.slot, life.model

        def rewound(to: int | None) -> Prepared:
            life.log.slot += 1
            log = life.log
            return log.stored(prepare_rewind(log.spark, newest, log.at(), to))

        if not life.kind.rewound_as:
            life.refused("a rewind that it does not declare", lambda: rewound(first))
            return
        life.log.last = first
        life.refused("a rewind of a target that is ahead of the log", lambda: rewound(first))
        life.log.last = last
        prepared = rewound(first)
        life.expect(life.model, "before the rewind is committed")
        accidents = Accidents(self.code(life.sink), _die, self.every)
        life.survive(accidents, lambda: life.log.commit(prepared), at_first)
        life.try_to_commit(newest, last)
        life.expect(life.model, "after a late commit of what was taken back")
        forward: Prepared | None = None
        with suppress(StateflowError):
            forward = rewound(last)
        if forward is not None:
            life.log.commit(forward)
            life.model = at_last
        life.expect(life.model, "after the way to what was taken back was gone or refused")
        life.deliver()
        prepared = rewound(None)
        life.log.commit(prepared)
        life.expect(start, "after it went back to before the job's first slot")

    # --- rows and columns

    @promise
    def test_every_value_comes_back_as_it_was(self, tmp_path: Path) -> None:
        """Nulls, and the values at the ends of each type: what the target does not hold, `open()` has to refuse (leave the type out of
        `types` then)."""
        kinds = [f"c{k} {type_}" for k, type_ in enumerate(self.types)]
        life = _Life(self, tmp_path, "values", ["id long", *kinds])
        names = [f"c{k}" for k in range(len(self.types))]
        values = [[None] * len(names), *([ODD_VALUES[t][k] for t in self.types] for k in (0, 1))]
        rows = [{"id": life.base + k, **dict(zip(names, each, strict=True))} for k, each in enumerate(values)]
        life.log.commit(life.log.prepare(life.sink, life.frame(rows)))
        found = {row["id"]: row for row in self.rows(life.target)}
        wrong = [
            f"{type_}: {row[name]!r} is read as {found.get(row['id'], {}).get(name)!r}"
            for row in rows
            for name, type_ in zip(names, self.types, strict=True)
            if not _same(found.get(row["id"], {}).get(name), row[name])
        ]
        require(not wrong, "; ".join(wrong))

    @promise
    def test_columns_that_do_not_fit_are_refused_before_the_decision(self, tmp_path: Path) -> None:
        """A decided record that its target refuses stops the job: open() or prepare() raises, and names the column. That goes for one that
        the target lacks, and for one of another type."""
        self._skip_unless(not self.any_columns, "its target takes any columns (any_columns)")
        life = _Life(self, tmp_path, "columns")
        life.deliver()
        columns = life.columns
        for wrong, column in (
            ([*columns, "surplus string"], "surplus"),
            (["id string", *columns[1:]], "id"),
        ):

            def attempt(wrong: list[str] = wrong) -> None:
                other = replace(life.log)
                sink = life.made(wrong)
                row = {column.split()[0]: "x" if column.endswith(" string") else 1 for column in wrong}
                other.prepare(sink, life.frame([row], wrong))

            said = life.refused(f"the columns {', '.join(wrong)}", attempt)
            require(column in said, f"the refusal does not name the column {column!r}: {said}")

    @promise
    def test_columns_in_another_order_are_found_by_their_names(self, tmp_path: Path) -> None:
        """A later release of a pipeline may put out the same columns in another order: each value goes into the column of its name."""
        life = _Life(self, tmp_path)
        self._skip_unless(
            not life.kind.calls_function, "its function has the columns as the pipeline puts them out"
        )
        life.deliver()
        for _ in range(2):
            life.columns.reverse()
            life.sink = life.made(life.columns)
            life.deliver()

    @promise
    def test_no_record_has_a_secret(self, tmp_path: Path) -> None:
        """Records are read by everybody who may read the checkpoints, and targets stand in messages and plans: keep the name of a variable or
        of a connection, and look the secret up where the driver runs."""
        self._skip_unless(bool(self.secrets), "the class names none (secrets)")
        life = _Life(self, tmp_path)
        prepared = life.deliver()
        shown = {
            "the record": encode(life.log.recorded(prepared)).decode(),
            "the place of the target": life.kind.place(life.target),
            "its name in messages": f"{life.kind.named(life.target)} {life.target} {life.target!r}",
        }
        for secret in self.secrets:
            for what, text in shown.items():
                require(secret not in text, f"{what} has a secret")

    @promise
    def test_of_a_key_the_newest_row_stays_and_deletes_delete(self, tmp_path: Path) -> None:
        """An upsert keeps one row per key: of several in a batch the highest by `order_by`, and none if it deletes. Keys without a value, and
        a key twice without an order, are refused before the decision."""
        self._skip_unless(self._kind().changes == "replace", "it does not replace rows by key")
        life = _Life(self, tmp_path)
        for _ in range(3):
            life.deliver()
        nobody = [life.row(0) | {"id": None}]
        life.refused(
            "a key without a value", lambda: replace(life.log).prepare(life.sink, life.frame(nobody))
        )
        if "order_by" in life.kind.options:
            twice = [life.row(0), life.row(0) | {"v": "other"}]
            sink = life.made(life.columns, order_by=None)
            life.refused("a key twice", lambda: replace(life.log).prepare(sink, life.frame(twice)))

    def _kind(self) -> SinkKind:
        return kind_of(self.mode, self.target(Path(), "rows"))

    @staticmethod
    def _skip_unless(holds: bool, why: str) -> None:
        if not holds:
            raise unittest.SkipTest(why)


class _Life:
    """A target with one job that writes to it, and the rows that it should have: the model."""

    def __init__(
        self, kit: SinkConformance, folder: Path, name: str = "rows", columns: Sequence[str] = ()
    ) -> None:
        self.kit = kit
        self.target = kit.target(folder, name)
        self.kind = kind_of(kit.mode, self.target)
        self.columns = list(columns) or ["id long", "slot long", "at long", "v string", "op string"]
        self.base = next(_bases)
        self.log = SinkLog(kit.spark(), folder / "checkpoints", str(uuid.uuid4()))
        self.log.functions = self.functions(self.log.sink)
        self.sink = self.made(self.columns)
        self.model = [dict(row) for row in kit.rows(self.target)]

    def functions(self, uid: str) -> Mapping[str, Any]:
        return {uid: self.target, self.log.sink: self.target} if self.kind.calls_function else {}

    def made(self, columns: Sequence[str], **options: Any) -> Sink:
        """A sink as a flow declares it, and open for rows of these columns."""
        return self.opened(self.declared(columns, **options), columns)

    def declared(self, columns: Sequence[str], **options: Any) -> Sink:
        known = {"keys": ("id",)}
        if "op string" in columns:
            known |= {"order_by": "at", "delete_when": "op = 'd'"}  # type: ignore[dict-item]
        known = {name: value for name, value in known.items() if name in self.kind.options}
        given = {**known, **self.kit.options, **options}
        return make_sink("totals", self.kit.mode, self.target, given)

    def opened(self, sink: Sink, columns: Sequence[str]) -> Sink:
        sink.open(self.log.spark, self.log.spark.createDataFrame([], ", ".join(columns)).schema)
        return sink

    def frame(self, rows: Sequence[Row], columns: Sequence[str] = ()) -> Any:
        columns = columns or self.columns
        names = [column.split()[0] for column in columns]
        values = [tuple(row[name] for name in names) for row in rows]
        return self.log.spark.createDataFrame(values, ", ".join(columns)).coalesce(1)

    def row(self, key: int, at: int = 0, op: str = "u") -> dict[str, Any]:
        slot = self.log.slot
        return {"id": self.base + key, "slot": slot, "at": at, "v": f"{slot}, '{key}'", "op": op}

    def prepare(self, rows: bool = True) -> tuple[Prepared, list[dict[str, Any]]]:
        """The next slot's output, and the rows that the target should have once it is committed."""
        slot = self.log.slot + 1
        replaces = self.kind.changes == "replace"
        # For an upsert: a key of every slot, one of this slot, and the one of an earlier slot goes.
        self.log.slot = slot
        new = [self.row(slot * 10, 2), self.row(slot * 10 + 1, 2)]
        if replaces:
            new.append(self.row(0, 3))
            if "order_by" in self.kind.options:
                new.insert(0, self.row(0, 1) | {"v": "older"})
            if "delete_when" in self.kind.options and slot > 1:
                new.append(self.row((slot - 1) * 10, 2, "d"))
        self.log.slot = slot - 1
        new = new if rows else []
        prepared = self.log.prepare(self.sink, self.frame(new))
        after = list(self.model)
        for row in new:
            after = [each for each in after if not (replaces and each["id"] == row["id"])]
            after += [row] if row["op"] != "d" or "delete_when" not in self.kind.options else []
        return prepared, after

    def deliver(self, rows: bool = True) -> Prepared:
        prepared, after = self.prepare(rows)
        self.log.commit(prepared)
        self.expect(after, f"after slot {self.log.slot} was committed")
        self.model = after
        return prepared

    def try_to_commit(self, prepared: Prepared, slot: int | None = None) -> None:
        """A commit that may be refused."""
        last = self.log.last
        with suppress(Exception):
            self.log.commit(prepared, slot)
        self.log.last = max(last or 0, slot or self.log.slot)

    def survive(
        self, accidents: Accidents, call: Callable[[], Any], after: list[dict[str, Any]], anew: bool = False
    ) -> None:
        """Calls until there was an accident at each line, or with `anew` until a call returns; after each accident the target has all
        of the record or nothing."""
        went_in = returned = False
        while not returned or (accidents.at and not anew):
            returned = False
            try:
                with accidents:
                    call()
                returned = True
            except DeathError:
                pass
            except Exception:
                if not accidents.at:
                    raise
            went_in = went_in or returned or self.has(after)
            if not went_in and self.kit.lag and not self.has(self.model):
                went_in = self.has(after)  # it has come in since
            where = f"after an accident at {accidents.at}" if accidents.at else "after no accident"
            self.expect(after if went_in else self.model, f"{where}{', though it returned,' * returned}")
        self.model = after

    def refused(self, what: str, attempt: Callable[[], Any]) -> str:
        """What the sink says against it."""
        try:
            attempt()
        except StateflowError as error:
            self.expect(self.model, f"after it refused {what}")
            return str(error)
        raise AssertionError(f"it took {what}")

    def has(self, model: Sequence[Row]) -> bool:
        return not self._difference(model)

    def expect(self, model: Sequence[Row], when: str) -> None:
        end = time.monotonic() + self.kit.lag
        while (difference := self._difference(model)) and time.monotonic() < end:
            time.sleep(0.05)
        require(not difference, f"{when} the target {difference}")

    def _difference(self, model: Sequence[Row]) -> str:
        names = list(model[0]) if model else []
        found = [dict(row) for row in self.kit.rows(self.target)]
        rest = [_plain({name: row.get(name) for name in names or row}) for row in found]
        lacks = []
        for row in map(_plain, model):
            if row in rest:
                rest.remove(row)
            else:
                lacks.append(row)
        if lacks or rest:
            known = [row for row in rest if row in [_plain(each) for each in model]]
            more = f"has twice {known}" if known else f"has {rest}, which it should not" if rest else ""
            return " and ".join(filter(None, (f"lacks {lacks}" if lacks else "", more)))
        order = [row["slot"] for row in found if self.base <= row["id"] < self.base + 1000]
        if self.kit.ordered and order != sorted(order):
            return f"has its rows not in the order of slots, but in {order}"
        return ""


class _Replaced:
    """A run's question whether it is still the newest: at the n-th time it is not."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        if self.times == self.at:
            raise FencedError("epoch 2 has taken over")


def _die() -> None:
    raise DeathError


def require(holds: bool, why: str) -> None:
    if not holds:
        raise AssertionError(why)


def _same(found: Any, written: Any) -> bool:
    # Arrow gives maps as lists of pairs.
    pairs = isinstance(written, Mapping) and isinstance(found, list)
    return bool(_plain(dict(found) if pairs else found) == _plain(written))


def _plain(value: Any) -> Any:
    """For comparing: what readers give differently."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
