"""Runs the examples of docs/python.md in their order, and the notebooks."""

import json
import pathlib
import re
import tempfile

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


def test_the_examples_of_the_page_run(monkeypatch, base_pages):
    if not PAGE.exists():
        pytest.skip(f"skipped: no {PAGE}")
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ran = [text for text in examples if "doctest: skip" not in text]
    names = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setenv("GLEBE_LEASES", "/nonexistent/socket")
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        for text in ran:
            exec(compile(text, str(PAGE), "exec"), names)
    assert names["copied"] == {"any": "object"} and names["array"][999] == 999
    assert len(ran) == 7 and len(names["spilled"]) == 1
    assert names["total"] == 0 and (names["tile"](3, 4) == 12).all()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs(path, base_pages):
    cells = json.loads(path.read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), names)
    assert names


def test_there_are_notebooks():
    assert len(list(EXAMPLES.glob("*.ipynb"))) >= 3
