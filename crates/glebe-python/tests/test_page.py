"""The examples of the page for Python run, in their order."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


def test_the_examples_of_the_page_run():
    if not PAGE.exists():
        pytest.skip(f"skipped: no {PAGE}")
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ran = [text for text in examples if "doctest: skip" not in text]
    names = {}
    for text in ran:
        # The first reserve is used on; one that ends with its block is not.
        exec(compile(text, str(PAGE), "exec"), names)
    assert len(ran) == 5 and names["total"] == 0 and (names["tile"](3, 4) == 12).all()
