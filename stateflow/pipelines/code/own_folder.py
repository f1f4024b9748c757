"""Which files in the pipeline's folder are the user's own: an environment, or a checkout of the library, may lie in the same folder."""

from __future__ import annotations

import csv
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_LIBRARY = Path(__file__).resolve().parents[2]
_PYTHON = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class OwnFolder:
    """The folder of a pipeline's file."""

    path: Path
    file: str = ""
    """The pipeline's file in it. What pip has installed together with that is the user's own."""

    @classmethod
    def of(cls, file: Path) -> OwnFolder:
        return cls(file.parent, file.name)

    def has(self, file: Path) -> bool:
        """Whether a file is the user's, below this folder."""
        if not file.is_relative_to(self.path) or file.resolve().is_relative_to(_LIBRARY):
            return False
        name = file.relative_to(self.path)
        return (
            {"site-packages", "dist-packages"}.isdisjoint(name.parts)
            and not any(file.is_relative_to(python) for python in _PYTHON if self.path in python.parents)
            and name.as_posix() not in self._installed
        )

    @cached_property
    def _installed(self) -> frozenset[str]:
        """Of `pip install --target`, or in an environment's own folder, where nothing above the files tells it."""
        names: set[str] = set()
        for record in self.path.glob("*.dist-info/RECORD"):
            files = {row[0] for row in csv.reader(record.read_text("utf-8", "replace").splitlines()) if row}
            if self.file not in files:
                names |= files
        return frozenset(names)
