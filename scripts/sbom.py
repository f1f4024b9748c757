"""A bill of materials in CycloneDX: every package, jar and Java of the locks, with its hashes. It asks nobody.

`make sbom` writes build/sbom.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = (
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-uv.txt",
    "requirements-build.txt",
    "requirements-release.txt",
    "docker/spark/requirements.txt",
    "tests/sparks/4.0.txt",
    "tests/sparks/4.1.txt",
    "stateflow/spark/session/java.lock",
)
JARS = (
    "stateflow/spark/session/jars.lock",
    "stateflow/spark/session/kafka.lock",
    "stateflow/spark/session/s3.lock",
)
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_JAR = re.compile(r"^([0-9a-f]{64})  (([^_]+)_(.+?)-(\d[\w.-]*)\.jar)$")


def packages(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and hashes of each package in a lock file."""
    for block in re.split(r"\n(?=\S)", text):
        if pin := _PIN.match(block):
            yield pin[1], pin[2], _HASH.findall(block)


def document(root: Path = ROOT) -> dict[str, Any]:
    """The bill. Equal locks give equal bytes."""
    components: dict[str, dict[str, Any]] = {}
    for lock in LOCKS:
        for name, version, hashes in packages((root / lock).read_text(encoding="utf-8")):
            _add(components, f"pkg:pypi/{name.lower()}@{version}", name, version, hashes)
    for line in (line for lock in JARS for line in (root / lock).read_text(encoding="utf-8").splitlines()):
        if jar := _JAR.match(line):
            _add(components, f"pkg:maven/{jar[3]}/{jar[4]}@{jar[5]}", jar[4], jar[5], [jar[1]])
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": "stateflow-spark"}},
        "components": [components[purl] for purl in sorted(components)],
    }


def _add(
    components: dict[str, dict[str, Any]], purl: str, name: str, version: str, hashes: list[str]
) -> None:
    # A package has several files, one for each kind of machine; a component's own hash would be that of a single file.
    components[purl] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": purl,
        "externalReferences": [
            {
                "type": "distribution",
                "url": purl,
                "hashes": [{"alg": "SHA-256", "content": each} for each in hashes],
            }
        ],
    }


def main(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    bill = document()
    target.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    print(f"{target}: {len(bill['components'])} components")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
