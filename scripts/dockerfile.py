"""Dockerfiles, read as far as their mistakes can be told without building them."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KNOWN = frozenset(
    ("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "ONBUILD", "RUN",
     "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR")
)  # fmt: skip
_PIP = re.compile(r"\bpip\d? install\b(?P<rest>[^&|;]*)")
_PINNED = re.compile(r"[\w.\[\]-]+==[\w.!+]+$")


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    name: str
    text: str

    @property
    def flags(self) -> dict[str, str]:
        words = [word for word in self.text.split() if word.startswith("--")]
        return dict(word[2:].partition("=")[::2] for word in words)

    @property
    def words(self) -> list[str]:
        """Without flags; the JSON form and the plain one."""
        text = " ".join(word for word in self.text.split(" ") if not word.startswith("--")).strip()
        if text.startswith("["):
            return [str(word) for word in json.loads(text)]
        return shlex.split(text)


class DockerfileError(Exception):
    """A line that no engine could read."""


def instructions(text: str) -> list[Instruction]:
    found: list[Instruction] = []
    began, parts = 0, []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#") or (not line and not parts):
            continue
        began = began if parts else number
        parts.append(line.removesuffix("\\").strip())
        if line.endswith("\\"):
            continue
        name, _, rest = " ".join(part for part in parts if part).partition(" ")
        if name.upper() not in KNOWN:
            raise DockerfileError(f"line {began}: {name!r} is no instruction")
        if not rest.strip():
            raise DockerfileError(f"line {began}: {name.upper()} says nothing")
        found.append(Instruction(began, name.upper(), rest.strip()))
        parts = []
    if parts:
        raise DockerfileError(f"line {began}: the last line ends with a backslash")
    first = next((each for each in found if each.name != "ARG"), None)
    if first is None or first.name != "FROM":
        raise DockerfileError("it does not begin with FROM")
    return found


def problems(text: str, context: Path, pinned: Callable[[str], str]) -> Iterator[str]:
    """`pinned` says what is wrong with the name of an image, empty for nothing."""
    try:
        found = instructions(text)
    except DockerfileError as error:
        yield str(error)
        return
    ignored = ignore_rules(context)
    stages: list[str] = []
    user = "root"
    for each in found:
        try:
            words = each.words
        except ValueError as error:
            yield f"line {each.line}: {each.name} cannot be read: {error}"
            continue
        where = f"line {each.line}: "
        match each.name:
            case "FROM":
                user = "root"
                if words[0] not in stages and (wrong := pinned(words[0])):
                    yield f"{where}image {words[0]} {wrong}"
                has_name = len(words) == 3 and words[1].upper() == "AS"
                stages.append(words[2] if has_name else str(len(stages)))
            case "COPY" | "ADD":
                yield from (where + said for said in _copied(each, words, stages, context, ignored, pinned))
            case "RUN":
                yield from (where + said for said in _installed(each.text))
            case "USER" | "WORKDIR" if len(words) != 1:
                yield f"{where}{each.name} takes one word, not {each.text!r}"
            case "USER":
                user = words[0]
            case "CMD" | "ENTRYPOINT" if not each.text.startswith("["):
                yield f"{where}{each.name} is a line for a shell, which does not pass signals on: write it as a JSON list"
    if user in ("root", "0"):
        yield "its last stage runs as root: end with USER"


def ignore_rules(context: Path) -> list[tuple[bool, str]]:
    """Of .dockerignore: whether a rule takes files back in, and its pattern."""
    file = context / ".dockerignore"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [(rule.startswith("!"), rule.lstrip("!").strip("/")) for rule in rules]


def is_ignored(name: str, rules: Sequence[tuple[bool, str]]) -> bool:
    """The last rule that speaks of the file, or of a folder that it lies in, decides."""
    path = PurePosixPath(name)
    names = [str(path), *(str(parent) for parent in path.parents if str(parent) != ".")]
    verdict = False
    for back_in, pattern in rules:
        if any(fnmatch.fnmatch(each, pattern) or _anywhere(each, pattern) for each in names):
            verdict = not back_in
    return verdict


def _anywhere(name: str, pattern: str) -> bool:
    return pattern.startswith("**/") and fnmatch.fnmatch(PurePosixPath(name).name, pattern[3:])


def _copied(
    each: Instruction,
    words: Sequence[str],
    stages: Sequence[str],
    context: Path,
    ignored: Sequence[tuple[bool, str]],
    pinned: Callable[[str], str],
) -> Iterator[str]:
    if len(words) < 2:
        yield f"{each.name} needs a source and a target"
        return
    *sources, target = words
    if origin := each.flags.get("from"):
        if origin not in stages[:-1] and (wrong := pinned(origin)):
            yield f"{each.name} --from={origin} is no earlier stage, and as an image it {wrong}"
        return
    for source in sources:
        if source.startswith(("http://", "https://", "git@")):
            yield f"{source} is fetched without a checksum: fetch it in a RUN that compares one"
        elif not list(context.glob(source.strip("/"))):
            yield f"{source} does not exist in {context.name or context}"
        elif is_ignored(source.removeprefix("./").strip("/"), ignored):
            yield f"{source} is left out by .dockerignore"
    if len(sources) > 1 and not target.endswith("/"):
        yield f"several sources need a target that ends with a slash, not {target}"


def _installed(command: str) -> Iterator[str]:
    for found in _PIP.finditer(command):
        words = found["rest"].split()
        skip = False
        for word in words:
            if skip or word.startswith("-"):
                skip = not skip and word in ("-r", "-c", "--requirement", "--constraint", "--target")
                continue
            if not (word.startswith(("/", ".")) or _PINNED.match(word)):
                yield f"pip install {word} takes whatever version there is: pin it, or take it from the lock"
