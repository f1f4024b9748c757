"""The protocol in miniature, for exploring every state that its actors can reach together.

Written from the rules, not from the code: a state is a value, an actor takes one store call at a time, and a
rule can be switched off to see what it is there for. A crash needs no step of its own, since every state is
also judged as if all actors died in it: a fresh run recovers, and what the sink then holds is compared with
what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

RULES = (
    "records are create-only",
    "a claim fences the next slot",
    "a lower epoch's record is adopted",
    "epochs are read again before each attempt to fence",
    "what lies below a fence is carried out first",
    "records from the grave are void",
    "only a record of a higher epoch ends an epoch",
    "a collector marks before it reads pins",
    "a pinner looks for marks after it has pinned",
    "a collector withdraws only its own mark",
    "a collector reads the log after the pins",
    "a floor is decided before anything is deleted",
)

File = tuple[str, int]
Local = tuple[object, ...]


class Rec(NamedTuple):
    by: str
    epoch: int
    kind: str
    below: str
    """Who wrote the record before it."""
    floor: int
    files: frozenset[File]
    complete: bool = False
    marks: frozenset[str] = frozenset()


class Actor(NamedTuple):
    name: str
    does: str
    at: str
    epoch: int = 0
    slot: int = 0
    local: Local = ()


class State(NamedTuple):
    newest: int
    """The newest claimed epoch."""
    log: tuple[Rec | None, ...]
    """By slot; slot 0 is never used."""
    files: frozenset[File]
    pins: frozenset[tuple[str, int]]
    sink: tuple[tuple[int, str], ...]
    decided: tuple[tuple[int, str], ...]
    """Batches that were decided in their turn, for judging: no actor sees it."""
    held: frozenset[int]
    """Slots that a pinner was told it holds."""
    actors: tuple[Actor, ...]


class View(NamedTuple):
    chain: tuple[int, ...]
    floor: int
    pending: tuple[int, ...]
    head: int
    gap: bool


def view(log: tuple[Rec | None, ...], off: str) -> View:
    """What follows from a listing."""
    there = [n for n, rec in enumerate(log) if rec is not None]
    top = there[-1]
    newest = _at(log, top)
    chain, at, gap = [top], top, False
    while at > 1:
        below = log[at - 1]
        if below is None or below.by != _at(log, at).below:
            gap = at - 1 >= newest.floor
            break
        at -= 1
        chain.append(at)
    chain += [n for n in there if n < newest.floor and _at(log, n).complete and n not in chain]
    if off == "records from the grave are void":
        chain += [n for n in there if n not in chain]
    chain.sort()
    last = max((n for n in chain if _at(log, n).complete), default=0)
    pending = [n for n in chain if not _at(log, n).complete]
    if off != "records from the grave are void":
        pending = [n for n in pending if n > last]
    head = max(n for n in chain if _at(log, n).complete and _at(log, n).kind != "fence")
    return View(tuple(chain), newest.floor, tuple(pending), head, gap)


def begin(*actors: Actor) -> State:
    """Epoch 1 has completed slots 1 and 2, each with a file of its own; 2 does not need 1's. One may go."""
    one = Rec("init", 1, "batch", "", 1, frozenset({("init", 1)}), True)
    two = Rec("init", 1, "batch", "init", 2, frozenset({("init", 2)}), True)
    done = ((1, "init"), (2, "init"))
    files = one.files | two.files
    return State(1, (None, one, two), files, frozenset(), done, done, frozenset(), actors)


def steps(state: State, off: str) -> Iterator[tuple[str, State]]:
    """Every next state, with what was done."""
    for index, actor in enumerate(state.actors):
        for what, after, became in _DOES[actor.does](state, actor, off):
            actors = (*after.actors[:index], became, *after.actors[index + 1 :])
            yield f"{actor.name}: {what}", after._replace(actors=actors)


Move = tuple[str, State, Actor]


