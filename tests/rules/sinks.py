"""Rules of the sinks: what a row that is lost, comes twice or stands in a wrong table would need."""

from __future__ import annotations

from tests.rules.removal import Rule, rule

_SINKS, _COMMIT = "spark/sinks/", "spark/test_sinks_commit.py"
_DELTA = f"{_SINKS}delta_table.py"
_APPEND, _UPSERT = f"{_SINKS}delta_append.py", f"{_SINKS}delta_upsert.py"
_DRIVER, _WRITTEN = f"{_SINKS}driver_written.py", "spark/test_driver_written.py"
_RANGES, _REWIND = f"{_SINKS}key_ranges.py", f"{_SINKS}delta_rewind.py"

RULES: tuple[Rule, ...] = (
    # Once
    rule(
        "a slot that a table has is not committed again",
        f"{_SINKS}slot.py",
        "        if slot == self.slot:\n",
        "        if False:\n",
        "spark/test_sinks_decide.py::test_a_record_is_committed_after_the_one_before_it_or_an_abandoned_one_that_came_late",
    ),
    rule(
        "a table that lost or gained commits without the log is refused",
        f"{_SINKS}slot.py",
        'return "commit" if slot == self.prev or slot in self.late else "disagree"',
        'return "commit"',
        "spark/test_sinks_decide.py::test_a_record_is_committed_after_the_one_before_it_or_an_abandoned_one_that_came_late",
    ),
    rule(
        "the disagreement shows before the decision",
        f"{_SINKS}slot.py",
        '        if self.verdict(slot, None) != "commit":\n',
        "        if False:\n",
        f"{_COMMIT}::test_a_table_of_another_slot_is_refused_before_and_after_the_decision",
    ),
    rule(
        "what another copy of the log committed for a slot is not this record",
        f"{_SINKS}slot.py",
        "lacks or mark == self.mark",
        "True",
        f"{_COMMIT}::test_a_slot_that_another_record_has_taken_is_refused",
    ),
    rule(
        "a slot without the mark of its record counts for Delta's MERGE alone",
        f"{_SINKS}slot.py",
        "lacks = mark_may_lack and (mark is None or mark >> 31 != self.slot)",
        "lacks = mark is None or mark >> 31 != self.slot",
        "spark/test_sinks_decide.py::test_a_slot_is_in_by_the_mark_of_its_record",
    ),
    rule(
        "before a record is decided nobody has its slot",
        f"{_SINKS}slot.py",
        '        if self.verdict(slot, None) != "commit":\n',
        '        if self.verdict(slot, None) != "commit" and slot != self.slot:\n',
        f"{_COMMIT}::test_a_table_of_another_slot_is_refused_before_and_after_the_decision",
    ),
    rule(
        "an append and an upsert ask the table for its slot",
        _DELTA,
        '        if exactly_once and request.is_in(target, slot, mark, mark_may_lack=True):\n            return "already"\n',
        "",
        f"{_COMMIT}::test_a_slot_is_committed_once_and_with_its_number",
    ),
    rule(
        "an append leaves its slot in the table",
        _APPEND,
        "txn.commit([*actions, *marks], at.app_id",
        "txn.commit(actions, at.app_id",
        f"{_COMMIT}::test_a_slot_is_committed_once_and_with_its_number",
    ),
    rule(
        "a job that is new under an old name is another writer",
        f"{_SINKS}slot.py",
        'f"stateflow/{self.job}/',
        'f"stateflow/{self.job_name}/',
        f"{_COMMIT}::test_a_job_of_the_same_name_is_another_writer",
    ),
    rule(
        "a run that was replaced does not commit after a conflict",
        _DELTA,
        "            request.still_owner()\n            continue\n",
        "            continue\n",
        f"{_COMMIT}::test_after_a_conflict_only_the_owner_goes_on",
    ),
    rule(
        "a run that was replaced does not call the function",
        f"{_SINKS}function.py",
        "        request.still_owner()\n",
        "",
        f"{_COMMIT}::test_a_function_is_called_by_the_owner_alone",
    ),
    rule(
        "memory takes a slot once",
        f"{_SINKS}memory.py",
        "        if (at.app_id, at.slot) in batches:\n",
        "        if False:\n",
        f"{_COMMIT}::test_memory_takes_a_slot_of_a_job_once",
    ),
    # The right table and the right columns
    rule(
        "a table that was recreated gets no rows of the one before, of an append or an upsert",
        _DELTA,
        '        if shape.id != prepared.payload["table"]:\n',
        "        if False:\n",
        f"{_COMMIT}::test_a_table_that_is_another_one_now_gets_no_rows",
    ),
    rule(
        "a data file that is gone is not committed",
        _APPEND,
        "    if not recent and (missing := log.missing(adds)):\n",
        "    if missing := []:\n",
        f"{_COMMIT}::test_a_table_that_is_another_one_now_gets_no_rows",
    ),
    rule(
        "a column that was given another meaning gets no rows",
        _APPEND,
        "    if changed or list(",
        "    if list(",
        f"{_COMMIT}::test_a_column_that_means_something_else_now_gets_no_rows",
    ),
    rule(
        "a column that was given another meaning gets no rows of an upsert",
        _UPSERT,
        "    if column_marks(shape, written) != written:\n",
        "    if False:\n",
        f"{_COMMIT}::test_a_column_that_means_something_else_now_gets_no_rows",
    ),
    rule(
        "a column is told by its physical name",
        f"{_SINKS}fit.py",
        "str(field.metadata.get(PHYSICAL, field.name))\n    return",
        "field.name\n    return",
        f"{_COMMIT}::test_a_column_that_means_something_else_now_gets_no_rows",
    ),
    rule(
        "a type that could lose values does not fit",
        f"{_SINKS}fit.py",
        "        elif not _castable(field.dataType, columns[name].dataType):\n",
        "        elif False:\n",
        f"{_COMMIT}::test_rows_that_do_not_fit_a_table_are_refused",
    ),
    rule(
        "a column that must have a value is not left out",
        f"{_SINKS}fit.py",
        "        if name not in names and not field.nullable and GENERATED not in field.metadata:\n",
        "        if False:\n",
        f"{_COMMIT}::test_rows_that_do_not_fit_a_table_are_refused",
    ),
    # One row per key
    rule(
        "rows of one key without an order fail before the decision",
        f"{_SINKS}duplicates.py",
        "    if duplicate is not None:\n",
        "    if False:\n",
        f"{_COMMIT}::test_a_key_twice_without_an_order_is_refused_before_the_decision",
    ),
    rule(
        "a null in a key is refused before the decision",
        f"{_SINKS}duplicates.py",
        "    nulls = {name.lower(): count for name, count in staged.nulls.items()}\n",
        "    nulls = {}\n",
        f"{_COMMIT}::test_a_null_in_a_key_is_refused_before_the_decision",
    ),
    rule(
        "a file that has a key of the batch is written anew",
        _RANGES,
        "bool(ends[1] < key.least or key.greatest < ends[0])",
        "bool(ends[1] <= key.least or key.greatest <= ends[0])",
        "spark/test_key_ranges.py::test_a_file_may_hold_a_key_at_its_very_bounds",
    ),
    rule(
        "an instant is only known to the millisecond that Delta writes",
        _RANGES,
        " + away * room",
        "",
        "spark/test_key_ranges.py::test_a_file_may_hold_a_key_at_its_very_bounds",
    ),
    rule(
        "the bounds of a batch are known if those of each of its parts are",
        _RANGES,
        "                found[name] = None\n",
        "                found[name] = pair\n",
        "spark/test_key_ranges.py::test_bounds_that_one_batch_cannot_tell_are_not_told_for_all",
    ),
    rule(
        "columns whose order Delta writes otherwise are not compared",
        _RANGES,
        "pair is not None and kind in (_PARTITIONED if partitions else _COMPARED)",
        "pair is not None",
        "spark/test_key_ranges.py::test_columns_of_other_types_are_not_compared",
    ),
    rule(
        "what only Delta keeps of a table is left to its MERGE",
        f"{_SINKS}delta_rewrite.py",
        "        set(shape.features) <= FEATURES\n",
        "        True\n",
        f"{_COMMIT}::test_what_only_delta_keeps_is_left_to_its_merge",
    ),
    rule(
        "a column that Delta fills is left to its MERGE",
        f"{_SINKS}delta_rewrite.py",
        "            and set(field.metadata) <= _PLAIN\n",
        "",
        f"{_COMMIT}::test_what_only_delta_keeps_is_left_to_its_merge",
    ),
    rule(
        "rows that a deletion vector hides do not come back by an upsert",
        f"{_SINKS}delta_rewrite.py",
        'if files is None or any("deletionVector" in file.add for file in files):',
        "if files is None:",
        f"{_COMMIT}::test_a_file_with_a_deletion_vector_is_left_to_deltas_merge",
    ),
    # A file that the driver writes
    rule(
        "a file of the driver's makes Spark skip no row whose number is NaN",
        _DRIVER,
        "if not (of.is_floating(f.type) or of.is_nested(f.type))]",
        "]",
        f"{_WRITTEN}::test_a_file_has_nothing_of_floats_by_which_spark_would_skip_rows",
    ),
    rule(
        "the greatest instant of a file lies not before its rows",
        _DRIVER,
        "_instant(greatest + 999)",
        "_instant(greatest)",
        f"{_WRITTEN}::test_bounds_are_those_that_every_reader_agrees_on",
    ),
    rule(
        "the beginning of a long text is not its greatest value",
        _DRIVER,
        "greatest if len(greatest) <= MOST_CHARACTERS else None",
        "greatest[:MOST_CHARACTERS]",
        f"{_WRITTEN}::test_bounds_are_those_that_every_reader_agrees_on",
    ),
    rule(
        "times before calendars agree are left to Spark",
        _DRIVER,
        "    if found.year < FIRST_YEAR:\n",
        "    if False:\n",
        f"{_WRITTEN}::test_times_that_readers_take_for_different_ones_are_left_to_spark",
    ),
    rule(
        "what a column asks of its values, Spark checks",
        _DRIVER,
        "            and columns[field.name].nullable\n",
        "",
        f"{_WRITTEN}::test_what_a_table_asks_of_its_files_beyond_their_columns_spark_does",
    ),
    rule(
        "what a property asks of data files, Spark does",
        _DRIVER,
        "        and set(own) <= PROPERTIES\n",
        "",
        f"{_WRITTEN}::test_what_a_table_asks_of_its_files_beyond_their_columns_spark_does",
    ),
    rule(
        "rows of a partition go into its folder",
        _DRIVER,
        "        and not shape.partition_by\n",
        "",
        f"{_WRITTEN}::test_what_a_table_asks_of_its_files_beyond_their_columns_spark_does",
    ),
    # Going back
    rule(
        "what others wrote since is not undone",
        _REWIND,
        "    elif wrote is not None:\n",
        "    elif False:\n",
        "spark/test_rewind.py::test_what_others_wrote_since_is_never_undone_but_what_they_wrote_before_stays",
    ),
    rule(
        "a slot that the table's log has no more is refused",
        _REWIND,
        "        if last_slot is not None and slot < last_slot:\n            break\n",
        "        if last_slot is not None and slot < last_slot:\n            return commit.version, undone\n",
        "spark/test_rewind.py::test_a_slot_that_the_log_has_forgotten_is_refused",
    ),
    rule(
        "a file is told by its deletion vector, too",
        "spark/internals/delta_log.py",
        "f\"{vector.get('pathOrInlineDv', '')}:{vector.get('offset', '')}\"",
        '""',
        f"{_COMMIT}::test_a_file_whose_rows_are_deleted_otherwise_is_another_one",
    ),
)
