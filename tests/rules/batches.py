"""Rules of what goes on between batches: what a row that is late unjustly, or state that is lost behind a batch, would need."""

from __future__ import annotations

from tests.rules.removal import Patch, Rule, rule

_SILENCE, _SILENT = "spark/inputs/silence.py", "spark/test_silence.py"
_GROWS = f"{_SILENT}::test_silence_grows_as_somebody_looks"
_LOOKS = f"{_SILENT}::test_a_run_looks_into_the_sources_that_it_reads_up_to_their_bounds"
_LOOP, _FLIGHT = "stateflow/spark/loop.py", "tests/spark/test_in_flight.py"
_ASKED = f"{_FLIGHT}::test_a_sink_is_asked_when_the_record_before_is_complete"
_REFUSED = f"{_FLIGHT}::test_what_a_sink_refuses_when_it_is_asked_is_not_decided"
_TAKEN, _IN_ROCKSDB = "spark/task/merges.py", "state/backends/rocksdb_merges.py"
_MERGES = "spark/test_merges.py"

RULES: tuple[Rule, ...] = (
    # Silence
    rule(
        "only looking into a source makes it silent",
        _SILENCE,
        "            return self._found\n",
        "            return dict.fromkeys(self.uids, now)\n",
        _GROWS,
        f"{_SILENT}::test_what_comes_while_a_run_reads_is_not_late_in_the_next_one",
    ),
    rule(
        "a run does not look into a source that it leaves out",
        _SILENCE,
        "        if until is None or uid in newest:\n",
        "        if bound is None or uid in newest:\n",
        _LOOKS,
        f"{_SILENT}::test_a_run_that_is_bounded_for_one_source_makes_the_other_one_no_later",
    ),
    rule(
        "a run does not look behind the bound of a source",
        _SILENCE,
        "min(at, (bound - _EPOCH) // timedelta(microseconds=1))",
        "at",
        _LOOKS,
        f"{_SILENT}::test_what_comes_after_the_bound_of_a_source_is_not_late",
    ),
    rule(
        "nobody knows when something followed a version",
        _SILENCE,
        "        if until is None or uid in newest:\n",
        "        if until is None or isinstance(bound, int):\n",
        _LOOKS,
        f"{_SILENT}::test_a_version_is_no_bound_of_time",
    ),
    rule(
        "a run that ends by itself looks until it began",
        _SILENCE,
        "        return self._coming if self._interval is None else dict.fromkeys(self.uids, planned)\n",
        "        return dict.fromkeys(self.uids, planned)\n",
        f"{_SILENT}::test_a_batch_looks_until_its_run_began_or_it_was_planned",
    ),
    rule(
        "a query that has not ended has not read up to its bounds",
        _SILENCE,
        "        self._coming, self._interval = dict(coming), None\n",
        "        self._coming, self._interval = dict(coming), None\n        self._found |= coming\n",
        _GROWS,
    ),
    rule(
        "nobody looks while a batch runs",
        _SILENCE,
        "        self._last_end = now\n",
        "        self._last_end = self._last_end or 0\n",
        _GROWS,
    ),
    rule(
        "nobody looks between two triggers",
        _SILENCE,
        "now - self._interval - self._last_end)",
        "now - self._last_end)",
        _GROWS,
    ),
    rule(
        "a query without end looks anew after its beginning",
        _SILENCE,
        "        self._interval, self._last_end, self._has_looked = interval, None, False\n",
        "        self._interval = interval\n",
        _GROWS,
    ),
    rule(
        "nobody looks into a source that waits",
        _SILENCE,
        " if uid not in waiting}",
        "}",
        f"{_SILENT}::test_nobody_looks_into_a_source_that_waits",
    ),
    rule(
        "a first snapshot has what the restore of its version brought back",
        "spark/sources/delta_restores.py",
        "    first = position.version + 1 if position.snapshot else position.version\n",
        "    first = position.version\n",
        "spark/test_delta_restores.py::test_every_reader_ends_with_the_rows_of_the_table_or_is_refused",
        "spark/test_rewound_tables.py::test_a_reader_that_begins_at_a_table_that_went_back_reads_it_as_it_is_and_goes_on",
    ),
    rule(
        "a loss that a Kafka source accepts is counted in a warning",
        "spark/sources/kafka.py",
        '            found.append(f"source {uid!r}, whose failOnDataLoss=false accepts it, {loss}")\n',
        "            pass\n",
        "spark/test_offsets_kafka.py::test_a_loss_that_is_accepted_is_counted",
    ),
    rule(
        "rows may wait behind a part that has none",
        _SILENCE,
        'frozenset({"delta", "file", "kafka"})',
        "frozenset()",
        f"{_SILENT}::test_a_source_that_moved_without_rows_may_have_more",
    ),
    rule(
        "rows may wait behind what a connector has cut",
        _SILENCE,
        "return not cuts_batches and not any(",
        "return not any(",
        f"{_SILENT}::test_a_source_that_moved_without_rows_may_have_more",
        "connectors/test_connected_source.py::test_a_position_that_moved_without_rows_is_silence_unless_the_batch_may_have_been_cut",
    ),
    rule(
        "a record of an older release has looked until its time",
        _SILENCE,
        "    return msgspec.structs.replace(state, looked=now, silent=silent, partitions=partitions)\n",
        "    return msgspec.structs.replace(state, looked=0, silent=silent, partitions=partitions)\n",
        f"{_SILENT}::test_a_run_goes_on_from_a_record_from_before_this_was_noted[0-2]",
    ),
    rule(
        "what a record of an older release knows of silence goes on",
        _SILENCE,
        "    return 0 if active is None else max(0, now - active)\n",
        "    return 0\n",
        f"{_SILENT}::test_a_run_goes_on_from_a_record_from_before_this_was_noted[4-59]",
    ),
    rule(
        "a source without a first row is silent from its first batch on",
        _SILENCE,
        "        return msgspec.structs.replace(state, looked=looked)\n",
        "        return state\n",
        f"{_SILENT}::test_a_source_without_a_first_row_is_silent_from_its_first_batch_on",
    ),
    rule(
        "of a topic each partition is silent by itself",
        "spark/inputs/watermark.py",
        "read_through={_named(partition) for partition in unmoved},",
        "read_through={_named(partition) for partition in ends},",
        f"{_SILENT}::test_of_a_topic_each_partition_is_silent_by_itself",
    ),
    rule(
        "the source that had rows last is not idle",
        "spark/inputs/watermark.py",
        "        if had_rows_last or not is_idle(",
        "        if not is_idle(",
        "spark/test_watermark.py",
    ),
    # Two records in flight
    Rule(
        "a sink is asked (`check`) when the record before is complete",
        (
            (Patch(_LOOP, "        batch.check(prepared)\n", ""),),
            (
                Patch(_LOOP, "        batch.check(prepared)\n", ""),
                Patch(
                    _LOOP,
                    "        self.deliveries.settle()\n        waited = time",
                    "        batch.check(prepared)\n        self.deliveries.settle()\n        waited = time",
                ),
            ),
        ),
        (_ASKED, _REFUSED),
    ),
    rule(
        "no batch is tried again behind a delivery that failed",
        "spark/loop.py",
        "                decided = self.deliveries.failed or",
        "                decided =",
        "spark/test_in_flight.py::test_a_batch_that_waits_for_a_delivery_that_failed_is_not_tried_again",
    ),
    rule(
        "a delivery that is overdue is told while nothing else comes",
        "spark/in_flight.py",
        "        elif left is not None and left <= 0:\n",
        "        elif False:\n",
        "spark/test_in_flight.py::test_who_looks_at_a_delivery_that_is_overdue_hears_of_it",
    ),
    # Merges beside the batches
    rule(
        "a merge beside the batches takes in the files that batches added meanwhile",
        _TAKEN,
        "        younger = take_in(directory, younger, fetch)\n",
        "",
        f"{_MERGES}::test_what_batches_have_added_during_a_merge_comes_on_top_of_it",
    ),
    rule(
        "what a merge was made of must still be the shard's",
        _IN_ROCKSDB,
        "    if not set(merged) <= set(tables):\n        return None\n",
        "",
        f"{_MERGES}::test_a_merge_of_files_that_the_shard_no_longer_has_is_of_no_use",
    ),
    rule(
        "a younger file has the higher number, not the later name",
        _IN_ROCKSDB,
        "key=lambda ref: int(ref.name.removesuffix(TABLE))",
        "key=lambda ref: ref.name",
        f"{_MERGES}::test_a_table_s_number_orders_it_not_its_text",
    ),
    rule(
        "a merge of another job's shard is not taken",
        _TAKEN,
        "(storage.root, storage.job, str(shard.first)",
        "(storage.root, str(shard.first)",
        f"{_MERGES}::test_shards_of_other_jobs_have_merges_of_their_own",
    ),
    rule(
        "a merged file is stored before a record names it",
        "spark/task/shards.py",
        "        for stored in self._storing.get(index, ()):\n            stored.result()\n",
        "",
        f"{_MERGES}::test_no_record_names_a_merged_file_that_could_not_be_stored",
    ),
    rule(
        "a merged file is stored before a record names it of which the task only read",
        "spark/task/shards.py",
        "        for stored in self._storing[index]:\n            stored.result()\n",
        "",
        f"{_MERGES}::test_no_record_names_a_merged_file_that_could_not_be_stored",
    ),
    rule(
        "a merged shard's manifest travels inside the record by the rule of all manifests",
        _TAKEN,
        "        if travels_inside(path.name, path.stat().st_size, storage.inline_threshold):\n",
        "        if True:\n",
        f"{_MERGES}::test_who_takes_a_merge_puts_into_the_record_what_who_writes_would",
    ),
    rule(
        "a batch merges by itself what nobody has merged beside it",
        "state/backends/rocksdb.py",
        "            if (whole and not self._beside) or self._runs(opened) > self._options.most_runs:\n",
        "            if whole and not self._beside:\n",
        f"{_MERGES}::test_a_batch_merges_by_itself_when_no_merge_comes",
    ),
    rule(
        "a run does not begin with empty state what a failed restore has left",
        "checkpoint/control.py",
        "read_epoch_claim(store, layout, epochs[0]).restores",
        "False",
        "spark/test_renamed_jobs.py",
    ),
    rule(
        "no state lies where the VACUUM of a Delta table would delete it",
        "storage/probe.py",
        "    if table := _delta_table(store):\n",
        '    if table := "":\n',
        "storage/test_store_liars.py",
    ),
    rule(
        "a text of CSV whose quotes are doubled is not read with all of them",
        "pipelines/rows/misfits.py",
        "            wrong += [_doubled(sql)] if self.doubled else []\n",
        "",
        "spark/test_misfits.py",
    ),
    rule(
        "a plan to claim a savepoint of another job is refused before it is approved",
        "restore/planning.py",
        "        require_own_claim(store, claim, job=own, root=job.store.url)\n",
        "        pass\n",
        "jobs/test_savepointing.py",
    ),
    rule(
        "a source table is the one that was read, and no other copy",
        "spark/sources/read_commits.py",
        'if position is None or not noted or commits.id_of_last(position) in ("", noted):\n',
        "if True:\n",
        "spark/test_other_copies.py::test_the_commit_is_the_same_whoever_reads_it",
    ),
    rule(
        "of two runs that begin at once one has the job and the other leaves it alone",
        "checkpoint/claim.py",
        "        if after is not None and newest != after:\n",
        "        if False:\n",
        "checkpoint/test_claim.py::test_who_has_seen_nobody_at_work_claims_nothing_once_somebody_has_begun",
    ),
    rule(
        "a run that has claimed the job and given no sign of life yet is waited for",
        "spark/runner.py",
        "            self._await_first_sign()\n",
        "            pass\n",
        "spark/test_begins_beside.py::test_a_run_that_has_just_begun_and_shows_no_sign_of_life_yet_is_left_alone",
    ),
    rule(
        "a way back is sound for every source that has read what is undone",
        "spark/sources/detours.py",
        "all(it.is_sound_at(each) for it in wrong)",
        "wrong[0].is_sound_at(each)",
        "spark/test_read_commits.py",
    ),
    rule(
        "nobody says without Spark that another copy of a source table has nothing new",
        "spark/sources/delta_log.py",
        '    if commit and commit_id(log.commit, position) not in ("", commit):\n',
        "    if False:\n",
        "spark/test_lookahead.py::test_another_commit_where_one_was_read_leaves_it_to_a_run",
    ),
    rule(
        "a DAG run that is run again keeps what an earlier one has made anew",
        "airflow/operators/run.py",
        "        if any(mark.began_from in slots for slots in taken_back(history(job.store, job.layout))):\n",
        "        if False:\n",
        "airflow/test_run_operator.py::test_a_later_dag_run_goes_on_from_what_an_earlier_one_has_made_anew",
    ),
    rule(
        "a server that was told to end before it serves ends",
        "cli/serve.py",
        "lambda *_: server.stop()",
        "lambda *_: None",
        "serve/test_command.py::test_serve_ends_also_when_it_is_told_to_as_soon_as_it_says_that_it_serves",
    ),
    rule(
        "a time that no key can be is not cut to another key",
        "state/keys/text.py",
        "isinstance(written, str) and _FINER.search(written)",
        "False",
        "state/values/test_plain.py::test_a_time_that_no_key_can_be_is_refused_rather_than_taken_for_another",
    ),
)