def _run(state: State, me: Actor, off: str) -> Iterator[Move]:
    """A run: claims (unless it owns the job already), fences, carries out, does one batch."""
    seen = view(state.log, off)
    if me.at == "claim":
        yield "claims an epoch", *_move(state._replace(newest=state.newest + 1), me, "look", state.newest + 1)
    elif me.at == "look":
        check = off != "epochs are read again before each attempt to fence" or me.slot == 0
        if check and state.newest > me.epoch:
            yield "finds a newer epoch", *_move(state, me, "stopped")
        elif off == "a claim fences the next slot":
            yield "trusts its claim", *_move(state, me, "settle", slot=max(seen.chain))
        else:
            yield "reads the log", *_move(state, me, "fence", slot=max(seen.chain) + 1, local=(state.log,))
    elif me.at == "fence":
        known = view(_log(me), off)
        below = _at(_log(me), known.chain[-1])
        fence = Rec(me.name, me.epoch, "fence", below.by, known.floor, frozenset())
        there = _get(state.log, me.slot)
        if there is None:
            yield "fences", *_move(_put(state, me.slot, fence), me, "settle", local=())
        elif there.epoch < me.epoch and off != "a lower epoch's record is adopted":
            yield "adopts", *_move(state, me, "look", local=())
        elif there.epoch < me.epoch or off != "epochs are read again before each attempt to fence":
            yield "loses the slot", *_move(state, me, "stopped", local=())
        else:
            yield "tries the next slot", *_move(state, me, "look", local=())
    elif me.at == "settle":
        fence_first = off == "what lies below a fence is carried out first"
        todo = sorted(seen.pending, reverse=fence_first)
        if state.newest > me.epoch:
            yield "finds a newer epoch", *_move(state, me, "stopped")
        elif todo:
            yield f"carries out {todo[0]}", *_move(_carried_out(state, todo[0]), me, "settle")
        else:
            yield "is ready", *_move(state, me, "upload", slot=max(seen.chain) + 1, local=(state.log,))
    elif me.at == "upload":
        files = state.files | {(me.name, me.slot)}
        yield "uploads", *_move(state._replace(files=files), me, "decide")
    elif me.at == "decide":
        known = view(_log(me), off)
        # It retains one checkpoint, so its own batch becomes the floor; its state needs the file before it
        # too.
        inherited = frozenset(sorted(_at(_log(me), known.head).files)[-1:])
        rec = Rec(
            me.name,
            me.epoch,
            "batch",
            _at(_log(me), known.chain[-1]).by,
            me.slot,
            inherited | {(me.name, me.slot)},
        )
        if _get(state.log, me.slot) is None or off == "records are create-only":
            yield "decides", *_move(_put(state, me.slot, rec), me, "check", local=())
        else:
            yield "loses the slot", *_move(state, me, "stopped", local=())
    elif me.at == "check":
        if state.newest > me.epoch:
            yield "is fenced", *_move(state, me, "stopped")
        else:
            yield "still owns the job", *_move(state, me, "commit")
    elif me.at == "commit":
        yield "commits and completes", *_move(_carried_out(state, me.slot, me.name), me, "done")


def _collect(state: State, me: Actor, off: str) -> Iterator[Move]:
    """A collector that retains one checkpoint: list, mark, read pins, list, delete files, delete records."""
    late_mark = off == "a collector marks before it reads pins"
    mark = "" if off == "a collector withdraws only its own mark" else me.name
    if me.at == "list":
        seen = view(state.log, off)
        if seen.gap:
            return  # a torn listing: again, later
        kept = {seen.head, *seen.pending}
        low = 99 if off == "a floor is decided before anything is deleted" else seen.floor
        listed = tuple(n for n, r in enumerate(state.log) if r and n < low and n not in kept)
        at = "pins" if late_mark else "mark"
        yield f"chooses {listed}", *_move(state, me, at, local=(listed, state.log, frozenset()))
    elif me.at == "mark":
        chosen, known, spared = _locals(me)
        after = state
        for n in chosen - spared:
            if (rec := after.log[n]) is not None:
                after = _put(after, n, rec._replace(marks=rec.marks | {mark}))
        yield "marks", *_move(after, me, "again" if late_mark else "pins")
    elif me.at == "pins":
        chosen, known, _ = _locals(me)
        spared = frozenset(slot for _, slot in state.pins)
        at = "mark" if late_mark else "withdraw" if chosen & spared else "again"
        yield "reads the pins", *_move(state, me, at, local=(tuple(sorted(chosen)), known, spared))
    elif me.at == "withdraw":
        chosen, known, spared = _locals(me)
        after = state
        for n in chosen & spared:
            if (rec := after.log[n]) is not None:
                after = _put(after, n, rec._replace(marks=rec.marks - {mark}))
        yield "withdraws", *_move(after, me, "again")
    elif me.at == "again":
        chosen, known, spared = _locals(me)
        if off != "a collector reads the log after the pins":
            known = state.log
        yield "lists again", *_move(state, me, "files", local=(tuple(sorted(chosen)), known, spared))
    elif me.at == "files":
        chosen, known, spared = _locals(me)
        going = chosen - spared
        live = [r for n, r in enumerate(known) if r and n not in going]
        reached = frozenset(f for r in live for f in r.files)
        named = frozenset(f for n in going if (r := known[n]) is not None for f in r.files)
        seen = view(known, off)
        top = _at(known, seen.chain[-1])
        over = top.epoch
        if off == "only a record of a higher epoch ends an epoch":
            over = state.newest
        # Of a run that has not decided yet, only the epoch of its file is known.
        epochs = {a.name: a.epoch for a in state.actors} | {"init": 1}
        orphans = frozenset(f for f in state.files if epochs[f[0]] < over)
        gone = (named | orphans) - reached
        yield f"deletes {sorted(gone)}", *_move(state._replace(files=state.files - gone), me, "records")
    elif me.at == "records":
        chosen, known, spared = _locals(me)
        after = state
        for n in chosen - spared:
            after = _put(after, n, None)
        yield "deletes the records", *_move(after, me, "done", local=())


