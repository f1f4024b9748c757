"""The parts of a recipe's page that are made: its code, and what the story shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

from scripts.recipes.story import FINAL, FOLDER, ROOT, Batch, Story, told

PAGES = ROOT / "docs" / "recipes"
_PART = "<!-- {0}: python -m scripts.recipes -->\n{1}<!-- end of {0} -->"

_DEAD_LETTER = {"key", "error", "traceback"}


def page_of(story: Story) -> Any:
    return PAGES / f"{story.recipe.replace('_', '-')}.md"


def written(story: Story, text: str) -> str:
    """The page's text with the code and the table of today."""
    parts = {"code": code(story), "story": table(list(told(story)))}
    for name, content in parts.items():
        pattern = re.compile(_PART.format(name, "(?:.*?)"), re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(
                f"{page_of(story)} has no place for its {name}: write {_PART.format(name, '')!r}"
            )
        part = _PART.format(name, content)
        text = pattern.sub(lambda _, part=part: part, text)
    return text


def code(story: Story) -> str:
    return f"```python\n{(FOLDER / f'{story.recipe}.py').read_text(encoding='utf-8')}```\n"


def table(batches: Sequence[Batch]) -> str:
    """Batch by batch, a Markdown table. A column that would be empty is left out."""
    sources = list(batches[0].rows)
    outputs = list(dict.fromkeys(name for batch in batches for name in batch.out))
    several = len(sources) > 1
    names = [f"{uid}" if several else "rows in" for uid in sources]
    names += ["rows out" if name == "main" else f"`{name}`" for name in outputs]
    timed = any(batch.watermark is not None for batch in batches)
    lines = [
        ["batch", *(["watermark"] if timed else []), *names],
        ["---"] * (1 + timed + len(names)),
    ]
    for number, batch in enumerate(batches, 1):
        line = [
            ("with `--final`" if batch.watermark == FINAL else "end of the run")
            if batch.last
            else str(number)
        ]
        if timed:
            line.append("" if batch.watermark in (None, FINAL) else shown(batch.watermark))
        line += [_cell(batch.rows.get(uid, ())) for uid in sources]
        line += [_cell(batch.out.get(name, ())) for name in outputs]
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(rows: Iterable[Any]) -> str:
    return "<br>".join(f"`{' · '.join(map(shown, _values(row)))}`" for row in rows)


def _values(row: Any) -> list[Any]:
    if isinstance(row, dict):
        return [row["key"], row["error"]] if row.keys() >= _DEAD_LETTER else list(row.values())
    if isinstance(row, tuple):
        return list(row[1:3])  # a dead letter of a process: its key and error
    return [getattr(row, name) for name in row.__annotations__]


def shown(value: Any) -> str:
    if isinstance(value, datetime):
        text = f"{value:%H:%M:%S}" if value.second else f"{value:%H:%M}"
        return text if value.day == 1 else f"{value:%b} {value.day} {text}"
    if isinstance(value, date):
        return value.isoformat()
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def own_lines(text: str) -> int:
    """How many lines a reader would write: not the imports, the row types and the empty ones."""
    body = [node for node in ast.parse(text).body if not isinstance(node, ast.Import | ast.ImportFrom)]
    kept = [node for node in body if not (isinstance(node, ast.ClassDef) and not node.bases)]
    lines = text.splitlines()
    return sum(bool(line.strip()) for node in kept for line in lines[_first(node) - 1 : node.end_lineno])


def _first(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
