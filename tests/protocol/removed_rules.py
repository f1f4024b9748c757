"""Each rule of `docs/protocol.md` with what removes it from the code: patches, by the words of the page.

A rule that has tests of several kinds may have several removals, and each of them must make some cited test fail.
`scripts/remove_rules.py` does that; `test_removed_rules.py` holds that no rule lacks a removal, `tests/rules` that every patch still applies.
"""

from __future__ import annotations

from tests.rules.removal import Patch, Removal

_CLAIM, _WRITER = "stateflow/checkpoint/claim.py", "stateflow/checkpoint/writer.py"
_RECOVERY, _COLLECTION = "stateflow/checkpoint/recovery.py", "stateflow/checkpoint/collection.py"
_LOG, _PINS = "stateflow/checkpoint/log.py", "stateflow/checkpoint/pins.py"
_HDFS = "stateflow/storage/hdfs.py"
_STORE, _LAYOUT = "stateflow/storage/store.py", "stateflow/format/layout.py"
_RETENTION = "stateflow/checkpoint/retention.py"
_APPLY, _EDIT = "stateflow/restore/apply.py", "stateflow/checkpoint/edit.py"
_PUBLISH, _DISPOSE = "stateflow/savepoints/publish.py", "stateflow/savepoints/dispose.py"
_MAKING = "stateflow/jobs/savepoints.py"
_SAVEPOINTS, _NATIVE = "stateflow/savepoints/format.py", "stateflow/savepoints/native.py"
_CARRYING_OUT = Patch(_RECOVERY, "        if record.slot < fence.slot:\n", "        if False:\n")
_LOOK_BEFORE = Patch(
    _WRITER, "            )\n        self.still_owner()\n        top =", "            )\n        top ="
)
_LOOK_AFTER = Patch(
    _WRITER,
    "        self.still_owner()\n        self._stopped = None\n",
    "        self._stopped = None\n",
)