def _pin(state: State, me: Actor, off: str) -> Iterator[Move]:
    """Pins slot 1, then looks whether it is being collected."""
    pins = state.pins | {(me.name, 1)}
    rec = state.log[1]
    fine = rec is not None and not rec.marks
    if off == "a pinner looks for marks after it has pinned":
        if me.at == "pin":
            yield ("looks", *_move(state, me, "late" if fine else "done"))
        elif me.at == "late":
            yield "pins", *_move(state._replace(pins=pins, held=state.held | {1}), me, "holds")
    elif me.at == "pin":
        yield "pins", *_move(state._replace(pins=pins), me, "look")
    elif me.at == "look" and fine:
        yield "holds it", *_move(state._replace(held=state.held | {1}), me, "holds")
    elif me.at == "look":
        yield "gives up", *_move(state._replace(pins=state.pins - {(me.name, 1)}), me, "done")
    elif me.at == "holds" and me.does == "restore":
        assert rec is not None
        slot = len(state.log)
        restored = Rec(me.name, 1, "restore", _at(state.log, slot - 1).by, 2, rec.files, True)
        yield "restores 1", *_move(_put(state, slot, restored), me, "release")
    elif me.at == "release":
        after = state._replace(pins=state.pins - {(me.name, 1)}, held=state.held - {1})
        yield "lets go", *_move(after, me, "done")


_DOES: dict[str, Callable[[State, Actor, str], Iterator[Move]]] = {
    "run": _run,
    "collect": _collect,
    "pin": _pin,
    "restore": _pin,
}


def judge(state: State, off: str) -> str | None:
    """What is wrong in a state; None when nothing is."""
    seen = view(state.log, off)
    if seen.gap:
        return "the log has a gap above its floor"
    epochs = [_at(state.log, n).epoch for n in seen.chain]
    if epochs != sorted(epochs):
        return "a fenced run has decided"
    needed = {seen.head, *seen.pending, *state.held}
    for n in needed:
        rec = state.log[n]
        if rec is None:
            return f"record {n} is gone although it is needed"
        if not rec.files <= state.files:
            return f"record {n} has lost files"
    after = state
    for n in view(state.log, off).pending:
        after = _carried_out(after, n)
    if after.sink != after.decided:
        return f"the sink has {after.sink} and {after.decided} was decided"
    runs = [a for a in state.actors if a.does == "run"]
    if runs and all(a.at == "stopped" for a in runs):
        return "every run has stopped for another: nobody carries on"
    return None


def explore(start: State, off: str = "") -> tuple[int, list[str] | None]:
    """How many states there are, and the shortest way to a bad one."""
    came: dict[State, tuple[State, str] | None] = {start: None}
    layer = [start]
    while layer:
        following = []
        for state in layer:
            if (wrong := judge(state, off)) is not None:
                return len(came), [*_way(came, state), wrong]
            for what, after in steps(state, off):
                if after not in came:
                    came[after] = (state, what)
                    following.append(after)
        layer = following
    return len(came), None


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    way: list[str] = []
    while (before := came[state]) is not None:
        state, what = before
        way.append(what)
    return way[::-1]


def _carried_out(state: State, slot: int, by: str | None = None) -> State:
    rec = _get(state.log, slot)
    if by is not None and (rec is None or rec.by != by):
        # A run commits what it holds in its hands, whatever has become of the slot.
        return _given(state, slot, by)
    assert rec is not None
    after = _given(state, slot, rec.by) if rec.kind == "batch" else state
    return _put(after, slot, rec._replace(complete=True))


def _given(state: State, slot: int, by: str) -> State:
    version = state.sink[-1][0] if state.sink else 0
    return state if version >= slot else state._replace(sink=(*state.sink, (slot, by)))


def _put(state: State, slot: int, rec: Rec | None) -> State:
    log = [*state.log, *[None] * (slot + 1 - len(state.log))]
    old, log[slot] = log[slot], rec
    after = state._replace(log=tuple(log))
    if rec is not None and rec.kind == "batch" and (old is None or old.by != rec.by):
        in_turn = slot == len(state.log) or old is not None
        if in_turn:
            after = after._replace(decided=(*after.decided, (slot, rec.by)))
    return after


def _move(
    state: State,
    me: Actor,
    at: str,
    epoch: int | None = None,
    *,
    slot: int | None = None,
    local: Local | None = None,
) -> tuple[State, Actor]:
    return state, me._replace(
        at=at,
        epoch=me.epoch if epoch is None else epoch,
        slot=me.slot if slot is None else slot,
        local=me.local if local is None else local,
    )


def _at(log: tuple[Rec | None, ...], slot: int) -> Rec:
    rec = log[slot]
    assert rec is not None
    return rec


def _get(log: tuple[Rec | None, ...], slot: int) -> Rec | None:
    return log[slot] if slot < len(log) else None


def _log(me: Actor) -> tuple[Rec | None, ...]:
    log = me.local[0]
    assert isinstance(log, tuple)
    return log


def _locals(me: Actor) -> tuple[frozenset[int], tuple[Rec | None, ...], frozenset[int]]:
    chosen, known, spared = me.local
    assert isinstance(chosen, tuple)
    assert isinstance(known, tuple)
    assert isinstance(spared, frozenset)
    return frozenset(chosen), known, spared
