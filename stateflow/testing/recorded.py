"""The state that a harness begins with or leaves, as a job's record has it, and what it says of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.errors import UsageError
from stateflow.format.records import OperatorState

if TYPE_CHECKING:
    from stateflow.reading.key_state import KeyState


class RecordedState(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator keeps: of all keys, or of some."""

    operator: OperatorState
    """Types and ids of its states; its files are not here."""
    entries: tuple[tuple[bytes, bytes], ...] = ()
    elements: dict[str, tuple[tuple[bytes, ...], ...]] = {}
    """State without keys."""
    slot: int = 0
    now: int = 0
    """In microseconds, as is `watermark`."""
    watermark: int | None = None

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_text(cls, text: str) -> RecordedState:
        return msgspec.json.decode(text, type=cls)

    def of_key(self, uid: str, key: Any) -> KeyState:
        """What of it belongs to a key, for reading."""
        from stateflow.reading.key_state import KeyState

        return KeyState(uid, self.operator, key, self.entries, self.now, self.watermark)


def expected(condition: str, state: str, after: KeyState, before: KeyState, namespace: Any) -> None:
    """AssertionError unless the condition holds of a state's value; `previous` is the value before."""
    from stateflow.reading.predicates import condition as parsed

    now, then = (each.look_up(state, namespace) for each in (after, before))
    predicate = parsed(condition, after.target(state).schema)
    if not predicate.holds(now.value if now.found else None, then.value if then.found else None):
        value, previous = (each.json if each.found else None for each in (now, then))
        where = state if namespace is None else f"{state}[{namespace!r}]"
        raise AssertionError(
            f"{condition} does not hold: {where} of key {after.key!r} is {value!r}, and was {previous!r} before the batch"
        )


def refuse_unknown(uid: str, state: str, known: Any) -> None:
    if state not in known:
        raise UsageError(
            f"operator {uid!r} has no state {state!r}: it has {', '.join(sorted(known)) or 'none'}"
        )
