"""What others have made, as it came: by hash, with its licence beside it, and nothing fetched from elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

STATIC = Path(__file__).resolve().parents[2] / "plugins" / "stateflow_ui" / "static"
VENDORED = {
    "htm.js": "ab33dd3f38059b9be4d5f5350128eefb2356639c4e0bbe9d9e8b3ba75847e9e4",
    "preact-hooks.js": "5c65ab263688d0805862fd0807c779af02c2799c44fda0873dfcb870d0da70a0",
    "preact.js": "225d7a773766e6fb2cfcc45274fe41d2059f5782f3f2c4569aa5132a2d3a2902",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}


def test_vendored_files_are_what_the_list_says() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").glob("*.*s*")
    }
    assert found == VENDORED


def test_every_vendored_package_has_its_licence_and_its_line() -> None:
    listed = (STATIC / "vendor" / "README.md").read_text(encoding="utf-8")
    for name in VENDORED:
        assert f"`{name}`" in listed
    for licence in ("LICENSE-preact", "LICENSE-htm", "LICENSE-uplot"):
        assert f"`{licence}`" in listed
        assert (STATIC / "vendor" / licence).stat().st_size > 500


def test_no_page_names_an_address_elsewhere_or_at_the_servers_root() -> None:
    own = [
        path
        for path in STATIC.rglob("*")
        if path.suffix in (".js", ".css", ".html") and path.parent.name != "vendor"
    ]
    assert len(own) > 30
    for path in own:
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"""(?:https?:)?//[\w.-]+\.\w+/|(?:href|src)=["']/|url\(["']?/|@import""", text
        ), path
        assert len(text.splitlines()) < 500, path


def test_every_script_and_style_that_is_named_is_there() -> None:
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:href|src)="static/([^"]+)"', index)
    assert len(named) > 8
    assert [name for name in named if not (STATIC / name).is_file()] == []
    for path in STATIC.glob("js/**/*.js"):
        for imported in re.findall(r'from "(\.[^"]+)"', path.read_text(encoding="utf-8")):
            assert (path.parent / imported).is_file(), (path, imported)


def test_every_module_is_asked_for_at_once() -> None:
    """Else a browser finds them one import after the other, a round trip each."""
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    named = set(re.findall(r'rel="modulepreload" href="static/([^"]+)"', index))
    modules = {
        str(path.relative_to(STATIC))
        for folder in ("js", "vendor")
        for path in (STATIC / folder).rglob("*.js")
    }
    assert named == modules - {"js/main.js", "js/theme.js", "vendor/uplot.js"}
