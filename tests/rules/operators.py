"""Rules of the operators: what a wrong result would need."""

from __future__ import annotations

from tests.rules.removal import Rule, rule

_READY, _JOINS = "operators/ready/", "operators/joins/"
_WINDOWS = "operators/test_windows_model.py"
_KEPT = "operators/test_kept_rows_model.py"
_PAIRS = "operators/test_joins_model.py::test_rows_within_bounds_among_many_late_ones"
_JOINED_WINDOWS = "operators/test_joins_model.py::test_windows_of_two_inputs_over_many_late_rows"
_VERSIONS = (
    "operators/joins/test_versions.py::test_a_row_gets_the_version_of_its_time_however_the_input_is_cut"
)
_CONDITIONS = "operators/joins/test_conditions_of_joins.py"

RULES: tuple[Rule, ...] = (
    # Time
    rule(
        "a row at the watermark is late",
        "operators/lateness.py",
        "event_time <= watermark",
        "event_time < watermark",
        "test_harness.py::test_a_row_at_or_behind_the_watermark_is_late",
    ),
    rule(
        "a late row goes to the side and into no window",
        f"{_READY}windows/late_rows.py",
        "            rows, times = rows.filter(pa.array(on_time)), times[on_time]\n",
        "",
        _WINDOWS,
    ),
    rule(
        "a row without a time goes into no window",
        f"{_READY}windows/windowed.py",
        "taken = valid & (newest_end",
        "taken = (newest_end",
        _WINDOWS,
    ),
    rule(
        "a row that is late for some of its windows goes into the others only",
        f"{_READY}windows/windowed.py",
        "_open(assigned(self._window, times), closed)",
        "assigned(self._window, times)",
        _WINDOWS,
    ),
    # Windows
    rule(
        "a window comes out once",
        f"{_READY}windows/windowed.py",
        "        windows.delete_due(ended)\n",
        "",
        _WINDOWS,
    ),
    rule(
        "a window that is out takes a change on with all that it had",
        f"{_READY}windows/windowed.py",
        '        merged = self._accumulator.merge(states["emitted"].get(keys, at=at), merged, keys)\n',
        "",
        _WINDOWS,
    ),
    rule(
        "windows that overlap close before the rows of the batch come",
        f"{_READY}windows/sliced.py",
        "        yield from self._close(states, ctx)\n        times, valid",
        "        times, valid",
        _WINDOWS,
    ),
    rule(
        "a piece of time is kept as long as an open window has it",
        f"{_READY}windows/sliced.py",
        "panes.delete_due(self._panes.done(closed))",
        "panes.delete_due(closed)",
        _WINDOWS,
    ),
    rule(
        "a session closes before the rows of the batch come",
        f"{_READY}windows/sessions.py",
        "        yield from self._close(states, ctx)\n        times, valid",
        "        times, valid",
        _WINDOWS,
    ),
    rule(
        "two sessions that become one have the rows of both",
        f"{_READY}windows/sessions.py",
        "        partials = self._accumulator.combine(partials, stored, into, owners)\n",
        "",
        _WINDOWS,
    ),
    rule(
        "a session that has become part of another one is gone",
        f"{_READY}windows/sessions.py",
        "        if gone.true_count:\n",
        "        if False:\n",
        _WINDOWS,
    ),
    rule(
        "a session that has grown ends later",
        f"{_READY}windows/session_ends.py",
        "over = pa.array(ends <= closed)",
        "over = pa.array(ends <= ends)",
        _WINDOWS,
    ),
    rule(
        "what is left of a window of a count waits for the rows that fill it",
        f"{_READY}windows/counted.py",
        "        state.put(owners.filter(still), windows.filter(still), at=FOREVER)\n",
        "",
        _WINDOWS,
    ),
    # Groups and aggregates
    rule(
        "a null does not count",
        f"{_READY}aggregates/inputs.py",
        "mask = valid if mask is None else mask & valid",
        "pass",
        _WINDOWS,
    ),
    rule(
        "a value that a key has had is counted once",
        f"{_READY}aggregates/distinct.py",
        "            put()\n",
        "            pass\n",
        "operators/ready/test_distinct_counts.py::test_running_counts_of_a_column_under_many_conditions[0]",
    ),
    rule(
        "a sum beyond 64 bits is an error",
        f"{_READY}aggregates/partials.py",
        "            raise OverflowedSum(np.flatnonzero(beyond).tolist())\n",
        "            pass\n",
        "operators/ready/test_bad_input_of_aggregates.py::test_a_sum_that_overflows_with_what_is_kept_fails",
    ),
    rule(
        "a key puts out one row per batch",
        f"{_READY}grouping/latest_rows.py",
        "            yield held.filter(pa.array(~goes_on))\n",
        "            yield held\n",
        "operators/ready/test_latest_rows.py",
    ),
    rule(
        "what drops out of a list is deleted",
        f"{_READY}top.py",
        "gone = np.flatnonzero((was >= 0) & (ranked < 0))",
        "gone = np.flatnonzero(was < -1)",
        _KEPT,
    ),
    rule(
        "a key that has come out does not come out again",
        f"{_READY}windows/deduplicating.py",
        "        yield rows.take(pa.array(best).filter(is_new))\n",
        "        yield rows.take(pa.array(best))\n",
        _KEPT,
    ),
    rule(
        "a span that another one has followed does not end the other one",
        f"{_READY}windows/deduplicating.py",
        ".fill_null(NEVER).to_numpy() == micros(entries[AT])",
        ".fill_null(NEVER).to_numpy() > NEVER",
        _KEPT,
    ),
    rule(
        "a combined row counts for the rows that it stands for",
        "operators/combined.py",
        "return int(pc.sum(rows.column(ROWS)).as_py() or 0) if is_combined(rows) else int(rows.num_rows)",
        "return int(rows.num_rows)",
        _WINDOWS,
    ),
    # Joins
    rule(
        "a null is nobody's partner",
        f"{_JOINS}arrivals.py",
        "                    has_key &= column.is_valid().to_numpy(zero_copy_only=False)\n",
        "                    pass\n",
        _PAIRS,
    ),
    rule(
        "a pair comes out once",
        f"{_JOINS}interval.py",
        "in pairs(left.of_old(), right.of_new(),",
        "in pairs(left.times(), right.of_new(),",
        "operators/joins/test_interval_join.py",
    ),
    rule(
        "a row that has had a partner does not come out alone",
        f"{_JOINS}interval.py",
        "~stay[number] & ~side.rows.matched",
        "~stay[number]",
        _PAIRS,
    ),
    rule(
        "partners that may come later find the row that waits",
        f"{_JOINS}interval.py",
        "            stays = self._due(number, side.rows.at) > watermark\n",
        "            stays = side.rows.at > watermark\n",
        _PAIRS,
    ),
    rule(
        "a pair is looked for where the earliest partner would lie",
        f"{_JOINS}interval.py",
        "(right.owners, bucket(right.rows.at - self._least)),",
        "(right.owners, bucket(right.rows.at - self._most)),",
        "operators/joins/test_interval_join.py::test_two_rows_within_the_bounds_meet_whichever_came_first_and_however_far_the_watermark_is",
    ),
    rule(
        "a version of another key is no version of a row's",
        f"{_JOINS}asof.py",
        "is_valid = versions.blocks[found] == left.owners[there]",
        "is_valid = versions.blocks[found] >= 0",
        f"{_VERSIONS}[1-left]",
    ),
    rule(
        "a version is kept as long as a row to come may have it",
        f"{_JOINS}asof.py",
        "stays = ~reached | (at == newest[owners])",
        "stays = ~reached",
        f"{_VERSIONS}[2-left]",
    ),
    rule(
        "an older row does not take the place of a newer one",
        f"{_JOINS}newest.py",
        "np.lexsort((rows.at[places], owners[places]))",
        "np.lexsort((owners[places],))",
        "operators/joins/test_versions.py::test_a_row_gets_the_version_that_is_known_when_it_comes",
    ),
    rule(
        "an answer that is kept is not asked for again",
        f"{_JOINS}enriched.py",
        "            states[ANSWERS].put(",
        "            (lambda *_: None)(",
        "operators/joins/test_enrichment.py",
    ),
    # Code of users
    rule(
        "a key that fails leaves no rows behind",
        "operators/attempt.py",
        "        del self.out[mark[0] :], changes[mark[1] :]\n",
        "",
        "test_harness.py::test_a_dead_letter_takes_back_all_that_its_key_did_and_nothing_else",
    ),
    rule(
        "a key that fails changes no state",
        "operators/attempt.py",
        "        for state in self.chunked:\n            state.discard()\n",
        "",
        "operators/test_keyed.py",
    ),
    rule(
        "a timer fires once",
        "operators/firing.py",
        "        timer.fired(at)\n        if cursor.dirty:\n",
        "        if cursor.dirty:\n",
        "operators/test_keyed.py",
    ),
    rule(
        "a timer that was moved or cleared does not fire at its old time",
        "operators/firing.py",
        "        elif not timer.is_set(at):\n",
        "        elif False:\n",
        "operators/test_timers_model.py",
        "operators/test_keyed.py",
    ),
    rule(
        "timers fire in the order of their times",
        "operators/due.py",
        "        block.sort()\n        return block\n",
        "        return block\n",
        "operators/test_keyed.py",
    ),
    rule(
        "an entry whose ttl is over is gone",
        "operators/expiry.py",
        "            found = going.take(state.expire(backend, now, share_of(entries)))\n",
        "            found = False\n",
        "operators/test_expiry.py::test_expired_entries_are_never_returned_and_leave_the_store",
    ),
    rule(
        "a number that its column cannot hold is refused",
        "operators/lossless.py",
        "        if isinstance(value, (float, Decimal, np.floating)) and value != int(value):\n",
        "        if False:\n",
        "operators/test_lossless.py",
    ),
    rule(
        "a row counts as it was when it was put out",
        "operators/output.py",
        "        self.values = self._snapshot if self._changeable else self._row\n",
        "        self.values = self._row\n",
        "operators/test_snapshots.py",
    ),
    rule(
        "a row that a test sees is as it was when it was put out",
        "operators/snapshots.py",
        "    values: Callable[[Any], Any] = staticmethod(deepcopy)\n",
        "    values: Callable[[Any], Any] = staticmethod(lambda row: row)\n",
        "operators/test_snapshots.py",
    ),
    rule(
        "a row that is emitted counts as it was",
        "operators/context.py",
        "            rows.append(taker.values(row))\n",
        "            rows.append(row)\n",
        "operators/test_snapshots.py",
    ),
    rule(
        "a window's code that fails leaves no rows behind",
        f"{_READY}windows/window_code.py",
        "                out += list(map(values, self._code.process(key, window, rows, ctx) or ()))\n",
        "                out += map(values, self._code.process(key, window, rows, ctx) or ())\n",
        "operators/test_snapshots.py",
    ),
    # where= of any operator
    rule(
        "LIKE takes an escaped sign as itself",
        "pipelines/conditions/like_patterns.py",
        "        yield escaped, False\n",
        "        yield escaped, True\n",
        "pipelines/test_like_patterns.py",
    ),
    rule(
        "a state is not found under another column of the rows",
        "compatibility/states.py",
        "        if old != new and rows.field(old) is not None:\n",
        "        if False:\n",
        "compatibility/test_ready_options.py",
    ),
    # where= of joins
    rule(
        "two rows that do not fulfil where= are no partners",
        f"{_JOINS}partners.py",
        "        if condition is None or not len(at_left):\n",
        "        if True:\n",
        f"{_CONDITIONS}::test_an_interval_join_with_a_condition",
    ),
    rule(
        "a null fulfils no condition",
        "pipelines/conditions/evaluation.py",
        "found.fill_null(False)",
        "found.fill_null(True)",
        f"{_CONDITIONS}::test_an_interval_join_with_a_condition",
    ),
    rule(
        "a row whose version does not fulfil where= has none",
        f"{_JOINS}partners.py",
        "        chosen[fulfil] = partner[fulfil]\n",
        "        chosen = partner\n",
        f"{_CONDITIONS}::test_an_as_of_join_with_a_condition_asks_it_of_the_valid_version",
        f"{_CONDITIONS}::test_a_latest_join_with_a_condition_asks_it_of_the_newest_version",
    ),
    rule(
        "a column that only where= names is kept with the rows that wait",
        "pipelines/ready/joins.py",
        "    wanted |= condition.columns_of(side) if condition is not None else set()\n",
        "",
        f"{_CONDITIONS}::test_a_run_is_given_the_columns_of_the_condition_and_keeps_them",
    ),
    rule(
        "another where= on the state of an older one is refused",
        "pipelines/ready/joins.py",
        "{WHERE: NONE if self.condition is None else self.condition.text}",
        "{}",
        "compatibility/test_ready_options.py",
    ),
    # late="strict"
    rule(
        "a strict window's row that misses one of its windows is in none",
        f"{_READY}windows/late_rows.py",
        "                on_time = on_time & ~partly\n",
        "                pass\n",
        _WINDOWS,
    ),
    rule(
        "a row that misses a part of its windows is counted",
        f"{_READY}windows/late_rows.py",
        "                self.count_partly(rows.filter(pa.array(on_time & partly)), ctx)\n",
        "                pass\n",
        _WINDOWS,
    ),
    rule(
        "a strict session takes no row before it whose own session may be out",
        f"{_READY}windows/sessions.py",
        "        if self._late.strict and bool(partly.any()):\n",
        "        if False:\n",
        _WINDOWS,
    ),
    rule(
        "a strict window join takes no row that misses one of its windows",
        f"{_JOINS}windowed.py",
        "last_end = oldest_end if declared.late == STRICT else newest_end",
        "last_end = newest_end",
        _JOINED_WINDOWS,
    ),
    rule(
        "a strict session join takes no row before a session whose own may be out",
        f"{_JOINS}in_sessions.py",
        "        if self._is_strict and any(bool(each.any()) for each in partly):\n",
        "        if False:\n",
        _JOINED_WINDOWS,
    ),
)
