"""What a worker needs to import the modules beside a pipeline's file: its folder, and on the driver's host what the driver has read of them."""

from __future__ import annotations

import marshal
import sys
import zlib
from dataclasses import dataclass

from stateflow.pipelines.code.own_code import OwnFile, OwnFiles


@dataclass(frozen=True)
class SentModules:
    """The modules that user code names."""

    folders: tuple[str, ...] = ()
    files: bytes = b""
    """Of a worker on the driver's host; empty for others, to which modules go by value."""

    @classmethod
    def of(cls, own: OwnFiles, *others: str) -> SentModules:
        """`others`: further folders to look in."""
        if not own.folder:  # a pipeline that was loaded from no file
            return cls(others)
        bodies = {name: (file.digest, file.body) for name, file in own.files.items()}
        return cls((own.folder, *others), zlib.compress(marshal.dumps(bodies)))

    def enter(self) -> None:
        """Lets this process import them."""
        sys.path[:0] = [folder for folder in self.folders if folder not in sys.path]
        if self.files and self != _entered[0]:
            # What the driver has made of the same Python's code, for its own workers.
            bodies = marshal.loads(zlib.decompress(self.files))
            OwnFiles(self.folders[0], {name: OwnFile(*read) for name, read in bodies.items()}).freeze()
            _entered[:] = [self]


NO_MODULES = SentModules()
_entered = [NO_MODULES]
