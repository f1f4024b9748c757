"""Decides from the texts of two types whether one may become the other, and converts values of the old type into values of the
new one.

Everything here is a function of texts that records keep, so that runs, tables and queries convert alike, and none of them
needs the classes of code that is gone. A value is converted as MessagePack shows it: a `wire` value is made of dicts, lists
and scalars. `schema_text` reads the texts; a field's aliases stand in that of the new type only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stateflow.errors import StateTypeError
from stateflow.state.values import schema_text as text

Convert = Callable[[Any], Any]


class RefusedError(Exception):
    """Values of the old type cannot all be values of the new one; the text says which, and where."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """How values of a type become values of the one that took its place."""

    convert: Convert | None = None
    """From wire to wire; None when they are the same."""
    direct: bool = True
    """True if the reader of the new type reads stored values of the old one, and gives the same values."""
    changes: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    """Those of the changes that lose a part of stored values."""
    alike: tuple[str, ...] = ()
    """Changes of the text that mean the same type: the name of a class, the places of fields."""
    sources: tuple[tuple[str, str | None], ...] = ()
    """The paths of fields that had another one before, with that one; None with those that are new."""


SAME = Evolution()


def evolution(old: str, new: str) -> Evolution:
    """Raises RefusedError."""
    if _is_custom(old) or _is_custom(new):
        return _custom(old, new)
    if old == new:
        return SAME
    try:
        trees = text.read_schema(old), text.read_schema(new)
    except text.UnreadableText as error:
        raise RefusedError(f"{error}, so it cannot be compared") from None
    return _Comparison().of(*trees, "")


_CUSTOM = re.compile(r"custom:([^:]+):(\d{1,10})", re.ASCII)


def _is_custom(written: str) -> bool:
    return written.startswith("custom:")


def _custom(old: str, new: str) -> Evolution:
    if not (_is_custom(old) and _is_custom(new)):
        raise RefusedError(
            "only a function knows how a custom serializer's bytes become another type, or the reverse"
        )
    read = _CUSTOM.fullmatch(old), _CUSTOM.fullmatch(new)
    if read[0] is None or read[1] is None:
        raise RefusedError("the name of a custom serializer is not one that stateflow writes")
    (old_id, before), (new_id, now) = read[0].groups(), read[1].groups()
    if old_id != new_id:
        raise RefusedError(f"custom serializer {new_id!r} does not know what {old_id!r} wrote")
    if int(now) < int(before):
        raise RefusedError(
            f"version {before} of custom serializer {new_id!r} wrote values that version {now} may not know"
        )
    return Evolution(changes=(f"custom serializer {new_id!r} goes from version {before} to {now}",))


_WITH_CODE = (
    "give the state a function migrate= of int that says what becomes of it, or put the type back to int"
)


def exact_float(value: int, advice: str = _WITH_CODE) -> float:
    """The same number as a float. Raises StateTypeError for one that no float is equal to."""
    made = float(value)
    if made != value:
        raise StateTypeError(f"the stored int {value} has more digits than a float holds: {advice}")
    return made


_WIDER: dict[tuple[str, str], Convert] = {("int", "float"): exact_float, ("int", "decimal"): str}
"""Scalars that become others without a loss, or are refused."""


@dataclass
class _Comparison:
    known: dict[tuple[text.StructText, text.StructText], list[Evolution]] = field(default_factory=dict)
    """Records that are being compared, or were: those that contain themselves come back here."""
    inside: tuple[tuple[text.StructText, text.StructText], ...] = ()

    def of(self, old: text.Tree, new: text.Tree, path: str) -> Evolution:
        old, new = self.resolved(old, 0), self.resolved(new, 1)
        match old, new:
            case text.OptionalText(), text.OptionalText():
                return _unless_none(self.of(old.item, new.item, path))
            case text.ScalarText("null"), text.OptionalText():
                return _changed(path, "may be more than None now")
            case _, text.OptionalText():
                inner = self.of(old, new.item, path)
                return _with(inner, _note(path, "may be None now"))
            case text.OptionalText(), _:
                raise self.refused(old, new, path)
            case _, text.UnionText():
                return self.wider(old, new, path)
            case text.ScalarText(), text.ScalarText():
                return self.scalar(old, new, path)
            case text.ListText(), text.ListText() if old.kind == new.kind:
                item = self.of(old.item, new.item, f"{path}[]")
                return _mapped(item, lambda convert: lambda values: [convert(value) for value in values])
            case text.TupleText(), text.TupleText() if len(old.items) == len(new.items):
                items = [
                    self.of(*pair, f"{path}[{n}]")
                    for n, pair in enumerate(zip(old.items, new.items, strict=True))
                ]
                return _together(items, _each(items))
            case text.MapText(), text.MapText():
                return self.map(old, new, path)
            case text.ChoiceText(), text.ChoiceText() if bool(old.name) == bool(new.name):
                return self.choice(old, new, path)
            case text.StructText(), text.StructText() if old.by_position == new.by_position:
                return self.record(old, new, path)
        raise self.refused(old, new, path)

    def resolved(self, tree: text.Tree, side: int) -> text.Tree:
        if isinstance(tree, text.ReferenceText):
            for pair in reversed(self.inside):
                if pair[side].name == tree.name:
                    return pair[side]
        return tree

    def refused(self, old: text.Tree, new: text.Tree, path: str) -> RefusedError:
        return RefusedError(
            f"{_at(path)}{shown(old)} cannot become {shown(new)} by itself, because values could be lost"
        )

    def scalar(self, old: text.ScalarText, new: text.ScalarText, path: str) -> Evolution:
        if old.name == new.name:
            return SAME
        convert = _WIDER.get((old.name, new.name))
        if convert is None:
            raise self.refused(old, new, path)
        return Evolution(
            convert, convert is not exact_float, (_note(path, f"{old.name} becomes {new.name}"),)
        )

    def wider(self, old: text.Tree, new: text.UnionText, path: str) -> Evolution:
        """Which member of a union a stored value is of does not show on the wire, so all must be read as they are. Only a record by name
        shows, if it is the only one: no other member is a dict there."""
        more = _changed(path, "may be of more types now")
        if not isinstance(old, text.UnionText):
            one = self.member(old, new, path, alone=True)
            return _together([one, more], one.convert)
        members = _told(old.members, new)
        records = [m for m in members if isinstance(m, text.StructText) and not m.by_position]
        found = [self.member(member, new, path, alone=records == [member]) for member in members]
        convert = next((one.convert for one in found if one.convert is not None), None)
        return _together(
            [*found, *([] if len(members) == len(new.members) else [more])],
            convert and _of_records(convert),
        )

    def member(self, old: text.Tree, new: text.UnionText, path: str, *, alone: bool = False) -> Evolution:
        for candidate in _alike(old, new):
            found = self.of(old, candidate, path)
            if found.convert is None or alone:
                return found
        raise RefusedError(
            f"{_at(path)}{shown(old)} is a member of a union and is not one of {shown(new)}, as it was, any more"
        )

    def map(self, old: text.MapText, new: text.MapText, path: str) -> Evolution:
        key = self.of(old.key, new.key, f"{path}.key")
        if key.convert is not None:
            raise RefusedError(
                f"{_at(path)}the keys of a map cannot change from {shown(old.key)} to {shown(new.key)}"
            )
        value = self.of(old.value, new.value, f"{path}.value")
        if value.convert is not None and _unhashable(old.key):
            raise RefusedError(
                f"{_at(path)}the values of a map with {shown(old.key)} as keys cannot be converted"
            )
        return _together([key, value], value.convert and _pairs(value.convert))

    def choice(self, old: text.ChoiceText, new: text.ChoiceText, path: str) -> Evolution:
        what = f"enum {new.name}" if new.name else "the literals"
        known = [(type(value), value) for value in new.values]
        if lost := [name or repr(value) for name, value in old.members if (type(value), value) not in known]:
            raise RefusedError(
                f"{_at(path)}{what} has no value of {', '.join(lost)} any more, and stored values may have it"
            )
        if new.name:
            _check_names(old, new, f"{_at(path)}{what}")
        before = [(type(value), value) for value in old.values]
        added = [name or repr(value) for name, value in new.members if (type(value), value) not in before]
        return Evolution(
            changes=tuple(_note(path, f"{what} has {name} as well") for name in added),
            alike=_renamed("enum", old.name, new.name, path),
        )

    def record(self, old: text.StructText, new: text.StructText, path: str) -> Evolution:
        if None not in (old.tag, new.tag) and old.tag != new.tag:
            now = "has" if new.name == old.name else f"is {new.name} with"
            raise RefusedError(
                f"{_at(path)}class {old.name} had {_tag(old.tag)} and {now} {_tag(new.tag)} now, and its stored values name the class "
                "by its tag: put the tag back"
            )
        pair = old, new
        if pair in self.known:
            made = self.known[pair]
            return made[0] if made else Evolution(lambda value: _late(made, value))
        made = self.known[pair] = []
        outside, self.inside = self.inside, (*self.inside, pair)
        try:
            made.append(self.fields(old, new, path))
        finally:
            self.inside = outside
        return made[0]

    def fields(self, old: text.StructText, new: text.StructText, path: str) -> Evolution:
        sources = _sources(old, new)
        before_now = {f.name for f in old.fields}, {f.name for f in new.fields}
        steps: list[_Step] = []
        notes: list[str] = []
        moved_from: list[tuple[str, str | None]] = []
        for index, now in enumerate(new.fields):
            at = f"{path}.{now.name}" if path else now.name
            source = sources[index]
            if source is None:
                refuse_taken_alias(f"field {at}", now.name, now.aliases, *before_now)
                if not now.defaulted:
                    raise _lacks_default(at, now, sources, old)
                notes.append(f"field {at} is new")
                moved_from.append((at, None))
                continue
            before = old.fields[source]
            if before.defaulted and not now.defaulted:
                raise RefusedError(
                    f"field {at} has no default any more, and stored values may lack it: give it one"
                )
            if before.name != now.name:
                notes.append(f"field {at} was {before.name}")
                moved_from.append((at, _joined(path, before.name)))
            steps.append(self.step(before, now, source, index, at))
        kept = [source for source in sources if source is not None]
        moved = kept != sorted(kept)
        gone = [f"field {_joined(path, f.name)} is gone" for n, f in enumerate(old.fields) if n not in kept]
        parts = [step.evolution for step in steps]
        alike = [
            *_renamed("class", old.name, new.name, path),
            *(_note(path, s) for s in _rewritten(steps, moved)),
        ]
        if old.tag != new.tag:
            notes.append(_note(path, f"class {new.name} has {_tag(new.tag)} now"))
        own = Evolution(
            changes=(*notes, *gone), losses=tuple(gone), alike=tuple(alike), sources=tuple(moved_from)
        )
        found = _together([*parts, own], None)
        if old.by_position:
            _check_positions(old, new, sources, path)
            convert = _by_position(steps, bool(gone))
            direct = not gone and all(step.source == step.target for step in steps)
        else:
            convert = _by_name(steps, bool(gone) or old.tag != new.tag, new.tag)
            direct = old.tag == new.tag and all(step.before == step.now for step in steps)
        direct = direct and found.direct and not any(step.drops_none for step in steps)
        return replace(found, convert=convert, direct=direct)

    def step(self, before: text.FieldText, now: text.FieldText, source: int, target: int, at: str) -> _Step:
        drops = (
            isinstance(before.type, text.OptionalText)
            and now.defaulted
            and not isinstance(now.type, text.OptionalText)
            and not _has_none(now.type)
        )
        if drops:
            assert isinstance(before.type, text.OptionalText)
            found = _with(
                _unless_none(self.of(before.type.item, now.type, at)), f"field {at}: None becomes its default"
            )
        else:
            found = self.of(before.type, now.type, at)
        return _Step(
            before.name, now.name, source, target, found, drops, now.defaulted and not before.defaulted
        )


def _lacks_default(
    at: str, now: text.FieldText, sources: list[int | None], old: text.StructText
) -> RefusedError:
    """Where one field is new and one of its type is gone, they may be the same to the author, and a default would lose the values."""
    gone = [field for index, field in enumerate(old.fields) if index not in sources]
    if sources.count(None) == 1 and len(gone) == 1 and gone[0].type == now.type:
        return RefusedError(
            f"field {at} is new and has no default, and field {gone[0].name} is gone: if it is the same field, annotate it with "
            f'sf.field(aliases=["{gone[0].name}"]), which keeps its values; if not, give it a default'
        )
    return RefusedError(f"field {at} is new and has no default: give it one")


def _check_names(old: text.ChoiceText, new: text.ChoiceText, where: str) -> None:
    """Values are stored, not names. A value under another name is renamed, unless its old name has another value now."""
    values, names = dict(new.members), {(type(value), value): name for name, value in new.members}
    for name, value in old.members:
        now = values.get(name, value)
        if (type(now), now) != (type(value), value):
            raise RefusedError(
                f"{where}: {name} was {value!r} and is {now!r} now, so stored values of {name} would be read as "
                f"{names[type(value), value]}"
            )


@dataclass(frozen=True, slots=True)
class _Step:
    """One field of a record that both types have."""

    before: str
    now: str
    source: int
    target: int
    evolution: Evolution
    drops_none: bool
    """None is left out, so that the default stands in."""
    defaulted: bool
    """It has a default now."""


def _sources(old: text.StructText, new: text.StructText) -> list[int | None]:
    """Per field of the new record the place of the old field that it goes on from: under its own name first, then an alias."""
    places = {f.name: n for n, f in enumerate(old.fields)}
    taken = {f.name for f in new.fields}
    sources: list[int | None] = []
    for now in new.fields:
        names = [now.name, *(alias for alias in now.aliases if alias not in taken)]
        name = next((name for name in names if name in places), None)
        taken.add(name or "")
        sources.append(None if name is None else places[name])
    return sources


def refuse_taken_alias(
    what: str, name: str, aliases: Iterable[str], before: Collection[str], now: Collection[str]
) -> None:
    """For what is new under its name, by all that is stored and all there is today. A stored value goes to one of two that want it."""
    if taken := next(
        (alias for alias in aliases if alias != name and alias in before and alias in now), None
    ):
        raise RefusedError(
            f"{what} has the alias {taken!r}, and another one is called {taken} today, so that stored values of {taken} would go there and {name} "
            f"would begin anew: give that one another name, or leave the alias out"
        )


def _renamed(what: str, old: str, new: str, path: str) -> tuple[str, ...]:
    return (_note(path, f"{what} {old} is {new} now"),) if old != new else ()


def _rewritten(steps: Sequence[_Step], moved: bool) -> Iterator[str]:
    """Changes in the text of a record that change none of its values."""
    if moved:
        yield "fields change places"
    for step in steps:
        if step.defaulted and not step.drops_none:
            yield f"{step.now} has a default now"


def _check_positions(
    old: text.StructText, new: text.StructText, sources: Sequence[int | None], path: str
) -> None:
    """A value by position cannot leave out a field that another one follows."""
    kept = [source for source in sources if source is not None]
    if None in sources[: len(kept)]:
        name = new.fields[sources.index(None)].name
        raise RefusedError(f"field {_joined(path, name)} of a named tuple is new: put it behind all others")
    if kept != sorted(kept) and any(old.fields[source].defaulted for source in kept):
        raise RefusedError(f"{_at(path)}the fields of a named tuple with defaults cannot change places")


def _by_name(steps: Sequence[_Step], other_keys: bool, tag: text.TagText | None) -> Convert | None:
    if not other_keys and all(
        s.evolution.convert is None and s.before == s.now and not s.drops_none for s in steps
    ):
        return None
    plan = [(s.before, s.now, s.evolution.convert, s.drops_none) for s in steps]
    begin = {} if tag is None else {tag.field: tag.value}

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {**begin}
        for before, now, change, drops_none in plan:
            if before in value:
                one = value[before]
                if one is None and drops_none:
                    continue
                out[now] = one if change is None else change(one)
        return out

    return convert


def _by_position(steps: Sequence[_Step], gone: bool) -> Convert | None:
    if any(s.drops_none for s in steps):
        raise RefusedError("a field of a named tuple cannot leave None out")
    if not gone and all(s.evolution.convert is None and s.source == s.target for s in steps):
        return None
    plan = [(s.source, s.evolution.convert) for s in steps]

    def convert(values: list[Any]) -> list[Any]:
        present = len(values)
        return [
            values[source] if change is None else change(values[source])
            for source, change in plan
            if source < present
        ]

    return convert


def _late(made: Sequence[Evolution], value: Any) -> Any:
    convert = made[0].convert
    return value if convert is None else convert(value)


def _mapped(item: Evolution, over: Callable[[Convert], Convert]) -> Evolution:
    convert = None if item.convert is None else over(item.convert)
    return replace(item, convert=convert)


def _pairs(convert: Convert) -> Convert:
    return lambda pairs: {key: convert(value) for key, value in pairs.items()}


def _each(items: Sequence[Evolution]) -> Convert | None:
    converts = [item.convert for item in items]
    if all(convert is None for convert in converts):
        return None
    return lambda values: [
        value if convert is None else convert(value) for value, convert in zip(values, converts, strict=True)
    ]


def _of_records(convert: Convert) -> Convert:
    return lambda value: convert(value) if value.__class__ is dict else value


def _unless_none(item: Evolution) -> Evolution:
    return _mapped(item, lambda convert: lambda value: None if value is None else convert(value))


def _together(parts: Iterable[Evolution], convert: Convert | None) -> Evolution:
    parts = list(parts)
    return Evolution(
        convert,
        all(part.direct for part in parts),
        tuple(change for part in parts for change in part.changes),
        tuple(loss for part in parts for loss in part.losses),
        tuple(one for part in parts for one in part.alike),
        tuple(each for part in parts for each in part.sources),
    )


def _with(found: Evolution, change: str) -> Evolution:
    return replace(found, changes=(*found.changes, change))


def _changed(path: str, what: str) -> Evolution:
    return Evolution(changes=(_note(path, what),))


def _note(path: str, what: str) -> str:
    return f"field {path}: {what}" if path else what


def _at(path: str) -> str:
    return f"field {path}: " if path else ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _alike(old: text.Tree, new: text.UnionText) -> Iterator[text.Tree]:
    """The members of a union that an old one may be: of its kind and name, or of its tag under another name."""
    kind = [member for member in new.members if type(member) is type(old)]
    named = [member for member in kind if getattr(old, "name", "") == getattr(member, "name", "")]
    tag = getattr(old, "tag", None)
    return iter(
        named or [member for member in kind if tag is not None and getattr(member, "tag", None) == tag]
    )


def _told(members: Sequence[text.Tree], new: text.UnionText) -> Sequence[text.Tree]:
    """Several records of a union have tags. A text of before tags were noted does not have them: they are taken for those of today."""
    records = [member for member in members if isinstance(member, text.StructText)]
    if len(records) < 2 or any(record.tag for record in records):
        return members
    tags = {member.name: member.tag for member in new.members if isinstance(member, text.StructText)}
    return [
        replace(member, tag=tags.get(member.name)) if isinstance(member, text.StructText) else member
        for member in members
    ]


def _tag(tag: text.TagText | None) -> str:
    return "no tag" if tag is None else f"tag {tag.field}={tag.value!r}"


def _has_none(tree: text.Tree) -> bool:
    if isinstance(tree, text.ChoiceText):
        return None in tree.values
    return tree == text.ScalarText("null")


def _unhashable(tree: text.Tree) -> bool:
    """Whether MessagePack without a type cannot be read into a dict with such keys."""
    return isinstance(tree, (text.StructText, text.ReferenceText)) and not getattr(tree, "by_position", False)


def shown(tree: text.Tree) -> str:
    """A type as a sentence names it: records by their name only."""
    match tree:
        case text.ScalarText(name) | text.ReferenceText(name):
            return name
        case text.OptionalText(item):
            return f"{shown(item)} | None"
        case text.UnionText(members):
            return " | ".join(map(shown, members))
        case text.ListText(kind, item):
            return f"{kind}<{shown(item)}{',...' if kind == 'tuple' else ''}>"
        case text.TupleText(items):
            return f"tuple<{','.join(map(shown, items))}>"
        case text.MapText(key, value):
            return f"map<{shown(key)},{shown(value)}>"
        case text.ChoiceText(name, members):
            return f"enum {name}" if name else f"literal<{','.join(repr(value) for _, value in members)}>"
    return f"{'named tuple' if tree.by_position else 'record'} {tree.name}"
