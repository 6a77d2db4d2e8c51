"""The wheel itself: its size, its interface, how long an import takes, and its types."""

import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import pytest

import glebe

WHEEL = os.environ.get("GLEBE_WHEEL")
PACKAGE = pathlib.Path(glebe.__file__).parent


def tool(name):
    """A program beside the interpreter."""
    path = pathlib.Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"skipped: {name} is not installed in {path.parent}")
    return str(path)


def wheel():
    if not WHEEL:
        pytest.skip("skipped: GLEBE_WHEEL names no wheel")
    return pathlib.Path(WHEEL)


def test_the_wheel_is_small_and_of_the_stable_interface():
    path = wheel()
    assert path.stat().st_size <= 2 << 20
    assert "-cp311-abi3-" in path.name
    done = subprocess.run([tool("abi3audit"), "--strict", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_takes_little():
    """As much as 20 ms over the interpreter's own start would be too much."""
    program = (
        "import time; start = time.perf_counter(); import glebe; "
        "print(time.perf_counter() - start)"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
        for _ in range(7)
    ]
    print(f"import glebe: {statistics.median(took) * 1000:.1f} ms")
    heavy = "import sys, glebe; print(*{'numpy', 'typing', 'asyncio', 'warnings'} & set(sys.modules))"
    alone = "import sys; print(*{'numpy', 'typing', 'asyncio', 'warnings'} & set(sys.modules))"
    said = [
        subprocess.run([sys.executable, "-I", "-c", text], capture_output=True).stdout.split()
        for text in (heavy, alone)
    ]
    assert set(said[0]) <= set(said[1])


USES = '''
import glebe
from glebe.swap import Store
from glebe.volatile import VolatileBuffer, volatile_cache

with glebe.Reserve(1 << 20, source="plain") as reserve:
    cache = reserve.cache("a")
    cache["k"] = bytearray(5)
    cache[("k", 1, None)] = memoryview(b"x")
    value: bytes = cache["k"]
    count: int | None = cache.get_into(b"k", bytearray(5))
    block: glebe.Block = reserve.alloc(bytes=5, zeroed=True)
    view: memoryview = memoryview(block)
    frame, contiguous = block.locate()
    taken: glebe.Block = reserve.promise(1).take()
try:
    reserve.alloc(1)
except glebe.NoRun as error:
    print(error.longest + 1)
buffer = VolatileBuffer(1 << 20)
with buffer.held() as lost:
    pages: list[tuple[int, int]] = lost
store = Store(1 << 20)
with store.pin(store.insert(b"x")) as pinned:
    print(bytes(pinned), glebe.contig(1).runs()[0][2])

@volatile_cache(1 << 20)
def make(n: int) -> bytes:
    return bytes(n)

made: bytes = make(5)
make.clear()
'''

WRONG = '''
import glebe
reserve = glebe.Reserve("1")
reserve.cache("a")[5.0] = b""
reserve.alloc(1).pages = 5
reserve.alloc(align="2")
'''


def test_the_stubs_are_strict(tmp_path):
    mypy = tool("mypy")
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "wrong.py").write_text(WRONG)
    words = [mypy, "--strict", "--cache-dir", str(tmp_path / "cache")]

    def check(*what):
        return subprocess.run([*words, *what], capture_output=True, text=True, cwd=tmp_path)

    modules = ["glebe", "glebe.errors", "glebe.swap", "glebe.volatile"]
    for what in (["uses.py"], [word for name in modules for word in ("-m", name)]):
        done = check(*what)
        assert done.returncode == 0, done.stdout
    assert check("wrong.py").stdout.count(" error: ") == 4


def test_the_stubs_have_what_there_is(tmp_path):
    stubtest = tool("stubtest")
    words = [stubtest, "glebe", "--concise"]
    allowed = tmp_path / "allowed"
    # Private parts have no stubs; buffers have no method that Python sees before 3.12.
    allowed.write_text("glebe\\._.*\nglebe\\.__getattr__\nglebe\\..*\\.__buffer__\n")
    words += ["--ignore-disjoint-bases", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_package_lies_outside_of_it():
    assert shutil.which("glebe-python") is None and (PACKAGE / "py.typed").exists()
