"""What a worker needs to import the modules beside a pipeline's file: its folder, and on the driver's host what the driver has read of them."""

from __future__ import annotations

import marshal
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stateflow.pipelines.code.own_code import OwnFile, freeze

_entered = [b""]


@dataclass(frozen=True)
class SentModules:
    """The modules that user code names."""

    folders: tuple[str, ...] = ()
    files: bytes = b""
    """Of a worker on the driver's host; empty for others, to which modules go by value."""

    @classmethod
    def of(cls, folder: Path, files: Mapping[str, OwnFile]) -> SentModules:
        bodies = {path: (file.digest, file.body) for path, file in files.items()}
        return cls((str(folder),), zlib.compress(marshal.dumps(bodies)))

    def enter(self) -> None:
        """Lets this process import them."""
        sys.path[:0] = [folder for folder in self.folders if folder not in sys.path]
        if self.files and self.files != _entered[0]:
            # What the driver has made of the same Python's code, for its own workers.
            bodies = marshal.loads(zlib.decompress(self.files))
            freeze({path: OwnFile(*of_file) for path, of_file in bodies.items()})
            _entered[:] = [self.files]


NO_MODULES = SentModules()
