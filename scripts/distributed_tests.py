#!/usr/bin/env python3
"""Runs distributed's own tests of spilling on files behind a cache of glebe.

A worker of distributed spills to `zict.File`. Here it spills to `zict.Cache(zict.File(...),
cache)`, with the cache in a reserve. The tests are unchanged and run twice: with the reserve free,
and with a block that takes all of it after every put, so that each entry is lost before it is read.
With GLEBE_LONG, distributed's tests of a worker's memory run as well.

    scripts/distributed_tests.py [CHECKOUT]

Needs a Python with glebe, distributed, zict and pytest: `scripts/python.sh test` has one. CHECKOUT
is a work tree or a git directory; without it the script clones the repository at the installed
version. Prints `skipped:` if a module or the tests are missing. Exits with 1 if a test failed that
is not in KNOWN_ROOT.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PUBLIC = "https://github.com/dask/distributed"
TESTS = ["test_spill.py"] + ["test_worker_memory.py"] * bool(os.environ.get("GLEBE_LONG"))
PATIENCE_S = 300
# Tests that must fail as root, by file, and why.
KNOWN_ROOT = {
    "test_spill.py": {"test_spillbuffer_oserror": "root writes where a mode forbids it"},
}
# A plugin for pytest: replaces what a worker spills to.
CONFTEST = '''
import os
from collections.abc import MutableMapping

import distributed.spill
import glebe
import zict
from distributed.utils_test import ws, ws_with_running_task  # fixtures

RESERVE = glebe.Reserve(32 << 20, source="plain")
COUNTS = {"hits": 0, "misses": 0}


class Joined(MutableMapping):
    """A cache of glebe's for any key of dask's and values that are lists of buffers."""

    def __init__(self, name):
        self.cache = RESERVE.cache(name)

    @staticmethod
    def key(key):
        return key if isinstance(key, (str, tuple)) else (type(key).__name__, str(key))

    def __setitem__(self, key, value):
        parts = [value] if isinstance(value, (bytes, bytearray, memoryview)) else value
        self.cache[self.key(key)] = b"".join(parts)
        if os.environ["GLEBE_LOSE"] == "1":
            RESERVE.alloc(bytes=len(RESERVE), any=True).free()
            self.cache.clear()  # the newest short values are in no page

    def __getitem__(self, key):
        value = self.cache.get(self.key(key))
        COUNTS["misses" if value is None else "hits"] += 1
        if value is None:
            raise KeyError(key)
        return bytearray(value)

    def __delitem__(self, key):
        del self.cache[self.key(key)]

    def __contains__(self, key):
        return self.key(key) in self.cache

    def __len__(self):
        return len(self.cache)

    def __iter__(self):
        raise NotImplementedError("a cache is not asked for its keys")


File = distributed.spill.AnyKeyFile
distributed.spill.AnyKeyFile = lambda folder: zict.Cache(File(folder), Joined(str(folder)))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"glebe: {COUNTS['hits']} hits, {COUNTS['misses']} misses")
'''


def main():
    for module in ["glebe", "distributed", "zict", "pytest"]:
        if not importlib.util.find_spec(module):
            return skip(f"{sys.executable} has no {module}")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        why = take(sys.argv[1] if len(sys.argv) > 1 else None, folder)
        if why:
            return skip(why)
        (folder / "conftest.py").write_text(CONFTEST)
        return 0 if all([check(folder, test, loses) for test in TESTS for loses in (False, True)]) else 1


def skip(why):
    print(f"skipped: distributed's tests of spilling ({why})")
    return 0


def take(checkout, folder):
    """Puts the tests into the folder. Returns why it cannot, or None."""
    import distributed

    tag = distributed.__version__
    if not checkout:
        checkout = folder / "clone"
        if why := clone(tag, checkout):
            return why
    for test in TESTS:
        path = f"distributed/tests/{test}"
        if (tree := pathlib.Path(checkout) / path).exists():
            (folder / test).write_bytes(tree.read_bytes())
            continue
        shown = subprocess.run(["git", f"--git-dir={checkout}", "show", f"{tag}:{path}"],
                               capture_output=True, check=False)
        if shown.returncode:
            return f"{checkout}: no checkout with {path}, and no git directory that has {tag}"
        (folder / test).write_bytes(shown.stdout)
    return None


def clone(tag, to):
    command = ["git", "clone", "--quiet", "--bare", "--depth", "1", "--branch", tag, PUBLIC, str(to)]
    quiet = dict(os.environ, GIT_TERMINAL_PROMPT="0")
    try:
        ran = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no checkout is given, and no clone can be had: {error}"
    if not ran.returncode:
        return None
    last = ran.stderr.strip().splitlines()[-1:]
    return f"no checkout is given, and no clone can be had: {' '.join(last)}"


def check(folder, test, loses):
    """Runs the tests. Returns true if only known ones failed and the cache was used."""
    environment = dict(os.environ, GLEBE_LOSE=str(int(loses)))
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", test]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True,
                         timeout=PATIENCE_S)
    tests = re.findall(rf"^(PASSED|FAILED|ERROR) {test}::(\S+)", ran.stdout, re.M)
    ends = {name for _, name in tests}
    failed = {name for end, name in tests if end != "PASSED"}
    known = KNOWN_ROOT.get(test, {}) if os.geteuid() == 0 else {}
    counts = re.search(r"glebe: (\d+) hits, (\d+) misses", ran.stdout)
    hits, misses = map(int, counts.groups()) if counts else (0, 0)
    name = "each entry lost" if loses else "the reserve free"
    print(f"distributed's {test}, {name}: {len(ends) - len(failed)} of {len(ends)} pass, "
          f"{hits} hits, {misses} misses")
    for one in sorted(failed & set(known)):
        print(f"  known: {one}: {known[one]}")
    asked = misses > 0 and hits == 0 if loses else hits > 0
    if failed == set(known) and len(ends) > 10 and asked:
        return True
    print(ran.stdout, ran.stderr, f"FAIL: {sorted(failed)} failed, known are {sorted(known)}",
          sep="\n")
    return False


if __name__ == "__main__":
    sys.exit(main())
