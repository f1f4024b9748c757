"""Links of the pages, as the site needs them."""

from __future__ import annotations

import pytest

from scripts.docsite import links


@pytest.mark.parametrize(
    ("page", "text", "there"),
    [
        ("README.md", "[a](docs/time.md#late-rows)", "[a](time.md#late-rows)"),
        ("README.md", "![a](docs/img/ui/job.png)", "![a](img/ui/job.png)"),
        ("docs/deploying.md", "[a](../docker/README.md)", "[a](containers.md)"),
        ("docs/recipes/top.md", "[a](../operators.md)", "[a](../operators.md)"),
        ("docs/recipes/top.md", "[a](../../README.md)", "[a](../index.md)"),
        ("docs/walk.md", "[a](#here) [b](https://example.org/x)", "[a](#here) [b](https://example.org/x)"),
    ],
)
def test_a_link_between_pages_holds_in_the_site(page: str, text: str, there: str) -> None:
    assert links.led(text, page) == there


def test_a_file_that_is_no_page_is_named() -> None:
    assert links.led("DAGs to copy ([dags/](dags))", "README.md") == "DAGs to copy (`dags`)"
    assert links.led("[orders](../examples/orders.py)", "docs/walk.md") == (
        "orders (`examples/orders.py` in the repository)"
    )


def test_code_keeps_its_brackets() -> None:
    code = "```python\nx[0](dags)\n```\n"
    assert links.led(code, "README.md") == code
