"""One trial in a process, and so in a JVM, of its own: python -m bench.trial MEASUREMENT SIDE FORM FOLDER RESULT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.measurement import Form, Workplace
from bench.measurements import MEASUREMENTS


def main(name: str, side: str, form: Form, folder: str, result: str) -> None:
    measurement = MEASUREMENTS[name]
    workplace = Workplace(Path(folder), lambda text: print(text, flush=True))
    outcome = measurement.run(side, measurement.sizes[form], workplace)
    Path(result).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
