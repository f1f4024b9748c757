"""A job to which all happens that happens to jobs: its states get other names, types and numbers, it is rescaled, restored, saved,
collected, and other jobs begin with its savepoints. Beside it goes a plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from stateflow.checkpoint.copying import copy_files
from stateflow.checkpoint.names import complete_records
from stateflow.format.records import Record, SchemaVersion, StateSchema
from stateflow.savepoints.format import read_savepoint, resolved
from stateflow.state.values.evolution.versions import versioned
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.roots import open_store
from tests.reading.grown import EVERY_KIND, GROUPS, Changes, GrownJob, Meaning, Model, prefix

_int, _float = serializer_for(int), serializer_for(float)
NUMBERS = ("total", "items", "brief", "open", "peak", "short")
"""States of whole numbers, which become floats one day."""
LATER = ("plus", "minus")
"""States that are declared one day. A restore to before that day forgets their numbers, which go to whoever comes first then."""
USERS = 7
ClaimMode = Literal["claim", "no_claim"]


def first_name(state: str) -> str:
    """What a state was called before it got other names."""
    return state.partition("_")[0]


class LivedJob(GrownJob):
    """`live` lets one thing happen."""

    def __init__(self, root: Path, name: str = "orders", *, seed: int = 0, **options: object) -> None:
        super().__init__(root, name, seed=seed, schemas=EVERY_KIND, **options)  # type: ignore[arg-type]
        self.numbers = dict.fromkeys((*NUMBERS, *LATER), _int)
        self.seed = seed
        self.next_id = 100
        self.lived: list[str] = []
        """What has happened."""

    # -- under all of their names

    def meant(self, slot: int) -> list[Meaning]:
        """Each state under the name that it has there."""
        record = self.at(slot)
        states = record.operators["balance"].states
        numbers = {schema.id + (schema.kind == "timer"): name for name, schema in states.items()}
        found = []
        for key, raw in self.models[slot].items():
            meaning, name = self.meanings.get((key, raw)), numbers.get(int.from_bytes(key[2:4], "big"))
            if meaning is not None and name is not None:
                moment = self.moment(record, first_name(name)) or 0
                if meaning.expiry is None or meaning.expiry > moment:
                    found.append(replace(meaning, state=name))
        return found

    def passed(self, group: int) -> tuple[bytes, bytes]:
        with self.first_names():
            return super().passed(group)

    def put(
        self, model: Model, state: str, user: int, number: int, sku: str = "", within: str | None = None
    ) -> Changes:
        with self.first_names():
            return super().put(model, first_name(state), user, number, sku, within)

    @contextmanager
    def first_names(self) -> Iterator[None]:
        """For `GrownJob`, which knows the states by them."""
        today = self.schemas
        self.schemas = {first_name(name): schema for name, schema in today.items()}
        try:
            yield
        finally:
            self.schemas = today

    def records(self) -> list[Record]:
        return complete_records(self.log())

    # -- what happens

    def live(self) -> None:
        acts: Sequence[Callable[[], object]] = (
            *[self.work] * 9,
            self.pass_time,
            self.sweep_a_range,
            self.grow_or_shrink,
            self.merge,
            self.go_back,
            self.forget_a_user,
            self.take_other_types,
            self.rename,
            self.declare,
            self.collect_some,
        )
        act = self.rng.choice(acts) if self.models else self.work
        act()
        self.lived.append(act.__name__)

    def work(self) -> None:
        self.batch(self.some(USERS))

    def pass_time(self) -> None:
        self.batch(self.some(USERS, most=1), seconds=self.rng.choice((4, 30)))

    def sweep_a_range(self) -> None:
        group = self.rng.randrange(GROUPS)
        # The index of expiries stays, for what it names is only hidden.
        self.batch(ranges=((prefix(group, 1), prefix(group, 4)), self.passed(group)))

    def grow_or_shrink(self) -> None:
        self.rescale(self.rng.choice((1, 2, 3, 5, 8)))

    def merge(self) -> None:
        self.join_pieces()

    def go_back(self) -> None:
        slot = self.rng.choice(list(self.models))
        self.restore(slot)
        self.run_over(self.at(slot))

    def run_over(self, record: Record) -> None:
        """The code stays that of today, and names what its states are called there. Those that are not there begin anew, with the numbers
        that are next."""
        known = record.operators["balance"].states
        self.next_id = max(100, *(schema.id + 2 for schema in known.values()))
        names = {first_name(name): name for name in known}
        today = list(self.schemas)
        self.rng.shuffle(today)
        for name in today:
            schema, there = self.schemas[name], names.get(first_name(name))
            number = known[there].id if there else self.next_number()
            aliases = schema.aliases if there in (None, name, *schema.aliases) else (*schema.aliases, there)
            self.schemas[name] = msgspec.structs.replace(schema, id=number, aliases=aliases)

    def forget_a_user(self) -> None:
        """What a tag keeps from before still has the user, and nobody can read it."""
        self.erase(self.rng.randrange(USERS))
        newest = max(self.models)
        self.models = {newest: self.models[newest]}

    def take_other_types(self) -> None:
        whole = [name for name in self.schemas if self.schemas[name].value == "int"]
        for name in self.rng.sample(whole, min(2, len(whole))):
            if first_name(name) in self.numbers:
                self.numbers[first_name(name)] = versioned(_float, 1, {0: _int.loads})
                self.schemas[name] = msgspec.structs.replace(
                    self.schemas[name], value="float", version=1, versions=(SchemaVersion(0, "int", 1),)
                )
        self.work()

    def rename(self) -> None:
        """Some releases name all earlier names of a state, others only the last."""
        for old in self.rng.sample(list(self.schemas), 2):
            schema = self.schemas[old]
            is_recorded = old in self.operator().states
            earlier = () if is_recorded and self.rng.random() < 0.5 else schema.aliases
            name = f"{first_name(old)}_{self.rng.randrange(1_000_000)}"
            self.schemas = {
                name if each == old else each: msgspec.structs.replace(schema, aliases=(old, *earlier))
                if each == old
                else other
                for each, other in self.schemas.items()
            }
        self.work()

    def declare(self) -> None:
        names = {first_name(name) for name in self.schemas}
        for name in self.rng.sample(LATER, self.rng.randint(1, 2)):
            if name not in names:
                value = "float" if self.numbers[name] is not _int else "int"
                schema = StateSchema(id=self.next_number(), kind="value", value=value)
                if value == "float":
                    schema = msgspec.structs.replace(
                        schema, version=1, versions=(SchemaVersion(0, "int", 1),)
                    )
                self.schemas = {**self.schemas, name: schema}
        self.work()

    def next_number(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def collect_some(self) -> None:
        """Some checkpoints are tagged; of the others only the newest stay."""
        for slot in self.rng.sample(list(self.models), len(self.models) // 2):
            self.tag(slot, f"kept-{slot}-{self.ids()}")
        # The next record announces what is no longer kept.
        self.begin(f"run-{self.ids()}", retained=self.rng.choice((2, 5)))
        self.work()
        self.collect()
        kept = {record.slot for record in self.records()}
        self.models = {slot: model for slot, model in self.models.items() if slot in kept}

    # -- other jobs

    def child(self, name: str, claim_mode: ClaimMode, *, packed: bool) -> LivedJob:
        """A job that begins with a savepoint of a checkpoint of this one, and lives on by itself."""
        slot = self.rng.choice(list(self.models))
        target = open_store(f"{self.root}-saved-{name}", fsync=False)
        self.native(target, self.at(slot), max_files=2 if packed else 0)
        made = LivedJob(
            Path(self.root),
            name,
            seed=self.seed + 1,
            backend=self.backend,
            inline_threshold=self.inline_threshold,
        )
        made.times, made.ticks = dict(self.times), self.ticks
        made.numbers, made.schemas, made.next_id = dict(self.numbers), dict(self.schemas), self.next_id
        made.meanings, made.users, made.blocks = dict(self.meanings), dict(self.users), self.blocks
        record = resolved(read_savepoint(target), target.url)
        made.mark, made.now, made.due = record.watermark or 0, record.now, dict(self.dues[slot])
        if claim_mode == "no_claim":
            record, _ = copy_files(
                record, made.writer, made.store_of, ids=made.ids, scratch=made.folder / "scratch"
            )
        made.record(record.operators["balance"], dict(self.models[slot]), "restore", now=record.now)
        made.run_over(record)
        return made

    def lives(self, acts: int) -> Iterator[str]:
        for _ in range(acts):
            self.live()
            yield self.lived[-1]
