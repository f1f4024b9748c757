"""Rows with the answer for their key. An answer that state has is not asked for again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import UserCodeError, placed
from stateflow.operators.arrow_types import arrow_schema_of, wide_schema
from stateflow.operators.joins.arrivals import Produced
from stateflow.operators.joins.asked import Lookups, NoAnswer, UnreadableAnswerError, WrongAnswersError
from stateflow.operators.ready.grouping.dead_letters import Letters, dead_letter, key_of, put_out
from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.grouping.keys import grouped_by_key
from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready.enrichment import ANSWERED, ANSWERS, ASKED, Enrich, stored_answer
from stateflow.quantities import several
from stateflow.state.values.arrow.lossless import MISFITS, array_of, misfits


class Enriched(ColumnarOperator):
    """Rows with a null in their key have no answer, and nobody is asked."""

    null_keys = True

    def __init__(self, declared: Enrich) -> None:
        self.states = declared.states
        self._declared = declared
        self._lookups = Lookups(declared.asking, self._taken, diverts=declared.diverts)
        out = arrow_schema_of(declared.output)
        self._types = [out.field(field.name).type for field in declared.answered]
        self._answers = wide_schema(pa.schema([out.field(field.name) for field in declared.answered]))

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        declared = self._declared
        has_key = np.ones(rows.num_rows, dtype=bool)
        for name in declared.key_columns:
            has_key &= whole(rows[name]).is_valid().to_numpy(zero_copy_only=False)
        with_key = rows if bool(has_key.all()) else rows.filter(pa.array(has_key))
        if with_key.num_rows < rows.num_rows:
            without = rows.filter(pa.array(~has_key))
            yield self._filled(
                without, pa.table([pa.nulls(len(without), f.type) for f in self._answers], self._answers)
            )
        if not with_key.num_rows:
            return
        groups, keys = grouped_by_key(with_key, declared.key)
        known = states[ANSWERS].get(keys)
        missing = np.flatnonzero(whole(known[ANSWERED]).is_null().to_numpy(zero_copy_only=False))
        to_ask = _plain(keys.take(pa.array(missing)))
        asked = self._lookups.asked(to_ask)
        ctx.metrics.counter(ASKED).inc(len(missing))
        if asked.failures and not declared.diverts:
            raise self._error(asked.failures[min(asked.failures)])
        answered = sorted(asked.answers)
        fresh = missing[answered]
        answers = self._read(
            [to_ask[place] for place in answered], [asked.answers[place] for place in answered]
        )
        if len(fresh):
            stored = {stored_answer(name): answers[name] for name in self._answers.names}
            values = pa.table({ANSWERED: pa.array(np.ones(len(fresh), dtype=bool)), **stored})
            states[ANSWERS].put(keys.take(pa.array(fresh)), values)
        before = pa.table(
            [whole(known[stored_answer(f.name)]).cast(f.type) for f in self._answers], schema=self._answers
        )
        place = np.arange(len(keys))
        place[fresh] = len(keys) + np.arange(len(fresh))
        at = place[groups.ids]
        if asked.failures:
            gone = {int(missing[place]): failure for place, failure in asked.failures.items()}
            yield from self._letters(with_key, groups.ids, keys, gone, ctx)
            stays = ~np.isin(groups.ids, list(gone))
            with_key, at = with_key.filter(pa.array(stays)), at[stays]
        yield self._filled(with_key, pa.concat_tables([before, answers]).take(pa.array(at)))

    def _filled(self, rows: pa.Table, answers: pa.Table) -> pa.Table:
        names = self._declared.output.names
        return pa.table({n: answers[n] if n in self._answers.names else rows[n] for n in names})

    def _read(self, keys: list[Any], answers: list[Any]) -> pa.Table:
        """The fields of answers as columns. `_taken` has made the answers."""
        columns = []
        for number, (field, kind) in enumerate(zip(self._answers, self._types, strict=True)):
            values = [answer[number] for answer in answers]
            try:
                columns.append(array_of(values, kind).cast(field.type))
            except MISFITS:
                place, error = next(misfits(values, kind))
                raise UserCodeError(
                    f"operator {self._declared.uid!r}: the answer for {keys[place]!r} has {values[place]!r} as {field.name!r}, which is no "
                    f"{kind}: {error}; nothing of the batch was stored, and a run with changed code repeats it"
                ) from error
        return pa.table(columns, schema=self._answers)

    def _taken(self, key: Any, answer: Any) -> tuple[Any, ...]:
        return tuple(self._value(key, answer, name) for name in self._answers.names)

    def _value(self, key: Any, answer: Any, name: str) -> Any:
        if answer is None:
            return None
        try:
            value = answer[name] if isinstance(answer, Mapping) else getattr(answer, name)
            return bytes(value) if isinstance(value, bytearray | memoryview) else value
        except (KeyError, AttributeError) as error:
            # As None, a field that the service has renamed would be kept until its ttl is over.
            raise UnreadableAnswerError(
                f"operator {self._declared.uid!r}: the answer for {key!r} has no {name!r}; it has {_fields(answer)}: let look_up "
                "give every field of the output that the rows do not have, as None where nothing is known; nothing of the batch "
                "was stored"
            ) from error

    def _error(self, failure: NoAnswer) -> UserCodeError:
        where, count = f"operator {self._declared.uid!r}", len(failure.keys)
        keys = f"key {failure.keys[0]!r}"
        if count > 1:
            keys = f"{several(count, 'key')}, the first {failure.keys[0]!r}"
        if isinstance(failure.error, WrongAnswersError):
            return UserCodeError(
                f"{where}: no answers for {keys}: {failure.error}; nothing of the batch was stored, and a run with changed code repeats it"
            )
        times = self._declared.asking.retries + 1
        tried = f"in {several(times, 'attempt')}{', nor some of them alone' if count > 1 else ''}"
        return UserCodeError(
            f"{where} could not look up {keys}, {tried}: {placed(failure.error)}: nothing of the batch was stored; run it again when the service answers, or "
            "divert such rows with on_error='dead_letter'"
        )

    def _letters(
        self, rows: pa.Table, ids: Any, keys: pa.Table, gone: Mapping[int, NoAnswer], ctx: ColumnarContext
    ) -> Letters:
        """A dead letter for each key that could not be looked up; `gone` are their numbers, and `ids` those of the rows."""
        at = np.flatnonzero(np.isin(ids, list(gone)))
        by_key: dict[int, list[Any]] = {}
        for number, row in zip(ids[at].tolist(), rows.take(pa.array(at)).to_pylist(), strict=True):
            by_key.setdefault(number, []).append(row)
        yield from put_out(
            [
                dead_letter(
                    self._declared.uid,
                    key_of(keys, number),
                    _asked_with(failure),
                    failure.error,
                    by_key[number],
                    ctx,
                )
                for number, failure in gone.items()
            ]
        )


def _plain(keys: pa.Table) -> list[Any]:
    columns = [column.to_pylist() for column in keys.columns]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _asked_with(failure: NoAnswer) -> str:
    """The words for a key that was only asked for with others, and may be sound itself; else empty."""
    if not failure.in_a_row:
        return ""
    return f"asked for with {several(len(failure.keys) - 1, 'other key')}, as {failure.in_a_row} halves in a row had failed: "


def _fields(answer: Any) -> str:
    """The fields of an answer, for people."""
    kind: Any = type(answer)
    if isinstance(answer, Mapping):
        names = list(answer)
    else:
        names = list(getattr(kind, "_fields", ()) or getattr(kind, "__struct_fields__", ()))
        names = names or list(getattr(answer, "__dict__", ()))
    return ", ".join(sorted(map(repr, names))) or f"no field ({kind.__name__})"
