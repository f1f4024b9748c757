"""What MkDocs calls while it builds: pages from elsewhere, the reference, and scripts that are not fetched by readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.docsite import links, reference, vendored

_ROOT = links.ROOT
_FROM = {page: file for file, page in links.ELSEWHERE.items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    # The offline plugin adds its own address only where no other one names the script.
    config.extra["polyfills"] = [vendored.IFRAME_WORKER.url]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made: dict[str, Any] = {page: (_ROOT / file).read_text("utf-8") for page, file in _FROM.items()}
    made |= {page.path: page.text for page in reference.pages()}
    cache = Path(os.environ.get("STATEFLOW_CACHE_DIR") or _ROOT / ".cache").expanduser() / "docs"
    for script in vendored.ALL:
        made |= script.files(cache)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    path = page.file.src_uri
    return links.led(markdown, _FROM.get(path, f"docs/{path}"))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Mermaid's script, which is larger than all else together, only where a page has a diagram."""
    if 'class="mermaid"' not in output:
        return output
    up = "../" * page.url.count("/")
    return output.replace("</head>", f'<script src="{up}{vendored.MERMAID.url}"></script></head>', 1)
