"""Configuration files that the user has trusted once: what a file found in the working folder may decide rests on it.

Whoever types a command in a folder has not necessarily written the `stateflow.toml` there: it may have come with an
archive or a clone. So its *guarded* options (folders, endpoints, credentials, and what is deleted) count only if the user has
said so. What was trusted is the file's path with a hash of each of them. The other options may change without being asked
about again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from stateflow.errors import UsageError
from stateflow.private_folders import make_private

Guarded = tuple[tuple[str, Any], ...]
"""The guarded options as the file writes them, with their values, in its order."""
Standing = Literal["trusted", "changed", "not trusted", "of another user"]


def standing(
    path: Path, owner: int, guarded: Guarded, env: Mapping[str, str]
) -> tuple[Standing, frozenset[str]]:
    """Whether the user has trusted this file, and the names of the options that he has not trusted as they are now. `owner`: the user id
    that the file belongs to."""
    now = _digests(guarded)
    if not _is_own(owner):
        return "of another user", frozenset(now)
    note = _note(path, env)
    if note is None or not note.is_file():
        return "not trusted", frozenset(now)
    try:
        known = json.loads(note.read_bytes())["options"]
        # One that is gone has its default now, which nobody has trusted either.
        changed = frozenset(name for name in {*known, *now} if known.get(name) != now.get(name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "not trusted", frozenset(now)
    return ("changed" if changed else "trusted"), changed


def remember(path: Path, owner: int, guarded: Guarded, env: Mapping[str, str]) -> None:
    """Trusts the file as it is now. UsageError when it belongs to another user, or when there is nowhere to note it."""
    if not _is_own(owner):
        raise UsageError(
            f"{path} belongs to another user, who may change it: copy it and trust the copy, or name it with STATEFLOW_CONFIG"
        )
    note = _note(path, env)
    if note is None:
        raise UsageError(
            f"there is no home folder to note in that {path} is trusted: set HOME or XDG_CONFIG_HOME, or name the file with "
            "STATEFLOW_CONFIG"
        )
    make_private(note.parent)
    part = note.with_name(f".{note.name}-{uuid4().hex}")
    part.write_text(json.dumps({"file": str(path), "options": _digests(guarded)}) + "\n", encoding="utf-8")
    part.replace(note)


def forget(path: Path, env: Mapping[str, str]) -> bool:
    """Trusts the file no longer. Returns whether it was trusted."""
    note = _note(path, env)
    if note is None or not note.exists():
        return False
    note.unlink()
    return True


def home(env: Mapping[str, str]) -> Path | None:
    """The user's home folder. None when it is not known: an empty or relative HOME would lead into the working folder."""
    try:
        folder = Path(env["HOME"]) if "HOME" in env else Path.home()
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None


def _note(path: Path, env: Mapping[str, str]) -> Path | None:
    """The file that notes the trust in a configuration file."""
    named = Path(env.get("XDG_CONFIG_HOME", ""))
    folder = home(env)
    if named.is_absolute():
        config = named
    elif folder is not None:
        config = folder / ".config"
    else:
        return None
    return config / "stateflow" / "trusted" / hashlib.sha256(os.fsencode(path)).hexdigest()


def _is_own(owner: int) -> bool:
    return owner in (os.geteuid(), 0)


def _digests(guarded: Guarded) -> dict[str, str]:
    """By name. A file may set an option twice, with `-` and with `_`."""
    names = dict.fromkeys(option_name(written) for written, _ in guarded)
    return {name: _digest(each for each in guarded if option_name(each[0]) == name) for name in names}


def option_name(written: str) -> str:
    """The name of an option that a file may write with `-`."""
    return written.replace("-", "_")


def _digest(options: Iterable[tuple[str, Any]]) -> str:
    return hashlib.sha256(json.dumps([list(each) for each in options], default=str).encode()).hexdigest()
