"""The wheels: their size, form and interface, the time of an import, and the types."""

import inspect
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import zipfile

import pytest

import glebe
from glebe import cuda, errors, swap, volatile

# The folder with the wheels and sources for users.
WHEELS = os.environ.get("GLEBE_WHEELS")
PACKAGE = pathlib.Path(glebe.__file__).parent


def tool(name):
    """Returns the path of a program beside the interpreter."""
    path = pathlib.Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"skipped: {name} is not installed in {path.parent}")
    return str(path)


def checker(name):
    """Returns the path of a type checker. Both checkers take 20 s of a processor."""
    if not WHEELS and not os.environ.get("GLEBE_LONG"):
        pytest.skip("skipped: types are checked by `make python` and `make test-long`")
    return tool(name)


def wheels():
    if not WHEELS:
        pytest.skip("skipped: GLEBE_WHEELS names no folder with wheels")
    found = sorted(pathlib.Path(WHEELS).glob("*.whl"))
    assert any(path.name.endswith(f"_{platform.machine()}.whl") for path in found), found
    return found


def said_by(*words):
    """Runs a program. Returns its output, and fails if the program fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_is_small_and_of_the_stable_interface():
    # Other profiles optimize less than what users get.
    most = 2 << 20 if os.environ.get("PROFILE", "release") == "release" else 3 << 20
    for path in wheels():
        assert path.stat().st_size <= most
        assert "-cp311-abi3-" in path.name
        said_by(tool("abi3audit"), "--strict", str(path))


def test_a_wheel_runs_with_the_oldest_c_library_of_its_tag():
    for path in wheels():
        named = re.search(r"[-.]manylinux_2_(\d+)_(x86_64|aarch64)\.", path.name)
        said = said_by(tool("auditwheel"), "show", str(path)).replace("\n", " ")
        needed = re.search(r'platform tag: *"manylinux_2_(\d+)_(x86_64|aarch64)"', said)
        assert named and needed, said
        assert int(needed[1]) <= int(named[1]) and needed[2] == named[2], said


def test_the_index_shows_what_wheels_and_sources_say_of_themselves():
    files = [*wheels(), *pathlib.Path(WHEELS).glob("*.tar.gz")]
    assert len(files) == len(wheels()) + 1
    said_by(tool("twine"), "check", "--strict", *map(str, files))
    for path in files:
        assert path.name.startswith(f"glebe-{glebe.__version__}-") or path.suffix == ".gz"


def test_every_interpreter_imports_the_wheel(tmp_path):
    own = next(path for path in wheels() if path.name.endswith(f"_{platform.machine()}.whl"))
    with zipfile.ZipFile(own) as archive:
        archive.extractall(tmp_path)
    program = (
        "import glebe, sys; r = glebe.Reserve(1 << 20, source='plain'); c = r.cache('a'); "
        "c['k'] = b'v'; assert c['k'] == b'v'; print(sys.version_info[:2], glebe.__version__)"
    )
    tried = []
    for minor in range(11, 16):
        words = [f"python3.{minor}", "-c"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        if not shutil.which(words[0]) or subprocess.run([*words, ""], capture_output=True).returncode:
            continue
        done = subprocess.run([*words, program], env=environment, capture_output=True, text=True)
        assert done.stdout == f"(3, {minor}) {glebe.__version__}\n", done.stdout + done.stderr
        tried.append(minor)
    print("imported by CPython 3." + ", 3.".join(map(str, tried)))
    assert sys.version_info[1] in tried


def texts_of_licences(names, read):
    found = {name.rsplit("/", 1)[-1]: read(name) for name in names if "LICENSE" in name}
    assert set(found) == {"LICENSE-APACHE", "LICENSE-MIT", "LICENSES-THIRD-PARTY"}
    assert b"Apache License" in found["LICENSE-APACHE"] and b"MIT" in found["LICENSE-MIT"]
    for name, text in found.items():
        if (own := pathlib.Path(__file__).parents[3] / name).exists():
            assert text == own.read_bytes()


def test_a_wheel_has_its_licences_and_types():
    for path in wheels():
        with zipfile.ZipFile(path) as archive:
            there = set(archive.namelist())
            names = [name for name in there if ".dist-info/" in name]
            texts_of_licences(names, archive.read)
            metadata = archive.read(next(name for name in names if name.endswith("/METADATA")))
        assert metadata.count(b"\nLicense-File: LICENSE") == 3
        types = {f"glebe/{file.name}" for file in PACKAGE.glob("*.pyi")}
        assert types and there >= types | {"glebe/py.typed"}


def test_a_source_distribution_has_the_texts_of_its_licences():
    wheels()
    with tarfile.open(next(pathlib.Path(WHEELS).glob("*.tar.gz"))) as archive:
        names = [name for name in archive.getnames() if name.count("/") == 1]
        texts_of_licences(names, lambda name: archive.extractfile(name).read())


def members(kind):
    """Yields names and values of the public members that the package gives a class."""
    for name in dir(kind):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        if not name.startswith("_") and owner.__module__.startswith("glebe"):
            yield name, inspect.getattr_static(kind, name)


def test_help_has_a_text_for_each_public_member():
    @volatile.volatile_cache(1 << 20)
    def make():
        """Returns nothing."""

    bare = [name for name in ("clear", "drop_unused", "stats") if not getattr(make, name).__doc__]
    for module in (glebe, cuda, errors, swap, volatile):
        for name in getattr(module, "__all__", vars(module)):
            thing = getattr(module, name)
            if callable(thing) and not name.startswith("_") and not thing.__doc__:
                bare.append(name)
            if inspect.isclass(thing) and not issubclass(thing, errors.Error):
                bare += [f"{name}.{member}" for member, value in members(thing) if not value.__doc__]
    assert bare == []


def test_an_import_takes_little():
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
import numpy as np

import glebe
from glebe import errors
from glebe.cuda import PinnedPool, register
from glebe.swap import Store
from glebe.volatile import VolatileBuffer, volatile_cache

with glebe.Reserve(1 << 20, source="plain") as reserve:
    cache = reserve.cache("a")
    cache["k"] = bytearray(5)
    cache[("k", 1, None)] = memoryview(b"x")
    cache[5] = cache[np.int64(6)] = cache["k", np.int8(1)] = np.zeros(3)
    cache["scalar"] = np.float32(1)
    array: np.ndarray = cache[5]
    value: bytes = cache["k"]
    gone: int = cache.lost
    pairs = dict(cache), list(cache.items()), list(cache.values()), cache.pop("k", None)
    kept: bool = cache.put("k", b"v")
    popped = cache.popitem(), 5 in cache, len(cache)
    cache.clear()
    count: int | None = cache.get_into(b"k", bytearray(5))
    block: glebe.Block = reserve.alloc(bytes=5, zeroed=True)
    view: memoryview = memoryview(block)
    frame, contiguous = block.locate()
    number: int = block.address + block.pages + len(block)
    words: str = block.contiguity + reserve.source
    view.release()
    block.free()
    promise = reserve.promise(1)
    run: int = promise.pages + reserve.largest_run() + len(reserve)
    taken: glebe.Block = promise.take()
    promise.give_up()
    numbers: dict[str, int] = reserve.stats()
    with taken, reserve.promise(bytes=1, align=1, any=True):
        pass
    other: glebe.Cache = glebe.Cache(reserve, "b")
with glebe.Reserve(4 << 20, source="plain", room=8 << 20) as growing:
    size: int = growing.grow(4 << 20) + growing.shrink(2 << 20)
    try:
        growing.alloc(1 << 20)
    except glebe.NoRun as error:
        print(error.longest + error.asked)
reserve.close()
buffer = VolatileBuffer(1 << 20)
with buffer.held() as lost:
    pages: list[tuple[int, int]] = lost
buffer.mark(0, glebe.PAGE_BYTES)
dropped: int = buffer.drop_marked() + buffer.marked + len(buffer)
pages = buffer.unmark()
buffer.write(0, b"x")
some: bytes | None = buffer.read(0, 1)
engine: str = buffer.engine
numbers = buffer.stats()
store = Store(1 << 20)
with store.pin(store.insert(b"x")) as pinned:
    print(bytes(pinned), len(pinned))
    pinned.release()
key = store.insert(bytearray(5))
store.cold(key)
store.will_need(key)
store.pin_mut(key).release()
bytes_of_it: bytes = store.take(key)
key = store.insert(b"x")
store.dead(key)
store.free(key)
numbers = store.stats()
with glebe.contig(1 << 20, source="plain", require_run=4096) as memory:
    said: str = memory.proof + memory.held_by + memory.source
    where: int = memory.address + memory.longest_run + len(memory)
    moved: list[tuple[int, int]] = memory.verify()
    frames: list[int | None] = [frame for _, _, frame in memory.runs()]
memory.close()
for kind in (errors.NoMemory, errors.Budget, errors.Forked, errors.Damaged, errors.Stale):
    assert issubclass(kind, glebe.Error)

@volatile_cache(1 << 20)
def make(n: int) -> bytes:
    return bytes(n)

made: bytes = make(5)
make.clear()
freed: int = make.drop_unused()
numbers = make.stats()

class Tiles:
    @volatile_cache(1 << 20, hot=0, typed=True)
    def tile(self, x: int, *, by: str = "") -> bytes:
        return bytes(x)

def lends(socket: str) -> float | None:
    with glebe.lease("2G", contiguous=True, align=0, one_file=True, socket=socket) as leased:
        where: int = leased.fileno() + leased.files()[0] + leased.number + leased.address
        found: int | None = leased.physical or leased.runs()[0][2]
        print(where + len(leased) + leased.nbytes, found, memoryview(leased))
    other: glebe.Lease = glebe.lease(5, align="4M", revocable=True, name="n", node=0)
    other.close()
    return other.recalled(None) or other.recalled() or other.recalled(0.5)

def for_gpus(contig: glebe.Contig) -> int:
    with register(contig, piece=1 << 20, progress=print, devices=[np.int64(0)]) as registered:
        there: bool = registered.wait(0, 5, timeout=0.5)
        registered.cancel()
        registered.resume()
        print(there, registered.address + registered.ready / registered.total, registered.error)
    pool = PinnedPool(1 << 30, source="thp", pause=0.1, library="libcudart.so")
    given: glebe.Block = PinnedPool(pool.reserve).block(5, zeroed=True)
    some: np.ndarray = pool.array((2, np.int64(3)), "f4")
    pool.cache("a")["k"] = pool.array(5)
    print(some)
    return pool.settle() + pool.resting + len(given)

tile: bytes = Tiles().tile(3, by="n")
Tiles().tile.clear()
same: bytes = Tiles.tile(Tiles(), 3)
'''

WRONG = '''
import glebe
from glebe.volatile import volatile_cache
reserve = glebe.Reserve("1")
reserve.cache("a")[5.0] = b""
reserve.alloc(1).pages = 5
reserve.alloc(align="2")
reserve.cache("a")["k"] = 5
glebe.cuda.register(bytearray(5))

class Tiles:
    @volatile_cache(1 << 20)
    def tile(self, x: int) -> bytes:
        return bytes(x)

Tiles().tile("3")
Tiles().tile()
'''


def test_the_program_for_the_stubs_runs(run):
    run(USES)


def test_the_stubs_are_strict(tmp_path):
    mypy = checker("mypy")
    (tmp_path / "uses.py").write_text(USES)
    (tmp_path / "wrong.py").write_text(WRONG)
    words = [mypy, "--strict", "--cache-dir", str(tmp_path / "cache")]

    def check(*what):
        return subprocess.run([*words, *what], capture_output=True, text=True, cwd=tmp_path)

    modules = ["glebe", "glebe.cuda", "glebe.errors", "glebe.swap", "glebe.volatile"]
    for what in (["uses.py"], [word for name in modules for word in ("-m", name)]):
        done = check(*what)
        assert done.returncode == 0, done.stdout
    assert check("wrong.py").stdout.count(" error: ") == 8


def test_the_stubs_have_what_there_is(tmp_path):
    stubtest = checker("stubtest")
    words = [stubtest, "glebe", "--concise"]
    allowed = tmp_path / "allowed"
    # Private parts have no stubs. Before 3.12, Python sees no buffer method.
    allowed.write_text("glebe\\._.*\nglebe\\.__getattr__\nglebe\\..*\\.__buffer__\n")
    words += ["--ignore-disjoint-bases", "--allowlist", str(allowed), "--ignore-unused-allowlist"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_package_lies_outside_of_it():
    assert shutil.which("glebe-python") is None and (PACKAGE / "py.typed").exists()