RULES: dict[str, tuple[Removal, ...]] = {
    # The rules that have a number
    "Only create-only writes decide": (
        (Patch(_CLAIM, "        probe(store, ids)\n        identity", "        identity"),),
    ),
    "A create may succeed and report a conflict, or fail and report nothing": (
        # Whoever believes a conflict takes its own object for somebody else's.
        (
            Patch(
                _STORE,
                "            # carry the record out.\n            pass\n",
                '            return store.read(path) + b" "\n',
            ),
        ),
        (
            Patch(
                _STORE,
                "            # its own body. A record in a slot that was collected before is void, because the chain does not link to it.\n"
                "            continue\n",
                "            raise UnavailableError(path)\n",
            ),
        ),
        (
            Patch(
                _WRITER,
                '        self._stopped = f"whether record {record.slot} was decided is not known"\n',
                "        self._stopped = None\n",
            ),
        ),
    ),
    "Slots are contiguous, linked and never reused": (
        (Patch(_LOG, " and below.writer == link.writer:\n", ":\n"),),
        (Patch(_LOG, "LISTINGS = 8\n", "LISTINGS = 1\n"),),
        (
            Patch(
                _LOG,
                "                if link is not None and link.slot >= newest.floor:\n",
                "                if False:\n",
            ),
        ),
        (Patch(_LOG, " and s.record.job == uuid}\n", "}\n"),),
        (
            Patch(
                _LOG,
                "    if lost := list(_lost_above(max(own, default=0), slots)):\n",
                "    if lost := []:\n",
            ),
        ),
    ),
    "Claim, fence, carry out, go on": ((_CARRYING_OUT,), (_LOOK_AFTER,)),
    "Recovery is a function of what is observed": (
        (Patch(_RECOVERY, "    if not log.slots[fence.slot].complete:\n", "    if False:\n"),),
        (_CARRYING_OUT,),
    ),
    "Collection is exact, and derived": (
        (
            Patch(
                "stateflow/checkpoint/statistics.py",
                "    lines = {line.id: line for segment in unfilled for line in segment.lines}\n    lines.update({line.id: line for line in new})\n",
                "    lines = {line.id: line for line in new}\n",
            ),
        ),
    ),
    "Liveness is a counter that changes": (
        (
            Patch(
                "stateflow/checkpoint/control.py",
                "heartbeat.counter != first.counter:\n",
                "heartbeat.at > first.at:\n",
            ),
        ),
        (
            Patch(
                _LAYOUT,
                'return f"{self.job}/control/stop-{epoch:0{SLOT_DIGITS}d}"',
                'return f"{self.job}/control/stop-{1:0{SLOT_DIGITS}d}"',
            ),
        ),
    ),
    "What stays below the floor is announced with it": (
        (Patch(_CLAIM, "        kept=announced.kept,\n", ""),),
        (Patch(_WRITER, "            kept=announced.kept,\n", ""),),
    ),
    "naming them in the record": ((Patch(_COLLECTION, " or number in announced or", " or"),),),
    "repeating what was announced": (
        (Patch(_RETENTION, "Announcement(log.floor, log.kept)", "Announcement(log.floor)"),),
    ),
    "leaving out what was let go": (
        (Patch(_RETENTION, " if r.slot >= log.floor or r.slot in before), ", "), "),),
    ),
    "looking directly for what is kept": (
        (Patch(_LOG, " if log.whole and log.lost else log\n", " if False else log\n"),),
    ),
    "Every file has a size and checksums in the record": (
        (
            Patch("stateflow/storage/files.py", "    if size != ref.size:\n", "    if False:\n"),
            Patch("stateflow/storage/files.py", "    if not same:\n", "    if False:\n"),
        ),
        (
            Patch(
                "stateflow/storage/files.py",
                "    if ref.sha256:\n        computed",
                "    if False:\n        computed",
            ),
        ),
    ),
    "Abandoning": ((Patch(_RECOVERY, '        if outcome == "abandoned":\n', "        if False:\n"),),),
    # 4. Claim, fence, carry out, go on
    "reading the epochs before each attempt": (
        (Patch(_RECOVERY, "    if newest > epoch:\n", "    if False:\n"),),
    ),
    "adopting a lower epoch's fence": (
        (
            Patch(
                _CLAIM,
                "    create_once(store, layout.pending(step.slot), encode(fence))\n",
                "    if create_once(store, layout.pending(step.slot), encode(fence)) != encode(fence):\n"
                "        raise taken_over(layout, claimed.epoch, claimed.epoch)\n",
            ),
        ),
    ),
    "carrying out before completing": ((_CARRYING_OUT,),),
    "reading the epochs after deciding": ((_LOOK_AFTER,),),
    "looking again after claiming": ((Patch(_RECOVERY, "    if newest > epoch:\n", "    if False:\n"),),),
    "carrying out before rewinding": ((_CARRYING_OUT,),),
    # 6. Collection is exact, and derived
    '"a claim is not enough"': (
        (
            Patch(
                _COLLECTION,
                "    return any(r.epoch > epoch or",
                "    return log.newest_epoch > epoch or any(r.epoch > epoch or",
            ),
        ),
    ),
    "marking before reading pins, or looking after pinning": (
        (Patch(_PINS, "    if marked or _writer(store, layout, slot) != writer:\n", "    if False:\n"),),
    ),
    "a mark for each collector": (
        (
            Patch(
                _LAYOUT,
                'return self.slot(slot) + f"_dead-{collector}"',
                'return self.slot(slot) + "_dead-shared"',
            ),
        ),
    ),
    "reading the log after the pins": (
        (
            Patch(
                _COLLECTION,
                "        pins, log = _observed(store, layout, cache)\n    files =",
                "        pins = list_pins(store, layout, cache=cache)\n    files =",
            ),
        ),
    ),
    "saying what is doomed": (
        (
            Patch(
                _COLLECTION,
                "    if spared := set(doomed) - _doom(store, layout, doomed, collector):\n",
                "    if spared := set(()):\n",
            ),
        ),
    ),
    "freeing pinned records": (
        (
            Patch(
                _COLLECTION,
                "    _free(store, layout, log, pins, collector)\n    keep_history",
                "    keep_history",
            ),
        ),
    ),
    "taking the doom before the mark": (
        (
            Patch(
                _COLLECTION,
                "        if frees:\n",
                "        store.delete([path])\n        if there:\n",
            ),
        ),
        (
            Patch(
                _COLLECTION,
                "        return create_once(store, path, body) == body\n",
                "        return bool(create_once(store, path, body))\n",
            ),
        ),
    ),
    "looking for the own mark": (
        (
            Patch(
                _COLLECTION,
                "        return is_there(store, layout.dead(slot, collector))\n",
                "        return True\n",
            ),
        ),
    ),
    "looking directly for what a pin keeps": (
        (
            Patch(
                _PINS,
                "        slot = _read_slot(store, layout, pin.slot)\n        return _is_of(pin, slot)\n",
                "        return False\n",
            ),
        ),
    ),
    "the body in the pin": (
        (Patch(_PINS, "    return pin.writer in writers\n", "    return bool(writers - {None})\n"),),
    ),
    "stopping at unreadable records and pins": (
        (
            Patch(
                _LOG,
                "        if self.unreadable:\n            return f",
                "        if False:\n            return f",
            ),
        ),
        (
            Patch(
                _PINS,
                "        except NotFoundError:\n            continue  # released since the listing\n",
                "        except StateflowError:\n            continue\n",
            ),
        ),
    ),
    "keeping the newest epoch": (
        (Patch(_COLLECTION, "and epoch < top.epoch:\n", "and epoch <= top.epoch:\n"),),
    ),
    # Restore, rescale, erase, delete
    "carrying out first": ((_CARRYING_OUT,),),
    "the slot in the rewound table": (
        (
            _LOOK_BEFORE,
            _LOOK_AFTER,
            Patch(
                _WRITER,
                "        if theirs.job == self.job and theirs.epoch > self.epoch:\n",
                "        if False:\n",
            ),
        ),
    ),
    "the floor of an erase": (
        (Patch("stateflow/checkpoint/retention.py", '    if kind == "erase":\n', "    if False:\n"),),
    ),
    "a tombstone that is an epoch": (
        (
            Patch(
                "stateflow/checkpoint/deletion.py",
                "        create_once(store, layout.tombstone, encode(tombstone))\n",
                "        encode(tombstone)\n",
            ),
        ),
    ),
    "asking again after the claim": (
        (Patch(_APPLY, "                self._require_same(writer.log)\n", ""),),
    ),
    "asking again after the pin of a savepoint": (
        (Patch(_MAKING, "        refuse_erased(job.log(), slot)\n", ""),),
    ),
    "planning again after the claim": ((Patch(_APPLY, "        self._require_as_planned(writer)\n", ""),),),
    "looking in the history, too": ((Patch(_EDIT, "    if line is not None:\n", "    if False:\n"),),),
    "looking at the tombstone in each round of a claim": (
        (
            Patch(
                _CLAIM,
                "        newest = max(living_epochs(store, layout), default=0)\n",
                "        newest = max(read_epochs(store, layout), default=0)\n",
            ),
        ),
    ),
    "a shift": (
        (
            Patch(
                _APPLY,
                "                snapshot.slot + snapshot.shift - writer.next_slot,\n",
                "                0,\n",
            ),
        ),
    ),
    # Savepoints
    "names of one's own": ((Patch(_NATIVE, "    attempt = ids()\n", '    attempt = "one"\n'),),),
    "looking before the create": (
        (Patch(_PUBLISH, "        if not _whole(target, files):\n", "        if False:\n"),),
    ),
    "looking after it": (
        (
            Patch(
                _PUBLISH,
                "    if _being_disposed_of(target, savepoint) or not _whole(target, files):\n",
                "    if _being_disposed_of(target, savepoint):\n",
            ),
        ),
    ),
    "looking for a claim after it": (
        (
            Patch(
                _PUBLISH,
                "    if _being_disposed_of(target, savepoint) or not _whole(target, files):\n",
                "    if not _whole(target, files):\n",
            ),
        ),
    ),
    "saying what is meant": (
        (Patch(_DISPOSE, "    if expect is not None and before != (expect or None):\n", "    if False:\n"),),
    ),
    "saying it in the claim": (
        (
            Patch(
                _DISPOSE,
                "    return savepoint.id != claim.savepoint and is_whole(store, savepoint)\n",
                "    return False\n",
            ),
        ),
    ),
    "the root in the claim": (
        (
            Patch(
                _SAVEPOINTS,
                "if inside else (claim.url, claim.root) == (url, root)\n",
                "if inside else claim.url == url\n",
            ),
        ),
    ),
    "keeping the files of an unclear create": (
        (
            Patch(
                _PUBLISH, "        if refused_for_good(target, SAVEPOINT_METADATA):\n", "        if True:\n"
            ),
        ),
    ),
    "reading `_metadata` after the claim": (
        (Patch(_SAVEPOINTS, "        if id_of(store) != before.id:\n", "        if False:\n"),),
    ),
    "reading the claim before deleting a name": (
        (
            Patch(
                _DISPOSE,
                "    if claim_is(store, claim):\n        store.delete([SAVEPOINT_METADATA])\n    if claim_is(store, claim):\n",
                "    if True:\n        store.delete([SAVEPOINT_METADATA])\n    if True:\n",
            ),
        ),
    ),
    "pinning before restoring again": (
        (Patch(_APPLY, "            if naming is not None:\n", "            if False:\n"),),
    ),
    "checking names": ((Patch("stateflow/format/records.py", '_PLAIN = r"', '_PLAIN = r"[^\\n]*|'),),),
    "refusing symbolic links": (
        (
            Patch(
                "stateflow/storage/beneath.py",
                "_BELOW = _ENTER | os.O_NOFOLLOW\n",
                "_BELOW = _ENTER\n",
            ),
        ),
    ),
    "URLs that open the folder that said them": (
        (
            Patch(
                "stateflow/storage/file_urls.py",
                'return "file://" + _QUOTED.sub(lambda match: quote(os.fsencode(match[0]), safe=""), str(folder))\n',
                'return f"file://{folder}"\n',
            ),
        ),
    ),
    "one URL": ((Patch(_SAVEPOINTS, "    if not belongs(claim, root, store.url):\n", "    if False:\n"),),),
    # HDFS
    "the length of the first line": (
        (Patch(_HDFS, "return stated is not None and status.length < stated", "return False"),),
    ),
    "the NameNode's length": (
        (Patch(_HDFS, "not self.folder and (self.length > 0 or self.marked_empty)", "not self.folder"),),
    ),
    "looking once more": (
        (
            Patch(
                _HDFS,
                "        status = self._status(_by_id(status))\n"
                "        if self._is_whole(status):\n            return True\n",
                "",
            ),
        ),
    ),
    "removing by number": (
        (
            Patch(
                _HDFS,
                "        return self._became_whole(status)\n",
                "        self._named = self._at(path)\n        return self._became_whole(status)\n",
            ),
            Patch(
                _HDFS,
                'self._web.ask("DELETE", _by_id(status), "DELETE"',
                'self._web.ask("DELETE", self._named, "DELETE"',
            ),
        ),
    ),
    "waiting for who still writes": (
        (Patch(_HDFS, "        if self._is_open(status):\n            return False\n", ""),),
    ),
    "a reader's patience": ((Patch(_HDFS, "_LOOKS = 10\n", "_LOOKS = 1\n"),),),
}
